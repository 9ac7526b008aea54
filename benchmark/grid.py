"""The runs behind the studies, as grids of commands: prints them, runs them, tables what came out.

    python benchmark/grid.py                       # the grids
    python benchmark/grid.py terms                 # the commands of one
    python benchmark/grid.py terms --run --jobs 2  # run what is missing, one core each
    python benchmark/grid.py terms --slurm --partition cpu --hours 12   # on a cluster
    python benchmark/grid.py terms --table         # true skills by seed, one row per variant
    python benchmark/grid.py table1 --table --read results/table1.json   # Table 1 in Markdown
    python benchmark/grid.py table1 --table --read results/table1 --out table1.json   # its numbers

A run that was stopped is continued. A run that is complete, or that another process trains, is left
alone. A folder that cannot be continued is renamed to NAME.aside-1; nothing is ever removed.
SIGTERM or Ctrl-C lets every run save, and stops the grid. docs/scale.md is about clusters.
"""

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Literal

import numpy as np
import torch
import tyro

try:
    import fcntl
except ImportError:  # Windows, where run folders are not locked
    fcntl = None

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

import plot  # noqa: E402
from benchmark import seeds as seed_statistics  # noqa: E402

THEN = " then "  # parts the stages of a run: what follows are flags to continue with
PRESET = "psd.py --env-id {}-v4 --preset cpu"
BASELINES = [
    ("metra", "metra.py", "--phi-lr 1e-3 --lam-lr 1e-3"),
    ("diayn", "diayn.py", "--discriminator-lr 1e-3"),
    ("dads", "dads.py", "--dynamics-lr 1e-3"),
    ("csd", "csd.py", "--phi-lr 1e-3 --lam-lr 1e-3 --distance-lr 1e-3"),
    ("sac", "diayn.py", "--num-skills 1 --ext-coef 1"),
]


def variants(command, epochs, seeds, **flags):
    """{run name: command} of every variant (a name, and the flags it adds) and seed."""
    return {
        f"{name}_s{seed}": f"{command} {extra} --total-epochs {epochs} --seed {seed}"
        for (name, extra), seed in itertools.product(flags.items(), seeds)
    }


# Four runs of seconds, to try a cluster
GRIDS = {
    "smoke": variants(
        "psd.py --env-id Pendulum-v1 --hidden-units 16 --batch-size 32 --phi-batch-size 32 "
        "--updates-per-epoch 8 --no-adaptive-sampling --L-min 5 --L-max 8 --num-periods 2",
        epochs=30,
        seeds=[1, 2, 3, 4],
        tiny="",
    )
}

# The presets, from one command each (docs/recipes.md)
GRIDS["presets"] = {
    f"{robot}_s{seed}": f"{PRESET.format(robot)} --total-epochs {epochs} --seed {seed}"
    for robot, epochs, seeds in [
        ("HalfCheetah", 500, 5),
        ("Ant", 600, 3),
        ("Walker2d", 700, 3),
        ("Hopper", 1000, 3),
        ("Humanoid", 700, 3),
    ]
    for seed in range(1, seeds + 1)
}
# Robots on which nothing was tuned: the values that the preset has for every robot
GRIDS["untuned"] = {
    f"{env_id.split('-')[0]}_s{seed}": f"psd.py --env-id {env_id} --preset cpu "
    f"--total-epochs 500 --seed {seed}"
    for env_id, seed in itertools.product(["Swimmer-v4", "Reacher-v5"], [1, 2, 3])
}
# What each part of HalfCheetah's preset is for, at its 64,000 gradient steps (docs/traps.md)
PAPER_REWARD = "--psd-coef 1 --turn-coef 0 --regularity-coef 0 --ext-coef 1 --no-ext-in-turn"
GRIDS["terms"] = variants(
    PRESET.format("HalfCheetah"),
    epochs=500,
    seeds=[1, 2, 3],
    preset="",
    paper=PAPER_REWARD,
    no_regularity="--regularity-coef 0",
    less_regularity="--regularity-coef 2",
    no_psd="--psd-coef 0",
    constant_entropy="--final-entropy 1",
    large_buffer="--buffer-size 500000",
    ext_added="--no-ext-in-turn --ext-coef 1",
    gamma_99="--gamma 0.99",
    constant_rates="--no-anneal-lr",
    plain_critics="--no-critic-layer-norm",
)
# What lets Walker2d stand and keep time, at its preset's 179,200 gradient steps
GRIDS["walking"] = variants(
    PRESET.format("Walker2d"),
    epochs=700,
    seeds=[1, 2, 3],
    preset="",
    paper=f"{PAPER_REWARD} --turn-epochs 0 --latent-dim 3",
    no_turn_epochs="--turn-epochs 0",
    steps_of_8_ms="--frame-skip 4 --episode-length 400 --L-min 25 --L-max 75",
)
# Figure 9: from one L, with a gate on r_PSD, as in the paper, and on turn
GRIDS["adaptive"] = {
    f"{robot}_{gate}_s{seed}": f"{PRESET.format(robot)} --adaptive-sampling --num-periods 16 "
    f"--adaptive-interval 80 --adaptive-gate {gate} {own} --seed {seed}"
    for robot, own in [
        ("HalfCheetah", "--L-min 10 --L-max 10 --total-epochs 500"),
        ("Walker2d", "--L-min 18 --L-max 18 --total-epochs 700"),
    ]
    for gate, seed in itertools.product(["r_psd", "turn"], [1, 2])
}

# Figure 3 beside PSD: the baselines, and SAC on r_ext alone
SAC = "--normalize-obs --hidden-units 256 --sac-lr 3e-4 --alpha-lr 6e-4"
GRIDS["fig3"] = {
    f"{name}_s1": f"baselines/{script} --env-id HalfCheetah-v4 {SAC} {extra} "
    "--total-epochs 600 --seed 1"
    for name, script, extra in BASELINES
}
# Figure 7, in a size for a CPU (docs/psd_pixel.md)
GRIDS["pixel"] = {
    f"{robot}_s{seed}": f"psd_pixel.py --env-id {robot}-v4 --preset cpu --total-epochs 500 "
    f"--seed {seed}"
    for robot, seed in itertools.product(["HalfCheetah", "Ant"], [1, 2])
}
# Figure 8, and what the paper says of encoders that do not see each other's variable
GRIDS["psd_metra"] = {
    f"{robot}_{name}_s1": f"psd_metra.py --env-id {robot}-v4 --preset cpu {extra} "
    "--total-epochs 1000 --seed 1"
    for robot in ["Ant", "Walker2d"]
    for name, extra in [
        ("mutual", ""),
        ("independent", "--no-mutual-conditioning"),
        ("independent_paper", f"--no-mutual-conditioning {PAPER_REWARD} --ext-coef 0"),
    ]
}

# Table 1, first the skills: all go forward (r_ext), 16 discrete ones for the baselines, and L over
# the range that was trained for PSD (docs/downstream_ppo.md). One set of them per method; then
# three seeds of PPO over it with the paper's 80 gradient steps per epoch and with 10 and, without
# training, its controls.
ROBOTS = ["HalfCheetah", "Walker2d"]
SMALL = "--normalize-obs --hidden-units 128 --sac-lr 6e-4 --alpha-lr 1e-3 --updates-per-epoch 128"
SKILLS = {
    "psd": f"{PRESET} {PAPER_REWARD}",
    "psd_turn": f"{PRESET}",
}
for name, script, extra in BASELINES:
    if name != "sac":  # which has both already
        extra += " --num-skills 16 --ext-coef 1"
    SKILLS[name] = f"baselines/{script} --env-id {{}}-v4 {SMALL} {extra}"
TASKS = [f"{robot}{kind}" for robot in ROBOTS for kind in ("Hurdle", "Friction")]
POLICIES = {
    "learned": "--total-epochs 2500",
    "gentle": "--total-epochs 2500 --updates-per-epoch 10",
    "fixed": "--policy fixed",
    "random": "--policy random",
}
GRIDS["table1_skills"] = {
    f"{robot}_{method}_s1": f"{command.format(robot)} --total-epochs 1000 --seed 1"
    for robot, (method, command) in itertools.product(ROBOTS, SKILLS.items())
}
GRIDS["table1"] = {
    f"{task}_{method}_{policy}_s{seed}": f"downstream_ppo.py --task {task}-v0 --skills "
    f"runs/table1_skills/{robot}_{method}_s1 {POLICIES[policy]} --seed {seed}"
    for task, method, policy, seed in itertools.product(TASKS, SKILLS, POLICIES, [1, 2, 3])
    for robot in ROBOTS
    if robot in task and (method != "sac" or policy == "fixed")  # one skill: nothing to choose
}


@dataclass
class Args:
    grid: Annotated[str | None, tyro.conf.Positional] = None  # which one; none: list them
    only: str = ""  # the run of this name; if there is none, those whose name contains it
    run: bool = False  # run and judge what is missing
    jobs: int | None = None  # runs at the same time (None: 1, or on a cluster as many as it allows)
    cuda: bool = False  # train on a GPU
    slurm: bool = False  # submit what is missing to a cluster, one array job; needs submitit
    cluster: Literal["slurm", "local"] = "slurm"  # local: processes of this machine, to try it
    partition: str | None = None  # of Slurm (None: the cluster's own choice)
    hours: float = 24.0  # time limit of a job; a run that needs longer is queued again and resumes
    memory: int = 4  # gigabytes per run
    gpus: int = 0  # per run; 1 also sets --cuda
    wait: bool = False  # with --slurm: wait for the end of all runs, and name those that failed
    table: bool = False  # print a table of what has been measured so far
    read: str | None = None  # of which runs: a folder, or an --out of before (None: runs/GRID)
    out: str | None = None  # also write the table: numbers to a .json, Markdown to a .md


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"grid.py: error: {' '.join(str(message).split())}")


@contextmanager
def json_of(path, origin):
    """The content of a JSON file. What goes wrong with it ends in one line that names the file."""
    try:
        yield json.loads(path.read_text())
    except OSError as error:
        fail(f"{path} cannot be read ({error.strerror}): make it readable, or give another --read")
    except (ValueError, LookupError, TypeError, AttributeError, ZeroDivisionError) as error:
        kind = type(error).__name__
        fail(f"{path} is damaged, or not of {origin} ({kind}): make it anew, or move it away")


# --------------------------------------- Running --------------------------------------
def epochs_done(run_dir):
    """How far the weights in a run folder are trained; 0 if there are none that can be read."""
    path = run_dir / "model.pt"
    try:
        checkpoint = torch.load(path, weights_only=True)
    except (OSError, EOFError, RuntimeError, UnpicklingError):
        return 0
    if "progress" in checkpoint:
        return checkpoint["progress"]["epoch"]
    return checkpoint["state"]["epoch"]  # the name in older checkpoints


def total_epochs(stage):
    """The number after --total-epochs; 0 for a control, which does not train."""
    if "--total-epochs " not in stage:
        return 0
    return int(stage.split("--total-epochs ")[1].split()[0])


def is_running(run_dir):
    """Whether another process trains in this folder: a script holds a lock on its file `lock`."""
    lock = run_dir / "lock"
    if fcntl is None or not lock.exists():
        return False
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def move_aside(run_dir):
    """Renames a run folder to the first free name of NAME.aside-1, NAME.aside-2, ..."""
    for number in itertools.count(1):
        aside = run_dir.with_name(f"{run_dir.name}.aside-{number}")
        if not aside.exists():
            return run_dir.rename(aside)


def run_and_judge(name, command, run_dir, cuda=False):
    """Trains a run as far as is missing, then judges it, unless these weights have been judged.

    A folder that cannot be continued is moved aside, never removed: it may be somebody's."""
    if is_running(run_dir):
        print(f"{name}: skipped, {run_dir} is running elsewhere", flush=True)
        return
    script = command.split()[0]
    judges_itself = script == "downstream_ppo.py"
    judgement = run_dir / ("downstream.json" if judges_itself else "evaluation.json")
    stages = command.split(THEN)

    def is_complete(stage):
        if judges_itself and not judgement.exists():
            return False
        return epochs_done(run_dir) >= total_epochs(stage)

    can_continue = (run_dir / "resume.pt").exists()
    if run_dir.exists() and not can_continue and not is_complete(stages[-1]):
        aside = move_aside(run_dir)
        print(f"{name}: {run_dir} has no resume.pt, and is kept as {aside}", flush=True)
    for i, stage in enumerate(stages):
        if is_complete(stage):
            continue
        flags = shlex.split(stage)
        if not (run_dir / "resume.pt").exists():
            flags += ["--run-name", str(run_dir.relative_to("runs"))]
        elif i == 0:
            total = str(total_epochs(stage))
            flags = [script, "--resume", str(run_dir), "--total-epochs", total]
        else:
            flags = [script, "--resume", str(run_dir), *flags]
        if cuda:
            flags.append("--cuda")
        print(f"{name}: {' '.join(flags)}", flush=True)
        call(flags, run_dir.parent / f"{name}.log")
    if not judges_itself and is_out_of_date(judgement, run_dir / "model.pt"):
        call(["evaluate.py", str(run_dir)], run_dir.parent / f"{name}.judge.log")
    print(f"{name}: done", flush=True)


def is_out_of_date(judgement, model):
    """Whether a judgement is missing, or the weights have been trained further since."""
    if not judgement.exists():
        return True
    return judgement.stat().st_mtime < model.stat().st_mtime


def call(flags, log):
    """Runs a script of this repository on one core, its output in a log file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(REPO / flags[0]), *flags[1:]]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(log, "a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        CHILDREN.append(process)
        if STOPPED:  # the signal came between the last check and this line
            process.terminate()
        code = process.wait()
        CHILDREN.remove(process)
    if code != 0:
        raise subprocess.CalledProcessError(code, command)


CHILDREN = []  # the scripts that are running
STOPPED = []  # the signal that stopped this grid, if any


def on_signal(number, frame):
    """Lets the running scripts save and end. No other run is started."""
    STOPPED.append(number)
    for process in CHILDREN:
        process.terminate()


def run_all(runs, folder, jobs, cuda=False):
    """Runs what is missing, `jobs` at the same time. Returns the names of those that failed."""
    failed = []

    def attempt(name):
        if STOPPED:
            return
        try:
            run_and_judge(name, runs[name], folder / name, cuda)
        except subprocess.CalledProcessError:  # the other runs continue
            if STOPPED:
                print(f"{name}: stopped; the same command continues it", flush=True)
                return
            print(f"{name}: failed, the end of {folder / name}*.log says why", flush=True)
            failed.append(name)

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attempt, runs))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if STOPPED:
        sys.exit(128 + STOPPED.pop())
    return failed


SIGNALS = [signal.SIGTERM, signal.SIGINT]


# ------------------------------------- On a cluster -----------------------------------
class Job:
    """One run of a grid as a job of submitit: `python benchmark/grid.py GRID --only NAME --run`.

    Slurm warns a job before a preemption or a time-out, and submitit then calls `checkpoint`: the
    run saves, and the same job is queued again. There it continues where it was."""

    def __call__(self, command):
        self.process = subprocess.Popen(command, preexec_fn=self.ignore_warning)
        code = self.process.wait()
        if code != 0:
            raise RuntimeError(f"exit code {code} of {shlex.join(command)}")

    @staticmethod
    def ignore_warning():
        """Slurm sends its warning to every process of a job, and it would kill the script before
        it saves. A child inherits what its parent ignores."""
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def checkpoint(self, command):
        from submitit.helpers import DelayedSubmission

        self.process.terminate()
        # Not process.wait, which the interrupted __call__ is in the middle of
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return DelayedSubmission(Job(), command)


def submit(args, names):
    """Submits runs as one array job. Returns {name: job of submitit}."""
    try:
        import submitit
    except ImportError:
        fail("--slurm needs submitit: pip install submitit")
    logs = Path("runs") / args.grid / "jobs"
    again = 1000  # times that a run may reach the time limit and be queued again
    limits = {f"{args.cluster}_max_num_timeout": again}
    try:
        executor = submitit.AutoExecutor(folder=logs, cluster=args.cluster, **limits)
    except RuntimeError as error:  # there is no sbatch here
        fail(f"cannot submit to {args.cluster} ({error}): is this a machine of the cluster?")
    executor.update_parameters(
        name=f"psd-{args.grid}",
        timeout_min=max(round(60 * args.hours), 1),
        mem_gb=args.memory,
        cpus_per_task=1,
        gpus_per_node=args.gpus,
        slurm_partition=args.partition,
        slurm_array_parallelism=args.jobs or 256,
    )
    jobs = {}
    try:
        with executor.batch():
            for name in names:
                command = [sys.executable, str(Path(__file__).resolve()), args.grid]
                command += ["--only", name, "--run"]
                if args.cuda or args.gpus > 0:
                    command.append("--cuda")
                jobs[name] = executor.submit(Job(), command)
    except submitit.core.utils.FailedJobError as error:  # what sbatch says, for one
        fail(f"the cluster refuses these jobs: {error}")
    for name, job in jobs.items():
        print(f"{name}: job {job.job_id}, logs {job.paths.stdout}", flush=True)
    return jobs


def wait_for(jobs):
    """Waits for jobs, and says how each ended. Returns the names of those that failed."""
    failed = []
    for name, job in jobs.items():
        error = job.exception()  # waits
        print(f"{name}: {'done' if error is None else 'failed, see its logs'}", flush=True)
        if error is not None:
            failed.append(name)
    return failed


# ---------------------------- The table of true skills --------------------------------
def true_skills(names, folder):
    """{variant: {seed: the skills whose L was trained}}, of the runs that have been judged."""
    rows = {}
    for name in names:
        path = folder / name / "evaluation.json"
        if not path.exists():
            continue
        with json_of(path, "evaluate.py") as result:
            skills = trained_skills(result)
        if skills:
            variant, seed = name.rsplit("_s", 1)
            rows.setdefault(variant, {})
            rows[variant][int(seed)] = skills
    return rows


def trained_skills(result):
    """What the table needs of the skills whose L was trained. The baselines' skills have no L."""
    rows = []
    for skill in result["skills"]:
        if "L" in skill and skill["trained"]:
            rows.append({key: skill[key] for key in ("L", "period", "r_psd", "radius")})
    return rows


def count_true(skills, tolerance):
    """How many skills have a period within `tolerance` of 2L."""
    errors = [abs((skill["period"] or np.inf) / (2 * skill["L"]) - 1) for skill in skills]
    return sum(error <= tolerance for error in errors)


def true_skills_text(rows):
    """One row per variant, in Markdown. A seed is one number: how many skills are true (5 %)."""
    first = next(iter(rows), None)
    lines = [
        f"| variant | L | true, by seed | mean | more than {first} | r_PSD | radius |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    counts = {}  # {variant: true skills of each seed}
    for variant, seeds in rows.items():
        counts[variant] = [count_true(skills, 0.05) for skills in seeds.values()]
    for variant, seeds in rows.items():
        trained = sorted({len(skills) for skills in seeds.values()})
        skills = [skill for one_seed in seeds.values() for skill in one_seed]
        cells = [
            variant,
            " or ".join(str(count) for count in trained),
            ", ".join(str(count) for count in counts[variant]),
            seed_statistics.text_of(seed_statistics.summary(counts[variant]), "{:.1f}"),
            "" if variant == first else improvement_text(counts[variant], counts[first]),
            f"{np.mean([skill['r_psd'] for skill in skills]):.2f}",
            f"{np.mean([skill['radius'] for skill in skills]):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    note = "In brackets: 95 % bootstrap interval over seeds, and their number.\n"
    return "\n".join(lines) + "\n\n" + note


def improvement_text(counts, others):
    """The probability that a seed has more true skills than one of the first variant."""
    found = seed_statistics.probability_of_improvement(counts, others)
    text = f"{found['value']:.2f}"
    if found["interval"] is not None:
        low, high = found["interval"]
        text += f" ({low:.2f} to {high:.2f})"
    return text


# --------------------------------------- Table 1 --------------------------------------
METHODS = {  # the table's columns, by their names in the grid
    "diayn": "DIAYN",
    "dads": "DADS",
    "csd": "CSD",
    "metra": "METRA",
    "psd": "PSD",
    "psd_turn": "PSD, turn and regularity",
    "psd_radius": "PSD, radius bonus",  # an earlier reward of ours; see results/table1
    "sac": "SAC, r_ext alone",
}
ROWS = {  # the table's rows for each task, by their names in the grid
    "learned": "ours, PPO",
    "gentle": "ours, PPO, 10 steps per epoch",
    "fixed": "ours, best single skill",
    "random": "ours, random skills",
}
PAPER_TABLE_1 = {  # mean ± spread over 10 seeds of DIAYN, DADS, CSD, METRA and PSD, as printed
    "HalfCheetahHurdle-v0": "0.6 ± 0.5, 0.9 ± 0.3, 0.8 ± 0.6, 1.9 ± 0.8, 3.8 ± 2.0",
    "Walker2dHurdle-v0": "2.6 ± 0.5, 1.9 ± 0.3, 4.1 ± 1.3, 3.1 ± 0.5, 5.4 ± 1.4",
    "HalfCheetahFriction-v0": "13.2 ± 3.4, 12.4 ± 2.9, 12.5 ± 3.8, 30.1 ± 13.1, 43.4 ± 19.1",
    "Walker2dFriction-v0": "4.6 ± 1.2, 1.6 ± 0.1, 5.3 ± 0.3, 5.2 ± 1.6, 8.7 ± 1.7",
}
SAME_FOR_ALL_SEEDS = ["episodes", "eval_episodes", "skill_seed", "skill_epochs", "ext_coef"]
DOWNSTREAM_KEYS = ["task", "seed", "mean", *SAME_FOR_ALL_SEEDS]


def table1(names, folder):
    """{"cells": one per task, method and policy that was run}, each with its mean over seeds."""
    found = {}
    for name in names:
        path = folder / name / "downstream.json"
        if path.exists():
            method, policy, _ = name.split("_", 1)[1].rsplit("_", 2)  # task_method_policy_seed
            with json_of(path, "downstream_ppo.py") as content:
                result = {key: content[key] for key in DOWNSTREAM_KEYS}
            found.setdefault((result["task"], method, policy), []).append(result)
    cells = []
    for (task, method, policy), results in found.items():
        means = [result["mean"] for result in results]
        cell = {
            "task": task,
            "method": method,
            "policy": policy,
            "mean": float(np.mean(means)),
            "interval": seed_statistics.summary(means)["interval"],
            "seeds": [result["seed"] for result in results],
            "means": means,
        }
        for key in SAME_FOR_ALL_SEEDS:
            values = sorted({result[key] for result in results})
            if len(values) > 1:
                fail(f"{task}, {method}, {policy}: seeds differ in {key}: {values}")
            cell[key] = values[0]
        cells.append(cell)
    return {"cells": cells}


def table1_text(content):
    """Table 1 in Markdown: the paper's numbers, and ours where there are any."""
    texts = {}  # {(task, policy, method): text}
    for cell in content["cells"]:
        place = (cell["task"], cell["policy"], cell["method"])
        if place[0] not in PAPER_TABLE_1 or place[1] not in ROWS or place[2] not in METHODS:
            raise KeyError(f"Table 1 has no cell {place}")
        texts[place] = cell_text(cell)
    lines = [["task", "", *METHODS.values()], ["---"] * (2 + len(METHODS))]
    for task, numbers in PAPER_TABLE_1.items():
        paper = numbers.split(", ")
        paper += [""] * (len(METHODS) - len(paper))  # the paper has no such columns
        lines.append([task[:-3], "paper", *paper])
        for policy, name in ROWS.items():
            ours = [texts.get((task, policy, method), "") for method in METHODS]
            lines.append(["", name, *ours])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text + "\n\n" + table1_notes(content["cells"])


def cell_text(cell):
    """The mean, its interval over seeds (one seed has none), and their number."""
    count = len(cell["seeds"])
    if cell["interval"] is None:
        return f"{cell['mean']:.1f} ({count})"
    low, high = cell["interval"]
    return f"{cell['mean']:.1f} ({low:.1f} to {high:.1f}; {count})"


def table1_notes(cells):
    """What stands below the table: how long was trained, and what the brackets hold."""
    trained = [cell for cell in cells if cell["policy"] in ("learned", "gentle")]
    episodes = alternatives(cell["episodes"] for cell in trained)
    epochs = alternatives(cell["skill_epochs"] for cell in cells)
    seeds = alternatives(cell["skill_seed"] for cell in cells)
    text = ""
    if trained:
        text += f"PPO: {episodes} episodes (paper: 100,000).\n"
    if cells:
        text += f"Skills: {epochs} epochs, trained with seed {seeds}: "
        text += "one set per method, for all seeds of PPO.\n"
    return text + "In brackets: 95 % bootstrap interval over PPO's seeds, and their number.\n"


def alternatives(numbers):
    return " or ".join(f"{number:,}" for number in sorted(set(numbers)))


# ---------------------------------------- Main ----------------------------------------
def show_table(args, names):
    """Prints the table of a grid, and writes it to --out. Returns False if there are no numbers."""
    source = Path(args.read or Path("runs") / args.grid)
    collect = table1 if args.grid == "table1" else true_skills
    text_of = table1_text if args.grid == "table1" else true_skills_text
    if source.is_file():
        with json_of(source, f"benchmark/grid.py {args.grid}") as content:
            found = any(content.values())
            text = text_of(content)
    else:
        content = collect(names, source)
        found = any(content.values())
        text = text_of(content)
    if not found:
        return False
    print(text, end="")
    if args.out:
        if args.out.endswith(".json"):
            text = json.dumps(content, indent=1) + "\n"
        write_out(Path(args.out), text)
    return True


def write_out(out, text):
    """Writes all of a table or nothing."""
    try:
        plot.write_whole(out, partial(Path.write_text, data=text))
    except OSError as error:
        fail(f"{out} cannot be written ({error.strerror}): free some space, or give another --out")


def print_commands(grid, runs):
    """One command per stage of each run."""
    for name, command in runs.items():
        stages = [" ".join(stage.split()) for stage in command.split(THEN)]
        print(f"python {stages[0]} --run-name {grid}/{name}")
        script = stages[0].split()[0]
        for stage in stages[1:]:
            print(f"python {script} --resume runs/{grid}/{name} {stage}")


def check_args(args):
    """Refuses, before any work, what would fail after it."""
    if args.grid not in GRIDS:
        fail(f"there is no grid {args.grid!r}: choose one of {', '.join(GRIDS)}")
    if args.jobs is not None and args.jobs < 1:
        fail(f"--jobs {args.jobs} is no number of runs at the same time: give 1 or more")
    if args.slurm and args.run:
        fail("--run trains here and --slurm on a cluster: give one of them")
    if args.wait and not args.slurm:
        fail("--wait is for --slurm: leave it out")
    if not args.hours > 0 or args.memory < 1 or args.gpus < 0:
        fail(f"--hours {args.hours} --memory {args.memory} --gpus {args.gpus} cannot be: give more")
    if (args.read or args.out) and not (args.table or args.run):
        fail("--read and --out belong to a table: add --table")
    if args.only and args.read and Path(args.read).is_file():
        fail(f"--only chooses among the runs of a folder, and {args.read} is a file: leave it out")
    if args.read and not Path(args.read).exists():
        advice = "give a folder with a folder per run"
        if args.read.endswith(".json"):
            advice = f"python benchmark/grid.py {args.grid} --table --out {args.read} writes it"
        fail(f"{args.read} is missing: {advice}")
    if args.out:
        out = Path(args.out)
        if out.is_dir():
            fail(f"--out {out} is a folder: give a file in it")
        if out.suffix not in (".json", ".md"):
            fail(f"{out.name} should end in .json or .md")
        if not out.parent.is_dir():
            fail(f"{out.parent} is missing: there is nowhere to write {out.name}")


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    if args.grid is None:
        for name, commands in GRIDS.items():
            print(f"{name}: {len(commands)} runs")
        return
    check_args(args)
    runs = GRIDS[args.grid]
    names = [args.only] if args.only in runs else [name for name in runs if args.only in name]
    if not names:
        fail(f"{args.grid} has no run like {args.only!r}: choose from {', '.join(runs)}")
    runs = {name: runs[name] for name in names}
    if not args.run and not args.table and not args.slurm:
        print_commands(args.grid, runs)
        return
    failed = []
    if args.run:
        failed = run_all(runs, Path("runs") / args.grid, args.jobs or 1, args.cuda)
    if args.slurm:
        jobs = submit(args, names)
        if not args.wait:
            print(f"python benchmark/grid.py {args.grid} --table shows what has ended")
            return
        failed = wait_for(jobs)
    found = show_table(args, names)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    if not found and (args.table or args.out):
        source = args.read or f"runs/{args.grid}"
        kept = f", and {args.out} is not written" if args.out else ""
        fail(f"{source} has nothing to table{kept}: --run makes and judges the runs")


if __name__ == "__main__":
    main()
