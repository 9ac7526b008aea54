"""What can be learned from small pictures, without a policy to learn at the same time.

    python benchmark/pixels.py state --plain-floor   # how much of the state do three frames show
    python benchmark/pixels.py exact                 # and three exact positions, for comparison
    python benchmark/pixels.py circle --plain-floor  # does phi find the circle of true skills

The data are episodes of a checkpoint of psd.py, which sees the state, with noise on its actions.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import numpy as np  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402
from torch import nn  # noqa: E402

import evaluate  # noqa: E402
import psd_pixel  # noqa: E402

PROBES = ["state", "exact", "circle"]


@dataclass
class Args:
    probe: Annotated[str, tyro.conf.Positional]  # state, exact or circle
    skills: str = str(REPO / "results/halfcheetah/model.pt")  # checkpoint of psd.py
    periods: tuple[int, ...] = (6, 9, 12)  # L of the episodes, in turn
    noise: float = 0.3  # standard deviation of the noise on the actions; 3: as good as random
    episodes: int = 66  # episodes of 200 steps to learn from
    test_episodes: int = 6  # episodes to test on; for `circle` without noise
    steps: int = 2000  # gradient steps; results at a quarter and at the end
    batch_size: int = 128  # frames per gradient step, or triplets
    lr: float = 1e-3  # learning rate
    image_size: int = 32  # side of the picture
    plain_floor: bool = False  # as in psd_pixel.py
    action_scale: float = 1.0  # as in psd_pixel.py; the skills have been trained with 1
    num_filters: int = 8  # filters of the CNN
    seed: int = 1  # of everything


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"pixels.py: error: {' '.join(str(message).split())}")


def check_args(args):
    """Refuses, before any work, values that make no sense."""
    if args.probe not in PROBES:
        fail(f"there is no probe {args.probe!r}: choose state, exact or circle")
    for name in ("episodes", "test_episodes", "steps", "batch_size", "image_size", "num_filters"):
        value = getattr(args, name)
        if value < 1:
            fail(f"--{name.replace('_', '-')} {value} is too small: give 1 or more")
    for name in ("lr", "action_scale"):
        value = getattr(args, name)
        if not (math.isfinite(value) and value > 0):
            fail(f"--{name.replace('_', '-')} {value} is no rate or scale: give a number above 0")
    if not (math.isfinite(args.noise) and args.noise >= 0):
        fail(f"--noise {args.noise} is no standard deviation: give 0 or more")
    if args.seed < 0:
        fail(f"--seed {args.seed} is negative: give 0 or more")
    if not args.periods or min(args.periods) < 1:
        fail("--periods needs values of L of 1 or more: give at least one")
    if args.probe == "circle" and args.test_episodes < len(args.periods):
        fail(f"--test-episodes {args.test_episodes} leaves an L without: give one for each L")


# ---------------------------- What is taken from psd_pixel.py -------------------------
def pixel_arguments(args):
    """The arguments of psd_pixel.py that go with ours."""
    size = str(args.image_size)
    flags = ["--env-id", "HalfCheetah-v4", "--image-size", size, "--crop-size", size]
    flags += ["--num-filters", str(args.num_filters), "--hidden-units", "128", "--latent-dim", "2"]
    flags += ["--action-scale", str(args.action_scale)]
    if args.plain_floor:
        flags.append("--plain-floor")
    pixel_args, _ = psd_pixel.parse_args(flags)
    return pixel_args


def make_cnn(pixel_args):
    return psd_pixel.CNN(3 * pixel_args.frame_stack, pixel_args)


def make_encoder(pixel_args):
    """phi, as psd_pixel.py has it."""
    num_features = pixel_args.feature_dim + pixel_args.embed_dim
    layers = pixel_args.hidden_layers
    units = pixel_args.hidden_units
    cnn = make_cnn(pixel_args)
    return psd_pixel.Encoder(cnn, num_features, layers, units, pixel_args.latent_dim)


def embed(L, pixel_args):
    """Embed(L) of L (n,), as the replay buffer stores it: (n, D)."""
    return psd_pixel.embed_period(L, pixel_args.embed_dim).float()


def make_buffer(frames, L, pixel_args):
    """A replay buffer that holds episodes of frames (n, T + 1, 3, size, size). phi needs neither
    actions nor rewards: they are 0."""
    T = frames.shape[1] - 1
    obs_shape = (3 * pixel_args.frame_stack, *frames.shape[-2:])
    crop_size = pixel_args.crop_size
    skill = embed(L, pixel_args)
    skill_dim = skill.shape[1]
    buffer = psd_pixel.ReplayBuffer(len(frames) * T, T, obs_shape, crop_size, 1, skill_dim, "cpu")
    actions = np.zeros((T, 1), np.float32)
    rewards = np.zeros(T, np.float32)
    for i in range(len(frames)):
        buffer.add(psd_pixel.Episode(frames[i].numpy(), actions, rewards, False), skill[i], L[i])
    return buffer


def phi_loss(phi, buffer, batch_size, pixel_args):
    """Eq. (7) on a batch of triplets."""
    obs, L, embedded = psd_pixel.sample_triplets(buffer, batch_size)
    phi_s, phi_next, phi_opposite = phi(obs, embedded.expand(3, -1, -1))
    loss, _ = psd_pixel.encoder_loss(
        phi_s,
        phi_next,
        phi_opposite,
        L,
        pixel_args.k,
        pixel_args.lam_1,
        pixel_args.lam_2,
        pixel_args.epsilon,
    )
    return loss


@torch.no_grad()
def circle_statistics(phi, frames, L, pixel_args):
    """The latent statistics of one episode of frames (T + 1, 3, size, size), for its L."""
    stack = pixel_args.frame_stack
    before = frames[:1].expand(stack - 1, -1, -1, -1)  # the first frame stands for its past
    padded = torch.cat([before, frames])
    by_age = [padded[age : age + len(frames)] for age in range(stack)]
    obs = torch.cat(by_age, dim=1)  # (T + 1, 3 * stack, size, size)
    latents = phi(obs, embed(L, pixel_args).expand(len(obs), -1))
    return psd_pixel.latent_statistics(latents, int(L), pixel_args.kappa)


# --------------------------------------- Episodes -------------------------------------
def play(args, pixel_args):
    """Frames (n, T + 1, 3, size, size), states (n, T + 1, dim), and L (n,) of the episodes."""
    policy = evaluate.load(args.skills)
    env = psd_pixel.make_env(pixel_args)
    rng = np.random.default_rng(0)
    all_frames = []
    all_states = []
    all_L = []
    for i in range(args.episodes + args.test_episodes):
        L = args.periods[i % len(args.periods)]
        is_test = i >= args.episodes
        noise = 0.0 if is_test and args.probe == "circle" else args.noise
        frames, states = play_episode(env, policy, L, noise, rng, seed=1000 * args.seed + i)
        all_frames.append(frames)
        all_states.append(states)
        all_L.append(L)
    return torch.as_tensor(np.array(all_frames)), np.array(all_states), torch.tensor(all_L)


def play_episode(env, policy, L, noise, rng, seed):
    """Frames (T + 1, 3, size, size) and states (T + 1, dim) of one episode."""
    obs, info = env.reset(seed=seed)
    frames = [obs[-3:]]  # the newest of the stack
    states = [info["state"]]
    ended = False
    while not ended:
        action = policy.act(info["state"], L)
        action += noise * rng.normal(size=action.shape)
        obs, _, _, ended, info = env.step(np.clip(action, -1, 1).astype(np.float32))
        frames.append(obs[-3:])
        states.append(info["state"])
    return np.array(frames), np.array(states)


# ---------------------------------------- Probes --------------------------------------
def gradient_step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def regress(args, pixel_args, frames, states):
    """R^2, on the test episodes, of positions and velocities of the state at time t."""
    state_dim = states.shape[-1]
    num_positions = (state_dim - 1) // 2  # Gymnasium's robots that lie in a plane, without x
    stack = pixel_args.frame_stack
    target = (states - states.mean((0, 1))) / states.std((0, 1))
    target = torch.as_tensor(target, dtype=torch.float32)  # (n, T + 1, dim)
    if args.probe == "exact":
        inputs = target[..., :num_positions]
        first_layer = nn.Linear(stack * num_positions, 50)
    else:
        inputs = frames
        first_layer = make_cnn(pixel_args)
    network = nn.Sequential(first_layer, psd_pixel.MLP(50, 2, 128, state_dim))
    optimizer = torch.optim.Adam(network.parameters(), args.lr)
    num_episodes, num_states = target.shape[:2]

    def predict(episode, t):
        """The state at times t (B,) of episodes (B,), from it and the inputs before it."""
        seen = [inputs[episode, t - age] for age in reversed(range(stack))]
        return network(torch.cat(seen, dim=1))

    @torch.no_grad()
    def explained():
        """R^2 of each dimension of the state."""
        t = torch.arange(stack - 1, num_states)
        predictions = []
        truths = []
        for i in range(args.episodes, num_episodes):
            predictions.append(predict(torch.full_like(t, i), t))
            truths.append(target[i, t])
        truth = torch.cat(truths)
        error = (torch.cat(predictions) - truth).pow(2).mean(0)
        return 1 - error / truth.var(0)

    for step in range(1, args.steps + 1):
        episode = torch.randint(args.episodes, (args.batch_size,))
        t = torch.randint(stack - 1, num_states, (args.batch_size,))
        loss = (predict(episode, t) - target[episode, t]).pow(2).mean()
        gradient_step(optimizer, loss)
        if step in (args.steps // 4, args.steps):
            r2 = explained()
            positions = r2[:num_positions].mean()
            velocities = r2[num_positions:].mean()
            text = f"R2 of positions {positions:.2f}, of velocities {velocities:.2f}"
            print(f"{step} steps: {text}")


def encode(args, pixel_args, frames, L):
    """phi alone: its statistics on the test episodes, one line per L."""
    buffer = make_buffer(frames[: args.episodes], L[: args.episodes], pixel_args)
    phi = make_encoder(pixel_args)
    optimizer = torch.optim.Adam(phi.parameters(), args.lr)
    for step in range(1, args.steps + 1):
        loss = phi_loss(phi, buffer, args.batch_size, pixel_args)
        gradient_step(optimizer, loss)
        if step in (args.steps // 4, args.steps):
            print(f"{step} steps, over the polygon's, mean of each L's test episodes:")
            for period in args.periods:
                tests = [i for i in range(args.episodes, len(frames)) if L[i] == period]
                print_statistics(phi, frames[tests], L[tests], pixel_args)


def print_statistics(phi, frames, L, pixel_args):
    """One line with the mean statistics of the test episodes of one L."""
    episodes = []
    for i in range(len(frames)):
        episodes.append(circle_statistics(phi, frames[i], L[i], pixel_args))
    texts = []
    for name in episodes[0]:
        mean = np.mean([statistics[name] for statistics in episodes])
        texts.append(f"{name} {mean:.2f}")
    print(f"  L = {int(L[0])}: {', '.join(texts)}")


# ---------------------------------------- Main ----------------------------------------
def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_args(args)
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    pixel_args = pixel_arguments(args)
    T = pixel_args.episode_length
    if max(args.periods) > T:
        fail(f"--periods has an L above {T}, the length of an episode: leave it out")
    frames, states, L = play(args, pixel_args)
    if args.probe == "circle":
        encode(args, pixel_args, frames, L)
    else:
        regress(args, pixel_args, frames, states)


if __name__ == "__main__":
    main()
