"""The tables of results in README.md and docs/, from the files in results/ alone.

    python benchmark/tables.py            # writes them anew, between their two comments
    python benchmark/tables.py --check    # fails if a table is not what the files say

Every number stands in a file: evaluation.json (the judge), progress.csv (steps and minutes),
table1.json (downstream tasks).
"""

import csv
import json
import re
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import tyro

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import plot  # noqa: E402

RESULTS = {  # robot -> folders below results/, one per seed
    "HalfCheetah-v4": ["halfcheetah", *(f"halfcheetah_s{seed}" for seed in (2, 3, 4, 5))],
    "Walker2d-v4": ["walker2d", "walker2d_s2", "walker2d_s3"],
    "Ant-v4": ["ant", "ant_s2", "ant_s3"],
    "Hopper-v4": ["hopper"],
    "Humanoid-v4": ["humanoid"],
    "Pendulum-v1": ["pendulum"],
}
PAGES = {  # a table -> the page that it stands on
    "robots": "README.md",
    "seeds": "docs/recipes.md",
    "paper": "docs/traps.md",
    "hurdle": "docs/downstream_ppo.md",
    "friction": "docs/downstream_ppo.md",
    "directions": "docs/psd_metra.md",
}


@dataclass
class Args:
    check: bool = False
    """compare the tables with the files, and write nothing"""


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"tables.py: error: {' '.join(str(message).split())}")


@dataclass
class Result:
    """What the tables need of one run."""

    folder: str
    seed: int
    periods: list  # the trained L
    dt: float  # seconds per environment step
    num_true: int
    return_error: float
    upright: float | None
    speeds: list  # of each trained L; None where the environment has no forward direction
    gradient_steps: int
    minutes: float


def read_result(folder):
    """From evaluation.json and the last line of progress.csv."""
    path = REPO / "results" / folder
    try:
        evaluation = json.loads((path / "evaluation.json").read_text())
        with open(path / "progress.csv", newline="") as file:
            *_, last = csv.DictReader(file)
    except (OSError, ValueError) as error:
        fail(f"results/{folder} has no evaluation.json and progress.csv to read ({error})")
    if int(last["epoch"]) != evaluation["epoch"]:
        fail(f"results/{folder}: progress.csv ends at epoch {last['epoch']}, and not at the judged")
    skills = [skill for skill in evaluation["skills"] if skill["trained"]]
    summary = evaluation["summary"]
    return Result(
        folder=folder,
        seed=evaluation["args"]["seed"],
        periods=[skill["L"] for skill in skills],
        dt=evaluation["dt"],
        num_true=summary["trained_within_5_percent"],
        return_error=summary["trained_return_error"],
        upright=summary["trained_upright"],
        speeds=[skill["speed"] for skill in skills],
        gradient_steps=int(last["gradient_steps"]),
        minutes=float(last["minutes"]),
    )


# ---------------------------------------- Cells ---------------------------------------
def periods_text(periods):
    """5, 6, … 20."""
    first, second, *_, last = periods
    return f"{first}, {second}, … {last}"


def cycle_text(result):
    """How long a cycle of 2L is, for the smallest and the largest L."""
    seconds = [2 * L * result.dt for L in result.periods]
    return range_text(seconds, "{:.1f}") + " s"


def upright_text(results):
    shares = [result.upright for result in results]
    if None in shares:
        return ""
    return range_text([100 * share for share in shares], "{:.0f}") + " %"


def speed_text(results):
    speeds = [speed for result in results for speed in result.speeds]
    if None in speeds or not any(speeds):
        return ""
    return range_text(speeds, "{:.2f}")


def range_text(values, form):
    """low to high, or one number if both look the same."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def robots_table(groups):
    """One row per robot: what its seeds gave."""
    header = (
        "robot, full motors | L | 2L lasts | true, by seed | return error | upright | speed, m/s"
    )
    lines = [f"{header} | gradient steps | minutes".split(" | ")]
    for robot, results in groups.items():
        counts = ", ".join(str(result.num_true) for result in results)
        shown = min((result.folder for result in results), key=len)  # the one with pictures
        lines.append(
            [
                f"[{robot}](results/{shown})",
                periods_text(results[0].periods),
                cycle_text(results[0]),
                f"{counts} of {len(results[0].periods)}",
                ", ".join(f"{result.return_error:.2f}" for result in results),
                upright_text(results),
                speed_text(results),
                range_text([result.gradient_steps for result in results], "{:,}"),
                range_text([result.minutes for result in results], "{:.0f}"),
            ]
        )
    return lines


def seeds_table(groups):
    """One row per run."""
    header = "robot | L | seed | true | return error | upright | speed, m/s"
    lines = [f"{header} | gradient steps | minutes | files".split(" | ")]
    for robot, results in groups.items():
        for result in results:
            is_first = result is results[0]
            lines.append(
                [
                    robot if is_first else "",
                    periods_text(result.periods) if is_first else "",
                    str(result.seed),
                    f"{result.num_true} of {len(result.periods)}",
                    f"{result.return_error:.2f}",
                    upright_text([result]),
                    speed_text([result]),
                    f"{result.gradient_steps:,}",
                    f"{result.minutes:.0f}",
                    f"[results/{result.folder}](../results/{result.folder})",
                ]
            )
    return lines


def read_json(path):
    try:
        return json.loads((REPO / "results" / path).read_text())
    except (OSError, ValueError) as error:
        fail(f"results/{path} cannot be read ({error})")


def mean(values):
    return sum(values) / len(values)


def is_true(row):
    """Is the period within 5 % of 2L?"""
    return row["period"] is not None and abs(row["period"] / (2 * row["L"]) - 1) <= 0.05


REWARDS = {  # of the same command and the same seeds
    "the paper's, r_ext added": [f"traps/paper_preset_s{seed}" for seed in (1, 2, 3)],
    "the preset's": RESULTS["HalfCheetah-v4"][:3],
}


def paper_table():
    """HalfCheetah under the paper's reward and under ours, one row per reward."""
    lines = [["reward", "true, by seed", "return error", "mean r_PSD", "mean radius over L/2"]]
    for name, folders in REWARDS.items():
        runs = [read_json(f"{folder}/evaluation.json") for folder in folders]
        rows = [[row for row in run["skills"] if row["trained"]] for run in runs]
        counts = ", ".join(str(sum(is_true(row) for row in own)) for own in rows)
        errors = [run["summary"]["trained_return_error"] for run in runs]
        lines.append(
            [
                f"{name} ([JSON](../results/{folders[0]}/evaluation.json))",
                f"{counts} of {len(rows[0])}",
                ", ".join(f"{error:.2f}" for error in errors),
                ", ".join(f"{mean([row['r_psd'] for row in own]):.2f}" for own in rows),
                ", ".join(f"{mean([row['radius'] for row in own]):.2f}" for own in rows),
            ]
        )
    return lines


METHODS = {"psd_radius": "PSD, radius bonus", "metra": "METRA", "sac": "SAC, r_ext alone"}
POLICIES = {
    "learned": "PPO, Table 4's settings",
    "gentle": "PPO, `--updates-per-epoch 10`",
    "fixed": "best single skill",
    "random": "skills at random",
}


def task_table(task, title, form):
    """One task of Table 1: mean (interval; seeds); empty where nothing was run."""
    cells = {}
    for cell in read_json("table1.json")["cells"]:
        if cell["task"] == task:
            seeds = len(cell["seeds"])
            text = form.format(cell["mean"])
            if cell["interval"] is None:
                text += f" ({seeds})"
            else:
                low, high = (form.format(bound) for bound in cell["interval"])
                text += f" ({low} to {high}; {seeds})"
            cells[cell["method"], cell["policy"]] = text
    lines = [[title, *METHODS.values()]]
    for policy, name in POLICIES.items():
        lines.append([name, *(cells.get((method, policy), "") for method in METHODS)])
    return lines


def directions_table():
    """psd_metra.py: one row per L, over its directions z."""
    rows = read_json("psd_metra/ant_mutual/evaluation.json")["skills"]
    lines = [["L", "2L", "median period", "true (5 %)", "mean distance", "median angle off z"]]
    for L in sorted({row["L"] for row in rows}):
        same = [row for row in rows if row["L"] == L]
        periods = [row["period"] for row in same if row["period"] is not None]
        count = sum(is_true(row) for row in same)
        angle = median([row["direction_error"] for row in same])
        lines.append(
            [
                str(L),
                str(2 * L),
                f"{median(periods):.1f}",
                f"{count} of {len(same)}",
                f"{mean([row['distance'] for row in same]):.1f} m",
                f"{angle:.0f}°",
            ]
        )
    return lines


def markdown(lines):
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---------------------------------------- Pages ---------------------------------------
def with_table(page, name, table):
    """The text of a page in which the table between its two comments is this one."""
    start = f"<!-- table {name}: python benchmark/tables.py writes it -->"
    end = "<!-- end of table -->"
    text = (REPO / page).read_text()
    if text.count(start) != 1 or end not in text[text.index(start) :]:
        fail(f"{page} needs the comment {start}, once, and {end} after it")
    pattern = re.escape(start) + ".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{start}\n{table}\n\n{end}", text, flags=re.DOTALL)


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    groups = {robot: [read_result(name) for name in names] for robot, names in RESULTS.items()}
    hurdle = ("HalfCheetahHurdle-v0", "HalfCheetahHurdle, hurdles cleared", "{:.2f}")
    friction = ("HalfCheetahFriction-v0", "HalfCheetahFriction, metres", "{:.1f}")
    tables = {
        "robots": robots_table(groups),
        "seeds": seeds_table(groups),
        "paper": paper_table(),
        "hurdle": task_table(*hurdle),
        "friction": task_table(*friction),
        "directions": directions_table(),
    }
    for name, page in PAGES.items():
        text = with_table(page, name, markdown(tables[name]))
        if text == (REPO / page).read_text():
            continue
        if args.check:
            fail(f"{page} does not say what results/ says: python benchmark/tables.py writes it")
        plot.write_whole(REPO / page, partial(Path.write_text, data=text))
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
