"""Eq. (4) to (8), Embed(L) and r_ext: against the theorem, by hand, and against plain NumPy."""

import math
import re

import numpy as np
import pytest
import torch
from conftest import REPO

import psd


def polygon(L, d, rng):
    """The regular 2L-gon of diameter L about the origin, in a random plane of R^d: (2L, d)."""
    plane = np.linalg.qr(rng.standard_normal((d, 2)))[0]  # two orthonormal columns
    angle = np.pi * np.arange(2 * L) / L
    circle = L / 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return torch.tensor(circle @ plane.T)


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize("L", [1, 2, 3, 5, 10, 17, 50, 100])
def test_perfect_polygon_has_the_values_of_the_theorem(L, d):
    phi = polygon(L, d, np.random.default_rng(L * d))
    phi_next, phi_L = phi.roll(-1, 0), phi.roll(-L, 0)
    period = torch.full((2 * L,), float(L), dtype=torch.float64)
    one = torch.ones(2 * L, dtype=torch.float64)
    torch.testing.assert_close(psd.psd_objective(phi, phi_L, k=0.5), L * one)
    torch.testing.assert_close((phi_L + phi).norm(dim=-1), 0 * one)
    torch.testing.assert_close(psd.diameter_slack(phi, phi_L, period), 0 * one)
    torch.testing.assert_close(psd.side_slack(phi, phi_next, period), 0 * one)
    torch.testing.assert_close(psd.psd_reward(phi, phi_next, period, kappa=10.0), one)
    loss, _ = psd.encoder_loss(phi, phi_next, phi_L, period, 0.5, 5.0, 5.0, 1e-5)
    assert loss.item() == pytest.approx(-L, abs=1e-9)
    episode = phi.repeat(3, 1)
    assert psd.latent_statistics(episode, L, kappa=10.0) == pytest.approx(
        {"r_psd": 1.0, "one_step": 1.0, "L_step": 1.0, "radius": 1.0}
    )


@pytest.mark.parametrize("scale", [0.8, 1.2])
def test_polygon_of_another_size_is_worse(scale):
    phi = scale * polygon(8, 3, np.random.default_rng(0))
    period = torch.full((16,), 8.0, dtype=torch.float64)
    loss, _ = psd.encoder_loss(phi, phi.roll(-1, 0), phi.roll(-8, 0), period, 0.5, 5.0, 5.0, 1e-5)
    assert loss.item() > -8 + 0.1
    assert psd.psd_reward(phi, phi.roll(-1, 0), period, 10.0).max() < 0.4


def test_side_length_by_hand():
    L = torch.tensor([1.0, 2.0, 3.0, 6.0])
    by_hand = [1.0, math.sqrt(2), 1.5, 6 * math.sin(math.pi / 12)]  # digon, square, hexagon, 12-gon
    torch.testing.assert_close(psd.side_length(L), torch.tensor(by_hand))


def test_embedding_by_hand():
    # D = 8: w = 1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001
    by_hand = [
        [0.8414710, 0.5403023, 0.0998334, 0.9950042, 0.0099998, 0.9999500, 0.0010000, 0.9999995],
        [-0.5440211, -0.8390715, 0.8414710, 0.5403023, 0.0998334, 0.9950042, 0.0099998, 0.9999500],
    ]
    embedded = psd.embed_period(torch.tensor([1.0, 10.0]), 8)
    torch.testing.assert_close(embedded, torch.tensor(by_hand), atol=2e-6, rtol=0)
    assert psd.embed_period(torch.ones(4, 5), 6).shape == (4, 5, 6)
    assert psd.embed_period(torch.tensor([3.0, 17.0]), 1).tolist() == [[3.0], [17.0]]  # L itself


def slow_objective(phi_s, phi_next, phi_L, L, k, lam_1, lam_2, epsilon):
    """Eq. (7), one sample at a time."""
    total = 0.0
    for s, s_next, s_L, period in zip(phi_s, phi_next, phi_L, L):
        diameter = math.sqrt(sum((a - b) ** 2 for a, b in zip(s_L, s)))
        opposite = math.sqrt(sum((a + b) ** 2 for a, b in zip(s_L, s)))
        step = math.sqrt(sum((a - b) ** 2 for a, b in zip(s_next, s)))
        total += diameter - k * opposite
        total += lam_1 * min(epsilon, period - diameter)
        total += lam_2 * min(epsilon, period * math.sin(math.pi / (2 * period)) - step)
    return total / len(L)


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])  # both constraints hold, some, none
@pytest.mark.parametrize("k, lam_1, lam_2", [(0.5, 5.0, 5.0), (0.0, 10.0, 3.0)])
def test_encoder_loss_and_its_gradient_against_plain_numpy(scale, k, lam_1, lam_2):
    rng = np.random.default_rng(3)
    points = scale * rng.standard_normal((3, 6, 3))
    L = rng.integers(1, 9, 6).astype(float)
    phi = torch.tensor(points, requires_grad=True)
    loss, metrics = psd.encoder_loss(*phi, torch.tensor(L), k, lam_1, lam_2, 1e-5)
    assert loss.item() == pytest.approx(-slow_objective(*points, L, k, lam_1, lam_2, 1e-5))
    loss.backward()
    h = 1e-6
    for index in np.ndindex(points.shape):
        high, low = points.copy(), points.copy()
        high[index] += h
        low[index] -= h
        rise = slow_objective(*high, L, k, lam_1, lam_2, 1e-5)
        rise -= slow_objective(*low, L, k, lam_1, lam_2, 1e-5)
        assert phi.grad[index].item() == pytest.approx(-rise / (2 * h), abs=1e-5)
    distance = np.linalg.norm(points[2] - points[0], axis=-1)
    assert metrics["psd/diameter_slack"].item() == pytest.approx(np.mean(L - distance))
    step = np.linalg.norm(points[1] - points[0], axis=-1)
    assert metrics["psd/side_slack"].item() == pytest.approx(
        np.mean(L * np.sin(np.pi / (2 * L)) - step)
    )


def test_reward_against_plain_numpy():
    rng = np.random.default_rng(4)
    phi_s, phi_next = rng.standard_normal((2, 20, 3))
    L = rng.integers(1, 30, 20).astype(float)
    delta = np.sqrt(((phi_next - phi_s) ** 2).sum(-1)) - L * np.sin(np.pi / (2 * L))
    reward = psd.psd_reward(*map(torch.tensor, (phi_s, phi_next, L)), kappa=7.0)
    np.testing.assert_allclose(reward, np.exp(-7.0 * delta**2))


def test_gradients_are_finite_where_states_coincide():
    phi = torch.zeros(3, 4, 3, requires_grad=True)
    loss, _ = psd.encoder_loss(*phi, torch.full((4,), 5.0), 0.5, 5.0, 5.0, 1e-5)
    (loss + psd.psd_reward(phi[0], phi[1], torch.tensor(5.0), 10.0).sum()).backward()
    assert torch.isfinite(phi.grad).all()


def test_external_reward_is_capped_above_and_not_below():
    velocity = torch.tensor([-1.0, 0.0, 0.25, 0.5, 3.0])
    expected = torch.tensor([-2.0, 0.0, 0.5, 1.0, 1.0])
    torch.testing.assert_close(psd.external_reward(velocity, 0.5), expected)


@pytest.mark.parametrize(
    "L_min, L_max, expected",
    [(10, 10, [10]), (10, 11, [10, 11]), (9, 11, [9, 10, 11]), (5, 20, [5, 10, 15, 20])],
)
def test_four_values_of_L(L_min, L_max, expected):
    assert psd.candidate_periods(L_min, L_max, 4).tolist() == expected


def test_every_numbered_equation_of_the_script_is_one_function():
    source = (REPO / "psd.py").read_text()
    found = re.findall(r'^def (\w+)\(.*\):\n    """Eq\. \((\d+)\)', source, re.MULTILINE)
    expected = {
        "4": "psd_objective",
        "5": "diameter_slack",
        "6": "side_slack",
        "7": "encoder_loss",
        "8": "psd_reward",
    }
    assert {number: name for name, number in found} == expected
    index = dict(re.findall(r"^    Eq\. \((\d)\) +(\w+)", psd.__doc__, re.MULTILINE))
    assert index == expected


def test_the_index_of_the_docstring_is_complete_and_leads_somewhere():
    index = psd.__doc__.split("the paper defines:")[1].split("Names:")[0]
    rows = dict(
        re.findall(r"^    (\S+(?: [(\d]+\)?)?) {2,}([\w, ]+?)(?: {2,}|$)", index, re.MULTILINE)
    )
    assert len(rows) == len(index.strip().splitlines())
    for wanted in ["Embed(L)", "r_ext", "p(L)", "s_{t+L}", "R_L", "Algorithm 1", "Algorithm 2"]:
        assert wanted in rows
    for names in rows.values():
        for name in names.split(", "):
            assert callable(getattr(psd, name)), name
