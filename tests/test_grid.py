"""benchmark/grid.py: every command of every grid is one that its script takes; runs and table."""

import importlib.util
import json
import re

import numpy as np
import pytest
import torch
from conftest import REPO, TINY

import plot


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


grid = load(REPO / "benchmark/grid.py")


@pytest.mark.parametrize("name", grid.GRIDS)
def test_every_command_parses_and_no_two_are_equal(name):
    commands = grid.GRIDS[name]
    assert len(set(commands.values())) == len(commands) > 1
    one_seed = {re.sub(r"--seed \d+|_s\d+", "", c): c for c in commands.values()}
    for command in one_seed.values():
        script, *flags = command.split()
        module = importlib.import_module(script[:-3].replace("/", "."))  # not twice: it registers
        args, _ = module.parse_args(flags)
        assert args.total_epochs < 10_000 or "--policy" in flags  # a study has a budget


def test_table_1_takes_its_skills_from_the_other_grid():
    """All that go forward, on the robot of the task; baselines with 16 discrete skills."""
    skills, runs = grid.GRIDS["table1_skills"], grid.GRIDS["table1"]
    assert len(skills) == 2 * 7 * 3 and len(runs) == 4 * (6 * 3 + 1) * 3
    assert all("--ext-coef 1" in command for command in skills.values())
    for name, command in skills.items():
        script = command.split()[0]
        if "sac" not in name:
            assert ("--num-skills 16" in command) == script.startswith("baselines/")
    for command in runs.values():
        task, folder = re.search(
            r"--task (\w+)-v0 --skills runs/table1_skills/(\w+)", command
        ).groups()
        robot = folder.split("_")[0]
        assert task.startswith(robot) and f"--env-id {robot}-v4" in skills[folder]
        assert folder.rsplit("_s", 1)[1] == command.split("--seed ")[1]  # a seed of skills, a seed


def test_table_1_is_the_mean_over_seeds_with_students_interval(tmp_path, capsys):
    budget = {"episodes": 40, "eval_episodes": 5, "skill_epochs": 7, "ext_coef": 1.0}
    names = [f"HalfCheetahHurdle_psd_radius_learned_s{seed}" for seed in (1, 2, 3)]
    names += [
        "HalfCheetahHurdle_sac_fixed_s1",
        "Walker2dHurdle_csd_learned_s1",
    ]  # the last is missing
    for name, mean in zip(names[:4], [1.0, 2.0, 6.0, 4.0]):
        (tmp_path / name).mkdir()
        content = {"task": "HalfCheetahHurdle-v0", "policy": name.split("_")[-2], "mean": mean}
        content |= {"seed": int(name[-1]), **budget}
        (tmp_path / name / "downstream.json").write_text(json.dumps(content))
    psd, sac = grid.table1(names, tmp_path)["cells"]
    assert (psd["method"], psd["policy"], psd["seeds"]) == ("psd_radius", "learned", [1, 2, 3])
    half = 4.303 * np.std([1, 2, 6], ddof=1) / np.sqrt(3)
    assert psd["mean"] == 3.0 and psd["interval"] == pytest.approx([3 - half, 3 + half])
    assert budget.items() <= psd.items() and psd["means"] == [1.0, 2.0, 6.0]
    assert (sac["method"], sac["mean"], sac["interval"]) == ("sac", 4.0, None)
    (tmp_path / "table1.json").write_text(json.dumps({"cells": [psd, sac]}))
    capsys.readouterr()
    plot.main(["table1", str(tmp_path / "table1.json")])
    assert f"3.0 ({3 - half:.1f} to {3 + half:.1f}; 3)" in capsys.readouterr().out


def test_a_downstream_run_is_complete_with_its_json(tmp_path, monkeypatch):
    """It judges itself; one that was stopped while it trained or after that goes on."""
    called = []
    monkeypatch.setattr(grid, "call", lambda flags, log: called.append(flags))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) / "runs/table1/a"
    command = "downstream_ppo.py --skills x --total-epochs 5 --seed 1"
    for done, files, expected in [
        (0, [], [*command.split(), "--run-name", "table1/a"]),
        (3, ["resume.pt"], ["downstream_ppo.py", "--resume", str(folder), "--total-epochs", "5"]),
        (5, ["resume.pt"], ["downstream_ppo.py", "--resume", str(folder), "--total-epochs", "5"]),
        (5, ["resume.pt", "downstream.json"], None),
    ]:
        folder.mkdir(parents=True, exist_ok=True)
        [(folder / name).touch() for name in files]
        called.clear()
        monkeypatch.setattr(grid, "epochs_done", lambda run_dir, done=done: done)
        grid.run_and_judge("a", command, folder)
        assert called == ([expected] if expected else [])
    control = "downstream_ppo.py --skills x --policy fixed --seed 1"
    grid.run_and_judge("b", control, folder.parent / "b")
    assert called == [[*control.split(), "--run-name", "table1/b"]]


def test_wilson_interval_by_hand():
    low, high = grid.wilson(8, 10)  # the textbook example
    assert low == pytest.approx(0.490, abs=1e-3) and high == pytest.approx(0.943, abs=1e-3)
    assert grid.wilson(0, 5)[0] == pytest.approx(0) and grid.wilson(5, 5)[1] == pytest.approx(1)


def test_runs_once_resumes_and_judges(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) / "runs/tiny"
    command = " ".join(["psd.py", *TINY, "--no-adaptive-sampling", "--seed 1 --total-epochs "])
    (folder / "a_s1").mkdir(parents=True)  # left by a run that was killed before it saved
    grid.run_and_judge("a_s1", command + "1", folder / "a_s1")
    assert grid.epochs_done(folder / "a_s1") == 1
    evaluation = folder / "a_s1/evaluation.json"
    first, first_weights = evaluation.stat().st_mtime, torch.load(folder / "a_s1/model.pt")
    grid.run_and_judge("a_s1", command + "1", folder / "a_s1")  # nothing to do
    assert evaluation.stat().st_mtime == first
    grid.run_and_judge("a_s1", command + "2", folder / "a_s1")  # goes on
    assert grid.epochs_done(folder / "a_s1") == 2 and evaluation.stat().st_mtime > first
    assert first_weights["args"]["total_epochs"] == 1


def test_table_counts_true_skills_over_seeds(tmp_path, capsys):
    for seed, periods in [(1, [10.2, 25.0, None]), (2, [10.8, 20.9, 39.9])]:
        skills = [
            {"L": L, "period": period, "r_psd": 0.5, "radius": 1.0}
            for L, period in zip([5, 10, 20], periods)
        ]
        (tmp_path / f"both_s{seed}").mkdir()
        (tmp_path / f"both_s{seed}/evaluation.json").write_text(json.dumps({"skills": skills}))
    rows = grid.table(["both_s1", "both_s2", "missing_s1"], tmp_path)
    assert set(rows) == {"both"} and set(rows["both"]) == {1, 2}
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("| both | 2 | 3 of 6 | 0.19 to 0.81 | 4 of 6 | 0.50 | 1.00 |")
