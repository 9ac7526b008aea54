"""What can be learned from small pictures, without a policy to learn at the same time.

    python benchmark/pixels.py state --plain-floor   # how much of the state do three frames show
    python benchmark/pixels.py exact                 # and three exact positions, for comparison
    python benchmark/pixels.py circle --plain-floor  # does phi find the circle of true skills

The data are episodes of a checkpoint of psd.py, which sees the state, with noise on its actions.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402
from torch import nn  # noqa: E402

import evaluate  # noqa: E402
import psd_pixel  # noqa: E402


@dataclass
class Args:
    probe: Annotated[str, tyro.conf.Positional]  # state, exact or circle
    skills: str = str(HERE.parent / "results/halfcheetah/model.pt")  # of psd.py
    periods: tuple[int, ...] = (6, 9, 12)  # L of the episodes, in turn
    noise: float = 0.3  # standard deviation of the noise on the actions; 3: as good as random
    episodes: int = 66  # to learn from, of 200 steps
    test_episodes: int = 6  # to test on; for `circle` without noise
    steps: int = 2000  # gradient steps; results at a quarter and at the end
    batch_size: int = 128  # frames of a gradient step, or triplets
    lr: float = 1e-3  # learning rate
    image_size: int = 32  # side of the picture
    plain_floor: bool = False  # as in psd_pixel.py
    action_scale: float = 1.0  # as in psd_pixel.py; the skills have been trained with 1
    num_filters: int = 8  # of the CNN
    seed: int = 1  # of everything


def play(args, pixel_args):
    """Frames (n, T + 1, 3, size, size), states (n, T + 1, dim), and the L of each episode."""
    _, skill_args, statistics, agent = evaluate.load(args.skills)
    env, rng, frames, states, L = (
        psd_pixel.make_env(pixel_args),
        np.random.default_rng(0),
        [],
        [],
        [],
    )
    for i in range(args.episodes + args.test_episodes):
        L.append(args.periods[i % len(args.periods)])
        skill = psd_pixel.embed_period(torch.tensor(L[-1:]), skill_args.embed_dim)
        obs, info = env.reset(seed=1000 * args.seed + i)
        noisy = i < args.episodes or args.probe != "circle"
        seen, visited, ended = [obs[-3:]], [info["state"]], False
        while not ended:
            state = (info["state"] - statistics["obs_mean"].numpy()) / statistics["obs_std"].numpy()
            state = torch.as_tensor(state[None], dtype=torch.float32)
            action = agent.actor.act(state, skill, deterministic=True)[0].numpy()
            action += args.noise * rng.normal(size=action.shape) * noisy
            obs, _, _, ended, info = env.step(np.clip(action, -1, 1).astype(np.float32))
            seen.append(obs[-3:])
            visited.append(info["state"])
        frames.append(np.array(seen))
        states.append(np.array(visited))
    return torch.as_tensor(np.array(frames)), np.array(states), torch.tensor(L)


def regress(args, pixel_args, frames, states):
    """R^2, on the test episodes, of positions and velocities of the state at time t."""
    num_positions = (states.shape[-1] - 1) // 2  # Gymnasium's robots that lie in a plane, without x
    target = (states - states.mean((0, 1))) / states.std((0, 1))
    target, stack = torch.as_tensor(target, dtype=torch.float32), pixel_args.frame_stack
    if args.probe == "exact":
        inputs = target[..., :num_positions]
        first = nn.Linear(stack * num_positions, 50)
    else:
        inputs, first = frames, psd_pixel.CNN(3 * stack, pixel_args)
    net = nn.Sequential(first, psd_pixel.MLP(50, 128, 128, states.shape[-1]))
    adam = torch.optim.Adam(net.parameters(), args.lr)

    def batch(episode, t):
        seen = torch.cat([inputs[episode, t - age] for age in reversed(range(stack))], dim=1)
        return net(seen), target[episode, t]

    for step in range(1, args.steps + 1):
        episode = torch.randint(args.episodes, (args.batch_size,))
        output, truth = batch(episode, torch.randint(stack - 1, target.shape[1], episode.shape))
        adam.zero_grad()
        (output - truth).pow(2).mean().backward()
        adam.step()
        if step in (args.steps // 4, args.steps):
            t = torch.arange(stack - 1, target.shape[1])
            with torch.no_grad():
                pairs = [batch(torch.full_like(t, i), t) for i in range(args.episodes, len(target))]
            output, truth = (torch.cat(x) for x in zip(*pairs))
            explained = 1 - (output - truth).pow(2).mean(0) / truth.var(0)
            means = explained[:num_positions].mean(), explained[num_positions:].mean()
            print("{} steps: R2 of positions {:.2f}, of velocities {:.2f}".format(step, *means))


def encode(args, pixel_args, frames, L):
    """phi alone: its statistics on the test episodes, one line an L."""
    n, T, D = len(frames), frames.shape[1] - 1, pixel_args.embed_dim
    skill = torch.cat([L[:, None], psd_pixel.embed_period(L, D)], dim=1).float()
    sizes = ((3 * pixel_args.frame_stack, *frames.shape[-2:]), pixel_args.crop_size, 1, 1 + D)
    buffer = psd_pixel.ReplayBuffer(n * T, T, *sizes, "cpu")
    for i in range(args.episodes):
        zeros = np.zeros((T, 1), np.float32)
        buffer.add(psd_pixel.Episode(frames[i].numpy(), zeros, zeros[:, 0], False), skill[i])
    hidden = [pixel_args.hidden_units] * 2
    cnn = psd_pixel.CNN(3 * pixel_args.frame_stack, pixel_args)
    phi = psd_pixel.Encoder(cnn, pixel_args.feature_dim + D, *hidden, pixel_args.latent_dim)
    adam = torch.optim.Adam(phi.parameters(), args.lr)
    weights = [getattr(pixel_args, name) for name in ("k", "lam_1", "lam_2", "epsilon")]
    for step in range(1, args.steps + 1):
        obs, lengths, embedded = psd_pixel.sample_triplets(buffer, args.batch_size)
        loss, _ = psd_pixel.encoder_loss(*phi(obs, embedded.expand(3, -1, -1)), lengths, *weights)
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step in (args.steps // 4, args.steps):
            print(f"{step} steps, over the polygon's, mean of each L's test episodes:")
            for period in args.periods:
                rows = [i for i in range(args.episodes, n) if L[i] == period]
                numbers = [statistics(phi, pixel_args, frames[i], skill[i]) for i in rows]
                means = {key: np.mean([x[key] for x in numbers]) for key in numbers[0]}
                print(f"  L = {period}:", ", ".join(f"{k} {v:.2f}" for k, v in means.items()))


@torch.no_grad()
def statistics(phi, pixel_args, frames, skill):
    stack = pixel_args.frame_stack
    first = frames[:1].expand(stack - 1, -1, -1, -1)
    padded = torch.cat([first, frames])
    obs = torch.cat([padded[i : i + len(frames)] for i in range(stack)], dim=1)
    latents = phi(obs, skill[1:].expand(len(obs), -1))
    return psd_pixel.latent_statistics(latents, skill[0], pixel_args.kappa)


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    if args.probe not in ("state", "exact", "circle"):
        sys.exit(f"there is no probe {args.probe!r}: choose state, exact or circle")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    size = ["--image-size", str(args.image_size), "--crop-size", str(args.image_size)]
    small = ["--num-filters", str(args.num_filters), "--hidden-units", "128", "--latent-dim", "2"]
    scene = ["--plain-floor"] * args.plain_floor + ["--action-scale", str(args.action_scale)]
    pixel_args, _ = psd_pixel.parse_args(["--env-id", "HalfCheetah-v4", *size, *small, *scene])
    frames, states, L = play(args, pixel_args)
    if args.probe == "circle":
        encode(args, pixel_args, frames, L)
    else:
        regress(args, pixel_args, frames, states)


if __name__ == "__main__":
    main()
