"""METRA, a baseline of Periodic Skill Discovery (PSD): Park et al., ICLR 2024.

An encoder phi maps states into a space in which one step has at most length 1; a policy
pi(a | s, z) is rewarded for going far along the direction z, and so learns to reach distant states.

    python baselines/metra.py --env-id Ant-v4 --cuda

    Eq. (9)  metra_reward      progress along z, r_METRA of Eq. (10);  temporal_slack its constraint
    Eq. (11) metra_loss        both in one, with a Lagrange multiplier
    Eq. (12) dual_loss         the multiplier's own
    p(z)     sample_skills, direction;  r_ext external_reward;  gradient steps update

Equations as in the PSD paper. Differs from psd.py in: skills z instead of periods L (no embedding,
no adaptive sampling), the skill-discovery section, its reward, and global position in what phi and
the policy see, with normalised observations.
"""

import copy
import os
import signal
import sys
import time
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

SCRIPT = Path(__file__).stem  # written into checkpoints: which script can read them


# ------------------------------------------- Arguments --------------------------------------------
@dataclass
class Args:
    env_id: str = "Ant-v4"  # Gymnasium environment with Box observations and Box actions
    seed: int = 1  # of everything: the same seed gives the same run, to the bit on the CPU
    cuda: bool = False  # train on the GPU, if there is one
    num_threads: int = 1  # CPU threads of torch; one a run is best where runs share a machine
    run_name: str | None = None  # folder below runs/ (None: {env}__{script}__{seed}__{time})
    resume: str | None = None  # run folder to continue with its arguments; flags on the line win
    save_minutes: float = 10.0  # between checkpoints; SIGINT, SIGTERM and the end save as well
    # Training (Table 2; a None stands for the robot's value, see the table)
    total_epochs: int = 20_000  # number of epochs
    episodes_per_epoch: int = 8  # episodes collected an epoch, stepped together
    updates_per_epoch: int = 64  # gradient steps an epoch
    episode_length: int | None = None  # T, the maximum length of an episode
    terminate: bool = True  # end an episode when the robot falls, if the environment has that
    action_scale: float = 1.0  # factor on every action (ours); below 1: weaker motors
    normalize_obs: bool = True  # by mean and std of random-action rollouts, fixed at the start
    buffer_size: int = 500_000  # capacity of the replay buffer in transitions
    hidden_layers: int = 2  # hidden layers of every network
    hidden_units: int = 1024  # units of each hidden layer
    # Skill discovery (Table 5, Appendix C)
    num_skills: int | None = None  # discrete skills; 0: continuous ones, of two dimensions
    phi_lr: float = 1e-4  # learning rate of the encoder phi
    phi_batch_size: int = 256  # minibatch size of the encoder phi
    lam: float = 30.0  # lambda at the start, multiplier of the constraint
    lam_lr: float = 1e-4  # learning rate of log lambda
    epsilon: float = 1e-3  # up to which the slack of a satisfied constraint counts
    ext_coef: float = 0.0  # coefficient of r_ext; 1 for Figure 9 and for downstream skills
    v_star: float | None = None  # v*, the forward velocity at which r_ext reaches 1
    # Soft actor-critic (Table 2)
    sac_lr: float = 1e-4  # learning rate of actor and critics
    alpha_lr: float = 1e-4  # learning rate of the temperature
    batch_size: int = 256  # minibatch size of actor, critics and temperature
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # Polyak step of the target critics: 1 - the paper's smoothing coefficient


# What the paper sets by robot
ROBOTS = {  # T, v*, discrete skills (0: continuous)
    "Ant": (200, 0.5, 0),
    "HalfCheetah": (200, 0.5, 16),
    "Humanoid": (400, 1.0, 0),
    "Hopper": (400, 1.0, 16),
    "Walker2d": (400, 1.0, 16),
    "any other": (200, 0.5, 16),
}
SKILL_DIM = 2  # of a continuous skill
MAY_BE_ZERO = ["seed", "num_skills", "epsilon", "ext_coef", "gamma"]
FIXED_ON_RESUME = """env_id terminate action_scale normalize_obs episode_length episodes_per_epoch
    buffer_size hidden_layers hidden_units num_skills""".split()  # shaping what is stored


def fail(message):  # in one line, with a non-zero exit
    raise SystemExit(f"{SCRIPT}.py: error: {' '.join(message.split())}")


def parse_args(argv=None):
    """The arguments, checked, with the robot's values; and the checkpoint to resume, if any."""
    rows = [("robot", "T", "v*", "skills"), *((k, *v) for k, v in ROBOTS.items())]
    table = "\n".join("    {:<12}{:>5}{:>6}{:>8}".format(*row) for row in rows)
    description = f"{__doc__}\nBy robot, v4 and v5, where a flag says None:\n\n{table}"
    line, checkpoint = tyro.cli(Args, args=argv, description=description), None
    if line.resume is None:  # the robot's values become the defaults
        T, v_star, num_skills = ROBOTS.get(line.env_id.split("-")[0], ROBOTS["any other"])
        defaults = Args(episode_length=T, v_star=v_star, num_skills=num_skills)
    else:  # the run's do
        checkpoint = load_checkpoint(Path(line.resume) / "resume.pt")
        defaults = Args(**{k: v for k, v in checkpoint["args"].items() if k in vars(Args())})
    args = tyro.cli(Args, args=argv, default=defaults)
    vars(args).update({k: getattr(defaults, k) for k, v in vars(args).items() if v is None})
    if checkpoint:
        for name in FIXED_ON_RESUME:
            if getattr(args, name) != getattr(defaults, name):
                fail(f"{name} cannot change on --resume, it was {getattr(defaults, name)}")
        if checkpoint["state"]["epoch"] >= args.total_epochs:
            fail(f"{args.resume} has had its {args.total_epochs} epochs: raise --total-epochs")
    for name, value in vars(args).items():
        number = type(value) in (int, float)
        if number and not (0 < value < 2**63 or value == 0 and name in MAY_BE_ZERO):
            fail(f"--{name.replace('_', '-')} cannot be {value}")
    batches = [value for name, value in vars(args).items() if name.endswith("batch_size")]
    needed = max(*batches, args.episodes_per_epoch * args.episode_length)
    if args.buffer_size < needed:
        fail(f"--buffer-size {args.buffer_size} is less than a batch or an epoch: take {needed}")
    return args, checkpoint


# ------------------------------------------ Environment -------------------------------------------
def make_env(args, max_steps=None, **kwargs):
    """An environment of `max_steps` (by default T) steps; one of no use here ends in one line."""
    gym.logger.min_level = gym.logger.ERROR  # v4 ids are deprecated, and meant
    mujoco.set_mju_user_warning(lambda message: None)  # HalfCheetah's would write a log file
    if args.env_id in ("Ant", "Ant-v5"):
        kwargs["include_cfrc_ext_in_observation"] = False  # as in v4
    if args.env_id.split("-")[0] in ROBOTS:  # whose global position phi has to see (Appendix C)
        kwargs["exclude_current_positions_from_observation"] = False
    kwargs |= {} if args.terminate else {"terminate_when_unhealthy": False}
    try:
        env = gym.make(args.env_id, max_episode_steps=max_steps or args.episode_length, **kwargs)
    except Exception as error:
        fail(f"cannot make {args.env_id!r}{' with --no-terminate' * (not args.terminate)}: {error}")
    for kind, space in [("observations", env.observation_space), ("actions", env.action_space)]:
        if not (isinstance(space, gym.spaces.Box) and len(space.shape) == 1):
            fail(f"{args.env_id} has {kind} {space}: {SCRIPT}.py needs a Box of one dimension")
    if not env.action_space.is_bounded() or env.action_space.dtype.kind != "f":
        fail(f"{args.env_id} has actions {env.action_space}: tanh needs real ones, with bounds")
    return gym.wrappers.TransformAction(env, lambda a: args.action_scale * a, env.action_space)


def observation_statistics(env, args, num_steps=10_000):
    """Mean and std of random-action rollouts if observations are normalised, else 0 and 1."""
    observations, obs = [], env.reset(seed=args.seed)[0]
    env.action_space.seed(args.seed)
    for _ in range(num_steps if args.normalize_obs else 1):
        observations.append(obs)
        obs, _, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    if args.ext_coef and "x_velocity" not in info:
        fail(f"{args.env_id} reports no x_velocity for r_ext: leave --ext-coef out")
    obs = torch.tensor(np.array(observations), dtype=torch.float32)
    mean, std = obs.mean(dim=0), obs.std(dim=0, correction=0)
    moves = args.normalize_obs & (std > 1e-3)  # a dimension that hardly moves keeps its scale
    return {"obs_mean": mean * args.normalize_obs, "obs_std": torch.where(moves, std, 1.0)}


# ----------------------------------------- Replay buffer ------------------------------------------
# n + 1 observations, n actions, n forward velocities, and whether it ended by itself, not at T
Episode = namedtuple("Episode", "obs actions velocity terminated")
Batch = namedtuple("Batch", "obs actions next_obs velocity terminated skill")  # each (B, ...)


class ReplayBuffer:
    """A ring of rows, in which an episode of n transitions fills n + 1, one an observation: each is
    stored once, and s_t+1 and s_t+L are look-ups. The oldest episodes make way for new ones."""

    def __init__(self, capacity, episode_length, obs_dim, action_dim, skill_dim, device):
        num_rows = capacity + -(-capacity // episode_length)  # with room for last observations
        self.obs = torch.zeros(num_rows, obs_dim, device=device)
        self.actions = torch.zeros(num_rows, action_dim, device=device)
        self.velocity = torch.zeros(num_rows, device=device)
        self.terminated = torch.zeros(num_rows, device=device, dtype=torch.bool)
        self.start = torch.zeros(0, device=device, dtype=torch.long)
        self.length = torch.zeros(0, device=device, dtype=torch.long)
        self.skill = torch.zeros(0, skill_dim, device=device)
        self.lengths, self.head = [], 0  # self.length again, on the host; the row to write next

    def add(self, episode, skill):
        n, num_rows, device, dropped = len(episode.actions), len(self.obs), self.obs.device, 0
        while sum(self.lengths[dropped:]) + len(self.lengths) - dropped + n + 1 > num_rows:
            dropped += 1
        rows = torch.arange(self.head, self.head + n + 1, device=device) % num_rows
        self.obs[rows] = torch.as_tensor(episode.obs, device=device)
        self.actions[rows[:-1]] = torch.as_tensor(episode.actions, device=device)
        self.velocity[rows[:-1]] = torch.as_tensor(episode.velocity, device=device)
        self.terminated[rows] = False
        self.terminated[rows[-2:-1]] = episode.terminated
        self.start = torch.cat([self.start[dropped:], rows[:1]])
        self.length = torch.cat([self.length[dropped:], torch.full_like(rows[:1], n)])
        self.skill = torch.cat([self.skill[dropped:], skill.to(device)[None]])
        self.lengths = self.lengths[dropped:] + [n]
        self.head = (self.head + n + 1) % num_rows

    def draw(self, weight, size):
        """`size` episodes, each in proportion to its integer weight, without asking the host."""
        cumulative = weight.cumsum(0)
        u = torch.rand(size, device=weight.device, dtype=torch.float64) * cumulative[-1]
        return torch.searchsorted(cumulative, u.long(), right=True)

    def rows(self, episode, t):
        """Where the observation of an episode at time t is stored."""
        return (self.start[episode] + t) % len(self.obs)

    def sample(self, batch_size):
        """Transitions, uniformly over all that are stored."""
        episode = self.draw(self.length, batch_size)
        t = (torch.rand(batch_size, device=self.obs.device) * self.length[episode]).long()
        i, next_obs = self.rows(episode, t), self.obs[self.rows(episode, t + 1)]
        transition = (self.obs[i], self.actions[i], next_obs, self.velocity[i], self.terminated[i])
        return Batch(*transition, self.skill[episode])


# -------------------------------------------- Networks --------------------------------------------
class MLP(nn.Sequential):
    """ReLU layers over the concatenated inputs, initialised as in the paper's SAC code base."""

    def __init__(self, *sizes):
        layers = []
        for size_in, size_out in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(size_in, size_out), nn.ReLU(inplace=True)]
            nn.init.xavier_uniform_(layers[-2].weight)
            nn.init.zeros_(layers[-2].bias)
        super().__init__(*layers[:-1])

    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, dim=-1) if len(inputs) > 1 else inputs[0])


class Actor(nn.Module):
    """pi(a | s, skill): a Gaussian, squashed by tanh into the range of the actions."""

    def __init__(self, *sizes, action_low, action_high):
        super().__init__()
        self.net = MLP(*sizes, 2 * len(action_low))
        scale, bias = (action_high - action_low) / 2, (action_high + action_low) / 2
        self.register_buffer("action_scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("action_bias", torch.as_tensor(bias, dtype=torch.float32))
        self.log_constant = float(np.log(4 * scale * np.sqrt(2 * np.pi)).sum())

    def forward(self, obs, skill):
        mean, log_std = self.net(obs, skill).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)

    def sample(self, obs, skill):
        """An action, reparameterised, and its log-probability log N(u) - log da/du. For the latter,
        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact for large |u|, too."""
        mean, log_std = self(obs, skill)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        log_pi = 2 * (u + F.softplus(-2 * u)) - log_std - 0.5 * noise**2  # but for constants
        action = torch.tanh(u) * self.action_scale + self.action_bias
        return action, log_pi.sum(dim=-1) - self.log_constant

    @torch.no_grad()
    def act(self, obs, skill, deterministic):
        mean, log_std = self(obs, skill)
        u = mean if deterministic else mean + log_std.exp() * torch.randn_like(mean)
        return torch.tanh(u) * self.action_scale + self.action_bias


class Critic(nn.ModuleList):
    """Two Q(s, skill, a), of which SAC takes the smaller."""

    def __init__(self, *sizes):
        super().__init__([MLP(*sizes), MLP(*sizes)])

    def forward(self, obs, skill, actions):
        x = torch.cat([obs, skill, actions], dim=-1)
        return [qf(x).squeeze(-1) for qf in self]


# ---------------------------------------- Skill discovery -----------------------------------------
def direction(skill, num_skills):
    """z of a skill: a continuous one itself, a one-hot one zero-centred, 1 and -1/(D-1)."""
    if not num_skills:
        return skill
    return (skill * num_skills - 1) / max(num_skills - 1, 1)  # a single skill has none: 0


def metra_reward(phi_s, phi_next, z):
    """Eq. (9): (phi(s') - phi(s))^T z, what the encoder maximises and the policy is paid."""
    return ((phi_next - phi_s) * z).sum(dim=-1)


def temporal_slack(phi_s, phi_next):
    """Eq. (9), its constraint, squared as in Eq. (11): 1 - ||phi(s') - phi(s)||^2 >= 0."""
    return 1 - ((phi_next - phi_s) ** 2).sum(dim=-1)


def metra_loss(phi_s, phi_next, z, lam, epsilon):
    """Eq. (11): -J_METRA,phi; a constraint that holds counts as epsilon at most."""
    objective, slack = metra_reward(phi_s, phi_next, z), temporal_slack(phi_s, phi_next)  # (B,)
    constraint = slack.clamp(max=epsilon)
    loss = -(objective + lam * constraint).mean()
    terms = {"objective": objective, "slack": slack, "constraint": constraint}
    metrics = {f"metra/{name}": term.detach().mean() for name, term in terms.items()}
    return loss, metrics | {"losses/phi_loss": loss.detach(), "metra/lambda": lam}


def dual_loss(log_lam, constraint):
    """Eq. (12): lambda grows while the constraint is broken."""
    # NOTE(paper): Eq. (12) has lambda where METRA's authors, and so this, have log lambda.
    return log_lam * constraint


def external_reward(velocity, v_star):
    """r_ext of Appendix C: v_x / v*, at most 1."""
    return (velocity / v_star).clamp(max=1.0)


def sample_skills(n, args, device):
    """n skills of the prior, (n, D): one-hot, or N(0, I) over its norm."""
    if args.num_skills:
        index = torch.randint(args.num_skills, (n,), device=device)
        return F.one_hot(index, args.num_skills).float()
    skill = torch.randn(n, SKILL_DIM, device=device)
    return skill / skill.norm(dim=-1, keepdim=True)


@torch.no_grad()
def intrinsic_reward(agent, obs, next_obs, skill, args):
    """r_METRA of transitions, (B,), by the encoder as it is."""
    phi_s, phi_next = agent.phi(torch.stack([obs, next_obs]))  # (2, B, D)
    return metra_reward(phi_s, phi_next, direction(skill, args.num_skills))


# --------------------------------------- Soft actor-critic ----------------------------------------
class Agent(nn.Module):
    """All that a gradient step changes: networks, temperature, and their optimisers."""

    def __init__(self, args, obs_dim, action_space, device):
        super().__init__()
        hidden, action_dim = [args.hidden_units] * args.hidden_layers, action_space.shape[0]
        self.skill_dim = args.num_skills or SKILL_DIM
        sizes = (obs_dim + self.skill_dim, *hidden)
        self.phi = MLP(obs_dim, *hidden, self.skill_dim)  # as many dimensions as z
        self.log_lam = nn.Parameter(torch.tensor(args.lam).log())
        self.actor = Actor(*sizes, action_low=action_space.low, action_high=action_space.high)
        self.critic = Critic(sizes[0] + action_dim, *hidden, 1)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        # NOTE(paper): "auto-tuned" leaves first temperature and target entropy open: 1 and -|A|.
        self.log_alpha, self.target_entropy = nn.Parameter(torch.zeros(())), -float(action_dim)
        self.to(device)
        fused = torch.device(device).type != "meta"  # all parameters in one kernel; `meta` has none
        temperature = {"params": [self.log_alpha], "lr": args.alpha_lr}
        dual = {"params": [self.log_lam], "lr": args.lam_lr}
        encoder = [{"params": list(self.phi.parameters())}, dual]
        policy = [{"params": list(self.actor.parameters())}, temperature]
        self.optimizers = {
            "phi": torch.optim.Adam(encoder, args.phi_lr, fused=fused),
            "critic": torch.optim.Adam(self.critic.parameters(), args.sac_lr, fused=fused),
            "actor": torch.optim.Adam(policy, args.sac_lr, fused=fused),
        }


def critic_loss(agent, batch, skill, reward, alpha, gamma):
    """Squared Bellman error of both critics; a terminated transition does not bootstrap."""
    with torch.no_grad():
        next_actions, log_pi = agent.actor.sample(batch.next_obs, skill)
        min_qf_next_target = torch.min(*agent.target_critic(batch.next_obs, skill, next_actions))
        next_q_value = reward + gamma * ~batch.terminated * (min_qf_next_target - alpha * log_pi)
    qf1, qf2 = agent.critic(batch.obs, skill, batch.actions)
    loss = F.mse_loss(qf1, next_q_value) + F.mse_loss(qf2, next_q_value)
    return loss, {"losses/qf_values": qf1.detach().mean(), "losses/reward": reward.mean()}


def actor_loss(agent, batch, skill, alpha):
    """E[alpha log pi - min Q]."""
    actions, log_pi = agent.actor.sample(batch.obs, skill)
    min_qf = torch.min(*agent.critic(batch.obs, skill, actions))
    loss, entropy = (alpha * log_pi - min_qf).mean(), -log_pi.detach().mean()
    return loss, {"losses/actor_loss": loss.detach(), "losses/entropy": entropy}


def temperature_loss(agent, entropy):
    """Raises alpha while the entropy is below its target."""
    return agent.log_alpha * (entropy - agent.target_entropy), {}


def update(agent, buffer, args):
    """One gradient step of everything; metrics stay on the device."""
    alpha, metrics = agent.log_alpha.detach().exp(), {}

    def step(name, loss, loss_metrics):
        parameters = [p for g in agent.optimizers[name].param_groups for p in g["params"]]
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.grad = gradient  # of nothing else: the critics have none in the actor's step
        agent.optimizers[name].step()
        metrics.update({f"losses/{name}_loss": loss.detach()} | loss_metrics)

    batch = buffer.sample(args.phi_batch_size)
    z, lam = direction(batch.skill, args.num_skills), agent.log_lam.detach().exp()
    phi_s, phi_next = agent.phi(torch.stack([batch.obs, batch.next_obs]))  # (2, B, D)
    phi_loss, phi_metrics = metra_loss(phi_s, phi_next, z, lam, args.epsilon)
    lam_loss = dual_loss(agent.log_lam, phi_metrics["metra/constraint"])
    step("phi", phi_loss + lam_loss, phi_metrics)
    batch = buffer.sample(args.batch_size)
    skill = batch.skill
    reward = intrinsic_reward(agent, batch.obs, batch.next_obs, skill, args)  # of the current phi
    reward += args.ext_coef * external_reward(batch.velocity, args.v_star)
    step("critic", *critic_loss(agent, batch, skill, reward, alpha, args.gamma))
    pi_loss, pi_metrics = actor_loss(agent, batch, skill, alpha)
    alpha_loss, _ = temperature_loss(agent, pi_metrics["losses/entropy"])
    step("actor", pi_loss + alpha_loss, pi_metrics)  # one step is faster than two
    with torch.no_grad():
        targets, sources = agent.target_critic.parameters(), agent.critic.parameters()
        torch._foreach_lerp_(list(targets), list(sources), args.tau)
    return metrics | {"losses/alpha": alpha}


# -------------------------------------------- Rollouts --------------------------------------------
def rollout(envs, key, actor, skill, state, deterministic=False):
    """An episode in each environment, a batched policy call a step; those that ended are skipped.
    Resets are seeded by `key` and place; observations come back normalised, as the actor's are."""
    mean, std = state["obs_mean"].numpy(), state["obs_std"].numpy()
    seeds = np.random.SeedSequence(key).generate_state(len(envs)).tolist()
    n, T = len(envs), envs[0].spec.max_episode_steps
    obs = np.zeros((n, T + 1, *envs[0].observation_space.shape), np.float32)
    actions = np.zeros((n, T, *envs[0].action_space.shape), np.float32)
    velocity, length, terminated = np.zeros((n, T), np.float32), [0] * n, [False] * n
    for i, env in enumerate(envs):
        obs[i, 0] = (env.reset(seed=seeds[i])[0] - mean) / std
    active, t = list(range(n)), 0
    while active:
        policy_obs = torch.as_tensor(obs[active, t], device=skill.device)
        actions[active, t] = actor.act(policy_obs, skill[active], deterministic).cpu().numpy()
        for i in active.copy():
            next_obs, _, terminated[i], truncated, info = envs[i].step(actions[i, t])
            obs[i, t + 1] = (next_obs - mean) / std
            velocity[i, t] = info.get("x_velocity", 0.0)
            if terminated[i] or truncated:
                active.remove(i)
                length[i] = t + 1
        t += 1
    episodes = zip(obs, actions, velocity, terminated, length)
    return [Episode(o[: n + 1], a[:n], v[:n], end) for o, a, v, end, n in episodes]


# ------------------------------------------- Checkpoint -------------------------------------------
def save_checkpoint(run_dir, args, state, agent, buffer):
    """resume.pt holds everything; model.pt what it takes to act and to measure."""
    model = {"script": SCRIPT, "args": vars(args), "state": state}
    everything = {**model, "agent": agent.state_dict(), "buffer": vars(buffer)}
    model["agent"] = {k: w for k, w in agent.state_dict().items() if k.startswith(("actor", "phi"))}
    everything["optimizers"] = {k: o.state_dict()["state"] for k, o in agent.optimizers.items()}
    everything["rng"] = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    for name, content in [("resume.pt", everything), ("model.pt", model)]:
        with open(run_dir / f"{name}.tmp", "wb") as file:
            torch.save(content, file)
            os.fsync(file.fileno())
        os.replace(run_dir / f"{name}.tmp", run_dir / name)  # a kill leaves the old or the new file


def load_checkpoint(path):
    """Tensors and plain values only: a checkpoint cannot run code."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["script"] != SCRIPT:
            fail(f"{path} was written by {checkpoint['script']}.py, not by {SCRIPT}.py")
        return {k: checkpoint[k] for k in "script args state agent buffer optimizers rng".split()}
    except Exception as error:  # of many types
        reason = "damaged or no checkpoint" if path.is_file() else "missing"
        fail(f"{path} is {reason} ({type(error).__name__})")


def restore(checkpoint, agent, buffer):
    """Everything that training changes; learning rates stay as the arguments have them."""
    agent.load_state_dict(checkpoint["agent"])
    for name, adam in agent.optimizers.items():
        adam.load_state_dict(adam.state_dict() | {"state": checkpoint["optimizers"][name]})
    for name, value in checkpoint["buffer"].items():
        setattr(buffer, name, value.to(buffer.obs.device) if torch.is_tensor(value) else value)
    torch.set_rng_state(checkpoint["rng"][0])
    torch.cuda.set_rng_state_all(checkpoint["rng"][1 : 1 + torch.cuda.device_count()])


# ---------------------------------------------- Main ----------------------------------------------
def main(argv=None):
    args, checkpoint = parse_args(argv)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    if args.cuda and device.type == "cpu":
        print(f"{SCRIPT}.py: there is no CUDA device, training on the CPU", file=sys.stderr)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    n, T = args.episodes_per_epoch, args.episode_length
    envs = [make_env(args) for _ in range(n)]
    obs_dim, action_space = envs[0].observation_space.shape[0], envs[0].action_space
    agent = Agent(args, obs_dim, action_space, device)
    sizes = (obs_dim, action_space.shape[0], agent.skill_dim)
    buffer = ReplayBuffer(args.buffer_size, T, *sizes, device)
    run_name = args.run_name or f"{args.env_id}__{SCRIPT}__{args.seed}__{int(time.time())}"
    run_dir = Path(args.resume or f"runs/{run_name}")
    statistics = observation_statistics(envs[0], args)
    if checkpoint:
        state = checkpoint["state"]
        restore(checkpoint, agent, buffer)
    elif run_dir.exists():
        fail(f"{run_dir} exists: --resume it, or choose another --run-name")
    else:
        state = {"epoch": 0, "global_step": 0} | statistics
    writer = SummaryWriter(run_dir, purge_step=state["global_step"] + 1)
    writer.add_text("hyperparameters", "\n".join(f"    {k} = {v}" for k, v in vars(args).items()))
    signals = []  # the first one lets the epoch end and be saved, a second one does not
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda s, _: os._exit(128 + s) if signals else signals.append(s))
    start_time = save_time = time.time()
    start, start_step = state["epoch"], state["global_step"]
    bar = tqdm(range(start, args.total_epochs), SCRIPT, args.total_epochs, initial=start)
    for epoch in bar:
        # Collect
        skill = sample_skills(n, args, device)  # (n, D), fixed for the episode
        episodes = rollout(envs, (args.seed, epoch), agent.actor, skill, state)
        for i in range(n):
            buffer.add(episodes[i], skill[i])
        state["global_step"] += sum(len(episode.actions) for episode in episodes)
        # Update
        metrics = [update(agent, buffer, args) for _ in range(args.updates_per_epoch)]
        means = torch.stack([torch.stack([m[name] for m in metrics]).mean() for name in metrics[0]])
        logs = dict(zip(metrics[0], means.tolist()))
        logs["losses/weight_norm"] = nn.utils.get_total_norm(agent.parameters()).item()
        # Log, and stop at what is not finite
        rewards = []
        for episode, z in zip(episodes, skill):
            obs = torch.as_tensor(episode.obs, device=device)
            z = z.expand(len(obs) - 1, -1)
            rewards.append(intrinsic_reward(agent, obs[:-1], obs[1:], z, args).mean())
        logs["charts/intrinsic_reward"] = intrinsic = torch.stack(rewards).mean().item()
        logs["charts/episodes"] = (epoch + 1) * n
        logs["charts/episodic_length"] = np.mean([len(episode.actions) for episode in episodes])
        logs["charts/velocity"] = np.mean([episode.velocity.mean() for episode in episodes])
        logs["charts/SPS"] = sps = (state["global_step"] - start_step) / (time.time() - start_time)
        for name, value in logs.items():
            if not np.isfinite(value):
                writer.close()
                good = next(run_dir.glob("resume.pt"), "none")
                fail(f"epoch {epoch}: {name} is {value}; not saved, last good checkpoint: {good}")
            writer.add_scalar(name, value, state["global_step"])
        bar.set_postfix_str(f"{sps:.0f} steps/s, intrinsic reward {intrinsic:.3f}")
        state["epoch"] = epoch + 1
        last = signals or state["epoch"] == args.total_epochs
        if last or time.time() - save_time > 60 * args.save_minutes:
            save_checkpoint(run_dir, args, state, agent, buffer)
            save_time = time.time()
        if last:
            break
    writer.close()
    print(f"saved {run_dir}; to go on: python {os.path.relpath(__file__)} --resume {run_dir}")
    if signals:
        sys.exit(128 + signals[0])


if __name__ == "__main__":
    main()
