"""The course of a training run as a small CSV file, from its TensorBoard files.

    python benchmark/progress.py runs/NAME --out results/NAME/progress.csv
    python benchmark/progress.py runs/NAME --judged at_64000.json runs/NAME/evaluation.json

One row per stretch of training, about 200 in all: gradient steps and minutes at its end, and means
of what was logged. A run that was stopped and resumed is put together; the pause does not count.
--judged adds the number of true skills, from files of evaluate.py for this run. `python plot.py
curves A.csv B.csv` draws the files of several seeds.
"""

import csv
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import plot  # noqa: E402

LOGGED = {  # column -> TensorBoard's name; a script that does not log it has no such column
    "r_psd": "psd/r_psd",
    "radius": "psd/radius",
    "turn": "psd/turn",
    "regularity": "psd/regularity",
    "L_min": "psd/L_min",
    "L_max": "psd/L_max",
    "r_metra": "metra/objective",
    "intrinsic_reward": "losses/reward",
    "episode_length": "charts/episodic_length",
    "speed": "charts/velocity",
}
JUDGED = ["true", "trained", "return_error"]


@dataclass
class Args:
    run: Annotated[str, tyro.conf.Positional]
    """a run folder with TensorBoard files"""
    out: str | None = None
    """the CSV file to write (None: progress.csv in the run folder)"""
    judged: tuple[str, ...] = ()
    """JSON files of evaluate.py, of this run at one time or another"""
    rows: int = 200
    """about how many rows to write"""


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"progress.py: error: {' '.join(str(message).split())}")


# --------------------------------------- Reading --------------------------------------
def read_part(path):
    """One TensorBoard file: from a start, or from a --resume, to the next stop.

    Returns the arguments of the run, the time of its start, and one dictionary per epoch."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    tags = events.Tags()
    if "hyperparameters/text_summary" not in tags["tensors"]:
        return None  # stopped before its first line
    [table, *_] = events.Tensors("hyperparameters/text_summary")
    lines = table.tensor_proto.string_val[0].decode().splitlines()
    args = dict(line.strip().split(" = ", 1) for line in lines if " = " in line)
    epochs = {}  # {environment steps: what was logged there}
    for tag in ["charts/episodes", *LOGGED.values()]:
        if tag not in tags["scalars"]:
            continue
        for event in events.Scalars(tag):
            logged = epochs.setdefault(event.step, {"time": event.wall_time})
            logged[tag] = event.value
    for step, logged in epochs.items():
        logged["environment_steps"] = step
    complete = [logged for logged in epochs.values() if "charts/episodes" in logged]
    return args, events.FirstEventTimestamp(), complete


def read_epochs(run_dir):
    """All epochs of a run in order, each with its number, gradient steps and minutes so far."""
    files = sorted(run_dir.glob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime)
    if not files:
        fail(f"{run_dir} has no TensorBoard files: give the folder of a training run")
    epochs = []
    for path in files:
        part = read_part(path)
        if part is None or not part[2]:
            continue
        args, start_time, new = part
        if "updates_per_epoch" not in args or "episodes_per_epoch" not in args:
            fail(f"{path} does not say how many updates an epoch has: is it one of our runs?")
        # What a killed run logged after its last save was done again by the next part
        first = new[0]["charts/episodes"]
        epochs = [epoch for epoch in epochs if epoch["charts/episodes"] < first]
        steps = epochs[-1]["gradient_steps"] if epochs else 0
        minutes = epochs[-1]["minutes"] if epochs else 0.0
        for epoch in new:
            steps += int(args["updates_per_epoch"])
            epoch["gradient_steps"] = steps
            epoch["minutes"] = minutes + (epoch["time"] - start_time) / 60
            epoch["epoch"] = round(epoch["charts/episodes"] / int(args["episodes_per_epoch"]))
        epochs += new
    if not epochs:
        fail(f"{run_dir} has no complete epoch yet: wait for it")
    return epochs


def read_judgements(paths, epochs):
    """{epoch: number of true and of trained skills, and their mean return error}."""
    judgements = {}
    last = epochs[-1]["epoch"]
    for path in paths:
        try:
            result = json.loads(Path(path).read_text())
            epoch = result["epoch"]
            summary = result["summary"]
            judgement = {
                "true": summary["trained_within_5_percent"],
                "trained": summary["trained"],
                "return_error": summary["trained_return_error"],
            }
        except OSError as error:
            fail(f"{path} cannot be read ({error.strerror}): give a JSON file of evaluate.py")
        except (ValueError, KeyError, TypeError) as error:
            fail(f"{path} is not a JSON file of evaluate.py with L ({type(error).__name__})")
        if not 1 <= epoch <= last:
            fail(f"{path} judges epoch {epoch}, and the run has {last}: give files of this run")
        judgements[epoch] = judgement
    return judgements


# --------------------------------------- Writing --------------------------------------
def stretches(epochs, num_rows, judgements):
    """The epochs, cut into about `num_rows` stretches. A judged epoch ends one."""
    length = max(round(len(epochs) / num_rows), 1)
    cuts = {i for i in range(length, len(epochs), length)}
    cuts |= {i + 1 for i, epoch in enumerate(epochs) if epoch["epoch"] in judgements}
    cuts = sorted(cuts | {0, len(epochs)})
    return [epochs[start:stop] for start, stop in zip(cuts[:-1], cuts[1:])]


def table(epochs, judgements, num_rows):
    """The columns, and one row per stretch."""
    columns = ["epoch", "gradient_steps", "environment_steps", "minutes"]
    logged = {name: tag for name, tag in LOGGED.items() if any(tag in epoch for epoch in epochs)}
    columns += list(logged)
    if judgements:
        columns += JUDGED
    rows = []
    for stretch in stretches(epochs, num_rows, judgements):
        end = stretch[-1]
        row = {name: end[name] for name in columns[:3]}
        row["minutes"] = f"{end['minutes']:.2f}"
        for name, tag in logged.items():
            values = [epoch[tag] for epoch in stretch if tag in epoch]
            if values:
                row[name] = f"{np.mean(values):.4g}"
        row.update(judgements.get(end["epoch"], {}))
        rows.append(row)
    return columns, rows


def write_csv(path, columns, rows):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    run_dir = Path(args.run)
    if not run_dir.is_dir():
        fail(f"{run_dir} is not a folder: give the folder of a training run")
    if args.rows < 1:
        fail(f"--rows {args.rows} is no number of rows: give 1 or more")
    out = Path(args.out) if args.out else run_dir / "progress.csv"
    if not out.parent.is_dir():
        fail(f"{out.parent} is missing: there is nowhere to write {out.name}")
    epochs = read_epochs(run_dir)
    judgements = read_judgements(args.judged, epochs)
    columns, rows = table(epochs, judgements, args.rows)
    try:
        plot.write_whole(out, partial(write_csv, columns=columns, rows=rows))
    except OSError as error:
        fail(f"{out} cannot be written ({error.strerror}): free some space, or give another --out")
    print(f"wrote {out}: {len(rows)} rows, {epochs[-1]['minutes']:.1f} minutes of training")


if __name__ == "__main__":
    main()
