"""The judge: the period of known signals, of known circles, and what evaluate.py writes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import evaluate  # noqa: E402
import psd  # noqa: E402
from evaluate import record_length, return_error, spectrum, state_period, verdict  # noqa: E402


# ----------------------------------------- Known signals ------------------------------------------
def angles(n, period, D, rng):
    return 2 * np.pi * np.arange(n)[:, None] / period + rng.uniform(0, 2 * np.pi, D)  # (n, D)


SIGNALS = {
    "sine": lambda a, rng: np.sin(a),
    "noise": lambda a, rng: np.sin(a) + 0.3 * rng.normal(size=a.shape),
    "drift": lambda a, rng: np.sin(a) + 3 * np.linspace(0, 1, len(a))[:, None],
    "curved drift": lambda a, rng: np.sin(a) + 2 * np.linspace(0, 1, len(a))[:, None] ** 2,
    "harmonics": lambda a, rng: np.sin(a) + 0.7 * np.sin(2 * a + 1) + 0.5 * np.sin(3 * a + 2),
    "strong harmonic": lambda a, rng: np.sin(a) + 1.5 * np.sin(3 * a + 1),
    "square wave": lambda a, rng: np.sign(np.sin(a)),
    "pulses": lambda a, rng: np.exp(8 * (np.cos(a) - 1)),
    "units": lambda a, rng: np.sin(a) * 10.0 ** rng.uniform(-1, 1, a.shape[1]) + 100,
    "a still dimension": lambda a, rng: np.hstack([np.sin(a), np.full((len(a), 3), 0.7)]),
}


@pytest.mark.parametrize("D", [1, 5])
@pytest.mark.parametrize("period", [2.4, 10 / 3, 4.5, 6, 12, 17.3, 40])
@pytest.mark.parametrize("signal", SIGNALS)
def test_period_of_known_signals(signal, period, D):
    if period <= 6 and signal in ("harmonics", "strong harmonic", "square wave", "pulses"):
        return  # its harmonics are faster than two steps, and so are not what they seem
    for seed in range(5):
        rng = np.random.default_rng(seed)
        found, peak = state_period(SIGNALS[signal](angles(200, period, D, rng), rng))
        assert found == pytest.approx(period, rel=0.02)
        assert evaluate.MIN_PEAK <= peak <= 1 + 1e-9


def test_slow_wandering_does_not_shorten_the_period():
    """A slope under the peak of an autocorrelation would move it: ten cycles on a random walk."""
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        walk = rng.normal(size=(400, 10)).cumsum(axis=0)
        wave = np.sin(angles(400, 40, 10, rng)) + 0.3 * np.sin(3 * angles(400, 40, 10, rng))
        found, _ = state_period(wave / wave.std(axis=0) + 0.7 * walk / walk.std(axis=0))
        errors.append(found / 40 - 1)
    assert abs(np.mean(errors)) < 0.005 and np.abs(errors).max() < 0.02


def smooth(n, D, rng, width):
    kernel = np.hanning(2 * width + 1)
    noise = rng.normal(size=(n + 2 * width, D))
    return np.stack([np.convolve(x, kernel, "valid") for x in noise.T], axis=1)


def chirp(n, first, last, rng):
    phase = np.cumsum(2 * np.pi / np.linspace(first, last, n))
    return np.sin(phase[:, None] + rng.uniform(0, 2 * np.pi, 3))


T = np.arange(240)[:, None]
NO_PERIOD = {
    "constant": lambda rng: np.full((240, 3), 0.7),
    "rounding": lambda rng: np.float32(0.7) * (1 + 1e-7 * rng.normal(size=(240, 3))),
    "white noise": lambda rng: rng.normal(size=(240, 3)),
    "smooth noise": lambda rng: smooth(240, 3, rng, 5),
    "slow noise": lambda rng: smooth(240, 3, rng, 15),
    "random walk": lambda rng: rng.normal(size=(240, 3)).cumsum(axis=0),
    "noise on a drift": lambda rng: 0.05 * T**1.5 + rng.normal(size=(240, 3)),
    "noise on a slow sine": lambda rng: np.sin(T / 80) + 0.1 * rng.normal(size=(240, 3)),
    "chirp 20 to 26": lambda rng: chirp(240, 20, 26, rng),
    "chirp 15 to 30": lambda rng: chirp(240, 15, 30, rng),
    "chirp 40 to 10": lambda rng: chirp(240, 40, 10, rng),
    "dying oscillation": lambda rng: np.exp(-T / 60) * np.sin(angles(240, 20, 3, rng)),
    "a burst, then rest": lambda rng: (T < 120) * np.sin(angles(240, 20, 3, rng)),
    "two and a half cycles": lambda rng: np.sin(angles(240, 96, 3, rng)),
    "one cycle": lambda rng: np.sin(angles(240, 240, 3, rng)),
    "half a cycle": lambda rng: np.sin(angles(240, 480, 3, rng)),
    "change of period": lambda rng: np.where(
        T < 120, np.sin(angles(240, 14, 3, rng)), np.sin(angles(240, 22, 3, rng))
    ),
    "not a number": lambda rng: np.where(T == 100, np.nan, np.sin(angles(240, 20, 3, rng))),
    "too short": lambda rng: np.sin(angles(8, 2, 3, rng)),
    "empty": lambda rng: np.zeros((0, 3)),
}


@pytest.mark.parametrize("signal", NO_PERIOD)
def test_no_period_where_there_is_none(signal):
    for seed in range(20):
        assert state_period(NO_PERIOD[signal](np.random.default_rng(seed)))[0] is None


def test_noise_seldom_makes_a_multiple_of_the_period_win():
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = np.sin(angles(200, 12, 1, rng)) + 0.5 * rng.normal(size=(200, 1))
        found.append(state_period(x)[0])
    found = np.array([p for p in found if p])
    assert len(found) > 50 and (found > 18).mean() < 0.05


def test_three_cycles_are_needed_and_enough():
    rng = np.random.default_rng(0)
    assert state_period(np.sin(angles(124, 40, 3, rng)))[0] == pytest.approx(40, rel=0.02)
    assert state_period(np.sin(angles(116, 40, 3, rng)))[0] is None
    assert state_period(np.sin(angles(200, 40, 3, rng)), max_lag=30)[0] is None


def test_a_long_period_out_of_sight_is_not_taken_for_its_harmonic():
    a = angles(240, 96, 3, np.random.default_rng(0))  # 2.5 cycles: none, though 48 has 5
    assert state_period(np.sin(2 * a) + 0.4 * np.sin(a))[0] is None


def test_dimensions_at_twice_the_frequency_do_not_hide_the_period():
    a = angles(200, 30, 1, np.random.default_rng(0))  # as cos of the angle of a pendulum
    assert state_period(np.hstack([np.cos(2 * a), np.cos(a)]))[0] == pytest.approx(30, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_jitter_and_windings_are_false(seed):
    """DESIGN.md, section 4: a 6-step jitter under L = 15, and a circle wound more than once."""
    rng = np.random.default_rng(seed)
    n = record_length(200, 15) - 50
    jitter = np.sin(angles(n, 6, 17, rng)) + 0.2 * rng.normal(size=(n, 17))
    found, _ = state_period(jitter)
    assert found == pytest.approx(6, rel=0.02) and verdict(found, 15) == "FALSE: too fast"
    for L in (5, 6, 15, 40):
        n = record_length(200, L) - 50
        for odd in (3, 5, 7):  # opposite after L steps, too
            found, _ = state_period(np.sin(angles(n, 2 * L / odd, 3, rng)))
            if 2 * L / odd > 2:  # faster motion than that cannot be seen in steps
                assert found == pytest.approx(2 * L / odd, rel=0.02)
            assert verdict(found, L).startswith("FALSE")
        for windings in (2, 3):
            found, _ = state_period(np.sin(angles(n, 2 * L * windings, 3, rng)))
            assert found == pytest.approx(2 * L * windings, rel=0.02)
            assert verdict(found, L) == "FALSE: too slow"


def test_verdict():
    assert [verdict(p, 10) for p in (20, 20.9, 19.1)] == ["true"] * 3
    assert [verdict(p, 10) for p in (21.5, 18.5)] == ["close"] * 2
    assert [verdict(p, 10)[7:] for p in (22.5, 17.5, None)] == ["too slow", "too fast", "no period"]


def test_common_period_is_one_that_was_measured_by_most():
    assert evaluate.common_period([12.0, 12.1, 12.2, 36.0, None]) == 12.1
    assert evaluate.common_period([12.0, 12.0, 36.0, 36.0]) is None  # and not 24
    assert evaluate.common_period([12.0, None, None]) is None
    assert evaluate.common_period([None, None]) is None


def test_spectrum_finds_the_frequencies_in_order_of_amplitude():
    t = np.arange(300)
    strong, weak = 2.0 * np.sin(2 * np.pi * t / 25), 0.7 * np.sin(2 * np.pi * t / 9)
    states = np.stack([strong + weak + 5, np.zeros(300)], axis=1)
    amplitude, peaks = spectrum(states)
    assert len(peaks) == 2  # and none of the window's side lobes
    assert [f for f, _ in peaks] == pytest.approx([1 / 25, 1 / 9], rel=0.01)
    assert [a for _, a in peaks] == pytest.approx([2.0, 0.7], rel=0.02)
    assert amplitude.max() == pytest.approx(2.0, rel=0.02)
    many = sum(np.sin(2 * np.pi * t / p) / i for i, p in enumerate((50, 20, 11, 7, 4), 1))
    assert [1 / f for f, _ in spectrum(many[:, None])[1]] == pytest.approx(
        [50, 20, 11, 7], rel=0.02
    )
    assert spectrum(np.zeros((50, 2)))[1] == [] and spectrum(np.zeros((2, 2)))[1] == []


def test_spectrum_takes_the_first_principal_component():
    t, direction = np.arange(300)[:, None], np.array([[0.6, 0.8]])
    states = 3 * np.sin(2 * np.pi * t / 20) * direction
    states += 0.5 * np.sin(2 * np.pi * t / 7) * direction[:, ::-1] * [[1, -1]]
    ((frequency, amplitude),) = spectrum(states)[1]  # the other direction is not seen
    assert 1 / frequency == pytest.approx(20, rel=0.01) and amplitude == pytest.approx(3, rel=0.02)


def test_return_error():
    rng = np.random.default_rng(0)
    circle = np.sin(angles(400, 20, 4, rng))
    assert return_error(circle, 20) == pytest.approx(0, abs=1e-6)
    assert return_error(circle, 10) == pytest.approx(np.sqrt(2), rel=0.01)
    assert return_error(rng.normal(size=(2000, 4)), 20) == pytest.approx(1, abs=0.05)
    assert return_error(np.ones((100, 2)), 20) is None and return_error(circle[:30], 20) is None


# ---------------------------------- Circles whose truth is known ----------------------------------
class Clock(gym.Env):
    """A state that goes round with a given period, whatever the action."""

    observation_space = gym.spaces.Box(-2, 2, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, period, steps, falls=None):
        self.period, self.steps, self.falls = period, steps, falls
        self.spec = SimpleNamespace(max_episode_steps=steps, id="Clock-v0")

    def observe(self):
        angle = 2 * np.pi * (self.t / self.period + self.offset)
        return np.array([np.cos(angle), np.sin(angle)]) * [1, 0.5]

    def reset(self, seed=None):
        self.t, self.offset = 0, np.random.default_rng(seed).uniform()
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 0.0, self.t == self.falls, self.t >= self.steps, {}


def measure_clock(L, period, windings=1, episodes=2, falls=None, periods=()):
    """evaluate.measure on a clock, with an encoder that has put it on a circle on which each step
    has the side of the 2L-gon: r_PSD is 1 there, whatever the period."""
    step = 2 * np.pi * windings / period
    radius = psd.side_length(torch.tensor(float(L))).item() / (2 * np.sin(step / 2))

    def encode(agent, episode, skill):
        angle = np.arctan2(episode.obs[:, 1] / 0.5, episode.obs[:, 0]) * windings
        return torch.tensor(radius * np.stack([np.cos(angle), np.sin(angle)], 1)).float()

    script = SimpleNamespace(**vars(psd))
    periods = iter(periods or [period] * episodes)  # of each episode
    script.make_env = lambda args, max_steps=200: Clock(next(periods), max_steps, falls)
    script.encode = encode
    actor = SimpleNamespace(act=lambda obs, skill, deterministic: torch.zeros(len(obs), 1))
    agent = SimpleNamespace(actor=actor, log_alpha=torch.zeros(()))
    args = psd.Args(episode_length=200)
    state = {"obs_mean": torch.zeros(2), "obs_std": torch.ones(2)}
    options = evaluate.Args(run="", episodes=episodes)
    row, _ = evaluate.measure(script, args, state, agent, L, options, state)
    return row


def test_a_true_circle_is_called_true():
    row = measure_clock(L=15, period=30)
    assert row["verdict"] == "true" and row["agree"] == 2
    assert row["period"] == pytest.approx(30, rel=0.005)
    assert row["r_psd"] == pytest.approx(1, abs=1e-3)
    assert row["radius"] == pytest.approx(1, abs=1e-3)
    assert row["one_step"]["error"] < 1e-3 and row["L_step"]["error"] < 1e-3
    assert row["return_error"] == pytest.approx(0, abs=1e-3)
    assert 1 / row["dominant"][0]["frequency"] == pytest.approx(30, rel=0.01)
    assert sum(row["L_step"]["histogram"]) == row["L_step"]["transitions"] == 2 * (200 + 1 - 15)


def test_a_jitter_with_a_perfect_reward_is_called_false():
    row = measure_clock(L=15, period=6)  # two and a half rounds: opposite after L steps
    assert row["r_psd"] == pytest.approx(1, abs=1e-3) and row["one_step"]["error"] < 1e-3
    assert row["verdict"] == "FALSE: too fast" and row["period"] == pytest.approx(6, rel=0.01)
    assert row["radius"] == pytest.approx(6 / 30, rel=0.06)  # P / 2L
    assert row["L_step"]["error"] == pytest.approx(1 - 6 / 30, rel=0.06)


@pytest.mark.parametrize("windings", [2, 3])
def test_a_circle_wound_more_than_once_is_called_false(windings):
    row = measure_clock(L=6, period=12 * windings, windings=windings)
    assert row["r_psd"] == pytest.approx(1, abs=1e-3) and row["radius"] == pytest.approx(
        1, abs=0.01
    )
    assert row["one_step"]["error"] < 1e-3 and row["L_step"]["error"] < 0.01  # all as it should be
    assert row["verdict"] == "FALSE: too slow"
    assert row["period"] == pytest.approx(12 * windings, rel=0.01)
    assert row["return_error"] > 0.8


def test_what_comes_after_a_fall_counts_as_nothing():
    row = measure_clock(L=5, period=10, falls=60)
    assert row["r_psd"] == pytest.approx(60 / 200, abs=1e-3) and row["episode_length"] == 60
    assert row["record_length"] == 61 - 15  # its own first quarter is left out
    assert row["verdict"] == "true"
    assert measure_clock(L=5, period=10, falls=30)["verdict"] == "FALSE: no period"


def test_the_episode_to_draw_has_the_period_reported():
    row = measure_clock(L=10, period=20, episodes=4, periods=[7, 20, 20, 20])
    assert row["agree"] == 3 and row["episode"] == 1 and row["verdict"] == "true"
    assert 1 / row["dominant"][0]["frequency"] == pytest.approx(20, rel=0.01)
    row = measure_clock(L=10, period=20, episodes=4, periods=[7, 20, 7, 20])
    assert row["agree"] == 0 and row["episode"] == 0 and row["period"] is None


def test_switching_holds_each_skill_for_its_steps():
    seen = []
    actor = SimpleNamespace(act=lambda obs, skill, deterministic: seen.append(skill[:, 0].tolist()))
    switching = evaluate.Switching(actor, torch.tensor([[6.0], [8.0]]), steps=3)
    for _ in range(7):
        switching.act(torch.zeros(2, 4), None, True)
    assert seen == [[6.0, 6.0]] * 3 + [[8.0, 8.0]] * 4


# ------------------------------------------ Checkpoints -------------------------------------------
def make_run(folder, env_id="Pendulum-v1", **changes):
    """A run folder as psd.py saves it, without the training."""
    defaults = dict(
        env_id=env_id, episode_length=80, hidden_units=16, latent_dim=2, L_min=6, L_max=12,
        lam_1=5.0, lam_2=5.0, v_star=0.5, normalize_obs=True,
    )  # fmt: skip
    args = psd.Args(**(defaults | changes))
    env = psd.make_env(args)
    torch.manual_seed(3)
    agent = psd.Agent(args, env.observation_space.shape[0], env.action_space, "cpu")
    buffer = psd.ReplayBuffer(100, 80, env.observation_space.shape[0], 1, 1, "cpu")
    state = {"epoch": 7, "global_step": 560, "bounds": (args.L_min, args.L_max, False, False)}
    state |= psd.observation_statistics(env, args, num_steps=200)
    folder.mkdir(parents=True)
    psd.save_checkpoint(folder, args, state, agent, buffer)
    return folder


def run_main(capsys, *argv):
    evaluate.main([str(a) for a in argv])
    return capsys.readouterr().out


def error_of(*argv):
    with pytest.raises(SystemExit) as error:
        evaluate.main([str(a) for a in argv])
    message = str(error.value)
    assert message.startswith("evaluate.py: error: ") and "\n" not in message
    return message


def test_evaluation_changes_nothing_and_repeats_itself(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    files = {path.name: path.read_bytes() for path in run.iterdir()}
    torch.manual_seed(5)
    np.random.seed(5)
    rng = torch.get_rng_state(), np.random.get_state()[1].copy()
    run_main(capsys, run, "--episodes", 2, "--periods", 6, 9)
    assert torch.equal(rng[0], torch.get_rng_state())
    assert np.array_equal(rng[1], np.random.get_state()[1])
    first = (run / "evaluation.json").read_bytes()
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.name in files} == files
    assert {p.name for p in run.iterdir()} == {*files, "evaluation.json"}
    run_main(capsys, run, "--episodes", 2, "--periods", 6, 9)
    assert (run / "evaluation.json").read_bytes() == first
    run_main(capsys, run, "--episodes", 2, "--periods", 6, 9, "--seed", 1)
    changed, rows = json.loads((run / "evaluation.json").read_text()), json.loads(first)
    assert changed["skills"][0]["states"] != rows["skills"][0]["states"]


def test_json_and_table(tmp_path, capsys):
    run, out = make_run(tmp_path / "run"), tmp_path / "e.json"
    text = run_main(capsys, run, "--out", out, "--episodes", 2)
    result = json.loads(out.read_text())
    assert not (run / "evaluation.json").exists()
    periods = [row["L"] for row in result["skills"]]
    assert periods == list(range(6, 13))  # the trained 6, 8, 10, 12 and what lies between
    assert [row["L"] for row in result["skills"] if row["trained"]] == [6, 8, 10, 12]
    assert [s["L"] for s in result["switch"]["segments"]] == [6, 8, 10, 12]
    assert result["switch"]["steps"] == 72 and len(result["switch"]["states"][0]) == 4 * 72 + 1
    assert result["epoch"] == 7 and result["args"]["ext_coef"] == 0.0 and result["seed"] == 0
    assert {"python", "torch", "gymnasium", "mujoco", "numpy"} <= set(result["versions"])
    assert result["dt"] == 0.05 and result["script"] == "psd"
    for row in result["skills"]:
        assert row["record_length"] == record_length(80, row["L"]) - 20 + 1
        assert len(row["latents"]) == 6 * row["L"] + 1 and len(row["spectrum"]) == 512
        assert len(row["states"][0]) == 81 and np.abs(row["states"][0]).max() <= 8  # physical units
        assert row["verdict"] == verdict(row["period"], row["L"])
    assert "\033" not in text  # no colour where there is no terminal
    for row in result["skills"]:
        line = next(ln for ln in text.splitlines() if re.match(rf"\*? *{row['L']}  ", ln.strip()))
        assert row["verdict"] in line and (line.strip()[0] == "*") is not row["trained"]
    assert "\033[31mFALSE" in evaluate.table(result, colour=True)


def test_r_psd_and_distances_are_those_of_the_script(tmp_path):
    run = make_run(tmp_path / "run")
    result = evaluate.evaluate(evaluate.Args(run=str(run), periods=(8,), episodes=3))
    script, args, state, agent = evaluate.load(run / "model.pt")
    envs = [psd.make_env(args) for _ in range(3)]  # T steps only
    skill = psd.embed_period(torch.full((3,), 8.0), args.embed_dim)
    key = (evaluate.STREAM, 0, 8)
    episodes = psd.rollout(envs, key, agent.actor, skill, state, deterministic=True)
    latents = [psd.encode(agent, episode, skill[0]) for episode in episodes]
    expected = [psd.latent_statistics(z, 8, args.kappa) for z in latents]
    (row,) = result["skills"]
    assert row["r_psd"] == pytest.approx(np.mean([m["r_psd"] for m in expected]), rel=1e-4)
    assert row["radius"] == pytest.approx(np.mean([m["radius"] for m in expected]), rel=1e-4)
    one, far = (np.mean([m[k] for m in expected]) for k in ("one_step", "L_step"))
    assert row["one_step"]["error"] == pytest.approx(abs(one - 1), rel=1e-3)
    assert row["L_step"]["error"] == pytest.approx(abs(far - 1), rel=1e-3)


def test_an_episode_that_ends_early(tmp_path):
    run = make_run(tmp_path / "run", "Hopper-v4", L_min=30, L_max=30)
    result = evaluate.evaluate(evaluate.Args(run=str(run), episodes=2))
    (row,) = result["skills"]
    assert row["episode_length"] < 80  # an untrained hopper falls
    assert row["verdict"] == "FALSE: no period" and row["periods"] == [None, None]
    assert row["r_psd"] <= row["episode_length"] / 80  # what it did not live to do counts as 0
    json.dumps(result, allow_nan=False)


def test_global_position_is_left_out():
    sizes = {"HalfCheetah-v4": 1, "Hopper-v4": 1, "Walker2d-v5": 1, "Ant-v4": 2, "Humanoid-v4": 2}
    for env_id, count in sizes.items():
        args = psd.Args(env_id=env_id, episode_length=10)
        env = psd.make_env(args)
        assert evaluate.num_global(env) == 0
        names = evaluate.dimensions(env)
        assert len(names) == env.observation_space.shape[0]
        full = psd.make_env(args, exclude_current_positions_from_observation=False)
        assert evaluate.num_global(full) == count
        assert evaluate.dimensions(full) == names
        robot, obs = full.unwrapped, full.reset(seed=0)[0]
        robot.set_state(robot.data.qpos + np.eye(robot.model.nq)[0], robot.data.qvel)
        moved = robot._get_obs()
        episode = psd.Episode(np.float32([obs, moved]), None, None, False)
        state = {"obs_mean": torch.zeros(len(obs)), "obs_std": torch.ones(len(obs))}
        a, b = evaluate.physical_states(episode, state, count)
        assert np.allclose(a, b, atol=1e-4) or env_id.startswith("Humanoid")  # others are global
        assert not np.allclose(obs, moved)
    assert evaluate.dimensions(psd.make_env(psd.Args(env_id="HalfCheetah-v4", episode_length=9)))[
        :4
    ] == [("rootz", "m"), ("rooty", "rad"), ("bthigh", "rad"), ("bshin", "rad")]


def test_observations_come_back_in_physical_units():
    state = {"obs_mean": torch.tensor([1.0, 2.0]), "obs_std": torch.tensor([3.0, 4.0])}
    episode = psd.Episode(np.ones((2, 2), np.float32), None, None, False)
    assert evaluate.physical_states(episode, state, 0).tolist() == [[4.0, 6.0]] * 2


def test_bad_input_ends_in_one_line_and_writes_nothing(tmp_path):
    run = make_run(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    assert "missing" in error_of(tmp_path / "nowhere")
    assert "missing" in error_of(tmp_path)
    assert "L = 0" in error_of(run, "--periods", 0)
    assert "L = 81" in error_of(run, "--periods", 81)
    assert "--episodes" in error_of(run, "--episodes", 0)
    assert "nowhere to write" in error_of(run, "--out", tmp_path / "no" / "e.json")
    assert sorted(tmp_path.rglob("*")) == before
    model = torch.load(run / "model.pt", weights_only=True)
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes((run / "model.pt").read_bytes()[:5000])
    assert "damaged" in error_of(damaged)
    damaged.write_text("{}")
    assert "damaged" in error_of(damaged)
    for script in ("nothing", "evaluate", "../psd", None):
        torch.save({**model, "script": script}, damaged)
        assert "script" in error_of(damaged)
    torch.save({**model, "args": {**model["args"], "hidden_units": 32}}, damaged)
    assert "does not fit" in error_of(damaged)
    torch.save({**model, "args": {**model["args"], "unheard_of": 1}}, damaged)
    assert "does not fit" in error_of(damaged)
    weights = {k: w for k, w in model["agent"].items() if not k.startswith("phi.0")}
    torch.save({**model, "agent": weights}, damaged)  # strict=False alone would leave them random
    assert "does not fit" in error_of(damaged)
    nan = {k: w * torch.nan for k, w in model["agent"].items()}
    torch.save({**model, "agent": nan}, damaged)
    assert "not finite" in error_of(damaged)
    assert not list(tmp_path.rglob("*.json")) and not list(tmp_path.rglob("*.tmp"))


def test_default_periods():
    assert evaluate.default_periods([6, 10, 14, 18]) == list(range(6, 19))
    periods = evaluate.default_periods([5, 25, 45, 65])
    assert len(periods) == 16 and {5, 25, 45, 65} <= set(periods)
    assert evaluate.default_periods([10]) == [10]


def keys_of(value):
    if isinstance(value, list):
        return set().union(*map(keys_of, value)) if value else set()
    if not isinstance(value, dict):
        return set()
    inner = {k: v for k, v in value.items() if k not in ("args", "versions")}
    return set(value) | set().union(*map(keys_of, inner.values()), set())


def test_every_field_is_documented():
    sample = json.loads((ROOT / "tests" / "sample" / "evaluation.json").read_text())
    documented = (ROOT / "docs" / "evaluate.md").read_text()
    fields = keys_of({k: v for k, v in sample.items()}) | {"video"}
    assert {"period", "L_step", "histogram", "distinct"} <= fields
    assert [f for f in sorted(fields) if f"`{f}`" not in documented] == []


def test_the_sample_is_of_this_version(tmp_path):
    """What the figures are tested with has the fields that evaluate.py writes."""
    sample = json.loads((ROOT / "tests" / "sample" / "evaluation.json").read_text())
    run = make_run(tmp_path / "run")
    result = evaluate.evaluate(evaluate.Args(run=str(run), periods=(6, 7), episodes=1))
    dominant = {"frequency", "amplitude"}  # an untrained pendulum may have none
    assert keys_of(sample) - keys_of(result) <= dominant
    assert keys_of(result) - keys_of(sample) == set()
    verdicts = {row["verdict"] for row in sample["skills"]}
    assert {"true", "FALSE: too slow"} <= verdicts


# --------------------------------------------- Videos ---------------------------------------------
def egl_problem():
    code = "import mujoco.egl as e; c = e.GLContext(8, 8); c.make_current(); c.free()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"MUJOCO_GL": "egl"},
    )
    return done.stderr.strip().splitlines()[-1:] if done.returncode else None


def test_video(tmp_path, capsys):
    problem = egl_problem()
    if problem:
        pytest.skip(f"EGL is missing (libegl1, libgl1-mesa-dri): {problem[0]}")
    import imageio.v2 as imageio

    run = make_run(tmp_path / "run", "HalfCheetah-v4", episode_length=30)
    run_main(capsys, run, "--periods", 7, "--episodes", 1, "--video")
    (row,) = json.loads((run / "evaluation.json").read_text())["skills"]
    assert row["episode"] == 0 and row["video"] == "videos/L007.mp4"
    assert [p.name for p in (run / "videos").iterdir()] == ["L007.mp4"]  # no temporary left
    reader = imageio.get_reader(run / row["video"])
    meta = reader.get_meta_data()
    assert meta["codec"] == "h264" and meta["pix_fmt"].startswith("yuv420p")
    assert meta["fps"] == pytest.approx(20, rel=0.01)
    frames = np.stack([frame for frame in reader])
    assert frames.shape == (31, 360, 480, 3)
    assert np.abs(np.diff(frames[:, 40:].astype(int), axis=0)).max() > 50  # it moves
    assert frames[0, :32, :300].max() > 200  # and there is text on it


def test_missing_egl_names_the_packages(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", "HalfCheetah-v4")

    def render(self):
        raise AttributeError("'NoneType' object has no attribute 'eglQueryString'")

    monkeypatch.setattr(gym.envs.mujoco.MujocoEnv, "render", render)
    message = error_of(run, "--video")
    assert "libegl1" in message and "libgl1-mesa-dri" in message
    assert not (run / "evaluation.json").exists() and not (run / "videos").exists()


def test_missing_pygame_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    message = error_of(make_run(tmp_path / "run"), "--video")
    assert "pygame" in message and "pip install" in message


def test_phase_rises_once_round_a_circle():
    angle = -2 * np.pi * np.arange(41) / 20  # clockwise, twice
    circle = np.stack([np.cos(angle), 0 * angle, np.sin(angle)], axis=1)
    steps = np.diff(evaluate.latent_phase(circle)) % (2 * np.pi)
    assert np.allclose(steps, 2 * np.pi / 20)
