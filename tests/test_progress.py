"""benchmark/progress.py: a training run as a CSV file."""

import csv
import json

import numpy as np
import pytest
from conftest import TINY
from torch.utils.tensorboard import SummaryWriter

import psd
from benchmark import progress

EPISODES = 8
UPDATES = 64


def write_part(run_dir, first_epoch, last_epoch, clock, start, updates=UPDATES, value=0.0):
    """A TensorBoard file as train writes it: `clock` gives the time, 30 seconds per epoch."""
    clock["now"] = start
    writer = SummaryWriter(run_dir, filename_suffix=f".{start}")
    args = {"updates_per_epoch": updates, "episodes_per_epoch": EPISODES}
    text = "\n".join(f"    {name} = {number}" for name, number in args.items())
    writer.add_text("hyperparameters", text, walltime=start)
    for epoch in range(first_epoch, last_epoch + 1):
        now = start + 30 * (epoch - first_epoch + 1)
        logs = {"charts/episodes": EPISODES * epoch, "psd/r_psd": value + epoch}
        for tag, number in logs.items():
            writer.add_scalar(tag, number, 1600 * epoch, walltime=now)
    writer.close()


@pytest.fixture
def clock(monkeypatch):
    """The time that stands in the first line of a TensorBoard file, and in its name."""
    clock = {"now": 0}
    now = "tensorboard.summary.writer.event_file_writer.time.time"
    monkeypatch.setattr(now, lambda: clock["now"])
    return clock


def read_csv(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_a_run_that_was_killed_and_resumed(tmp_path, clock):
    """Epochs 1 to 6, of which 5 and 6 were lost; then 5 to 8 with more updates, a day later."""
    write_part(tmp_path, 1, 6, clock, start=1_000)
    write_part(tmp_path, 5, 8, clock, start=90_000, updates=128, value=100.0)
    progress.main([str(tmp_path), "--rows", "100"])
    rows = read_csv(tmp_path / "progress.csv")
    assert [int(row["epoch"]) for row in rows] == list(range(1, 9))
    steps = [64, 128, 192, 256, 384, 512, 640, 768]
    assert [int(row["gradient_steps"]) for row in rows] == steps
    assert [float(row["minutes"]) for row in rows] == pytest.approx(np.arange(1, 9) / 2)
    assert [float(row["r_psd"]) for row in rows] == [1, 2, 3, 4, 105, 106, 107, 108]
    assert [int(row["environment_steps"]) for row in rows] == [1600 * n for n in range(1, 9)]
    assert "turn" not in rows[0] and "true" not in rows[0]


def judgement(path, epoch, true):
    summary = {"trained_within_5_percent": true, "trained": 16, "trained_return_error": 0.25}
    path.write_text(json.dumps({"epoch": epoch, "summary": summary}))
    return str(path)


def test_rows_are_means_and_judged_epochs_end_one(tmp_path, clock):
    write_part(tmp_path, 1, 40, clock, start=1_000)
    judged = [judgement(tmp_path / "a.json", 13, 7), judgement(tmp_path / "b.json", 40, 16)]
    out = tmp_path / "out.csv"
    progress.main([str(tmp_path), "--rows", "4", "--out", str(out), "--judged", *judged])
    rows = read_csv(out)
    assert [int(row["epoch"]) for row in rows] == [10, 13, 20, 30, 40]
    assert [float(row["r_psd"]) for row in rows] == [5.5, 12, 17, 25.5, 35.5]
    assert [row["true"] for row in rows] == ["", "7", "", "", "16"]
    assert rows[1]["trained"] == "16" and rows[1]["return_error"] == "0.25"


def test_a_real_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    psd.main([*TINY, "--total-epochs", "2", "--run-name", "a"])
    psd.main(["--resume", "runs/a", "--total-epochs", "3"])
    progress.main(["runs/a"])
    rows = read_csv(tmp_path / "runs/a/progress.csv")
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3]
    minutes = [float(row["minutes"]) for row in rows]
    assert minutes == sorted(minutes)
    updates = psd.parse_args(TINY)[0].updates_per_epoch
    assert [int(row["gradient_steps"]) for row in rows] == [updates, 2 * updates, 3 * updates]
    assert all(0 <= float(row["r_psd"]) <= 1 for row in rows)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["missing"], "missing is not a folder"),
        (["."], "has no TensorBoard files"),
        (["run", "--rows", "0"], "--rows 0 is no number of rows"),
        (["run", "--out", "nowhere/a.csv"], "nowhere is missing"),
        (["run", "--judged", "bad.json"], "is not a JSON file of evaluate.py"),
        (["run", "--judged", "none.json"], "cannot be read"),
        (["run", "--judged", "late.json"], "judges epoch 9, and the run has 2"),
        (["empty"], "no complete epoch yet"),
    ],
)
def test_bad_input_gets_one_line(tmp_path, clock, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    write_part(tmp_path / "run", 1, 2, clock, start=1_000)
    write_part(tmp_path / "empty", 1, 0, clock, start=1_000)
    (tmp_path / "bad.json").write_text("[]")
    judgement(tmp_path / "late.json", 9, 1)
    with pytest.raises(SystemExit, match=message) as error:
        progress.main(flags)
    assert str(error.value).count("\n") == 0
    assert not list(tmp_path.rglob("*.csv"))
