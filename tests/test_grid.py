"""benchmark/grid.py: every command of every grid is one that its script takes; runs and table."""

import importlib.util
import json

import pytest
import torch
from conftest import REPO, TINY


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
    for command in commands.values():
        script, *flags = command.split()
        args, _ = load(REPO / script).parse_args(flags)
        assert args.total_epochs < 10_000  # a study has a budget


def test_wilson_interval_by_hand():
    low, high = grid.wilson(8, 10)  # the textbook example
    assert low == pytest.approx(0.490, abs=1e-3) and high == pytest.approx(0.943, abs=1e-3)
    assert grid.wilson(0, 5)[0] == pytest.approx(0) and grid.wilson(5, 5)[1] == pytest.approx(1)


def test_runs_once_resumes_and_judges(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) / "runs/tiny"
    command = " ".join(["psd.py", *TINY, "--no-adaptive-sampling", "--seed 1 --total-epochs "])
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
