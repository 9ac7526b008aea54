"""evaluate.py: circles whose truth is known, what is written, and what is refused."""

import json
import os
import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from test_period import angles  # noqa: E402

import evaluate  # noqa: E402
import psd  # noqa: E402
from evaluate import record_length, verdict  # noqa: E402
from period import state_period  # noqa: E402


# ------------------------------------------- Verdicts ---------------------------------------------
@pytest.mark.parametrize("seed", range(5))
def test_jitter_and_windings_are_false(seed):
    """Two of docs/traps.md: a 6-step jitter under L = 15, and a circle wound more than once."""
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


def test_common_period_is_one_that_all_episodes_but_one_have():
    assert evaluate.common_period([12.0, 12.1, 12.2, 12.3, None]) == 12.1
    assert evaluate.common_period([12.0, 12.1, 12.2, 12.3, 36.0]) == 12.2
    assert evaluate.common_period([12.0, 12.1, 12.2, 36.0, None]) is None  # three of five
    assert evaluate.common_period([12.0, 12.0, 36.0, 36.0]) is None  # and not 24
    assert evaluate.common_period([12.0, None, None]) is None
    assert evaluate.common_period([None, None]) is None
    assert evaluate.common_period([12.0]) == 12.0
    assert evaluate.common_period([None]) is None


# ---------------------------------- Circles whose truth is known ----------------------------------
class Clock(gym.Env):
    """A state that goes round with a given period, whatever the action."""

    observation_space = gym.spaces.Box(-2, 2, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def __init__(self, period, steps, falls=None):
        self.period, self.steps, self.falls = period, steps, falls
        self.spec = SimpleNamespace(max_episode_steps=steps, additional_wrappers=())

    def observe(self):
        angle = 2 * np.pi * (self.t / self.period + self.offset)
        return np.array([np.cos(angle), np.sin(angle)]) * [1, 0.5]

    def reset(self, seed=None):
        self.t, self.offset = 0, np.random.default_rng(seed).uniform()
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 0.0, self.t == self.falls, self.t >= self.steps, {}


def clock_run(make_env, obs_dim=2):
    """A run of psd.py whose environment is a clock, and whose policy rests."""
    script = SimpleNamespace(**vars(psd))
    script.make_env = make_env

    def rest(obs, skill, deterministic):
        return torch.zeros(len(obs), 1)

    return evaluate.Run(
        path=Path("clock/model.pt"),
        script=script,
        kind=evaluate.KINDS["embed_dim"],
        args=psd.Args(episode_length=200),
        progress={
            "epoch": 0,
            "global_step": 0,
            "bounds": (5, 8, False, False),
            "obs_mean": torch.zeros(obs_dim),
            "obs_std": torch.ones(obs_dim),
        },
        agent=SimpleNamespace(act=rest, device=torch.device("cpu")),
        device=torch.device("cpu"),
        observation_space=Clock.observation_space,
        action_space=Clock.action_space,
    )


def measure_clock(L, period, windings=1, episodes=2, falls=None, periods=()):
    """evaluate.measure on a clock, with an encoder that has put it on a circle on which each step
    has the side of the 2L-gon: r_PSD is 1 there, whatever the period."""
    step = 2 * np.pi * windings / period
    radius = psd.side_length(torch.tensor(float(L))).item() / (2 * np.sin(step / 2))

    def encode(agent, episode, skill):
        angle = np.arctan2(episode.obs[:, 1] / 0.5, episode.obs[:, 0]) * windings
        return torch.tensor(radius * np.stack([np.cos(angle), np.sin(angle)], 1)).float()

    periods = iter(periods or [period] * episodes)  # of each episode
    run = clock_run(lambda args, max_steps: Clock(next(periods), max_steps, falls))
    run.script.encode = encode
    options = evaluate.Args(run="", episodes=episodes, periods=(L,))
    (skill,) = evaluate.skills_to_measure(run, options)
    statistics = evaluate.training_statistics(run)
    row, _ = evaluate.measure(run, skill, options, statistics)
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


def test_upright_is_the_share_of_T_on_its_feet():
    """Walker2d with resting motors falls, and that ends the episode. HalfCheetah stands, and lies
    on its back if it is put there."""

    def on_feet(flags, rotate=(0, 0), steps=400):
        """Steps on its feet of a robot whose motors rest; its torso is put at angle rotate[1] at
        step rotate[0]."""
        args = psd.parse_args(flags.split())[0]
        run = SimpleNamespace(script=psd, args=args, kind=evaluate.KINDS["embed_dim"])
        env = evaluate.recorded_env(run, steps)
        env.reset(seed=0)
        ended = False
        while not ended:
            if rotate[1] and len(env.states) == rotate[0]:
                robot = env.unwrapped
                position = robot.data.qpos.copy()
                position[1:3] = 0.5, rotate[1]  # half a metre up
                robot.set_state(position, 0 * robot.data.qvel)
            _, _, terminated, truncated, _ = env.step(np.zeros(env.action_space.shape, np.float32))
            ended = terminated or truncated
        return evaluate.steps_on_feet(run, env), len(env.states) - 1

    walker = "--env-id Walker2d-v4 --episode-length 300"
    steps, length = on_feet(walker)
    assert 10 < steps == length < 200  # it falls
    assert on_feet(walker + " --no-terminate") == (None, 400)
    assert on_feet(walker + " --episode-length 20 --L-min 5 --L-max 5")[0] == 20  # T and no more

    cheetah = "--env-id HalfCheetah-v4 --episode-length 300"
    assert on_feet(cheetah) == (300, 400)
    on_its_back = (101, np.pi)
    assert on_feet(cheetah, on_its_back) == (100, 400)
    assert on_feet(cheetah + " --end-when-fallen", on_its_back) == (100, 101)
    nose_first = (101, 0.9)  # it stays down
    steps, length = on_feet(cheetah, nose_first)
    assert 100 <= steps < 150 and length == 400

    assert on_feet("--env-id Pendulum-v1")[0] is None


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
    opened = evaluate.open_run(run)
    args, agent, state = opened.args, opened.agent, opened.progress
    envs = [psd.make_env(args) for _ in range(3)]  # T steps only
    skill = psd.embed_period(torch.full((3,), 8.0), args.embed_dim)
    key = (evaluate.STREAM, 0, 8)
    episodes = psd.rollout(envs, key, agent, skill, state, deterministic=True)
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
        statistics = evaluate.Statistics(np.zeros(len(obs)), np.ones(len(obs)))
        a, b = evaluate.physical_states(episode, statistics, count)
        assert np.allclose(a, b, atol=1e-4) or env_id.startswith("Humanoid")  # others are global
        assert not np.allclose(obs, moved)
    assert evaluate.dimensions(psd.make_env(psd.Args(env_id="HalfCheetah-v4", episode_length=9)))[
        :4
    ] == [("rootz", "m"), ("rooty", "rad"), ("bthigh", "rad"), ("bshin", "rad")]


def test_joints_are_drawn_rather_than_what_has_no_name():
    """Humanoid observes 331 numbers behind its joints; a joint says more than observation 139."""
    t = np.arange(200)
    clear = np.sin(2 * np.pi * t / 20)
    noisy = clear + 0.3 * np.random.default_rng(1).normal(size=200)
    trajectory = np.stack([clear, noisy], axis=1)
    rows = [{"L": 10, "period": 20.0, "trained": True}]
    statistics = SimpleNamespace(std=trajectory.std(axis=0))
    unnamed = ("observation 0", "1")
    for names, best in [
        ([unnamed, ("knee", "rad")], 1),
        ([unnamed, ("observation 1", "1")], 0),
        ([("hip", "rad"), ("knee", "rad")], 0),
    ]:
        shown = evaluate.shown_dimensions(rows, [trajectory], names, statistics)
        assert shown[0] == best, names


def test_observations_come_back_in_physical_units():
    statistics = evaluate.Statistics(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    episode = psd.Episode(np.ones((2, 2), np.float32), None, None, False)
    assert evaluate.physical_states(episode, statistics, 0).tolist() == [[4.0, 6.0]] * 2


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


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run folder, and its JSON."""
    run = make_run(tmp_path_factory.mktemp("judged") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psd.observation_statistics, "__defaults__", (300,))
        evaluate.main([str(run), "--periods", "6", "--episodes", "1"])
    return run


def no_work(monkeypatch):
    """A message has to come before any rollout."""

    def rollout(*args, **kwargs):
        raise AssertionError("there was work before the message")

    monkeypatch.setattr(psd, "rollout", rollout)
    monkeypatch.setattr(psd, "observation_statistics", rollout)


def test_only_its_own_json_is_overwritten(judged, tmp_path, monkeypatch):
    no_work(monkeypatch)
    weights = (judged / "model.pt").read_bytes()
    message = error_of(judged, "--out", judged / "model.pt")
    assert "no JSON of evaluate.py" in message and "choose another --out" in message
    assert (judged / "model.pt").read_bytes() == weights
    other = tmp_path / "other.json"
    for content in ("[1, 2]", '{"format": 1}', '{"skills": []}', "", "{", "\udcff"):
        other.write_bytes(content.encode(errors="surrogateescape"))
        assert "no JSON of evaluate.py" in error_of(judged, "--out", other)
        assert other.read_bytes() == content.encode(errors="surrogateescape")
    assert "is a folder" in error_of(judged, "--out", tmp_path)
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "nowhere")
    assert "no JSON of evaluate.py" in error_of(judged, "--out", link)
    (tmp_path / "videos").write_text("")
    assert "videos is no folder" in error_of(judged, "--out", tmp_path / "e.json", "--video")
    evaluate.check_output(judged / "evaluation.json", video=True)  # its own
    evaluate.check_output(ROOT / "results/pendulum/evaluation.json", video=False)


def test_a_full_disk_leaves_the_old_json_and_no_other_file(judged, monkeypatch):
    """A limit on the size of files fails in the same place: in the middle of writing."""
    monkeypatch.setattr(psd.observation_statistics, "__defaults__", (300,))
    before = {path.name: path.read_bytes() for path in judged.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
        message = error_of(judged, "--periods", 6, "--episodes", 1, "--seed", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "evaluation.json cannot be written" in message
    assert {path.name: path.read_bytes() for path in judged.iterdir()} == before


def test_numbers_that_are_not_possible(judged, monkeypatch):
    no_work(monkeypatch)
    for episodes in (-1, 0, 201, 1_000_000_000):
        message = error_of(judged, "--episodes", episodes)
        assert f"--episodes {episodes} is not from 1 to 200" in message
    for steps in (-5, 0, 10_001, 10**12):
        message = error_of(judged, "--switch-steps", steps)
        assert f"--switch-steps {steps} is not from 1 to 10,000" in message
    for L in (-3, 0, 81, 10**12):
        assert f"L = {L} is not from 1 to the episode length, 80" in error_of(
            judged, "--periods", 6, L
        )
    assert "--seed" in error_of(judged, "--seed", -1)


def test_more_observations_than_memory_are_refused(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", "Humanoid-v4", episode_length=1000, L_min=6, L_max=12)
    no_work(monkeypatch)
    message = error_of(run, "--periods", 900, "--episodes", 200)
    assert "200 episodes of 18250 steps" in message and "4 GB are possible" in message
    assert "fewer --episodes" in message


def test_a_device_that_is_not_there_is_named(judged, monkeypatch):
    no_work(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cuda", "cuda:1"):
        message = error_of(judged, "--device", device)
        assert f"--device {device}: torch finds no CUDA device" in message
        assert "--device cpu" in message and "fit" not in message
    for device in ("meta", "nonsense", "cpu:99:1", ""):
        assert f"--device {device}: " in error_of(judged, "--device", device)


def edited(path, model, **changes):
    """A checkpoint with other parts; a part that is None is left out."""
    content = {k: v for k, v in (model | changes).items() if v is not None}
    torch.save(content, path)
    return path


def without(part, name):
    return {k: v for k, v in part.items() if k != name}


def test_checkpoints_with_a_part_missing_or_wrong(judged, tmp_path, monkeypatch):
    no_work(monkeypatch)
    model, path = torch.load(judged / "model.pt", weights_only=True), tmp_path / "model.pt"
    progress, args, agent = model["progress"], model["args"], model["agent"]
    for name in ("script", "args", "progress", "agent"):
        assert f"has no {name}" in error_of(edited(path, model, **{name: None}))
        assert f"its {name} is a list" in error_of(edited(path, model, **{name: [1, 2]}))
    for name in ("epoch", "global_step", "bounds", "obs_mean", "obs_std"):
        state = without(progress, name)
        assert f"has no {name}" in error_of(edited(path, model, progress=state))
    wrong = {
        "epoch": ["7", -1, 7.0, True],
        "global_step": [None, torch.ones(2)],
        "bounds": [(6,), 6, ("6", "12"), (0, 12), (12, 6), (6, 81), (6.0, 12.0), (6, torch.nan)],
        "obs_mean": [
            [0.0] * 3,
            torch.ones(3) * 1j,
            torch.zeros(4),
            torch.zeros(3, 1),
            torch.full((3,), torch.nan),
        ],
        "obs_std": [torch.zeros(3), -torch.ones(3), torch.ones(2), torch.full((3,), torch.inf)],
    }
    for name, values in wrong.items():
        for value in values:
            message = error_of(edited(path, model, progress={**progress, name: value}))
            assert name in message, (name, value, message)
    arguments = {
        "env_id": [7, None],
        "episode_length": [None, 0, -1, "80", 10**9, 80.0],
        "num_periods": [0, 10**12],
        "hidden_units": [10**9, "16"],
        "kappa": ["10", None, torch.nan],
    }
    for name, values in arguments.items():
        for value in values:
            message = error_of(edited(path, model, args={**args, name: value}))
            assert name in message or "JSON" in message, (name, value, message)
    assert "does not fit psd.py" in error_of(edited(path, model, args=args | {"k": torch.ones(1)}))
    assert "neither L nor z" in error_of(edited(path, model, args=without(args, "embed_dim")))
    assert "cannot make 'Nothing-v0'" in error_of(
        edited(path, model, args={**args, "env_id": "Nothing-v0"})
    )
    name = "phi.2.weight"
    short = error_of(edited(path, model, agent=without(agent, name)))
    assert f"does not fit psd.py: {name} is missing" in short
    for weight in (agent[name][:, :3], agent[name][0], torch.zeros(0)):
        message = error_of(edited(path, model, agent={**agent, name: weight}))
        assert f"does not fit psd.py: {name} has the shape" in message
    for key, weight in (("more", torch.ones(2)), (name, [1.0]), (7, torch.ones(2))):
        message = error_of(edited(path, model, agent={**agent, key: weight}))
        assert f"no place for {key}" in message
    spoilt = agent[name].clone()
    spoilt[3, 3] = torch.inf
    assert f"not finite: {name}" in error_of(edited(path, model, agent={**agent, name: spoilt}))
    torch.save([1, 2], path)
    assert "holds a list" in error_of(path)


def test_a_checkpoint_may_call_its_progress_state_or_progress(judged, tmp_path):
    model = torch.load(judged / "model.pt", weights_only=True)
    renamed = without(model, "progress") | {"state": model["progress"]}
    torch.save(renamed, tmp_path / "model.pt")
    progress = evaluate.open_run(tmp_path).progress
    assert progress["bounds"] == evaluate.open_run(judged).progress["bounds"]


def test_flipped_bits_are_seen(judged, tmp_path, monkeypatch):
    """torch.load does not look at checksums: a flipped bit in a weight would go unseen."""
    no_work(monkeypatch)
    path = tmp_path / "model.pt"
    content = bytearray((judged / "model.pt").read_bytes())
    with zipfile.ZipFile(judged / "model.pt") as file:
        weights = [entry for entry in file.infolist() if "/data/" in entry.filename]
        largest = max(weights, key=lambda entry: entry.file_size)
    middle = largest.header_offset + 200 + largest.file_size // 2
    content[middle] ^= 1
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # no complaint
    assert "damaged" in error_of(path)
    content[middle] ^= 1
    path.write_bytes(content)
    evaluate.open_run(path)


MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import PendulumEnv
from pathlib import Path

Path(__file__).with_name("imported").touch()
gym.register("Swing-v0", PendulumEnv)
"""


def test_a_module_is_imported_only_if_the_user_names_it(judged, tmp_path, monkeypatch):
    (tmp_path / "swing_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(psd.observation_statistics, "__defaults__", (300,))
    model, env_id = torch.load(judged / "model.pt", weights_only=True), "swing_of_test:Swing-v0"
    args = {**model["args"], "env_id": env_id}
    path = edited(tmp_path / "model.pt", model, args=args)
    message = error_of(path)
    assert "imports the Python module swing_of_test" in message and f"--env-id {env_id}" in message
    with pytest.raises(SystemExit, match=f"--env-id {env_id}"):
        evaluate.load(path)
    assert f"was trained on {env_id}" in error_of(path, "--env-id", "other:Swing-v0")
    assert "was trained on Pendulum-v1" in error_of(judged, "--env-id", "Pendulum-v0")
    assert "swing_of_test" not in sys.modules and not (tmp_path / "imported").exists()
    evaluate.main([str(path), "--env-id", env_id, "--periods", "6", "--episodes", "1"])
    assert (tmp_path / "imported").exists()
    assert json.loads((tmp_path / "evaluation.json").read_text())["env_id"] == env_id
    policy = evaluate.load(path, env_id=env_id)
    assert policy.make_env().reset(seed=0)[0].shape == (3,)


def test_a_script_that_lacks_a_function_is_named(judged, monkeypatch):
    no_work(monkeypatch)
    monkeypatch.delattr(psd, "side_length")
    assert "psd.py has no side_length" in error_of(judged)


def test_a_copy_of_a_script_is_of_the_same_kind(judged, tmp_path, monkeypatch):
    (tmp_path / "my_psd.py").write_text((ROOT / "psd.py").read_text())
    monkeypatch.setattr(evaluate, "HERE", tmp_path)
    model = torch.load(judged / "model.pt", weights_only=True)
    run = evaluate.open_run(edited(tmp_path / "model.pt", model, script="my_psd"))
    assert run.script.__name__ == "my_psd" and run.kind is evaluate.KINDS["embed_dim"]
    monkeypatch.delitem(sys.modules, "my_psd")


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
    documented = (ROOT / "docs" / "evaluation_json.md").read_text()
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
