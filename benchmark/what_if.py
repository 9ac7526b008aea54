"""psd.py with one thing changed, for questions whose answer does not belong into the script.

    python benchmark/what_if.py                              # what can be changed
    python benchmark/what_if.py gate --env-id HalfCheetah-v4 --num-threads 1   # psd.py's flags

Checkpoints are psd.py's: evaluate.py and plot.py take them. But `--resume` them here, for psd.py
would go on without the change.
"""

import sys
from functools import wraps
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402

import psd  # noqa: E402

WARM_UP = 50  # epochs of phi alone
EXTRA = 3  # more updates of phi for each of the policy


def gate():
    """A bound expands by the sum of r_PSD times the radius, which a circle that is too small
    does not have."""

    def period_return(envs, agent, L, progress, args):
        num_episodes = args.adaptive_episodes
        period = psd.torch.full((num_episodes,), L, device=agent.device)
        skill = psd.embed_period(period, args.embed_dim)
        key = (args.seed, progress["epoch"], L)
        episodes = psd.rollout(envs[:num_episodes], key, agent, skill, progress, deterministic=True)
        returns = []
        for i in range(num_episodes):
            phi = psd.encode(agent, episodes[i], skill[i])
            statistics = psd.latent_statistics(phi, L, args.kappa)
            returns.append(statistics["r_psd"] * min(statistics["radius"], 1.0) * (len(phi) - 1))
        return np.mean(returns)

    psd.period_return = period_return


def phi_step(agent, buffer, args):
    """The encoder's part of psd.update."""
    obs, L, skill = psd.sample_triplets(buffer, args.phi_batch_size)
    phi_s, phi_next, phi_opposite = agent.phi(obs, skill.expand(3, -1, -1))  # (B, d) each
    loss, metrics = psd.encoder_loss(
        phi_s, phi_next, phi_opposite, L, args.k, args.lam_1, args.lam_2, args.epsilon
    )
    agent.optimizers["phi"].zero_grad()
    loss.backward()
    agent.optimizers["phi"].step()
    return metrics


def more_phi():
    """EXTRA more updates of phi before each of the policy."""
    update = psd.update

    @wraps(update)
    def ahead(agent, buffer, args, train_phi=True):
        for _ in range(EXTRA if train_phi else 0):
            phi_step(agent, buffer, args)
        return update(agent, buffer, args, train_phi)

    psd.update = ahead


def warm_up():
    """phi alone for WARM_UP epochs, on the data of a policy that knows nothing."""
    update = psd.update

    @wraps(update)
    def ahead(agent, buffer, args, train_phi=True):
        # as many updates as phi has had tell the epoch, after a resume, too
        steps = agent.optimizers["phi"].state.get(agent.phi[0].weight, {}).get("step", 0)
        if train_phi and steps < WARM_UP * args.updates_per_epoch:
            return phi_step(agent, buffer, args)
        return update(agent, buffer, args, train_phi)

    psd.update = ahead


def pay_for_return(combine):
    """radius_bonus becomes `combine` of itself, of how close to where it was 2L steps ago the state
    is, from 0 to 1, and of r_PSD; what comes before 2L has the mean of the others."""
    rows = psd.ReplayBuffer.rows
    psd_reward = psd.psd_reward
    radius_bonus = psd.radius_bonus
    asked = {}  # of the last calls, which in psd.update are those for the batch

    def remember_rows(self, episode, t):
        asked.update(buffer=self, episode=episode, t=t)
        return rows(self, episode, t)

    def remember_reward(phi_s, phi_next, L, kappa):
        asked["r_psd"] = psd_reward(phi_s, phi_next, L, kappa)
        return asked["r_psd"].clone()  # to which psd.update adds the rest

    def bonus(phi_next, L):
        buffer = asked["buffer"]
        episode = asked["episode"]
        t = asked["t"]  # of s'
        past = t - 2 * L.long()
        now = buffer.obs[rows(buffer, episode, t)]
        then = buffer.obs[rows(buffer, episode, past.clamp(min=0))]
        # 0 where it was, 1 anywhere, 2 opposite
        apart = ((now - then) ** 2 / (2 * now.var(dim=0) + 1e-6)).mean(dim=-1)  # (B,)
        back = (1 - apart).clamp(min=0)
        known = past >= 0
        mean = (back * known).sum() / known.sum().clamp(min=1)
        back = psd.torch.where(known, back, mean)
        return combine(radius_bonus(phi_next, L), back, asked["r_psd"])

    psd.ReplayBuffer.rows = remember_rows
    psd.psd_reward = remember_reward
    psd.radius_bonus = bonus


def come_back():
    """The radius bonus and as much again for a state that is where it was 2L steps ago, which one
    on a circle that is wound twice is not; resting is paid, too."""
    pay_for_return(lambda radius, back, r_psd: radius + back)


def come_back_factor():
    """The same as a factor of the radius: resting is not paid where the latents are small."""
    pay_for_return(lambda radius, back, r_psd: radius * (1 + back))


def come_back_step():
    """The same as a factor of r_PSD: only a step of the right length is paid for coming back."""
    pay_for_return(lambda radius, back, r_psd: radius + r_psd * back)


CHANGES = {
    function.__name__: function
    for function in (gate, more_phi, warm_up, come_back, come_back_factor, come_back_step)
}


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in CHANGES:
        lines = [f"{name}: {' '.join(f.__doc__.split())}" for name, f in CHANGES.items()]
        sys.exit("\n".join(["choose a change, then psd.py's flags:", *lines]))
    CHANGES[sys.argv[1]]()
    resume_command = psd.resume_command

    def resume_here(args, run_dir, progress):
        command = resume_command(args, run_dir, progress)
        return command.replace("psd.py", f"benchmark/what_if.py {sys.argv[1]}", 1)

    psd.resume_command = resume_here
    psd.main(sys.argv[2:])


if __name__ == "__main__":
    main()
