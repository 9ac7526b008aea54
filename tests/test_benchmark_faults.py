"""benchmark/ under bad input: one line, a non-zero exit; and no run folder is ever removed."""

import errno
import fcntl
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import REPO

sys.path.insert(0, str(REPO / "benchmark"))


def load(name):
    """A script of benchmark/, apart from the one that other tests have imported."""
    spec = importlib.util.spec_from_file_location(f"faults_{name}", REPO / f"benchmark/{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclass looks it up
    spec.loader.exec_module(module)
    return module


grid = load("grid")


def check_error(module, script, line, expected, monkeypatch):
    monkeypatch.setattr(sys, "argv", [script, *line.split()])
    with pytest.raises(SystemExit) as error:
        module.main()
    message = str(error.value)
    assert message.startswith(f"{script}: error: ") and "\n" not in message
    assert expected in message, message


# --------------------------------------------- grid.py --------------------------------------------
@pytest.mark.parametrize(
    "line, expected",
    [
        ("terms --run --jobs 0", "--jobs 0"),
        ("terms --run --jobs -2", "--jobs -2"),
        ("terms --table --read nowhere", "nowhere is missing"),
        ("table1 --table --read nowhere", "nowhere is missing"),
        ("terms --table", "runs/terms has nothing to table"),
        ("nothing", "there is no grid 'nothing'"),
        ("terms --table --out a_folder", "is a folder"),
        ("terms --table --out table.txt", "should end in .json or .md"),
        ("terms --run --out nowhere/table.json", "nowhere is missing"),
        ("terms --out table.json", "add --table"),
        ("table1 --table --only psd --read table1.json", "--only"),
    ],
)
def test_grid_refuses_nonsense_before_any_work(line, expected, tmp_path, monkeypatch):
    def call(flags, log):
        raise AssertionError("nothing should run")

    monkeypatch.setattr(grid, "call", call)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "table1.json").write_text("{}")
    check_error(grid, "grid.py", line, expected, monkeypatch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_folder", "table1.json"]


def test_grid_names_a_damaged_json(tmp_path, monkeypatch):
    for name, content in [("paper_s1", "{"), ("paper_s2", '{"skills": 3}')]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_text(content)
        line = f"terms --table --only {name} --read {tmp_path}"
        check_error(grid, "grid.py", line, f"{name}/evaluation.json is damaged", monkeypatch)


def test_grid_keeps_an_old_table_when_the_disk_is_full(tmp_path, monkeypatch):
    out = tmp_path / "table.json"
    out.write_text("the old table")

    def some_bytes(self, data):
        with open(self, "w") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", some_bytes)
    source = REPO / "results/table1.json"
    line = f"table1 --table --read {source} --out {out}"
    check_error(grid, "grid.py", line, "No space left on device", monkeypatch)
    assert out.read_text() == "the old table" and list(tmp_path.iterdir()) == [out]


@pytest.fixture
def called(tmp_path, monkeypatch):
    """The commands that grid.py would run, from a working folder of its own."""
    commands = []

    def call(flags, log):
        commands.append(flags)
        if "--run-name" in flags:  # as a script does
            folder = Path("runs") / flags[flags.index("--run-name") + 1]
            folder.mkdir(parents=True)
            torch.save({"state": {"epoch": 9}}, folder / "model.pt")

    monkeypatch.setattr(grid, "call", call)
    monkeypatch.chdir(tmp_path)
    return commands


COMMAND = "psd.py --seed 1 --total-epochs 9"
START = [*COMMAND.split(), "--run-name", "tiny/a_s1"]
JUDGE = ["evaluate.py", "runs/tiny/a_s1"]


def test_grid_moves_a_folder_aside_that_it_cannot_continue(called, capsys):
    """With weights and a note of somebody's in it; and again, to another name."""
    run = Path("runs/tiny/a_s1")
    for number in (1, 2):
        run.mkdir(parents=True, exist_ok=True)
        torch.save({"state": {"epoch": 3}}, run / "model.pt")
        (run / "note.txt").write_text(f"note {number}")
        called.clear()
        grid.run_and_judge("a_s1", COMMAND, run)
        assert called == [START, JUDGE]
        aside = Path(f"runs/tiny/a_s1.aside-{number}")
        assert (aside / "note.txt").read_text() == f"note {number}"
        assert torch.load(aside / "model.pt")["state"]["epoch"] == 3
        assert not (run / "note.txt").exists()
        line = f"a_s1: {run} has no resume.pt, and is kept as {aside}\n"
        assert line in capsys.readouterr().out


def test_grid_moves_a_folder_aside_whose_weights_cannot_be_read(called):
    run = Path("runs/tiny/a_s1")
    run.mkdir(parents=True)
    (run / "model.pt").write_text("not a checkpoint")
    grid.run_and_judge("a_s1", COMMAND, run)
    assert called == [START, JUDGE]
    assert Path("runs/tiny/a_s1.aside-1/model.pt").read_text() == "not a checkpoint"


def test_grid_starts_anew_with_the_first_stage_what_it_cannot_continue(called):
    """A run that has finished its first stage, but whose resume.pt is gone."""
    run = Path("runs/tiny/a_s1")
    run.mkdir(parents=True)
    torch.save({"state": {"epoch": 5}}, run / "model.pt")
    grid.run_and_judge("a_s1", f"psd.py --total-epochs 5{grid.THEN}--total-epochs 9", run)
    assert called[0] == ["psd.py", "--total-epochs", "5", "--run-name", "tiny/a_s1"]


def test_grid_leaves_a_complete_run_where_it_is(called):
    for key in ("state", "progress"):  # the older and the newer name in a checkpoint
        run = Path(f"runs/tiny/{key}_s1")
        run.mkdir(parents=True)
        torch.save({key: {"epoch": 9}}, run / "model.pt")
        grid.run_and_judge(f"{key}_s1", COMMAND, run)
        assert called.pop() == ["evaluate.py", str(run)] and not called
    assert sorted(p.name for p in Path("runs/tiny").iterdir()) == ["progress_s1", "state_s1"]


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_grid_skips_a_run_that_another_process_trains(called, capsys):
    run = Path("runs/tiny/a_s1")
    run.mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(run / "lock")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout.readline() == "locked\n"
        for resume in (False, True):  # before its first save, and after
            if resume:
                (run / "resume.pt").touch()
            grid.run_and_judge("a_s1", COMMAND, run)
            assert capsys.readouterr().out == f"a_s1: skipped, {run} is running elsewhere\n"
        other.stdin.close()
    assert called == [] and list(Path("runs/tiny").iterdir()) == [run]
    (run / "resume.pt").unlink()
    grid.run_and_judge("a_s1", COMMAND, run)  # the lock has ended with the process
    assert called == [START, JUDGE] and Path("runs/tiny/a_s1.aside-1/lock").exists()


def test_grid_does_not_keep_the_lock_that_it_looks_at(tmp_path):
    (tmp_path / "lock").touch()
    assert not grid.is_running(tmp_path)
    with open(tmp_path / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert grid.is_running(tmp_path)
    assert not grid.is_running(tmp_path) and not grid.is_running(tmp_path / "nowhere")


# -------------------------------------------- speed.py --------------------------------------------
@pytest.fixture
def speed(monkeypatch):
    """speed.py, which must not come as far as a measurement."""
    import speed

    def work(*args, **kwargs):
        raise AssertionError("nothing should be measured")

    monkeypatch.setattr(speed, "interleave", work)
    monkeypatch.setattr(speed, "make", work)
    return speed


@pytest.mark.parametrize(
    "line, expected",
    [
        ("--rounds 0", "--rounds 0"),
        ("--rounds -1", "--rounds -1"),
        ("--threads 0", "--threads 0"),
        ("--threads -1", "--threads -1"),
        ("--hidden 0", "--hidden"),
        ("--hidden", "--hidden"),
        ("--robots", "--robots"),
        ("--robots Pendulum-v1", "--robots Pendulum-v1 is no MuJoCo robot"),
        ("--robots Nothing-v4", "--robots Nothing-v4"),
        ("--out a_folder", "a_folder is a folder"),
        ("--out a_file/speed.json", "a_file cannot be made"),
    ],
)
def test_speed_refuses_nonsense_before_any_work(line, expected, speed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_folder").mkdir()
    (tmp_path / "a_file").touch()
    check_error(speed, "speed.py", line, expected, monkeypatch)
    assert list((tmp_path / "a_folder").iterdir()) == []


def test_speed_measures_the_memory_of_a_buffer(capsys):
    import speed

    speed.fill_a_buffer(capacity=2000, T=200)
    held, one_copy = [int(number) for number in capsys.readouterr().out.split()]
    assert one_copy == 2000 * (4 * 27 + 4 * 8 + 4 + 1) and held >= 0


# ------------------------------------------ landscape.py ------------------------------------------
@pytest.mark.parametrize(
    "line, expected",
    [
        ("--lam-2 nan", "--lam-2 nan"),
        ("--lam-2 5 inf", "--lam-2 inf"),
        ("--lam-2 -1", "--lam-2 -1"),
        ("--lam-2", "--lam-2"),
        ("--lam-1 nan", "--lam-1 nan"),
        ("--lam-1 -1", "--lam-1 -1"),
        ("--k nan", "--k nan"),
        ("--k -0.5", "--k -0.5"),
        ("--kappa nan", "--kappa nan"),
        ("--kappa 0", "--kappa 0"),
        ("--kappa -1", "--kappa -1"),
        ("--longest nan", "--longest nan"),
        ("--longest inf", "--longest inf"),
        ("--longest -1", "--longest -1"),
        ("--L 0", "--L 0"),
        ("--L -3", "--L -3"),
        ("--latent-dim 1", "--latent-dim"),
        ("--out folder.json", "is a folder"),
        ("--out picture.json", "is a folder"),
    ],
)
def test_landscape_refuses_nonsense_before_any_work(line, expected, tmp_path, monkeypatch):
    from benchmark import landscape

    def work(*args, **kwargs):
        raise AssertionError("nothing should be computed")

    monkeypatch.setattr(landscape, "best_encoders", work)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "picture.png").mkdir()
    if "--out" not in line:
        line += " --out a.json"
    check_error(landscape, "landscape.py", line, expected, monkeypatch)
    assert not (tmp_path / "a.json").exists()


# -------------------------------------------- pixels.py -------------------------------------------
@pytest.mark.parametrize(
    "line, expected",
    [
        ("cube", "there is no probe 'cube'"),
        ("state --episodes 0", "--episodes 0"),
        ("exact --episodes -1", "--episodes -1"),
        ("state --test-episodes 0", "--test-episodes 0"),
        ("circle --test-episodes 2", "--test-episodes 2"),
        ("state --steps 0", "--steps 0"),
        ("state --batch-size 0", "--batch-size 0"),
        ("state --lr nan", "--lr nan"),
        ("state --lr 0", "--lr 0"),
        ("state --noise -1", "--noise -1"),
        ("state --noise nan", "--noise nan"),
        ("state --action-scale inf", "--action-scale inf"),
        ("state --num-filters 0", "--num-filters 0"),
        ("state --image-size 0", "--image-size 0"),
        ("state --seed -1", "--seed -1"),
        ("state --periods", "--periods"),
        ("state --periods 0", "--periods"),
        ("circle --periods 6 9 500", "--periods has an L above 200"),
    ],
)
def test_pixels_refuses_nonsense_before_any_work(line, expected, monkeypatch):
    pixels = load("pixels")

    def work(*args, **kwargs):
        raise AssertionError("nothing should be played")

    monkeypatch.setattr(pixels, "play", work)
    check_error(pixels, "pixels.py", line, expected, monkeypatch)


def test_a_message_names_its_script(tmp_path):
    """The commands themselves: no traceback, and a non-zero exit code."""
    for line in ("speed.py --rounds 0", "grid.py terms --run --jobs 0"):
        script, *flags = line.split()
        command = [sys.executable, str(REPO / "benchmark" / script), *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.startswith(f"{script}: error: ") and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
