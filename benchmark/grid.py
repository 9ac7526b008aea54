"""The runs behind the studies, as grids of commands: prints them, runs them, tables what came out.

    python benchmark/grid.py                       # the grids
    python benchmark/grid.py traps                 # the commands of one
    python benchmark/grid.py traps --run --jobs 2  # run what is missing, one core each
    python benchmark/grid.py traps --table         # fraction of true skills, a row a variant

A run that was stopped goes on where it was; one that is complete is not run again.
"""

import itertools
import json
import os
import shlex
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
# Small networks, fast learning rates, normalised observations: a laptop's hour (docs/traps.md)
CPU = """--normalize-obs --hidden-units 256 --phi-batch-size 256 --phi-lr 1e-3 --sac-lr 3e-4
    --alpha-lr 6e-4"""
SAC = "--normalize-obs --hidden-units 256 --sac-lr 3e-4 --alpha-lr 6e-4"
CHEETAH = f"psd.py --env-id HalfCheetah-v4 {CPU} --no-adaptive-sampling --L-min 5 --L-max 20"
CHEETAH += " --num-periods 16"


def variants(command, epochs, seeds, **flags):
    """{run name: command} of every variant (a name, and the flags it adds) and seed."""
    return {
        f"{name}_s{seed}": f"{command} {extra} --total-epochs {epochs} --seed {seed}"
        for (name, extra), seed in itertools.product(flags.items(), seeds)
    }


GRIDS = {
    # docs/traps.md: the paper's reward, a smaller lambda_2, the radius bonus, and both
    "traps": variants(
        CHEETAH,
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
    ),
    # the paper's way to a range of L: one at first, and a gate on the reward
    "adaptive": variants(
        f"psd.py --env-id HalfCheetah-v4 {CPU} --adaptive-interval 200",
        epochs=600,
        seeds=[1, 2],
        first_10="",
        first_6="--L-min 6 --L-max 6",
        first_10_step_2="--adaptive-step 2",
        first_10_interval_400="--adaptive-interval 400",
        first_10_radius="--radius-coef 1",
        first_10_lam_2_2="--lam-2 2",
    ),
    # Figure 3 beside PSD: the baselines, and SAC on r_ext alone
    "fig3": {
        f"{name}_s1": f"baselines/{script} --env-id HalfCheetah-v4 {SAC} {extra} "
        "--total-epochs 600 --seed 1"
        for name, script, extra in [
            ("metra", "metra.py", "--phi-lr 1e-3 --lam-lr 1e-3"),
            ("diayn", "diayn.py", "--discriminator-lr 1e-3"),
            ("dads", "dads.py", "--dynamics-lr 1e-3"),
            ("csd", "csd.py", "--phi-lr 1e-3 --lam-lr 1e-3 --distance-lr 1e-3"),
            ("sac", "diayn.py", "--num-skills 1 --ext-coef 1"),
        ]
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


@dataclass
class Args:
    grid: Annotated[str | None, tyro.conf.Positional] = None  # which one; none: list them
    only: str = ""  # runs whose name contains this
    run: bool = False  # run and judge what is missing
    jobs: int = 1  # at the same time, each on one core
    table: bool = False  # what evaluate.py has measured so far
    out: str | None = None  # also write the table's numbers to this JSON


def epochs_done(run_dir):
    path = run_dir / "model.pt"
    return torch.load(path, weights_only=True)["state"]["epoch"] if path.exists() else 0


def run_and_judge(name, command, run_dir):
    """Trains, or goes on, or does nothing; then evaluate.py, unless it has judged these weights."""
    total = int(command.split("--total-epochs ")[1].split()[0])
    script = command.split()[0]
    if epochs_done(run_dir) < total:
        flags = shlex.split(command) + ["--run-name", str(run_dir.relative_to("runs"))]
        if (run_dir / "resume.pt").exists():
            flags = [script, "--resume", str(run_dir), "--total-epochs", str(total)]
        print(f"{name}: {' '.join(flags)}", flush=True)
        call(flags, run_dir.parent / f"{name}.log")
    judged, model = run_dir / "evaluation.json", run_dir / "model.pt"
    if not judged.exists() or judged.stat().st_mtime < model.stat().st_mtime:
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
    return (centre - half) / (1 + z * z / n), (centre + half) / (1 + z * z / n)


def table(names, folder):
    """One row a variant: skills within 5 and 10 % of 2L over its seeds, and their mean r_PSD."""
    rows = {}
    for name in names:
        path = folder / name / "evaluation.json"
        if path.exists():
            skills = json.loads(path.read_text())["skills"]
            variant, seed = name.rsplit("_s", 1)
            rows.setdefault(variant, {})[int(seed)] = [
                {key: skill[key] for key in ("L", "period", "r_psd", "radius")} for skill in skills
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


def main():
    args = tyro.cli(Args, description=__doc__)
    if args.grid not in GRIDS:
        lines = [f"{name}: {len(commands)} runs" for name, commands in GRIDS.items()]
        sys.exit("\n".join(["choose a grid:", *lines]) if args.grid else print("\n".join(lines)))
    runs = {name: c for name, c in GRIDS[args.grid].items() if args.only in name}
    folder = Path("runs") / args.grid
    if args.run:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda item: run_and_judge(*item, folder / item[0]), runs.items()))
    if args.table or args.run:
        rows = table(runs, folder)
        if args.out:
            Path(args.out).write_text(json.dumps(rows, indent=1) + "\n")
    else:
        for name, command in runs.items():
            print(f"python {' '.join(command.split())} --run-name {args.grid}/{name}")


if __name__ == "__main__":
    main()
