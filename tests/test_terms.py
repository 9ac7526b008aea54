"""Tempo and regularity, our terms beside the radius bonus: what each failure of a skill earns.

Latents and states are tables here: nothing is about networks or exploration. A state of period P
goes round the unit circle; the encoder puts it onto a circle that it winds `wind` times per cycle.
"""

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import skill_of

import psd

L = 12
T = 12 * 2 * L  # whole cycles of a state that is wound two or three times, too


def angles(step):
    """The angle at times 0 to T, for steps (T,) or one step for all."""
    steps = np.broadcast_to(step, T)
    return torch.tensor(np.concatenate([[0.0], np.cumsum(steps)]))


def circle(angle, radius):
    return radius * torch.stack([angle.cos(), angle.sin()], dim=1)


def earned(phi, states):
    """Means of tempo, radius bonus and tempo times regularity. The decoder is the best there is:
    the mean of all states at the same latent."""
    period = torch.full((T,), float(L))
    in_tempo = psd.tempo(phi[:-1], phi[1:], period)
    same = torch.cdist(phi[1:], phi[1:]) < 1e-6 * L  # (T, T)
    weight = same / same.sum(dim=1, keepdim=True)
    decoded = weight.to(states.dtype) @ states[1:]
    regular = psd.regularity(decoded, states[1:])
    radius = psd.radius_bonus(phi[1:], period)
    return [x.mean().item() for x in (in_tempo, radius, in_tempo * regular)]


def skill(step, radius=L / 2, wind=1):
    """Latents and states of a skill whose state turns by `step` per time step."""
    return circle(angles(np.multiply(step, wind)), radius), circle(angles(step), 1.0)


def test_a_true_skill_earns_everything():
    assert earned(*skill(np.pi / L)) == pytest.approx([1, 1, 1], abs=1e-4)


@pytest.mark.parametrize("P", [4, 6, 8, 12, 20])
def test_too_fast_loses_tempo_and_radius(P):
    """On a circle of P sides of the right length the radius is about P/4."""
    step = 2 * np.pi / P
    radius = L * np.sin(np.pi / (2 * L)) / (2 * np.sin(np.pi / P))
    in_tempo, bonus, regular = earned(*skill(step, radius))
    assert in_tempo == pytest.approx(P / (2 * L), abs=1e-4)
    assert bonus == pytest.approx(P / (2 * L), rel=0.15)
    assert regular == pytest.approx(in_tempo, abs=1e-3)


@pytest.mark.parametrize("P", [30, 36, 48, 96])
def test_too_slow_loses_tempo(P):
    in_tempo, bonus, _ = earned(*skill(2 * np.pi / P))
    assert in_tempo == pytest.approx(2 * L / P, abs=1e-4)
    assert bonus == pytest.approx(1, abs=1e-4)


def test_rest_earns_the_radius_and_no_more():
    assert earned(*skill(0.0)) == pytest.approx([0, 1, 0], abs=1e-4)


def test_uneven_steps_lose_tempo_where_r_psd_is_flat():
    """Steps of half and of one and a half times the right angle: right on average."""
    step = np.pi / L * np.tile([0.5, 1.5], T // 2)
    phi, states = skill(step)
    in_tempo, bonus, _ = earned(phi, states)
    assert in_tempo == pytest.approx((0.5 + 1 / 1.5) / 2, abs=1e-4)
    assert bonus == pytest.approx(1, abs=1e-4)
    r_psd = psd.psd_reward(phi[:-1], phi[1:], torch.full((T,), float(L)), kappa=10.0)
    assert r_psd.max() < 0.005


@pytest.mark.parametrize("wind", [2, 3])
def test_a_wound_circle_is_not_regular(wind):
    """Every latent number is perfect, but `wind` states share a phase: the decoder can give their
    mean only, which is the middle of the cycle."""
    in_tempo, bonus, regular = earned(*skill(np.pi / L / wind, wind=wind))
    assert (in_tempo, bonus) == pytest.approx((1, 1), abs=1e-4)
    assert regular < 0.01


def test_irregular_motion_is_not_regular():
    """The phase turns evenly, and the state does something else: half of its variance is noise."""
    phi, states = skill(np.pi / L)
    noise = torch.tensor(np.random.default_rng(0).normal(size=states.shape)) * states.std()
    in_tempo, bonus, regular = earned(phi, states + noise)
    assert (in_tempo, bonus) == pytest.approx((1, 1), abs=1e-4)
    assert 0.3 < regular < 0.75


def test_tempo_against_plain_numpy_and_at_the_edges():
    rng = np.random.default_rng(1)
    phi_s, phi_next = rng.normal(size=(2, 50, 3))
    period = rng.integers(1, 40, 50).astype(float)
    cosine = (phi_s * phi_next).sum(-1)
    cosine /= np.linalg.norm(phi_s, axis=-1) * np.linalg.norm(phi_next, axis=-1)
    rho = np.arccos(cosine) * period / np.pi
    found = psd.tempo(*map(torch.tensor, (phi_s, phi_next, period)))
    np.testing.assert_allclose(found, np.minimum(rho, 1 / rho), rtol=1e-6)
    origin, east = torch.zeros(1, 2), torch.tensor([[3.0, 0.0]])
    for a, b in [(origin, origin), (east, east)]:
        assert psd.tempo(a, b, torch.tensor([5.0])) == 0
    assert psd.tempo(east, -east, torch.tensor([1.0])) == pytest.approx(1)  # the digon
    assert torch.isfinite(psd.tempo(origin, east, torch.tensor([5.0]))).all()


def test_a_dimension_that_does_not_move_counts_for_nothing():
    obs = torch.randn(100, 3)
    obs[:, 1] = 7.0
    decoded = obs.clone()
    decoded[:, 1] += 5.0
    assert (psd.regularity(decoded, obs) == 1).all()
    decoded[:, 0] = obs[:, 0].mean()  # one of two dimensions unknown
    assert psd.decoding_error(decoded, obs).mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("coefficient", [0.0, 2.0])
def test_the_reward_of_an_update(coefficient, tiny_args, make_agent_and_buffer, monkeypatch):
    """The terms add up; the decoder trains, does not touch the encoder, and is not there without a
    coefficient."""
    tiny_args.psd_coef, tiny_args.tempo_coef, tiny_args.radius_coef = 0.5, 3.0, 0.7
    tiny_args.regularity_coef = coefficient
    agent, buffer = make_agent_and_buffer(tiny_args)
    assert hasattr(agent, "decoder") == ("decoder" in agent.optimizers) == (coefficient > 0)
    seen = {}
    real_loss = psd.critic_loss

    def spy(agent, batch, reward, *rest):
        seen.update(batch=batch, reward=reward.clone())
        return real_loss(agent, batch, reward, *rest)

    monkeypatch.setattr(psd, "critic_loss", spy)
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    metrics = psd.update(agent, buffer, tiny_args)
    batch, period = seen["batch"], seen["batch"].period
    with torch.no_grad():
        phi_s = agent.phi(batch.obs, batch.skill)
        phi_next = agent.phi(batch.next_obs, batch.skill)
        in_tempo = psd.tempo(phi_s, phi_next, period)
        expected = 0.5 * psd.psd_reward(phi_s, phi_next, period, tiny_args.kappa) + 3.0 * in_tempo
        expected += 0.7 * psd.radius_bonus(phi_next, period)
        if coefficient:
            scaled = phi_next * 2 / period[:, None]
            decoded = agent.decoder(torch.cat([scaled, batch.skill], dim=1))
            expected += coefficient * in_tempo * psd.regularity(decoded, batch.next_obs)
    torch.testing.assert_close(seen["reward"], expected)
    assert ("psd/regularity" in metrics) == (coefficient > 0)
    for name, weight in agent.state_dict().items():
        if name.startswith("decoder"):
            assert not torch.equal(weight, before[name])


def test_the_decoder_learns_a_closed_curve_and_not_a_wound_one():
    """By training: the state of each L is a circle; the latents turn once per cycle, or twice."""
    flags = "--regularity-coef 1 --hidden-units 64 --phi-lr 3e-3 --latent-dim 2"
    args, _ = psd.parse_args(flags.split())
    torch.manual_seed(0)
    agent = psd.Agent(args, 2, gym.spaces.Box(-1.0, 1.0, (1,), np.float32), "cpu")
    embedding = skill_of(L, args)
    found = {}
    for wind in (1, 2):
        phi, states = (x.float() for x in skill(np.pi / L / wind, wind=wind))
        rows = embedding.expand(len(phi), -1)
        period = torch.full((len(phi),), float(L))
        for _ in range(300):
            decoded = psd.decode(agent, phi, period, rows)
            loss = psd.decoding_error(decoded, states).mean()
            agent.optimizers["decoder"].zero_grad()
            loss.backward()
            agent.optimizers["decoder"].step()
        decoded = psd.decode(agent, phi, period, rows).detach()
        found[wind] = psd.regularity(decoded, states).mean().item()
    assert found[1] > 0.97 and found[2] < 0.1
