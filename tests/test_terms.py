"""Turn and regularity, our terms beside the radius bonus: what each failure of a skill earns.

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
    """Means of turn, its factor of the radius, and turn times regularity. The decoder is the best
    there is: the mean of all states at the same latent."""
    period = torch.full((T,), float(L))
    turned = psd.turn(phi[:-1], phi[1:], period)
    same = torch.cdist(phi[1:], phi[1:]) < 1e-6 * L  # (T, T)
    weight = same / same.sum(dim=1, keepdim=True)
    decoded = weight.to(states.dtype) @ states[1:]
    regular = psd.regularity(decoded, states[1:], period)
    radius = (2 * phi[1:].norm(dim=1) / L).clamp(max=1)
    return [x.mean().item() for x in (turned, radius, turned * regular)]


def skill(step, radius=L / 2, wind=1):
    """Latents and states of a skill whose state turns by `step` per time step."""
    return circle(angles(np.multiply(step, wind)), radius), circle(angles(step), 1.0)


def test_a_true_skill_earns_everything():
    assert earned(*skill(np.pi / L)) == pytest.approx([1, 1, 1], abs=1e-4)


@pytest.mark.parametrize("P", [4, 6, 8, 12, 20])
def test_too_fast_earns_little_where_r_psd_is_1(P):
    """On a circle of P sides of the right length the radius is about P/4: its factor is
    about P/2L, and what is left of turn is less."""
    step = 2 * np.pi / P
    radius = L * np.sin(np.pi / (2 * L)) / (2 * np.sin(np.pi / P))
    phi, states = skill(step, radius)
    turned, bonus, regular = earned(phi, states)
    r_psd = psd.psd_reward(phi[:-1], phi[1:], torch.full((T,), float(L)), kappa=10.0)
    assert r_psd.mean() == pytest.approx(1, abs=1e-6)
    assert bonus == pytest.approx(P / (2 * L), rel=0.15)
    assert turned < 0.9 * bonus
    assert regular == pytest.approx(turned, rel=0.02)


@pytest.mark.parametrize("P", [4, 8, 12, 16, 20, 28, 36, 48, 96])
def test_turn_is_a_slope_on_a_circle_of_the_right_size(P):
    """(1 - |rho - 1| / 2)^2 but for the curvature of the circle, where rho = 2L/P is the speed of
    the phase over the right one; 0 from three times the right speed on."""
    turned, bonus, _ = earned(*skill(2 * np.pi / P))
    assert turned == pytest.approx(max(1 - abs(2 * L / P - 1) / 2, 0) ** 2, abs=0.03)
    assert bonus == pytest.approx(1, abs=1e-4)


def test_rest_earns_the_radius_and_a_quarter_of_turn():
    """And no more than that, if the encoder gives a resting state the full radius."""
    turned, bonus, regular = earned(*skill(0.0))
    assert (turned, bonus) == pytest.approx((0.25, 1), abs=1e-4)
    assert regular <= turned


def test_back_and_forth_earns_less():
    back_and_forth = np.pi / L * np.tile([1, -1], T // 2)
    turned, bonus, _ = earned(*skill(back_and_forth))
    assert turned == pytest.approx(0.5, abs=0.01)  # every second step is two sides off
    assert bonus == pytest.approx(1, abs=1e-4)


def test_near_the_origin_any_angle_earns_nothing():
    """There a small noise is a large angle. A term in the angle alone would pay for it."""
    turned, bonus, _ = earned(*skill(np.pi / L, radius=0.01 * L / 2))
    assert (turned, bonus) == pytest.approx((0.01, 0.01), abs=1e-3)


def test_uneven_steps_lose_turn_where_r_psd_is_flat():
    """Steps of half and of one and a half times the right angle: right on average."""
    step = np.pi / L * np.tile([0.5, 1.5], T // 2)
    phi, states = skill(step)
    turned, bonus, _ = earned(phi, states)
    assert turned == pytest.approx(0.75**2, abs=0.01)
    assert bonus == pytest.approx(1, abs=1e-4)
    r_psd = psd.psd_reward(phi[:-1], phi[1:], torch.full((T,), float(L)), kappa=10.0)
    assert r_psd.max() < 0.005


@pytest.mark.parametrize("wind", [2, 3])
def test_a_wound_circle_is_not_regular(wind):
    """Every latent number is perfect, but `wind` states share a phase: the decoder can give their
    mean only, which is the middle of the cycle."""
    turned, bonus, regular = earned(*skill(np.pi / L / wind, wind=wind))
    assert (turned, bonus) == pytest.approx((1, 1), abs=1e-4)
    assert regular < 0.02  # not 0, for the variance has a floor


def test_irregular_motion_is_not_regular():
    """The phase turns evenly, and the state does something else: half of its variance is noise."""
    phi, states = skill(np.pi / L)
    noise = torch.tensor(np.random.default_rng(0).normal(size=states.shape)) * states.std()
    turned, bonus, regular = earned(phi, states + noise)
    assert (turned, bonus) == pytest.approx((1, 1), abs=1e-4)
    assert 0.3 < regular < 0.75


def test_turn_against_complex_numbers_and_at_the_edges():
    rng = np.random.default_rng(1)
    phi_s, phi_next = 2 * rng.normal(size=(2, 50, 2))
    period = rng.integers(1, 8, 50).astype(float)
    z_s, z_next = phi_s @ [1, 1j], phi_next @ [1, 1j]
    direction = np.ones(50)
    for L_there in np.unique(period):
        group = period == L_there
        if (z_next * z_s.conj()).imag[group].sum() < 0:
            direction[group] = -1
    assert 10 < (direction < 0).sum() < 40
    error = abs(z_next - z_s * np.exp(1j * direction * np.pi / period))
    error /= period * np.sin(np.pi / (2 * period))
    expected = np.minimum(2 * abs(z_next) / period, 1) * np.maximum(1 - error / 2, 0) ** 2
    assert 5 < (expected > 0).sum() < 45
    found = psd.turn(*map(torch.tensor, (phi_s, phi_next, period)))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    origin, east = torch.zeros(1, 2), torch.tensor([[0.5, 0.0]])
    one = torch.tensor([1.0])
    assert psd.turn(origin, origin, one) == 0
    assert psd.turn(east, -east, one) == pytest.approx(1)  # the digon


def test_a_mirrored_encoder_earns_as_much():
    """Eq. (7) has the same value for it, so nothing would ever turn it round."""
    phi, states = skill(np.pi / L)
    mirrored = phi * torch.tensor([1.0, -1.0])
    assert earned(mirrored, states) == pytest.approx(earned(phi, states), abs=1e-6)
    period = torch.full((T,), float(L))
    assert (psd.turning_direction(phi[:-1], phi[1:], period) == 1).all()
    assert (psd.turning_direction(mirrored[:-1], mirrored[1:], period) == -1).all()


def test_each_L_has_a_direction_of_its_own():
    phi, _ = skill(np.pi / L)
    mirrored = phi * torch.tensor([1.0, -1.0])
    period = torch.cat([torch.full((T,), float(L)), torch.full((T,), L + 1.0)])
    phi_s = torch.cat([phi[:-1], mirrored[:-1]])
    phi_next = torch.cat([phi[1:], mirrored[1:]])
    direction = psd.turning_direction(phi_s, phi_next, period)
    assert (direction[:T] == 1).all() and (direction[T:] == -1).all()
    assert psd.turn(phi_s, phi_next, period).min() > 0.8  # 13 is not 12, but turned as it should


def test_steps_against_the_rest_earn_next_to_nothing():
    """One step in ten goes back: the direction is that of the nine."""
    back = np.arange(T) % 10 == 0
    phi, _ = skill(np.where(back, -np.pi / L, np.pi / L))
    turned = psd.turn(phi[:-1], phi[1:], torch.full((T,), float(L)))
    assert turned[back].max() < 0.01 and turned[~back].min() == pytest.approx(1, abs=1e-4)


def test_the_decoding_error_is_the_unexplained_share_of_the_variance():
    """A joint that is held against its stop moves by noise alone, and counts for next to nothing:
    the average of one share per dimension would be 0.5 here."""
    torch.manual_seed(0)
    obs = torch.randn(1000, 2)
    obs[:, 1] *= 0.01
    decoded = obs.clone()
    variance = obs.var(dim=0).sum()
    decoded[:, 1] = obs[:, 1].mean()  # nothing known of the noise
    assert psd.decoding_error(decoded, obs, variance).mean() < 0.001
    decoded[:, 0] = obs[:, 0].mean()  # nothing known at all
    assert psd.decoding_error(decoded, obs, variance).mean() == pytest.approx(1.0, abs=0.01)
    still = torch.zeros(10, 2)
    assert (psd.decoding_error(still, still, still.var(dim=0).sum()) == 0).all()


def test_variance_is_that_of_the_skill_itself():
    """A skill that hardly moves is not regular because others move more; one that is alone in a
    batch has no variance that could be known, and the floor is a hundredth of the batch's."""
    torch.manual_seed(0)
    obs = torch.randn(300, 4)
    period = torch.tensor([5.0] * 149 + [9.0] * 150 + [20.0])
    obs[period == 9] *= 0.2
    found = psd.variance_by_period(obs, period)
    floor = 0.01 * obs.var(dim=0).sum()
    for L in (5.0, 9.0):
        own = obs[period == L].var(dim=0).sum() + floor
        torch.testing.assert_close(found[period == L], own.expand((period == L).sum()))
    torch.testing.assert_close(found[-1], floor)
    mean = obs[period == 9].mean(dim=0)
    decoded = torch.where((period == 9)[:, None], mean, obs)  # the phase says nothing of skill 9
    regular = psd.regularity(decoded, obs, period)
    assert (regular[period == 5] == 1).all()
    # the mean of max(0, 1 - e) for noise of four dimensions
    assert regular[period == 9].mean() < 0.35


@pytest.mark.parametrize("coefficient, weight", [(0.0, 1.0), (2.0, 1.0), (2.0, 0.0)])
def test_the_reward_of_an_update(
    coefficient, weight, tiny_args, make_agent_and_buffer, monkeypatch
):
    """The terms add up; the decoder trains, does not touch the encoder, and is not there without a
    coefficient. With a weight of 0, as in the first --turn-epochs, turn and r_ext are left."""
    tiny_args.psd_coef, tiny_args.turn_coef = 0.5, 3.0
    tiny_args.regularity_coef, tiny_args.latent_dim = coefficient, 2
    tiny_args.ext_coef, tiny_args.v_star, tiny_args.ext_in_turn = 2.0, 0.5, coefficient > 0
    agent, buffer = make_agent_and_buffer(tiny_args)
    agent.late_weight = weight
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
        turned = psd.turn(phi_s, phi_next, period)
        r_psd = psd.psd_reward(phi_s, phi_next, period, tiny_args.kappa)
        expected = turned * (3.0 + weight * 0.5 * r_psd)
        r_ext = 2.0 * (batch.velocity / 0.5).clamp(max=1)
        if coefficient:
            scaled = phi_next * 2 / period[:, None]
            decoded = agent.decoder(torch.cat([scaled, batch.skill], dim=1))
            regular = psd.regularity(decoded, batch.next_obs, period)
            expected = (expected + turned * weight * coefficient * regular) * (1 + r_ext)
        else:
            expected += r_ext
    torch.testing.assert_close(seen["reward"], expected)
    assert ("psd/regularity" in metrics) == (coefficient > 0)
    for name, weight in agent.state_dict().items():
        if name.startswith("decoder"):
            assert not torch.equal(weight, before[name])


def test_the_decoder_learns_a_closed_curve_and_not_a_wound_one():
    """By training: the state of each L is a circle; the latents turn once per cycle, or twice."""
    flags = "--turn-coef 1 --regularity-coef 1 --hidden-units 64 --phi-lr 3e-3 --latent-dim 2"
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
            loss = psd.decoding_error(decoded, states, states.var(dim=0).sum()).mean()
            agent.optimizers["decoder"].zero_grad()
            loss.backward()
            agent.optimizers["decoder"].step()
        decoded = psd.decode(agent, phi, period, rows).detach()
        found[wind] = psd.regularity(decoded, states, period).mean().item()
    assert found[1] > 0.97 and found[2] < 0.1


def test_turn_epochs_come_first(tmp_path, monkeypatch):
    """`train` pays turn and r_ext alone for the first --turn-epochs, also after a resume."""
    monkeypatch.chdir(tmp_path)
    seen = []
    real_update = psd.update

    def spy(agent, *rest):
        seen.append(agent.late_weight)
        return real_update(agent, *rest)

    monkeypatch.setattr(psd, "update", spy)
    flags = "--env-id Pendulum-v1 --episodes-per-epoch 1 --updates-per-epoch 1 --hidden-units 8 "
    flags += "--batch-size 8 --phi-batch-size 8 --buffer-size 400 --turn-coef 1 --latent-dim 2 "
    psd.main((flags + "--turn-epochs 3 --total-epochs 2 --run-name one").split())
    psd.main("--resume runs/one --total-epochs 5".split())
    assert seen == [0.0, 0.0, 0.0, 1.0, 1.0]
