"""The two false circles of the notebook, where the encoder is a table: a free point a state.

So nothing here is about networks or exploration: these are optima of the paper's own objective.
"""

import json

import numpy as np
import pytest
import torch

import psd
from benchmark import landscape


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


def radius_factor(phi, L):
    """What turn multiplies by."""
    return (2 * phi.norm(dim=1) / L).clamp(max=1).mean().item()


def test_too_fast_a_circle_has_the_full_reward_and_a_small_radius():
    phi = best_encoder(P=12, L=18, lam_2=5.0)
    statistics = psd.latent_statistics(phi, 18, kappa=10.0)
    assert statistics["r_psd"] > 0.99 and statistics["one_step"] == pytest.approx(1, abs=0.01)
    assert statistics["radius"] == pytest.approx(12 / 36, abs=0.02)  # P/2L
    assert radius_factor(phi, 18) == pytest.approx(12 / 36, abs=0.02)


def test_a_small_lambda_2_tears_it_open_and_keeps_the_true_circle():
    """Below the bound of 3.9, phi buys the diameter with two jumps a cycle: they cost r_PSD two
    steps in twelve, and bring the radius to 1. So it is no ally of a reward for the radius."""
    false, true = best_encoder(P=12, L=18, lam_2=2.0), best_encoder(P=36, L=18, lam_2=2.0)
    assert psd.latent_statistics(false, 18, kappa=10.0)["r_psd"] == pytest.approx(10 / 12, abs=0.02)
    assert radius_factor(false, 18) > 0.95
    assert psd.latent_statistics(true, 18, kappa=10.0) == pytest.approx(
        {"r_psd": 1.0, "one_step": 1.0, "L_step": 1.0, "radius": 1.0}, abs=0.02
    )
    assert radius_factor(true, 18) > 0.98


def test_but_not_where_opposite_points_are_no_issue():
    """P = 10, L = 18: a shift of 1.8 periods. The bound on lambda_2 is 0.6 there, and 2 a trap."""
    phi = best_encoder(P=10, L=18, lam_2=2.0)
    statistics = psd.latent_statistics(phi, 18, kappa=10.0)
    assert statistics["r_psd"] > 0.95 and statistics["radius"] < 0.4
    assert radius_factor(phi, 18) < 0.4


def test_too_slow_a_circle_is_perfect_in_every_latent_number():
    """A state cycle of 6L that phi winds three times: no reward on latents can tell."""
    phi = best_encoder(P=36, L=6, lam_2=5.0, wind=3)
    statistics = psd.latent_statistics(phi, 6, kappa=10.0)
    assert statistics == pytest.approx(
        {"r_psd": 1.0, "one_step": 1.0, "L_step": 1.0, "radius": 1.0}, abs=0.02
    )
    assert radius_factor(phi, 6) > 0.98


def earned(P, lam_2, d):
    """r_PSD and radius of the best encoders of L = 10 for a state cycle of P steps."""
    phi = landscape.best_encoders(P, 10, lam_2, d, num_steps=800)
    factors = torch.tensor([radius_factor(table, 10) for table in phi])
    return (landscape.paper_earnings(phi, 10) + factors).tolist()


def test_above_2L_over_pi_the_last_stretch_to_2L_is_one_slope():
    """2L/pi is 6.4: above it a circle that is too short keeps its sides, so that the radius counts;
    below it the circle is stretched or torn, and there is a valley before 2L."""
    slope, valley = np.transpose([earned(P, (10.0, 3.0), d=2) for P in range(15, 21)])
    assert slope == pytest.approx([1 + P / 20 for P in range(15, 21)], abs=0.02)
    assert valley[1] < valley[0] - 0.15 and valley[-1] == pytest.approx(2, abs=0.02)


def test_a_third_dimension_lets_slower_states_earn_everything():
    """No circle: but every step has the length of a side, and the state has a period of 2.8 L."""
    assert earned(28, (3.0,), d=3)[0] > 1.95 and earned(28, (3.0,), d=2)[0] < 1.5


def ours(P):
    """The preset's rhythm under the best encoder of L = 10 for a state cycle of P steps."""
    (phi,) = landscape.best_encoders(P, 10, (10.0,), d=2, num_steps=800)
    names = ("turn", "turn_psd", "turn_regularity")
    return landscape.our_reward(dict(zip(names, landscape.our_earnings(phi, 10, kappa=10.0))))


def test_turn_and_regularity_have_one_hill_at_2L():
    """Where r_PSD has a plateau below 2L and is as high at 4L."""
    rise = [ours(P) for P in (14, 16, 18, 20)]
    fall = [ours(P) for P in (20, 23, 26, 29)]
    assert (np.diff(rise) > 0.2).all() and (np.diff(fall) < -0.2).all()
    assert rise[-1] == pytest.approx(1 + 2 + 5, abs=0.16)
    assert max(ours(40), ours(7), ours(10)) < 4  # wound; 2L/3; L


def test_landscape_is_written_and_drawn(tmp_path, monkeypatch):
    out = tmp_path / "a.json"
    flags = f"--L 4 --lam-2 3 8 --latent-dim 2 --longest 1.1 --out {out}".split()
    monkeypatch.setattr("sys.argv", ["landscape.py", *flags])
    landscape.main()
    rows = json.loads(out.read_text())["rows"]
    assert [(row["P"], row["lam_2"]) for row in rows] == [
        (P, x) for P in range(4, 9) for x in (3, 8)
    ]
    assert rows[-1]["r_psd"] > 0.99  # P = 2L
    assert rows[0]["r_psd"] < 0.01  # P = L: phi has nothing to tell apart
    assert out.with_suffix(".png").stat().st_size > 10_000
    for bad in (
        *(["--L", "1"], ["--lam-2"], ["--latent-dim"], ["--longest", "0.4"]),
        ["--out", str(tmp_path / "none" / "a.json")],
    ):
        monkeypatch.setattr("sys.argv", ["landscape.py", *flags, *bad])
        with pytest.raises(SystemExit, match="landscape.py: error"):
            landscape.main()
