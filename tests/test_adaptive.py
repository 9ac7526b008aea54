"""Algorithm 2, branch by branch. T = 200, so alpha T = 180 and beta T = 80; N = 2."""

from types import SimpleNamespace

import pytest
import torch
from conftest import TINY

import psd

GOOD, FAIR, BAD = 181.0, 130.0, 79.0
T = 200


def adapt(bounds, R_min, R_max, N=2):
    args = SimpleNamespace(adaptive_step=N, adaptive_alpha=0.9, adaptive_beta=0.4)
    return psd.adapt_bounds(bounds, R_min, R_max, T, args)


@pytest.mark.parametrize(
    "bounds, R_min, R_max, expected",
    [
        # a good return expands its own bound, and is remembered
        ((10, 20, False, False), GOOD, FAIR, (8, 20, True, False)),
        ((10, 20, False, False), FAIR, GOOD, (10, 22, False, True)),
        ((10, 10, False, False), GOOD, GOOD, (8, 12, True, True)),
        # a fair one changes nothing
        ((10, 20, False, False), FAIR, FAIR, (10, 20, False, False)),
        ((10, 20, True, True), FAIR, FAIR, (10, 20, True, True)),
        # a bad one shrinks a bound that has been expanded once, and no other
        ((10, 20, False, False), BAD, BAD, (10, 20, False, False)),
        ((10, 20, True, False), BAD, BAD, (12, 20, True, False)),
        ((10, 20, False, True), BAD, BAD, (10, 18, False, True)),
        ((10, 20, True, True), BAD, BAD, (12, 18, True, True)),
        ((10, 20, True, True), GOOD, BAD, (8, 18, True, True)),
        ((10, 20, True, True), BAD, GOOD, (12, 22, True, True)),
        # thresholds are strict
        ((10, 20, True, True), 180.0, 180.0, (10, 20, True, True)),
        ((10, 20, True, True), 80.0, 80.0, (10, 20, True, True)),
        # L_min stops at 5, L_max at T/2; to reach them counts as expanded
        ((6, 20, False, False), GOOD, FAIR, (5, 20, True, False)),
        ((5, 20, False, False), GOOD, FAIR, (5, 20, True, False)),
        ((10, 99, False, False), FAIR, GOOD, (10, 100, False, True)),
        ((10, 100, False, False), FAIR, GOOD, (10, 100, False, True)),
        # the bounds stop at each other
        ((10, 11, True, True), BAD, FAIR, (11, 11, True, True)),
        ((10, 11, True, True), FAIR, BAD, (10, 10, True, True)),
        ((10, 11, True, True), BAD, BAD, (11, 11, True, True)),
        ((10, 10, True, True), BAD, BAD, (10, 10, True, True)),
    ],
)
def test_each_branch(bounds, R_min, R_max, expected):
    assert adapt(bounds, R_min, R_max) == expected


def test_the_step_is_N():
    assert adapt((10, 20, False, False), GOOD, GOOD, N=1) == (9, 21, True, True)


def test_a_bound_that_fell_back_can_expand_again():
    bounds = (10, 10, False, False)
    for R_max, L_max in [(GOOD, 12), (BAD, 10), (BAD, 10), (GOOD, 12), (GOOD, 14)]:
        bounds = adapt(bounds, FAIR, R_max)
        assert bounds[:2] == (10, L_max)


@pytest.mark.parametrize("gate", ["r_psd", "turn"])
@pytest.mark.parametrize("P", [6, 20])
def test_the_gate_on_turn_shuts_out_a_circle_that_is_too_fast(gate, P, tiny_args, monkeypatch):
    """L = 10. A circle of six sides of the right length has an r_PSD of 1, a third of the radius,
    and next to no turn. The true circle passes both gates."""
    L, n = torch.tensor(10.0), 40
    angle = 2 * torch.pi / P * torch.arange(n + 1)
    radius = psd.side_length(L) / (2 * torch.sin(torch.tensor(torch.pi / P)))
    phi = radius * torch.stack([angle.cos(), angle.sin()], dim=1)
    monkeypatch.setattr(psd, "rollout", lambda *args, **kwargs: [None] * 5)
    monkeypatch.setattr(psd, "encode", lambda *args: phi)
    tiny_args.adaptive_gate = gate
    agent = SimpleNamespace(device="cpu")
    found = psd.period_return([None] * 5, agent, 10, {"epoch": 0}, tiny_args)
    if P == 20 or gate == "r_psd":
        assert found == pytest.approx(n, rel=1e-3)
    else:
        assert found < 0.2 * n


def test_the_gate_on_turn_has_one_direction_for_all_episodes(tiny_args, monkeypatch):
    """Of five episodes on the true circle one turns against the others: it earns next to nothing,
    as it does in training."""
    L, n = torch.tensor(10.0), 40
    angle = torch.pi / L * torch.arange(n + 1)
    phi = L / 2 * torch.stack([angle.cos(), angle.sin()], dim=1)
    mirrored = phi * torch.tensor([1.0, -1.0])
    latents = [phi, phi, mirrored, phi, phi]
    monkeypatch.setattr(psd, "rollout", lambda *args, **kwargs: latents)
    monkeypatch.setattr(psd, "encode", lambda agent, episode, skill: episode)
    tiny_args.adaptive_gate = "turn"
    agent = SimpleNamespace(device="cpu")
    found = psd.period_return([None] * 5, agent, 10, {"epoch": 0}, tiny_args)
    assert found == pytest.approx(0.8 * n, abs=0.2)


@pytest.mark.parametrize("flags, Ls", [("--L-max 5", [5]), ("--L-max 8", [5, 8])])
def test_equal_bounds_are_evaluated_once(flags, Ls, tmp_path, monkeypatch):
    """Both returns are those of the same deterministic episodes."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def period_return(envs, agent, L, progress, args):
        asked.append(L)
        return 39.0

    seen = []

    def adapt_bounds(bounds, R_min, R_max, T, args):
        seen.append((R_min, R_max))
        return bounds

    monkeypatch.setattr(psd, "period_return", period_return)
    monkeypatch.setattr(psd, "adapt_bounds", adapt_bounds)
    psd.main([*TINY, *flags.split(), "--adaptive-interval", "3", "--total-epochs", "2"])
    assert asked == Ls and seen == [(39.0, 39.0)]
