"""What the tests share: the path to the scripts, one thread, a tiny configuration and its agent."""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two pytest workers on two cores
REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import gymnasium as gym  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

import psd  # noqa: E402

torch.set_num_threads(1)

TINY = """--env-id Pendulum-v1 --hidden-units 16 --phi-batch-size 32 --batch-size 16
    --buffer-size 700 --episodes-per-epoch 3 --updates-per-epoch 4 --episode-length 40
    --L-min 5 --L-max 8""".split()


@pytest.fixture
def tiny_args():
    """Arguments of a run that takes no time, as psd.parse_args returns them."""
    return psd.parse_args(TINY)[0]


def make_episode(rng, length, obs_dim=3, action_dim=1, terminated=False):
    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    obs, actions, velocity = normal(length + 1, obs_dim), normal(length, action_dim), normal(length)
    return psd.Episode(obs, actions, velocity, terminated)


def skill_of(L, args):
    """Embed(L), which the buffer keeps of an episode beside L itself."""
    return psd.embed_period(torch.tensor(float(L)), args.embed_dim)


@pytest.fixture
def make_agent_and_buffer():
    """A factory: an agent and a buffer that holds a few episodes, on a device of choice."""

    def make(args, device="cpu", num_episodes=5):
        torch.manual_seed(0)
        space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        agent = psd.Agent(args, 3, space, device)
        T = args.episode_length
        buffer = psd.ReplayBuffer(args.buffer_size, T, 3, 2, args.embed_dim, device)
        rng = np.random.default_rng(0)
        for i in range(num_episodes):
            episode = make_episode(rng, args.episode_length - i, action_dim=2, terminated=i % 2 > 0)
            L = args.L_min + i % 3
            buffer.add(episode, skill_of(L, args), L)
        return agent, buffer

    return make
