"""evaluate.py and plot.py on skills without L: the baselines, and random actions as a control."""

import dataclasses
import json
import tempfile
from types import SimpleNamespace

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import REPO
from test_baselines import SCRIPTS, by_script
from test_evaluate import Clock, clock_run, egl_problem, error_of, keys_of, run_main
from test_plot import SAMPLE, coloured, texts

import evaluate
import plot
import psd


@pytest.fixture(scope="module", autouse=True)
def few_random_steps():
    """Statistics of 300 random actions instead of 10,000: enough here, and faster."""
    with pytest.MonkeyPatch.context() as patch:
        for script in [psd, *SCRIPTS.values(), *map(evaluate.import_script, SCRIPTS)]:
            patch.setattr(script.observation_statistics, "__defaults__", (300,))
        yield


def make_run(folder, name, env_id="Pendulum-v1", **changes):
    """A run folder as the script saves it, without the training."""
    script = SCRIPTS.get(name, psd)
    flags = ["--env-id", env_id, "--episode-length", "60", "--hidden-units", "16"]
    args = dataclasses.replace(script.parse_args(flags)[0], **changes)
    env = script.make_env(args)
    torch.manual_seed(3)
    obs_dim = env.observation_space.shape[0]
    agent = script.Agent(args, obs_dim, env.action_space, "cpu")
    state = {"epoch": 7, "global_step": 560, "bounds": (5, 8, False, False)}
    state |= script.observation_statistics(env, dataclasses.replace(args, ext_coef=0.0))
    folder.mkdir(parents=True)
    buffer = SimpleNamespace(rows=torch.zeros(1))
    script.save_checkpoint(folder, args, state, agent, buffer)
    return folder


@by_script
def test_json_and_table(script, tmp_path, capsys):
    run = make_run(tmp_path / "run", script.SCRIPT)
    files = {path.name: path.read_bytes() for path in run.iterdir()}
    text = run_main(capsys, run, "--episodes", 2)
    assert {p.name: p.read_bytes() for p in run.iterdir() if p.name in files} == files
    first = (run / "evaluation.json").read_bytes()
    result = json.loads(first)
    assert result["script"] == script.SCRIPT and result["actions"] == "policy"
    assert [row["skill"] for row in result["skills"]] == list(range(16))
    assert [row["z"] for row in result["skills"]] == np.eye(16).tolist()
    assert result["switch"] is None and result["summary"]["skills"] == 16
    found = [row for row in result["skills"] if row["period"] is not None]
    assert result["summary"]["with_period"] == len(found)
    for row in result["skills"]:
        assert len(row["spectrum"]) == 512 and len(row["states"][0]) == 61
        assert row["record_length"] == 61 - 15 and row["episode_length"] == 60  # T and no more
        assert (row["return_error"] is None) is (row["period"] is None)
    assert f"{len(found)} of 16 have a period" in text and text.count("/2") == 16
    documented = (REPO / "docs" / "evaluation_json.md").read_text()
    assert [f for f in sorted(keys_of(result)) if f"`{f}`" not in documented] == []
    if script.SCRIPT == "metra":  # the same seed, the same file; another, another
        run_main(capsys, run, "--episodes", 2)
        assert (run / "evaluation.json").read_bytes() == first
        run_main(capsys, run, "--episodes", 2, "--seed", 1)
        assert json.loads((run / "evaluation.json").read_text())["skills"] != result["skills"]


def test_continuous_skills_are_sixteen_directions(tmp_path):
    for name in ("metra", "dads"):
        run = make_run(tmp_path / name, name, num_skills=0)
        result = evaluate.evaluate(evaluate.Args(run=str(run), episodes=1))
        z = np.array([row["z"] for row in result["skills"]])
        assert z.shape == (16, 2)
        assert np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-3)
        angle = np.unwrap(np.arctan2(z[:, 1], z[:, 0]))
        assert np.allclose(np.diff(angle), 2 * np.pi / 16, atol=1e-3)


def test_each_skill_is_rolled_out_with_its_own_z(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", "diayn", num_skills=3)
    script, seen = evaluate.import_script("diayn"), []
    real = script.rollout

    def spy(envs, key, actor, skill, state, deterministic):
        seen.append((key, skill.tolist(), deterministic))
        return real(envs, key, actor, skill, state, deterministic)

    monkeypatch.setattr(script, "rollout", spy)
    evaluate.evaluate(evaluate.Args(run=str(run), episodes=2, seed=4))
    keys = [(evaluate.STREAM, 4, i) for i in range(3)]
    assert seen == [(key, [z, z], True) for key, z in zip(keys, np.eye(3).tolist())]


def test_a_known_period_is_found_whatever_the_position_does():
    """A clock that also drives away: the position is left out, and the period stays."""

    class Car(Clock):
        _exclude_current_positions_from_observation = False
        observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
        model = SimpleNamespace(jnt_type=[2])  # a planar robot: one global position

        def observe(self):
            return np.concatenate([[1e3 * np.sin(self.t / 40)], super().observe()])

    run = clock_run(lambda args, max_steps: Car(14, max_steps), obs_dim=3)
    run = dataclasses.replace(run, kind=evaluate.KINDS["num_skills"])
    run.args.num_skills = 1
    options = evaluate.Args(run="", episodes=3)
    (skill,) = evaluate.skills_to_measure(run, options)
    statistics = evaluate.Statistics(np.zeros(2), np.ones(2))  # of the state without position
    row, states = evaluate.measure(run, skill, options, statistics)
    assert row["period"] == pytest.approx(14, rel=0.01) and row["agree"] == 3
    assert states.shape == (201, 2) and row["return_error"] == pytest.approx(0, abs=1e-3)
    assert 1 / row["dominant"][0]["frequency"] == pytest.approx(14, rel=0.02)


@pytest.mark.parametrize("name", ["psd", "metra"])
def test_random_actions_are_uniform_and_repeat_themselves(name, tmp_path, capsys):
    run = make_run(tmp_path / "run", name)
    run_main(capsys, run, "--random-actions", "--episodes", 2)
    assert not (run / "evaluation.json").exists()  # that is the policy's
    first = (run / "random.json").read_bytes()
    result = json.loads(first)
    assert result["actions"] == "random" and len(result["skills"]) == 16
    assert {row["z"] for row in result["skills"]} == {None}
    assert len({tuple(row["states"][0]) for row in result["skills"]}) == 16  # all different
    run_main(capsys, run, "--random-actions", "--episodes", 2)
    assert (run / "random.json").read_bytes() == first
    actor = evaluate.RandomActions(evaluate.open_run(run).action_space, 0)
    actions = actor.act(torch.zeros(4000, 3), None, True)  # a pendulum's, of up to 2
    assert actions.shape == (4000, 1) and actions.abs().max() <= 2
    assert (torch.histc(actions, 8, -2, 2) - 500).abs().max() < 100


def test_bad_input_ends_in_one_line_and_writes_nothing(tmp_path):
    run = make_run(tmp_path / "run", "csd")
    before = sorted(tmp_path.rglob("*"))
    assert "csd.py has no L: leave --periods" in error_of(run, "--periods", 5)
    assert "csd.py has no L" in error_of(run, "--switch-steps", 5)
    message = error_of(run, "--periods", 5, "--random-actions")
    assert "random actions have no L" in message
    assert "--episodes" in error_of(run, "--episodes", 0)
    model = torch.load(run / "model.pt", weights_only=True)
    args = {name: value for name, value in model["args"].items() if name != "num_skills"}
    with tempfile.NamedTemporaryFile(suffix=".pt") as file:
        torch.save({**model, "args": args}, file)
        file.flush()
        assert "csd.py has neither L nor z" in error_of(file.name)
    assert sorted(tmp_path.rglob("*")) == before


# --------------------------------------------- Plots ----------------------------------------------
@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """PSD's sample, a baseline, SAC alone and random actions, as plot.py reads them."""
    folder = tmp_path_factory.mktemp("runs")
    made = [SAMPLE]
    variants = {"csd": {}, "diayn": {"num_skills": 1, "ext_coef": 1.0}, "dads": {"ext_coef": 1.0}}
    for name, changes in variants.items():
        run = make_run(folder / name, name, **changes)
        options = evaluate.Args(run=str(run), episodes=1)
        evaluate.write_json(run / "evaluation.json", evaluate.evaluate(options))
        made.append(run)
    options = dataclasses.replace(options, random_actions=True)
    evaluate.write_json(run / "random.json", evaluate.evaluate(options))
    return [*made, run / "random.json"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_figure_3_takes_any_number_of_methods(runs, count, tmp_path):
    with plt.rc_context(plot.STYLE):
        figure = plot.fig3([plot.read_run(run) for run in runs[-count:]])
        figure.savefig(tmp_path / "figure.png", dpi=100)
        figure.set_dpi(100)
        pixels = plt.imread(tmp_path / "figure.png")[..., :3]
        panels = [ax for ax in figure.axes if ax.get_xscale() == "log"]  # not the colour bars
        assert len(panels) == 2 * count
        for ax in panels:
            box = ax.get_window_extent()
            inside = pixels[len(pixels) - int(box.y1) : len(pixels) - int(box.y0)]
            still = not ax.lines and not ax.collections
            assert coloured(inside[:, int(box.x0) : int(box.x1)]) > 10 or still
        assert len({ax.get_xlim() for ax in panels}) == 1  # one axis of frequencies
        boxes = [ax.get_window_extent() for ax in panels]
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
        renderer = figure.canvas.get_renderer()
        titles = [ax._left_title.get_window_extent(renderer) for ax in panels]
        assert len({ax.get_ylim() for ax in panels}) == 1  # one scale of amplitudes
        assert not any(a.overlaps(b) for i, a in enumerate(titles) for b in titles[:i])
        shown = texts(figure)
        plt.close(figure)
    names = ["PSD", "CSD", "SAC on $r_{ext}$", "DADS + $r_{ext}$", "random actions"][-count:]
    for name in names:
        assert name.replace(" + ", "\n+ ") in shown
    assert "Pendulum-v1" in shown and "of 16 have a period" in shown
    assert ("dotted: 1/(2L)" in shown) is (count == 5)


def test_figure_3_shows_the_numbers_of_the_json(runs):
    result = json.loads((runs[1] / "evaluation.json").read_text())
    with plt.rc_context(plot.STYLE):
        left, right = plot.fig3([plot.read_run(runs[1])]).axes[:2]
        lowest = 2 / result["T"]  # per step; below is drift
        peaks = [peak for row in result["skills"] for peak in row["dominant"][:4]]
        expected = {
            (peak["frequency"] / result["dt"], peak["amplitude"])
            for peak in peaks
            if peak["frequency"] >= lowest
        }
        ends = {tuple(lines.get_segments()[0][1]) for lines in right.collections}
        assert len(expected) > 5 and np.allclose(sorted(ends), sorted(expected))
        assert len(left.lines) == 16
        spectrum = result["skills"][3]["spectrum"]
        shown = [a for i, a in enumerate(spectrum) if 0.5 * i / len(spectrum) >= lowest]
        assert np.allclose(left.lines[3].get_ydata(), shown)
        assert left.get_ylim()[1] >= 0.1  # what is still looks still
    plt.close("all")


def test_figures_about_L_refuse_skills_without(runs, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for name in [*plot.FIGURES, "report"]:
        if name in ("fig3", "fig9", "curves"):
            continue
        with pytest.raises(SystemExit) as error:
            plot.main([name, str(runs[1]), "--out", str(tmp_path / "a.png")])
        message = str(error.value)
        assert f"{name} is about L" in message and "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before
    plot.main(["fig3", *map(str, runs), "--out", str(tmp_path / "a.png")])
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_video(tmp_path, capsys, monkeypatch):
    problem = egl_problem()
    if problem:
        pytest.skip(f"EGL is missing (libegl1, libgl1-mesa-dri): {problem[0]}")
    import imageio.v2 as imageio

    run = make_run(tmp_path / "run", "diayn", "HalfCheetah-v4", episode_length=20, num_skills=2)
    script, seen = evaluate.import_script("diayn"), []
    real = script.rollout
    monkeypatch.setattr(script, "rollout", lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    run_main(capsys, run, "--episodes", 2, "--video")
    for measured, filmed in zip(seen[:2], seen[2:]):  # the film is of the episodes measured
        assert all(np.array_equal(a.obs, b.obs) for a, b in zip(measured, filmed))
    assert len(seen) == 4
    rows = json.loads((run / "evaluation.json").read_text())["skills"]
    names = [f"videos/evaluation_skill0{i}.mp4" for i in range(2)]
    assert [row["video"] for row in rows] == names
    frames = np.stack([frame for frame in imageio.get_reader(run / names[1])])
    assert frames.shape == (21, 360, 480, 3)
    assert np.abs(np.diff(frames[:, 40:].astype(int), axis=0)).max() > 50
