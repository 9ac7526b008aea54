"""The theorem of Appendix A, by training: phi alone, on cycles of period 2L, becomes the 2L-gon."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import skill_of

import psd

PERIODS = [5, 8, 13, 20]


def cycle(L, rng, length=100):
    """A closed curve in R^6 with a harmonic in it, run through in 2L steps from a random phase."""
    phase = rng.uniform(0, 2 * np.pi) + np.pi * np.arange(length + 1) / L
    waves = [np.cos(phase), np.sin(phase), np.cos(2 * phase), np.sin(2 * phase)]
    mixing = np.random.default_rng(0).standard_normal((4, 6))  # the same curve for every L
    obs = (np.stack(waves, axis=1) @ mixing / 2).astype(np.float32)
    return psd.Episode(obs, np.zeros((length, 1), np.float32), np.zeros(length, np.float32), False)


@pytest.mark.parametrize("lam, d", [(5.0, 3), (10.0, 6)])  # the paper's two settings
def test_phi_becomes_the_regular_polygon_for_several_L_at_once(lam, d):
    args, _ = psd.parse_args(["--hidden-units", "128", "--latent-dim", str(d), "--phi-lr", "2e-3"])
    torch.manual_seed(0)
    rng = np.random.default_rng(1)
    agent = psd.Agent(args, 6, gym.spaces.Box(-1.0, 1.0, (1,), np.float32), "cpu")
    buffer = psd.ReplayBuffer(20_000, 100, 6, 1, args.embed_dim, "cpu")
    for L in PERIODS * 40:
        buffer.add(cycle(L, rng), skill_of(L, args), L)
    optimizer = agent.optimizers["phi"]
    num_steps = 2500
    for i in range(num_steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - i / num_steps)
        obs, L, skill = psd.sample_triplets(buffer, 256)
        phi = agent.phi(obs, skill.expand(3, -1, -1))
        loss, _ = psd.encoder_loss(*phi, L, args.k, lam, lam, args.epsilon)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for L in PERIODS:
        phi = psd.encode(agent, cycle(L, rng), skill_of(L, args))
        statistics = psd.latent_statistics(phi, L, args.kappa)
        assert statistics["one_step"] == pytest.approx(1, abs=0.03), L
        assert statistics["L_step"] == pytest.approx(1, abs=0.03), L
        assert statistics["radius"] == pytest.approx(1, abs=0.03), L
        assert statistics["r_psd"] > 0.95, L
        assert (phi[L:] + phi[:-L]).norm(dim=-1).mean() <= 0.05 * L
        assert (phi[2 * L :] - phi[: -2 * L]).norm(dim=-1).max() < 1e-3 * L  # back after 2L
