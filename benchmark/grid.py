"""The runs behind the studies, as grids of commands: prints them, runs them, tables what came out.

    python benchmark/grid.py                       # the grids
    python benchmark/grid.py traps                 # the commands of one
    python benchmark/grid.py traps --run --jobs 2  # run what is missing, one core each
    python benchmark/grid.py traps --table         # fraction of true skills, a row a variant
    python benchmark/grid.py table1 --table --read results/table1 --out table1.json   # for plot.py

A run that was stopped goes on where it was; one that is complete is not run again.
"""

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

REPO = Path(__file__).resolve().parent.parent
THEN = " then "  # parts the stages of a run: what follows are flags to go on with
# Small networks, fast learning rates, normalised observations: a laptop's hour (docs/traps.md)
CPU = """--normalize-obs --hidden-units 256 --phi-batch-size 256 --phi-lr 1e-3 --sac-lr 3e-4
    --alpha-lr 6e-4"""
SAC = "--normalize-obs --hidden-units 256 --sac-lr 3e-4 --alpha-lr 6e-4"
CHEETAH = f"psd.py --env-id HalfCheetah-v4 {CPU} --no-adaptive-sampling --L-min 5 --L-max 20"
CHEETAH += " --num-periods 16"
# Smaller and faster still, for what has many runs (docs/recipes.md, "Smaller and faster")
FAST = """--normalize-obs --hidden-units 128 --phi-batch-size 256 --phi-lr 1e-3 --sac-lr 6e-4
    --alpha-lr 3e-3 --latent-dim 2 --gamma 0.95"""
FOUR = f"--env-id HalfCheetah-v4 {FAST} --no-adaptive-sampling --L-min 6 --L-max 18"
RETURN = ["come_back", "come_back_factor", "come_back_step"]  # of what_if.py
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


GRIDS = {
    # docs/traps.md: the paper's reward and the radius bonus
    "traps": variants(CHEETAH, 600, seeds=[1, 2], paper="", radius="--radius-coef 1"),
    # with other lambda_2, without and with the bonus; and phi ahead of the policy
    "lambda": variants(
        f"psd.py {FOUR}",
        epochs=600,
        seeds=[1, 2],
        paper="",
        lam_2_1="--lam-2 1",
        lam_2_2="--lam-2 2",
        lam_2_3="--lam-2 3",
        radius="--radius-coef 1",
        radius_lam_2_1="--radius-coef 1 --lam-2 1",
        radius_lam_2_2="--radius-coef 1 --lam-2 2",
        radius_lam_2_3="--radius-coef 1 --lam-2 3",
        radius_lam_2_10="--radius-coef 1 --lam-2 10",
        radius_lam_2_20="--radius-coef 1 --lam-2 20",
    )
    | variants(f"benchmark/what_if.py more_phi {FOUR}", 600, [1, 2], more_phi="")
    | variants(f"benchmark/what_if.py warm_up {FOUR}", 600, [1, 2], warm_up="")
    # and, against circles that are wound, a state that comes back
    | {
        f"{change}_s{seed}": f"benchmark/what_if.py {change} {FOUR} --radius-coef 1 "
        f"--total-epochs 600 --seed {seed}"
        for change, seed in itertools.product(RETURN, [1, 2])
    },
    # the paper's way to a range of L: one at first, and a gate on the reward
    "adaptive": variants(
        f"psd.py --env-id HalfCheetah-v4 {FAST} --adaptive-interval 200",
        epochs=600,
        seeds=[1, 2],
        first_10="",
        first_6="--L-min 6 --L-max 6",
        step_2="--adaptive-step 2",
        interval_400="--adaptive-interval 400",
        lam_2_2="--lam-2 2",
        ext="--ext-coef 1",  # as in Figure 9
        radius="--radius-coef 1",
        alpha_75="--adaptive-alpha 0.75",
    )
    | variants(
        f"benchmark/what_if.py gate --env-id HalfCheetah-v4 {FAST} --adaptive-interval 200",
        epochs=600,
        seeds=[1, 2],
        gate="",
        gate_radius="--radius-coef 1",
        gate_radius_alpha_75="--radius-coef 1 --adaptive-alpha 0.75",
    ),
    # Figure 3 beside PSD: the baselines, and SAC on r_ext alone
    "fig3": {
        f"{name}_s1": f"baselines/{script} --env-id HalfCheetah-v4 {SAC} {extra} "
        "--total-epochs 600 --seed 1"
        for name, script, extra in BASELINES
    },
    # what a referee asks for, around the recipe
    "ablations": variants(
        f"{CHEETAH} --radius-coef 1",
        epochs=600,
        seeds=[1, 2, 3],
        recipe="",
        k_0="--k 0",
        kappa_1="--kappa 1",
        kappa_50="--kappa 50",
        d_2="--latent-dim 2",
        d_6="--latent-dim 6",
        scalar_L="--embed-dim 1",
    ),
}

# the trap and its remedies, sixteen L (radius_s1 is results/halfcheetah_small)
SIXTEEN = f"--env-id HalfCheetah-v4 {FAST} --no-adaptive-sampling --L-min 5 --L-max 20 "
SIXTEEN += "--num-periods 16"
GRIDS["closed"] = variants(
    f"psd.py {SIXTEEN}",
    epochs=1000,
    seeds=[1, 2],
    paper="",
    radius="--radius-coef 1",
    radius_lam_2_2="--radius-coef 1 --lam-2 2",
    radius_lam_2_3="--radius-coef 1 --lam-2 3",
    radius_gamma_99="--radius-coef 1 --gamma 0.99",
) | {
    f"{change}_s{seed}": f"benchmark/what_if.py {change} {SIXTEEN} --radius-coef 1 "
    f"--total-epochs 1000 --seed {seed}"
    for change, seed in itertools.product(RETURN, [1, 2])
}
GRIDS["closed"] |= {  # first open the circles, then make the steps even
    f"radius_lam_2_2_then_5_s{seed}": f"psd.py {SIXTEEN} --radius-coef 1 --lam-2 2 --seed {seed} "
    f"--total-epochs 1000{THEN}--lam-2 5 --total-epochs 1500"
    for seed in [1, 2]
}

# a pendulum's wound circles, and what opens them (psd.py's own: results/traps/pendulum_dense_s2)
PENDULUM = """--env-id Pendulum-v1 --L-min 6 --L-max 18 --num-periods 13 --no-adaptive-sampling
    --latent-dim 2 --hidden-units 128 --phi-batch-size 256 --phi-lr 1e-3 --sac-lr 1e-3
    --alpha-lr 1e-3 --radius-coef 1"""
GRIDS["wound"] = {
    f"{name}{suffix}_s{seed}": f"{script} {PENDULUM} --seed {seed} --total-epochs 180{more}"
    for name, script in [
        ("radius", "psd.py"),
        *((change, f"benchmark/what_if.py {change}") for change in RETURN),
    ]
    for suffix, more in [
        ("", ""),
        ("_kappa_50", f"{THEN}--kappa 50 --phi-lr 3e-4 --sac-lr 3e-4 --total-epochs 270"),
    ]
    for seed in [2, 3]
}

# once the circles are there: lower learning rates, and what makes a wrong speed cost more
SLOWER = "--phi-lr 3e-4 --sac-lr 2e-4 --alpha-lr 1e-3"
GRIDS["sharpen"] = {
    f"{name}_s{seed}": f"psd.py {FOUR} --radius-coef 1 --seed {seed} --total-epochs 600{THEN}"
    f"{SLOWER} {extra} --total-epochs 800"
    for name, extra in [
        ("slower", ""),
        ("kappa_50", "--kappa 50"),
        ("lam_2_20", "--lam-2 20"),
    ]
    for seed in [1, 2]
} | {
    f"sixteen_s{seed}": f"psd.py {SIXTEEN} --radius-coef 1 --seed {seed} --total-epochs 800{THEN}"
    f"{SLOWER} --kappa 50 --total-epochs 1000"
    for seed in [1, 2]
}

# docs/recipes.md: one command a robot, and on Ant what each part of it is worth
RECIPES = {
    "HalfCheetah": "--sac-lr 3e-4 --alpha-lr 6e-4 --radius-coef 1 --L-min 5 --L-max 20 "
    "--num-periods 16 --total-epochs 1000",
    "Ant": "--action-scale 0.3 --latent-dim 2 --gamma 0.95 --sac-lr 6e-4 --alpha-lr 3e-3 "
    "--radius-coef 2 --L-min 8 --L-max 24 --num-periods 5 --total-epochs 600",
    "Walker2d": "--no-terminate --hidden-units 128 --action-scale 0.2 --latent-dim 2 --gamma 0.98 "
    "--sac-lr 6e-4 --alpha-lr 3e-3 --radius-coef 2 --episode-length 800 --episodes-per-epoch 4 "
    f"--L-min 20 --L-max 80 --num-periods 13 --total-epochs 1687{THEN}"
    "--phi-lr 3e-4 --sac-lr 2e-4 --alpha-lr 1e-3 --total-epochs 2500",
    "Hopper": "--no-terminate --hidden-units 128 --action-scale 0.1 --latent-dim 2 --gamma 0.98 "
    "--sac-lr 6e-4 --alpha-lr 3e-3 --radius-coef 2 --episode-length 800 --episodes-per-epoch 4 "
    f"--L-min 20 --L-max 80 --num-periods 7 --total-epochs 1084{THEN}"
    "--L-min 70 --L-max 160 --num-periods 10 --total-epochs 1700",
    "Humanoid": "--no-terminate --hidden-units 128 --action-scale 0.5 --latent-dim 2 --gamma 0.95 "
    "--sac-lr 6e-4 --alpha-lr 3e-3 --radius-coef 2 --L-min 8 --L-max 32 --num-periods 7 "
    f"--total-epochs 800{THEN}"
    "--phi-lr 3e-4 --sac-lr 2e-4 --alpha-lr 1e-3 --total-epochs 1050",
}
ROBOT = "psd.py --env-id {}-v4 --normalize-obs --hidden-units 256 --phi-batch-size 256 "
ROBOT += "--phi-lr 1e-3 --no-adaptive-sampling "
GRIDS["robots"] = {
    f"{robot}_s{seed}": f"{ROBOT.format(robot)}--seed {seed} {recipe}"
    for (robot, recipe), seed in itertools.product(RECIPES.items(), [1, 2, 3])
}
GRIDS["ant"] = variants(
    ROBOT.format("Ant") + RECIPES["Ant"].split(" --total")[0],
    epochs=600,  # recipe_s1 is results/ant
    seeds=[1, 2],
    recipe="",
    action_scale_1="--action-scale 1",
    latent_dim_6="--latent-dim 6",
    gamma_99="--gamma 0.99",
    sac_lr_3e4="--sac-lr 3e-4",
    radius_coef_1="--radius-coef 1",
    radius_coef_0="--radius-coef 0",
    lam_2_2="--lam-2 2",
    radius_coef_0_lam_2_2="--radius-coef 0 --lam-2 2",
    adaptive="--adaptive-sampling --adaptive-interval 200 --L-min 12 --L-max 12",
)

# Figure 7, in a size for a CPU: one true L first, then its neighbours (docs/psd_pixel.md)
GRIDS["pixel"] = {
    f"HalfCheetah_s{seed}": "psd_pixel.py --env-id HalfCheetah-v4 --image-size 32 --crop-size 32 "
    "--plain-floor --action-scale 0.3 --num-filters 8 --hidden-units 128 --phi-batch-size 128 "
    "--batch-size 128 --buffer-size 100000 --episodes-per-epoch 4 --updates-per-epoch 128 "
    "--no-adaptive-sampling --latent-dim 2 --gamma 0.95 --radius-coef 2 --phi-lr 1e-3 "
    "--sac-lr 6e-4 --alpha-lr 1e-3 --L-min 6 --L-max 12 --num-periods 3 "
    f"--seed {seed} --total-epochs 175{THEN}"
    f"--L-max 8 --total-epochs 274{THEN}"
    f"--L-max 10 --num-periods 5 --total-epochs 354{THEN}"
    f"--L-max 9 --num-periods 4 --total-epochs 454{THEN}"
    "--phi-lr 3e-4 --sac-lr 2e-4 --total-epochs 525"
    for seed in [1, 2]
}

# Figure 8, and what the paper says of encoders that do not see each other's variable
GRIDS["psd_metra"] = {
    f"{robot}_{name}_s1": f"psd_metra.py --env-id {robot}-v4 {FAST} --no-adaptive-sampling "
    f"--radius-coef 2 {own} {extra} --total-epochs 1100 --seed 1"
    for robot, own in [
        ("Ant", "--action-scale 0.3 --L-min 8 --L-max 24 --num-periods 5"),
        ("Walker2d", "--action-scale 0.15 --gamma 0.98 --L-min 30 --L-max 120 --num-periods 7"),
    ]
    for name, extra in [("mutual", ""), ("independent", "--no-mutual-conditioning")]
}

# Table 1, first the skills: all go forward (r_ext), 16 discrete ones for the baselines, and L over
# the range that was trained for PSD, with the bonus in two stages: periods, then the way forward
# (docs/downstream_ppo.md). One set of them a method; then three seeds of PPO over it with the
# paper's 80 gradient steps an epoch and with 10 and, without training, its controls
PERIODS = {"HalfCheetah": "--L-min 5 --L-max 20", "Walker2d": "--L-min 10 --L-max 40"}
FORWARD = {"psd": f"psd.py {FAST} --num-periods 16"}
FORWARD["psd_radius"] = f"{FORWARD['psd']} --radius-coef 1"
SMALL = "--normalize-obs --hidden-units 128 --sac-lr 6e-4 --alpha-lr 3e-3"
FORWARD |= {name: f"baselines/{script} {SMALL} {extra}" for name, script, extra in BASELINES}
TASKS = [f"{robot}{kind}" for robot in PERIODS for kind in ("Hurdle", "Friction")]
POLICIES = {
    "learned": "--total-epochs 2500",
    "gentle": "--total-epochs 2500 --updates-per-epoch 10",
    "fixed": "--policy fixed",
    "random": "--policy random",
}


def forward(method, robot):
    """The flags with which a method's skills for a robot are trained."""
    own = f"--no-adaptive-sampling {PERIODS[robot]}" if "psd" in method else "--num-skills 16"
    command = f"{FORWARD[method]} --env-id {robot}-v4 --seed 1"
    if method == "psd_radius":
        return f"{command} {own} --total-epochs 1000{THEN}--ext-coef 1 --total-epochs 1400"
    own = "" if method == "sac" else f"{own} --ext-coef 1"  # which has both already
    return f"{command} {own} --total-epochs 1400"


GRIDS["table1_skills"] = {
    f"{robot}_{method}_s1": forward(method, robot)
    for robot, method in itertools.product(PERIODS, FORWARD)
}
GRIDS["table1"] = {
    f"{task}_{method}_{policy}_s{seed}": f"downstream_ppo.py --task {task}-v0 --skills "
    f"runs/table1_skills/{robot}_{method}_s1 {POLICIES[policy]} --seed {seed}"
    for task, method, policy, seed in itertools.product(TASKS, FORWARD, POLICIES, [1, 2, 3])
    for robot in PERIODS
    if robot in task and (method != "sac" or policy == "fixed")  # one skill: nothing to choose
}


@dataclass
class Args:
    grid: Annotated[str | None, tyro.conf.Positional] = None  # which one; none: list them
    only: str = ""  # the run of this name; if there is none, those whose name contains it
    run: bool = False  # run and judge what is missing
    jobs: int = 1  # at the same time, each on one core
    table: bool = False  # what evaluate.py has measured so far
    read: str | None = None  # folder of the table's runs (None: runs/GRID), e.g. results/table1
    out: str | None = None  # also write the table's numbers to this JSON


def epochs_done(run_dir):
    path = run_dir / "model.pt"
    return torch.load(path, weights_only=True)["state"]["epoch"] if path.exists() else 0


def run_and_judge(name, command, run_dir):
    """Trains, or goes on, or does nothing; then evaluate.py, unless it has judged these weights."""
    script = command.split(" --")[0].split()  # with what_if.py, what is changed
    downstream = script == ["downstream_ppo.py"]  # which judges itself, when it has trained
    judged, model = run_dir / "evaluation.json", run_dir / "model.pt"
    judged = run_dir / "downstream.json" if downstream else judged
    for i, stage in enumerate(command.split(THEN)):
        total = int(stage.split("--total-epochs ")[1].split()[0]) if "--total" in stage else 0
        if epochs_done(run_dir) >= total and not (downstream and not judged.exists()):
            continue
        flags = shlex.split(stage) + ["--run-name", str(run_dir.relative_to("runs"))]
        if (run_dir / "resume.pt").exists():
            more = shlex.split(stage) if i else ["--total-epochs", str(total)]
            flags = [*script, "--resume", str(run_dir), *more]
        elif run_dir.exists():
            shutil.rmtree(run_dir)  # killed before its first checkpoint: nothing to go on from
        print(f"{name}: {' '.join(flags)}", flush=True)
        call(flags, run_dir.parent / f"{name}.log")
    if not downstream and (not judged.exists() or judged.stat().st_mtime < model.stat().st_mtime):
        call(["evaluate.py", str(run_dir)], run_dir.parent / f"{name}.judge.log")
    print(f"{name}: done", flush=True)


def call(flags, log):
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(log, "a") as file:
        flags = [sys.executable, str(REPO / flags[0]), *flags[1:]]
        subprocess.run(flags, check=True, stdout=file, stderr=file, env=environment)


def wilson(true, total, z=1.96):
    """The 95 % interval of a fraction that was seen `true` times in `total`."""
    p, n = true / total, total
    centre, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)
    return max(low, 0.0), min(high, 1.0)  # which rounding may pass


def table(names, folder):
    """One row a variant: of the skills whose L was trained, those within 5 and 10 % of 2L over its
    seeds, and their mean r_PSD."""
    rows = {}
    for name in names:
        path = folder / name / "evaluation.json"
        if path.exists():
            skills = json.loads(path.read_text())["skills"]
            if "L" not in skills[0]:  # the baselines' have no period to be true to
                continue
            variant, seed = name.rsplit("_s", 1)
            rows.setdefault(variant, {})[int(seed)] = [
                {key: skill[key] for key in ("L", "period", "r_psd", "radius")}
                for skill in skills
                if skill["trained"]
            ]
    print("| variant | seeds | within 5 % | 95 % interval | within 10 % | r_PSD | radius |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for variant, seeds in rows.items():
        skills = [skill for one_seed in seeds.values() for skill in one_seed]
        errors = [abs((skill["period"] or np.inf) / (2 * skill["L"]) - 1) for skill in skills]
        good, fair, n = sum(e <= 0.05 for e in errors), sum(e <= 0.1 for e in errors), len(errors)
        low, high = wilson(good, n)
        r_psd, radius = (np.mean([skill[key] for skill in skills]) for key in ("r_psd", "radius"))
        print(
            f"| {variant} | {len(seeds)} | {good} of {n} | {low:.2f} to {high:.2f} | {fair} of {n} "
            f"| {r_psd:.2f} | {radius:.2f} |"
        )
    return rows


# Student's t, 97.5 %, from 2 seeds on
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262]


def table1(names, folder):
    """What `plot.py table1` reads: a cell for each task, method and policy that was run, with the
    mean over seeds and its 95 % interval by Student's t (none for one seed)."""
    found = {}
    for name in names:
        path = folder / name / "downstream.json"
        if path.exists():
            result = json.loads(path.read_text())
            method, policy, _ = name.split("_", 1)[1].rsplit("_", 2)  # task_method_policy_seed
            found.setdefault((result["task"], method, policy), []).append(result)
    cells = []
    for (task, method, policy), results in found.items():
        means, n = [result["mean"] for result in results], len(results)
        half = STUDENT[min(n, 10) - 2] * np.std(means, ddof=1) / np.sqrt(n) if n > 1 else None
        mean = float(np.mean(means))
        cell = {"task": task, "method": method, "policy": policy, "mean": mean}
        cell["interval"] = [float(mean - half), float(mean + half)] if n > 1 else None
        cell |= {"seeds": [result["seed"] for result in results], "means": means}
        for key in ("episodes", "eval_episodes", "skill_seed", "skill_epochs", "ext_coef"):
            values = {result[key] for result in results}
            if len(values) > 1:
                sys.exit(f"{task}, {method}, {policy}: seeds differ in {key}: {sorted(values)}")
            cell[key] = values.pop()
        cells.append(cell)
        print(f"{task}, {method}, {policy}: mean {mean:.3g} over {n} seeds, interval", end=" ")
        print("none" if n == 1 else "{:.3g} to {:.3g}".format(*cell["interval"]))
    return {"cells": cells}


def main():
    args = tyro.cli(Args, description=__doc__)
    if args.grid not in GRIDS:
        lines = [f"{name}: {len(commands)} runs" for name, commands in GRIDS.items()]
        sys.exit("\n".join(["choose a grid:", *lines]) if args.grid else print("\n".join(lines)))
    runs = GRIDS[args.grid]
    names = [args.only] if args.only in runs else [name for name in runs if args.only in name]
    if not names:
        sys.exit(f"{args.grid} has no run like {args.only!r}: {', '.join(runs)}")
    runs = {name: runs[name] for name in names}
    folder, failed = Path("runs") / args.grid, []

    def attempt(name):
        try:
            run_and_judge(name, runs[name], folder / name)
        except subprocess.CalledProcessError:  # the others go on
            print(f"{name}: failed, the end of {folder / name}*.log says why", flush=True)
            failed.append(name)

    if args.run:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(attempt, runs))
    if args.table or args.run:
        read = Path(args.read or folder)
        rows = (table1 if args.grid == "table1" else table)(runs, read)
        if args.out and not any(rows.values()):
            sys.exit(f"{read} has nothing to table: {args.out} is not written")
        if args.out:
            Path(args.out).write_text(json.dumps(rows, indent=1) + "\n")
    else:
        for name, command in runs.items():
            first, *more = (" ".join(stage.split()) for stage in command.split(THEN))
            print(f"python {first} --run-name {args.grid}/{name}")
            for stage in more:
                script = first.split(" --")[0]  # with what_if.py, what is changed
                print(f"python {script} --resume runs/{args.grid}/{name} {stage}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
