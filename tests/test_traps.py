"""The two false circles of docs/traps.md, where the encoder is a table: a free point a state.

So nothing here is about networks or exploration: these are optima of the paper's own objective.
"""

import numpy as np
import pytest
import torch

import psd


def best_encoder(P, L, lam_2, wind=1, num_steps=2000):
    """The encoder that Eq. (7) finds for a state cycle of P steps, from a circle with `wind` turns:
    its latents, repeated to an episode."""
    angle = 2 * np.pi * wind * np.arange(P) / P
    circle = np.stack([np.cos(angle), np.sin(angle), 0.01 * np.cos(3 * angle)], axis=1)
    points = torch.tensor(circle, requires_grad=True)  # (P, 3)
    optimizer, period = torch.optim.Adam([points]), torch.full((P,), float(L))
    for i in range(num_steps):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - i / num_steps)
        moved = points.roll(-1, 0), points.roll(-L, 0)
        loss, _ = psd.encoder_loss(points, *moved, period, 0.5, 5.0, lam_2, 1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return points.detach().repeat(4, 1)


def bonus(phi, L):
    return psd.radius_bonus(phi, torch.tensor(float(L))).mean().item()


def test_too_fast_a_circle_has_the_full_reward_and_a_small_radius():
    phi = best_encoder(P=12, L=18, lam_2=5.0)
    statistics = psd.latent_statistics(phi, 18, kappa=10.0)
    assert statistics["r_psd"] > 0.99 and statistics["one_step"] == pytest.approx(1, abs=0.01)
    assert statistics["radius"] == pytest.approx(12 / 36, abs=0.02)  # P/2L
    assert bonus(phi, 18) == pytest.approx(12 / 36, abs=0.02)


def test_a_small_lambda_2_tears_it_open_and_keeps_the_true_circle():
    """Below the bound of 3.9, phi buys the diameter with two jumps a cycle: they cost r_PSD two
    steps in twelve, and bring the radius to 1. So it is no ally of the radius bonus."""
    false, true = best_encoder(P=12, L=18, lam_2=2.0), best_encoder(P=36, L=18, lam_2=2.0)
    assert psd.latent_statistics(false, 18, kappa=10.0)["r_psd"] == pytest.approx(10 / 12, abs=0.02)
    assert bonus(false, 18) > 0.95
    assert psd.latent_statistics(true, 18, kappa=10.0) == pytest.approx(
        {"r_psd": 1.0, "one_step": 1.0, "L_step": 1.0, "radius": 1.0}, abs=0.02
    )
    assert bonus(true, 18) > 0.98


def test_but_not_where_opposite_points_are_no_issue():
    """P = 10, L = 18: a shift of 1.8 periods. The bound on lambda_2 is 0.6 there, and 2 a trap."""
    phi = best_encoder(P=10, L=18, lam_2=2.0)
    statistics = psd.latent_statistics(phi, 18, kappa=10.0)
    assert statistics["r_psd"] > 0.95 and statistics["radius"] < 0.4
    assert bonus(phi, 18) < 0.4


def test_too_slow_a_circle_is_perfect_in_every_latent_number():
    """A state cycle of 6L that phi winds three times: no reward on latents can tell."""
    phi = best_encoder(P=36, L=6, lam_2=5.0, wind=3)
    statistics = psd.latent_statistics(phi, 6, kappa=10.0)
    assert statistics == pytest.approx(
        {"r_psd": 1.0, "one_step": 1.0, "L_step": 1.0, "radius": 1.0}, abs=0.02
    )
    assert bonus(phi, 6) > 0.98
