"""Real learning: from nothing to a pendulum that swings with the period it is told."""

import signal

import numpy as np
import pytest
import torch

import psd
from period import state_period

FLAGS = "--env-id Pendulum-v1 --preset cpu --run-name pendulum"


def test_the_state_of_a_pendulum_has_period_2L(tmp_path, monkeypatch):
    """What `make demo` runs. The period is the state's own, not the latent's."""
    monkeypatch.chdir(tmp_path)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    psd.main(FLAGS.split())
    for number, handler in handlers.items():
        signal.signal(number, handler)
    checkpoint = torch.load("runs/pendulum/model.pt", weights_only=True)
    args = psd.Args(**checkpoint["args"])
    envs = [psd.make_env(args, max_steps=400) for _ in range(5)]
    agent = psd.Agent(args, 3, envs[0].action_space, "cpu")
    agent.load_state_dict(checkpoint["agent"], strict=False)
    for L in range(10, 19):
        skill = psd.embed_period(torch.full((5,), float(L)), args.embed_dim)
        episodes = psd.rollout(envs, (0, L), agent, skill, checkpoint["progress"], True)
        periods = [state_period(episode.obs[100:])[0] for episode in episodes]
        assert None not in periods, (L, periods)
        assert np.median(periods) == pytest.approx(2 * L, rel=0.1), (L, periods)
