"""benchmark/grid.py: every command of every grid is one that its script takes; runs and table."""

import importlib.util
import json
import re
import subprocess
import sys

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
    one_seed = {re.sub(r"--seed \d+|_s\d+", "", c): c for c in commands.values()}
    for command in one_seed.values():
        command, *more = command.split(grid.THEN)
        script, *flags = command.split()
        flags += " ".join(more).split()  # of later stages, which win
        module = importlib.import_module(script[:-3].replace("/", "."))  # not twice: it registers
        args, _ = module.parse_args(flags)
        # A study has a budget, and `is_complete` reads it from the command
        assert ("--total-epochs" in flags) != ("--policy" in flags)
        assert args.total_epochs < 10_000 or "--policy" in flags


def test_table_1_takes_its_skills_from_the_other_grid():
    """All that go forward, on the robot of the task; baselines with 16 discrete skills."""
    skills, runs = grid.GRIDS["table1_skills"], grid.GRIDS["table1"]
    assert len(skills) == 2 * 7 and len(runs) == 4 * (6 * 4 + 1) * 3
    for name, command in skills.items():
        script = command.split()[0]
        module = importlib.import_module(script[:-3].replace("/", "."))
        args, _ = module.parse_args(command.split()[1:])
        assert args.ext_coef > 0
        assert args.total_epochs * args.updates_per_epoch in (128_000, 256_000)
        if "sac" not in name:
            assert ("--num-skills 16" in command) == script.startswith("baselines/")
    for command in runs.values():
        task, folder = re.search(
            r"--task (\w+)-v0 --skills runs/table1_skills/(\w+)", command
        ).groups()
        robot = folder.split("_")[0]
        assert task.startswith(robot) and f"--env-id {robot}-v4" in skills[folder]


def test_table_1_is_the_mean_over_seeds_with_an_interval_over_seeds(tmp_path, capsys, monkeypatch):
    budget = {"episodes": 40, "eval_episodes": 5, "skill_seed": 4, "skill_epochs": 7}
    budget["ext_coef"] = 1.0
    names = [f"HalfCheetahHurdle_psd_turn_learned_s{seed}" for seed in (1, 2, 3)]
    names += [
        "HalfCheetahHurdle_psd_turn_gentle_s1",
        "HalfCheetahHurdle_sac_fixed_s1",
        "Walker2dHurdle_csd_learned_s1",
    ]  # the last is missing
    for name, mean in zip(names[:5], [1.0, 2.0, 6.0, 5.0, 4.0]):
        (tmp_path / name).mkdir()
        content = {"task": "HalfCheetahHurdle-v0", "policy": "learned", "mean": mean}
        content |= {"seed": int(name[-1]), **budget}
        (tmp_path / name / "downstream.json").write_text(json.dumps(content))
    psd, gentle, sac = grid.table1(names, tmp_path)["cells"]
    assert (gentle["method"], gentle["policy"], gentle["mean"]) == ("psd_turn", "gentle", 5.0)
    assert (psd["method"], psd["policy"], psd["seeds"]) == ("psd_turn", "learned", [1, 2, 3])
    # Each of 1, 1, 1 and 6, 6, 6 is drawn with 1/27 = 3.7 %, more than the 2.5 % of a tail
    assert psd["mean"] == 3.0 and psd["interval"] == pytest.approx([1, 6])
    assert budget.items() <= psd.items() and psd["means"] == [1.0, 2.0, 6.0]
    assert (sac["method"], sac["mean"], sac["interval"]) == ("sac", 4.0, None)
    monkeypatch.setattr(sys, "argv", ["grid.py", "table1", "--table", "--read", str(tmp_path)])
    sys.argv += ["--only", "HalfCheetahHurdle", "--out", str(tmp_path / "table1.json")]
    grid.main()
    assert json.loads((tmp_path / "table1.json").read_text()) == {"cells": [psd, gentle, sac]}
    shown = capsys.readouterr().out
    assert "3.0 (1.0 to 6.0; 3)" in shown
    grid.main(["table1", "--table", "--read", str(tmp_path / "table1.json")])
    assert capsys.readouterr().out == shown  # from the stored numbers, too


def test_the_stored_table_1_is_that_of_the_stored_runs(capsys):
    stored = json.loads((REPO / "results/table1.json").read_text())
    runs = [folder.parent.name for folder in (REPO / "results/table1").glob("*/downstream.json")]
    made = grid.table1(sorted(runs), REPO / "results/table1")
    by_place = [sorted(map(json.dumps, table["cells"])) for table in (stored, made)]
    assert by_place[0] == by_place[1]
    grid.main(["table1", "--table", "--read", str(REPO / "results/table1.json")])
    assert "| HalfCheetahHurdle | paper | 0.6 ± 0.5 |" in capsys.readouterr().out


def cell(task, policy, method, mean, interval, seeds):
    numbers = {"mean": mean, "interval": interval, "seeds": seeds}
    budget = {"episodes": 10_000 if policy == "learned" else 0, "skill_epochs": 600}
    budget["skill_seed"] = 7
    return {"task": task, "policy": policy, "method": method, **numbers, **budget}


def test_table_1_has_our_cells_beside_the_papers_and_empty_ones_elsewhere(tmp_path, capsys):
    cells = [
        cell("HalfCheetahHurdle-v0", "learned", "psd", 2.04, [1.2, 2.9], [1, 2, 3]),
        cell("HalfCheetahHurdle-v0", "fixed", "sac", 1.0, None, [1]),
        cell("Walker2dFriction-v0", "random", "metra", -3.25, [-4.0, -2.0], [1, 2]),
    ]
    (tmp_path / "table1.json").write_text(json.dumps({"cells": cells}))
    source, out = str(tmp_path / "table1.json"), str(tmp_path / "table1.md")
    grid.main(["table1", "--table", "--read", source, "--out", out])
    shown = capsys.readouterr().out
    assert shown == (tmp_path / "table1.md").read_text()
    lines = [line[2:-2].split(" | ") for line in shown.splitlines() if line.startswith("|")]
    head, _, *rows = lines
    assert len(rows) == 20 and {len(row) for row in rows} == {len(head)} == {10}
    table, task = {}, None
    for row in rows:
        task = row[0] or task
        table |= {(task, row[1], method): text for method, text in zip(head[2:], row[2:])}
    assert table["HalfCheetahHurdle", "paper", "PSD"] == "3.8 ± 2.0"
    assert table["Walker2dFriction", "paper", "DADS"] == "1.6 ± 0.1"
    ours = {key: text.strip() for key, text in table.items() if key[1] != "paper"}
    assert {key: text for key, text in ours.items() if text} == {
        ("HalfCheetahHurdle", "ours, PPO", "PSD"): "2.0 (1.2 to 2.9; 3)",
        ("HalfCheetahHurdle", "ours, best single skill", "SAC, r_ext alone"): "1.0 (1)",
        ("Walker2dFriction", "ours, random skills", "METRA"): "-3.2 (-4.0 to -2.0; 2)",
    }
    assert "PPO: 10,000 episodes (paper: 100,000)." in shown
    assert "Skills: 600 epochs, trained with seed 7: one set per method" in shown


def test_the_papers_table_1_is_the_papers():
    """Each of its 20 cells, column by column as the paper prints its methods."""
    hurdles = ("HalfCheetahHurdle-v0", "Walker2dHurdle-v0")
    tasks = (*hurdles, "HalfCheetahFriction-v0", "Walker2dFriction-v0")
    columns = {
        "DIAYN": ("0.6 ± 0.5", "2.6 ± 0.5", "13.2 ± 3.4", "4.6 ± 1.2"),
        "DADS": ("0.9 ± 0.3", "1.9 ± 0.3", "12.4 ± 2.9", "1.6 ± 0.1"),
        "CSD": ("0.8 ± 0.6", "4.1 ± 1.3", "12.5 ± 3.8", "5.3 ± 0.3"),
        "METRA": ("1.9 ± 0.8", "3.1 ± 0.5", "30.1 ± 13.1", "5.2 ± 1.6"),
        "PSD": ("3.8 ± 2.0", "5.4 ± 1.4", "43.4 ± 19.1", "8.7 ± 1.7"),
    }
    assert list(columns) == list(grid.METHODS.values())[:5]
    rows = zip(*columns.values())
    assert grid.PAPER_TABLE_1 == {task: ", ".join(row) for task, row in zip(tasks, rows)}


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "is missing: python benchmark/grid.py table1 --table --out"),
        ("not JSON", "is damaged, or not of benchmark/grid.py table1"),
        ('{"cells": [{"task": "Ant-v4"}]}', "is damaged, or not of"),
        (json.dumps({"cells": [cell("Ant-v4", "learned", "psd", 1, None, [1])]}), "KeyError"),
    ],
)
def test_a_bad_table_1_is_refused_in_one_line(content, message, tmp_path):
    if content is not None:
        (tmp_path / "table1.json").write_text(content)
    with pytest.raises(SystemExit) as error:
        grid.main(["table1", "--table", "--read", str(tmp_path / "table1.json")])
    assert message in str(error.value) and "\n" not in str(error.value)


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
    (folder / "model.pt").touch()
    # Stages: the second is a run that goes on with other flags, from wherever the first one is
    staged = f"psd.py --seed 1 --total-epochs 4{grid.THEN}--ext-coef 1 --total-epochs 9"
    go_on = ["psd.py", "--resume", str(folder), "--total-epochs", "4"]
    forward = [*go_on[:3], "--ext-coef", "1", "--total-epochs", "9"]
    for done, expected in [(3, [go_on, forward]), (4, [forward]), (8, [forward]), (9, [])]:
        monkeypatch.setattr(grid, "epochs_done", lambda run_dir, done=done: done)
        called.clear()
        grid.run_and_judge("a", staged, folder)
        assert called == [*expected, ["evaluate.py", str(folder)]]
    monkeypatch.setattr(grid, "epochs_done", lambda run_dir: 0)
    called.clear()
    control = "downstream_ppo.py --skills x --policy fixed --seed 1"
    grid.run_and_judge("b", control, folder.parent / "b")
    assert called == [[*control.split(), "--run-name", "table1/b"]]


def test_one_run_that_fails_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    def call(flags, log):
        called.append(flags)
        if "runs/table1_skills/HalfCheetah_psd_s1" in flags:  # not trained
            raise subprocess.CalledProcessError(1, flags)

    called = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "call", call)
    monkeypatch.setattr(sys, "argv", "grid.py table1 --only HalfCheetahHurdle --run".split())
    with pytest.raises(SystemExit, match="failed: HalfCheetahHurdle_psd_learned_s1, ") as error:
        grid.main()
    names = [name for name in grid.GRIDS["table1"] if "HalfCheetahHurdle" in name]
    failed = [n for n in names if "Hurdle_psd_" in n and "turn" not in n]
    assert len(called) == len(names) and len(failed) == 12
    assert str(error.value) == f"failed: {', '.join(failed)}"
    assert f"{failed[0]}: failed, the end of runs/table1/" in capsys.readouterr().out


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


def test_table_counts_true_skills_over_seeds(tmp_path):
    for seed, periods in [(1, [10.2, 25.0, None]), (2, [10.8, 20.9, 39.9])]:
        skills = [
            {"L": L, "period": period, "r_psd": 0.5, "radius": 1.0, "trained": True}
            for L, period in zip([5, 10, 20], periods)
        ]
        skills.append({"L": 7, "period": 14.0, "r_psd": 1.0, "radius": 1.0, "trained": False})
        (tmp_path / f"both_s{seed}").mkdir()
        (tmp_path / f"both_s{seed}/evaluation.json").write_text(json.dumps({"skills": skills}))
    rows = grid.true_skills(["both_s1", "both_s2", "missing_s1"], tmp_path)
    assert set(rows) == {"both"} and set(rows["both"]) == {1, 2}
    rows["third"] = {3: rows["both"][2]}
    lines = grid.true_skills_text(rows).splitlines()
    assert lines[0] == "| variant | L | true, by seed | mean | more than both | r_PSD | radius |"
    assert lines[2] == "| both | 3 | 1, 2 | 1.5 (1.0 to 2.0; 2 seeds) |  | 0.50 | 1.00 |"
    # Above 1, and equal to 2: 3/4
    assert lines[3].startswith("| third | 3 | 2 | 2.0 (1 seed) | 0.75 (0.50 to 1.00) |")


@pytest.mark.parametrize("name", ["table1", "terms"])
def test_an_empty_table_does_not_replace_a_full_one(tmp_path, monkeypatch, name):
    (tmp_path / "out.json").write_text("kept")
    line = f"grid.py {name} --table --read {tmp_path} --out {tmp_path / 'out.json'}"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit, match="has nothing to table"):
        grid.main()
    assert (tmp_path / "out.json").read_text() == "kept"


@pytest.mark.parametrize(
    "only, names", [("turn_s1", 2), ("HalfCheetah", 4), ("Walker2d_turn_s1", 1), ("nothing", 0)]
)
def test_only_takes_one_run_or_those_that_contain_it(monkeypatch, capsys, only, names):
    monkeypatch.setattr("sys.argv", ["grid.py", "adaptive", "--only", only])
    if names:
        grid.main()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == names and all(only in line for line in lines)
    else:
        with pytest.raises(SystemExit, match="adaptive has no run"):
            grid.main()


def test_printed_stages_go_on_with_the_same_script(monkeypatch, capsys):
    staged = f"psd.py --env-id Pendulum-v1 --total-epochs 4{grid.THEN}--kappa 50 --total-epochs 9"
    monkeypatch.setitem(grid.GRIDS, "staged", {"a_s1": staged})
    grid.main(["staged"])
    first, second = capsys.readouterr().out.splitlines()
    assert first == "python psd.py --env-id Pendulum-v1 --total-epochs 4 --run-name staged/a_s1"
    assert second == "python psd.py --resume runs/staged/a_s1 --kappa 50 --total-epochs 9"
