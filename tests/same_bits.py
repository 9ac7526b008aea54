"""Do the scripts of the working tree still train to the same bits as those of a git revision?

    python tests/same_bits.py HEAD                          every case, some minutes
    python tests/same_bits.py HEAD --only psd metra/falls   all cases of a script, and one case

This is for changes that must not change the arithmetic. Each case trains three tiny epochs with
both versions, and compares all that resume.pt and downstream.json hold. The file format may change
on the way: `canonical` brings an old and a new file into one form. Flags may, too: those below are
the revision's, and RENAMED says what the working tree calls them.
"""

import argparse
import json
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

REPO = Path(__file__).resolve().parent.parent
RENAMED = {}  # a flag of the revision: the same flag in the working tree
# A run is a process of its own, forked from a server that has the libraries: they are slow to load.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload("gymnasium mujoco torch._dynamo torch.utils.tensorboard tyro".split())

# -------------------------------------------- Settings --------------------------------------------
# Every setting is on the command line, because a default may change. Learning rates differ, so that
# a swap shows. The replay buffer is so small that the third epoch overwrites the first.
RUN = "--seed 3 --no-cuda --num-threads 1 --save-minutes 1000 --hidden-layers 2 --hidden-units 16"
SAC = f"""{RUN} --env-id Pendulum-v1 --episodes-per-epoch 3 --updates-per-epoch 4
    --episode-length 40 --terminate --action-scale 1 --buffer-size 250 --sac-lr 1e-3 --alpha-lr 2e-3
    --batch-size 16 --gamma 0.9 --tau 0.05 --ext-coef 0 --v-star 0.5"""
STATES = f"{SAC} --no-normalize-obs"
PSD = """--phi-lr 3e-3 --phi-batch-size 32 --latent-dim 3 --embed-dim 4 --k 0.5 --lam-1 5 --lam-2 4
    --epsilon 8 --kappa 0.5 --no-adaptive-sampling --L-min 7 --L-max 10
    --num-periods 3 --adaptive-step 1 --adaptive-interval 3 --adaptive-episodes 4
    --adaptive-alpha 1e-30 --adaptive-beta 1e-31"""  # if adaptive, both bounds expand each epoch
PIXELS = """--env-id HalfCheetah-v4 --image-size 18 --crop-size 16 --no-plain-floor --frame-stack 3
    --num-filters 4 --feature-dim 8"""
BOTH = """--skill-dim 2 --position-dim 0 --mutual-conditioning --psd-coef 1 --lam-m 30
    --epsilon-m 0.99"""
PHI = "--num-skills 4 --phi-lr 3e-3 --phi-batch-size 32 --lam-lr 4e-3"
PPO = f"""{RUN} --task Walker2dFriction-v0 --policy learned --eval-episodes 3 --no-video
    --episodes-per-epoch 2 --updates-per-epoch 4 --skill-steps 10 --actor-lr 3e-3 --critic-lr 1e-3
    --clip 0.01 --value-coef 0.5 --entropy-coef 0.01 --gamma 0.9"""

BASE = {  # settings of all cases of a script
    "psd.py": f"{STATES} {PSD}",
    "psd_metra.py": f"{STATES} {PSD} {BOTH}",
    "psd_pixel.py": f"{SAC} {PSD} {PIXELS}",
    "baselines/metra.py": f"{STATES} {PHI} --lam 30 --epsilon 0.99",
    "baselines/csd.py": f"{STATES} {PHI} --lam 30 --epsilon 0.99 --distance-lr 5e-3 "
    "--reward-scale 10",
    "baselines/diayn.py": f"{STATES} --num-skills 4 --discriminator-lr 3e-3 "
    "--discriminator-batch-size 32",
    "baselines/dads.py": f"{STATES} --num-skills 4 --dynamics-lr 3e-3 --dynamics-batch-size 32 "
    "--prior-samples 10",
    "downstream_ppo.py": PPO,
}

# --------------------------------------------- Cases ----------------------------------------------
# A case named "resume" stops after two epochs and goes on to the third; the others do all at once.
SHARED = {
    "plain": "",
    "resume": "--normalize-obs",
    "normalize": "--env-id HalfCheetah-v4 --normalize-obs",
    "action-scale": "--action-scale 0.5",
    "ext": "--env-id HalfCheetah-v4 --ext-coef 1",
    "falls": "--env-id Hopper-v4 --ext-coef 0.5 --v-star 1",
    "no-terminate": "--env-id Hopper-v4 --no-terminate",
}
PERIODS = {
    "resume": "--adaptive-sampling",
    "moving": "--adaptive-sampling",
    "epsilon": "--epsilon 1.5",  # where the slack of the sides is cut, too
    "terms": "--latent-dim 2 --turn-coef 1 --regularity-coef 2 --anneal-lr --critic-layer-norm",
    "embed-dim-1": "--embed-dim 1",
    "phi-waits": "--env-id Hopper-v4 --L-min 40 --L-max 40",  # episodes are shorter than L
}
CONTINUOUS = {"continuous": "--env-id Ant-v4 --num-skills 0"}
CASES = {  # what each case adds to the settings of its script
    "psd.py": SHARED | PERIODS,
    "psd_metra.py": {
        **SHARED,
        **PERIODS,
        "no-mutual": "--no-mutual-conditioning",
        "position": "--env-id Ant-v5 --position-dim 2",
        "no-mutual-position": "--env-id HalfCheetah-v4 --position-dim 1 --no-mutual-conditioning",
        "skill-dim-1": "--skill-dim 1",
        "psd-coef": "--psd-coef 0.3",
    },
    "psd_pixel.py": {
        **{name: flags for name, flags in SHARED.items() if name != "normalize"},
        **PERIODS,
        "no-crop": "--crop-size 18",
        "large-crop": "--image-size 24 --crop-size 17",
        "plain-floor": "--plain-floor",
        "frame-stack": "--frame-stack 2",
    },
    "baselines/metra.py": SHARED | CONTINUOUS,
    "baselines/csd.py": SHARED | CONTINUOUS,
    "baselines/diayn.py": SHARED | {"one-skill": "--env-id Hopper-v4 --num-skills 1 --ext-coef 1"},
    "baselines/dads.py": SHARED | CONTINUOUS,
    "downstream_ppo.py": {
        "psd": "--skills walker_psd",
        "psd_metra": "--skills walker_psd_metra",
        "metra": "--skills walker_metra",
        "diayn": "--skills walker_diayn",
        "resume": "--skills walker_psd",
        "random": "--skills walker_psd --policy random",
        "fixed": "--skills walker_psd --policy fixed",
        "fixed-metra": "--skills walker_metra --policy fixed",
        "hurdle": "--task Walker2dHurdle-v0 --skills walker_metra",
        "cheetah": "--task HalfCheetahHurdle-v0 --skills cheetah_psd",
        "cheetah-friction": "--task HalfCheetahFriction-v0 --skills cheetah_psd",
    },
}
# Checkpoints for downstream_ppo.py. The revision trains them, and both versions read them.
SKILLS = {
    "walker_psd": ("psd.py", "--env-id Walker2d-v4 --action-scale 0.5"),
    "walker_psd_metra": ("psd_metra.py", "--env-id Walker2d-v4 --position-dim 1 --normalize-obs"),
    "walker_metra": ("baselines/metra.py", "--env-id Walker2d-v4 --normalize-obs"),
    "walker_diayn": ("baselines/diayn.py", "--env-id Walker2d-v4"),
    "cheetah_psd": ("psd.py", "--env-id HalfCheetah-v4 --normalize-obs"),
}


def case_names():
    """The name of a case is script/case, as in psd/moving: its script and its settings."""
    for script, cases in CASES.items():
        for case, flags in cases.items():
            yield f"{Path(script).stem}/{case}", (script, f"{BASE[script]} {flags}".split())


# ---------------------------------------------- Runs ----------------------------------------------
def child(path, flags, folder, log):
    """What the process of a run does: as `python path flags` inside a folder, with a log file."""
    os.chdir(folder)
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.argv, sys.path[0] = [path, *flags], str(Path(path).parent)
    runpy.run_path(path, run_name="__main__")


def run_script(tree, script, flags, folder):
    """Runs a script of a tree inside a folder. If it fails, its last line is the error."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the first run starts the server
    log = folder / "log.txt"
    process = SERVER.Process(target=child, args=(str(tree / script), flags, folder, log))
    process.start()
    process.join()
    if process.exitcode:
        last = (log.read_text().strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{script} in {tree.name} failed: {last}")


def train_skill(tree, name, folder):
    """Makes one of SKILLS inside a folder."""
    script, flags = SKILLS[name]
    folder.mkdir(parents=True)
    flags = f"{BASE[script]} {flags} --total-epochs 1 --run-name a".split()
    run_script(tree, script, flags, folder)


def run_case(tree, name, folder, skills=None, renamed=None):
    """Trains a case with the scripts of a tree. Returns what it left, in the canonical form."""
    script, flags = dict(case_names())[name]
    flags = [str(skills / flag / "runs/a") if flag in SKILLS else flag for flag in flags]
    resume = name.endswith("/resume")
    lines = [[*flags, "--run-name", "a", "--total-epochs", "2" if resume else "3"]]
    if resume:
        lines.append(["--resume", "runs/a", "--total-epochs", "3"])
    folder.mkdir(parents=True)
    for line in lines:
        run_script(tree, script, [(renamed or {}).get(flag, flag) for flag in line], folder)
    values = {}
    if (file := folder / "runs/a/resume.pt").exists():
        values |= canonical(torch.load(file, map_location="cpu", weights_only=True))
    if (file := folder / "runs/a/downstream.json").exists():
        result = json.loads(file.read_text())
        values |= flat({k: v for k, v in result.items() if k != "args"}, "downstream.json")
    if not values:
        raise RuntimeError(f"{script} in {tree.name} left no file")
    return values


# ------------------------------------------- Comparison -------------------------------------------
BUFFER = "head obs actions velocity terminated start length skill period".split()
WITH_PERIOD = ["psd", "psd_metra", "psd_pixel"]


def split_last(optimizers, name, scalar):
    """In an old file, another optimiser has a scalar as its last parameter: gives it its own."""
    if scalar in optimizers or not optimizers[name]:
        return optimizers
    *others, last = sorted(optimizers[name])
    moments = optimizers[name]
    return optimizers | {name: {i: moments[i] for i in others}, scalar: {0: moments[last]}}


def split_skill(buffer, script):
    """In an old file, `skill` begins with L where a script has one. Baselines have no L: 0."""
    skill = buffer["skill"]
    if script in WITH_PERIOD:
        return buffer | {"period": skill[:, 0], "skill": skill[:, 1:]}
    return buffer | {"period": torch.zeros(len(skill))}


def canonical(checkpoint):
    """All values of a resume.pt by name, the same for an old and for a new file."""
    content = {k: v for k, v in checkpoint.items() if k != "args"}
    if "state" in content:
        content["progress"] = content.pop("state")
    if "obs_mean" in content.get("progress", {}):  # an old file has -0 where nothing is normalised
        mean = content["progress"]["obs_mean"] + 0.0  # which this makes a 0
        content["progress"] = content["progress"] | {"obs_mean": mean}
    if "skills" in content:  # frozen ones, inside a file of downstream_ppo.py
        content["skills"] = canonical(content["skills"])
    if torch.is_tensor(content.get("rng")):
        content["rng"] = [content["rng"]]
    if "buffer" in content:
        buffer = content["buffer"]
        if "period" not in buffer:
            buffer = split_skill(buffer, content["script"])
        content["buffer"] = {name: buffer[name] for name in BUFFER if name in buffer}
        content["buffer"]["period"] = buffer["period"].float()  # an integer type is as good
    if "optimizers" in content:
        optimizers = split_last(content["optimizers"], "actor", "alpha")
        if "log_lam" in content["agent"]:
            encoder = "phi_m" if "phi_m" in optimizers else "phi"
            optimizers = split_last(optimizers, encoder, "lam")
        content["optimizers"] = optimizers
    return flat(content)


def flat(value, path=""):
    """Nested dicts and lists as one dict from paths to values."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    parts = [flat(part, f"{path}/{key}" if path else key) for key, part in value.items()]
    return {name: leaf for part in parts for name, leaf in part.items()}


def bits(value):
    """Equal for two values if they have the same type, shape and bits, and only then."""
    if torch.is_tensor(value):
        return value.dtype, value.shape, value.numpy().tobytes()
    return type(value), repr(value)


def differences(old, new):
    """The names of canonical values that differ, or that only one of the two has."""
    names = list(old) + [name for name in new if name not in old]
    return [n for n in names if n not in old or n not in new or bits(old[n]) != bits(new[n])]


# ---------------------------------------------- Main ----------------------------------------------
def check_out(rev, old, new):
    """The scripts of a revision, and a copy of the working tree's, which may change meanwhile."""
    archive = subprocess.run(["git", "archive", rev], cwd=REPO, stdout=subprocess.PIPE)
    if archive.returncode:
        sys.exit(f"git cannot check out {rev}")
    old.mkdir()
    subprocess.run(["tar", "-x", "-C", str(old)], input=archive.stdout, check=True)
    for path in [*REPO.glob("*.py"), *REPO.glob("*/*.py")]:
        target = new / path.relative_to(REPO)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


def compare_case(name, folder):
    """One line about a case, and whether both versions agree."""
    try:
        old = run_case(folder / "old", name, folder / "old_runs" / name, folder / "skills")
        new = run_case(folder / "new", name, folder / "new_runs" / name, folder / "skills", RENAMED)
    except RuntimeError as error:
        return f"{name}: {error}", False
    names = differences(old, new)
    if not names:
        return f"{name}: same ({len(old)} values)", True
    return f"{name}: {len(names)} differ: {', '.join(names[:4])}{' ...' * (len(names) > 4)}", False


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rev", help="git revision to compare the working tree with")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="such as psd or psd/moving")
    parser.add_argument("--jobs", type=int, default=2, help="cases to run at the same time")
    args = parser.parse_args(argv)
    names = [name for name, _ in case_names()]
    for word in args.only or []:
        if not any(word in (name, name.split("/")[0]) for name in names):
            parser.error(f"--only {word}: choose from {' '.join(names)}")
    if args.only:
        names = [n for n in names if n in args.only or n.split("/")[0] in args.only]
    start, failed = time.time(), 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        folder = Path(folder)
        check_out(args.rev, folder / "old", folder / "new")
        if any(name.startswith("downstream_ppo") for name in names):
            list(pool.map(lambda n: train_skill(folder / "old", n, folder / "skills" / n), SKILLS))
        for line, same in pool.map(lambda name: compare_case(name, folder), names):
            print(line, flush=True)
            failed += not same
    print(f"{len(names) - failed} of {len(names)} cases are the same, {time.time() - start:.0f} s")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
