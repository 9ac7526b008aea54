"""Model cards: a README.md beside every checkpoint in results/, from the files beside it.

    python benchmark/cards.py            # writes the cards
    python benchmark/cards.py --check    # fails if a card is not what the files say

The command and the numbers come from evaluation.json, steps and minutes from progress.csv, if there
is one. What a robot looks like no file can say: someone looks, and writes it into looks.txt. A run
in several stages, or by older code, has its story in how.txt: the command then is that of the end.
"""

import csv
import dataclasses
import hashlib
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import evaluate  # noqa: E402
import plot  # noqa: E402
from benchmark import tables  # noqa: E402

# Where a run is and how it is watched: not part of what was trained
NOT_IN_COMMAND = """env_id preset run_name resume save_minutes track wandb_project_name wandb_entity
    capture_video_every num_threads cuda""".split()


@dataclass
class Args:
    check: bool = False
    """compare the cards with the files, and write nothing"""


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"cards.py: error: {' '.join(str(message).split())}")


def folders():
    """Every folder with a checkpoint and the judge's word on it."""
    models = sorted((REPO / "results").rglob("model.pt"))
    return [model.parent for model in models if (model.parent / "evaluation.json").is_file()]


# ---------------------------------------- Parts ---------------------------------------
def script_path(name):
    """psd.py, or baselines/metra.py."""
    in_baselines = (REPO / "baselines" / f"{name}.py").is_file()
    return f"baselines/{name}.py" if in_baselines else f"{name}.py"


def flag_text(name, value):
    """--hidden-units 128, --normalize-obs or --no-normalize-obs."""
    flag = name.replace("_", "-")
    if value is True:
        return f"--{flag}"
    if value is False:
        return f"--no-{flag}"
    return f"--{flag} {value}"


def command(evaluation):
    """What to type for the same arguments: the preset, and what differs from it."""
    script = evaluate.import_script(evaluation["script"])
    # A run that is older than an argument had what is now its default
    saved = dataclasses.asdict(script.Args()) | evaluation["args"]
    preset = saved.get("preset", "paper")
    defaults = dataclasses.asdict(script.default_args(saved["env_id"], preset))
    words = [f"python {script_path(evaluation['script'])} --env-id {saved['env_id']}"]
    if preset != "paper":
        words.append(f"--preset {preset}")
    for name, value in saved.items():
        if name in defaults and name not in NOT_IN_COMMAND and value != defaults[name]:
            words.append(flag_text(name, value))
    return " ".join(words)


def gradient_steps(evaluation):
    return evaluation["epoch"] * evaluation["args"]["updates_per_epoch"]


def minutes(folder):
    """Of one core, from the last line of progress.csv; None without that file."""
    path = folder / "progress.csv"
    if not path.is_file():
        return None
    with open(path, newline="") as file:
        *_, last = csv.DictReader(file)
    return float(last["minutes"])


def facts(folder, evaluation):
    """The head of the card."""
    digest = hashlib.sha256((folder / "model.pt").read_bytes()).hexdigest()
    versions = ", ".join(f"{name} {version}" for name, version in evaluation["versions"].items())
    rows = [["", ""]]
    how = folder / "how.txt"
    if how.is_file():
        rows.append(["how", " ".join(how.read_text().split())])
    rows += [
        ["arguments at the end" if how.is_file() else "command", f"`{command(evaluation)}`"],
        ["seed", str(evaluation["args"]["seed"])],
        ["gradient steps", f"{gradient_steps(evaluation):,} ({evaluation['epoch']:,} epochs)"],
        ["environment steps", f"{evaluation['global_step']:,}"],
    ]
    for name in evaluate.RETIRED:
        if evaluation["args"].get(name):
            flag = flag_text(name, evaluation["args"][name])
            rows.append(["retired flag", f"`{flag}`, known to commit a12ca45"])
    if minutes(folder) is not None:
        rows.append(["minutes of one core", f"{minutes(folder):.0f}"])
    rows += [["judged with", versions], ["sha256 of model.pt", f"`{digest[:16]}…`"]]
    return tables.markdown(rows)


def number(value, form):
    return "" if value is None else form.format(value)


def verdicts(evaluation):
    """One row per L, or per skill of a baseline."""
    has_L = "L" in evaluation["skills"][0]
    first = ["L", "2L"] if has_L else ["skill"]
    rows = [[*first, "period of the state", "return error", "upright", "speed, m/s", "verdict"]]
    for skill in evaluation["skills"]:
        name = [str(skill["L"]), str(2 * skill["L"])] if has_L else [str(skill["skill"])]
        upright = skill.get("upright")
        rows.append(
            [
                *name,
                number(skill["period"], "{:.1f}") or "none",
                number(skill["return_error"], "{:.2f}"),
                number(None if upright is None else 100 * upright, "{:.0f} %"),
                number(skill.get("speed"), "{:.2f}"),
                str(skill.get("verdict", "")),
            ]
        )
    return tables.markdown(rows)


def headline(evaluation):
    """One sentence with the count."""
    summary = evaluation["summary"]
    if "within_5_percent" not in summary:
        return f"{summary['with_period']} of {summary['skills']} skills have a period."
    true = summary["trained_within_5_percent"]
    count = summary["trained"]
    return f"{true} of {count} trained L are true: the period of the state is within 5 % of 2L."


def use(evaluation, path):
    """What to do with the weights. The viewer draws MuJoCo's robots only."""
    text = f"`python evaluate.py {path} --out again.json` judges it again,\n"
    if not evaluation["env_id"].startswith("Pendulum"):
        text = f"`python play.py {path}` shows it, {text}"
    return f"{text}and `evaluate.load({str(path)!r})` returns the policy."


def card(folder):
    """The text of a card."""
    evaluation = json.loads((folder / "evaluation.json").read_text())
    path = folder.relative_to(REPO)
    parts = [
        f"# {evaluation['env_id']}, {script_path(evaluation['script'])}",
        headline(evaluation),
        facts(folder, evaluation),
    ]
    looks = folder / "looks.txt"
    if looks.is_file():
        parts += ["## What it looks like", looks.read_text().strip()]
    parts += [
        "## The judge",
        verdicts(evaluation),
        "## Use",
        use(evaluation, path),
        "*Written by benchmark/cards.py.*",
    ]
    return "\n\n".join(parts) + "\n"


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    for folder in folders():
        path = folder / "README.md"
        text = card(folder)
        if path.is_file() and path.read_text() == text:
            continue
        if args.check:
            fail(f"{path.relative_to(REPO)} is not what the files beside it say: run cards.py")
        plot.write_whole(path, partial(Path.write_text, data=text))
        print(f"wrote {path.relative_to(REPO)}")


if __name__ == "__main__":
    main()
