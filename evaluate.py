"""The judge: does the state under each skill have the period 2L? Reads any script's checkpoint.

    python evaluate.py runs/NAME                      # table, and evaluation.json beside the model
    python evaluate.py runs/NAME --periods 5 8 11     # these L only
    python evaluate.py runs/NAME --video              # and one mp4 per L
    python evaluate.py runs/NAME --random-actions     # a control: its environment, random actions

Neither r_PSD nor the latent distances reveal whether a skill works. Both are as they should be for
a state that goes round too fast, and for an encoder that winds several times round the circle in
one cycle of the state. So the period is measured on the state itself (period.py). The baselines
have skills z and no L: the same measures, and no verdict. Numbers: docs/evaluation_json.md.

A checkpoint is also a policy in five lines:

    import evaluate
    policy = evaluate.load("results/halfcheetah")
    env = policy.make_env()
    obs, _ = env.reset(seed=0)
    for t in range(200): obs, *_ = env.step(policy.act(obs, L=12))
"""

import base64
import contextlib
import dataclasses
import importlib.util
import json
import logging
import math
import numbers
import os
import platform
import re
import shlex
import sys
import warnings
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
import tyro
from tqdm import tqdm

from period import autocorrelation, return_error, spectrum, standardize, state_period

HERE = Path(__file__).resolve().parent
# Beside the scripts; none has checkpoints
TOOLS = ("evaluate", "period", "play", "play_export", "plot")
STREAM = 20250  # sets the seeds of evaluation apart from those of training
VERDICTS = {"true": 0.05, "close": 0.10}  # largest relative error of the period against 2L
NUM_RANDOM = 16  # "skills" of random actions
NUM_SHOWN = 3  # state dimensions that the JSON stores
NUM_SWITCHED = 6  # L in the rollout that switches
NUM_TRANSITIONS = 1000  # behind the latent distances (Figures 6 and 12)
NUM_BINS = 60  # of their histogram
NUM_FREQUENCIES = 512  # of the spectrum that the JSON stores

# What is possible
MAX_EPISODES = 200  # one environment per episode: about 1 MB each, 15 MB if it renders
MAX_SWITCH_STEPS = 10_000
MAX_GIGABYTES = 4.0  # of observations in one rollout
MAX_SIZE = 100_000  # of anything that a checkpoint's arguments count


# ------------------------------------- Arguments --------------------------------------
RunPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass
class Args:
    run: RunPath
    """run folder, or any folder or file with a model.pt"""
    out: str | None = None
    """the JSON to write (None: evaluation.json or random.json, beside the model)"""
    periods: tuple[int, ...] = ()
    """values of L (none: the trained ones, and 16 over their range)"""
    episodes: int = 5
    """rollouts per L, or per skill"""
    seed: int = 0
    """seed of the evaluation alone: the same seed gives the same JSON"""
    device: str = "cpu"
    """where the networks run, as torch names it"""
    switch_steps: int | None = None
    """steps per L in the rollout that switches between several L (None: 6 times the largest L)"""
    random_actions: bool = False
    """take uniform random actions instead of the policy's, as if they were 16 skills"""
    video: bool = False
    """write one mp4 per L or skill, into the folder videos/ beside the JSON"""
    gif: str | None = None
    """write a moving picture of three skills to this file instead, and measure nothing"""
    onnx: bool = False
    """write policy.onnx beside the model instead: raw observations and L in, actions out"""
    env_id: str | None = None
    """the run's environment, to be named if making it imports a module (module:Name-v0)"""


def fail(message):
    """Ends in one line, with a non-zero exit."""
    raise SystemExit(f"evaluate.py: error: {' '.join(str(message).split())}")


# ------------------------------- Calls into the scripts -------------------------------
# Every call of a script's function stands in this section.

Statistics = namedtuple("Statistics", "mean std")  # of observations; NumPy, (obs_dim,) each


@dataclass
class Run:
    """A checkpoint that has been opened and checked."""

    path: Path
    script: ModuleType  # that wrote it
    kind: "Kind"
    args: Any  # the script's Args
    progress: dict  # epoch, global_step, bounds, and statistics of the observations
    agent: torch.nn.Module
    device: torch.device
    observation_space: gym.Space
    action_space: gym.Space


@contextlib.contextmanager
def our_name_on_errors():
    """A script's error has the script's name in front; the user has called evaluate.py."""
    try:
        yield
    except SystemExit as error:
        fail(str(error).split("error: ", 1)[-1])


def make_env(script, args, max_steps=None, **kwargs):
    """The environment of a run, for `max_steps` steps (None: T)."""
    with our_name_on_errors():
        return script.make_env(args, max_steps=max_steps, **kwargs)


def make_agent(script, args, env, device):
    """All networks of a run, with random weights."""
    obs_dim = env.observation_space.shape[0]
    with torch.random.fork_rng():  # the caller's random numbers stay as they are
        agent = script.Agent(args, obs_dim, env.action_space, device)
    return agent.requires_grad_(False)


def rollout(run, envs, key, agent, skill):
    """One deterministic episode per environment, of skill (n, D). `key` seeds the resets."""
    return run.script.rollout(envs, key, agent, skill, run.progress, deterministic=True)


def encode(run, episode, skill):
    """phi_L of the states of an episode; NumPy, (n + 1, d)."""
    return run.script.encode(run.agent, episode, skill).cpu().numpy()


def part_of(episode, start, stop):
    """The observations from step `start` to step `stop`, as an episode for `encode`."""
    return episode._replace(obs=episode.obs[start : stop + 1])


def skill_vector(run, L, z):
    """What the policy is given besides the state: Embed(L), or z, or one after the other; (D,)."""
    if L is None:
        return z.to(run.device)
    period = torch.tensor(float(L), device=run.device)
    embedding = run.script.embed_period(period, run.args.embed_dim)
    if z is None:
        return embedding
    return torch.cat([embedding, z.to(run.device)])


def trained_periods(run):
    """The values of L that were in use at the end of training."""
    L_min, L_max = run.progress["bounds"][:2]
    return run.script.candidate_periods(L_min, L_max, run.args.num_periods).tolist()


def latent_statistics(run, latents, L):
    """r_psd and radius, among others, of the latents (n + 1, d) of an episode."""
    return run.script.latent_statistics(torch.as_tensor(latents), L, run.args.kappa)


def robot_name(run):
    """Walker2d for Walker2d-v4."""
    return run.script.robot_name(run.args.env_id)


def side_length(run, L):
    """The side of the regular 2L-gon: the best one-step distance."""
    return run.script.side_length(torch.tensor(float(L))).item()


def training_statistics(run):
    """What the run's observations are normalised by."""
    return Statistics(run.progress["obs_mean"].numpy(), run.progress["obs_std"].numpy())


def random_statistics(run, env, seed):
    """Mean and standard deviation of the state under random actions."""
    script = import_script("psd") if run.kind.has_pixels else run.script
    changes = {"normalize_obs": True, "seed": seed, "ext_coef": 0.0}
    args = SimpleNamespace(**(vars(run.args) | changes))
    statistics = script.observation_statistics(env, args)
    return Statistics(statistics["obs_mean"].numpy(), statistics["obs_std"].numpy())


def check_pixels(run, env):
    """Before any work: can the environment render what the agent sees?"""
    with our_name_on_errors():
        run.script.check_env(env, run.args)


# ------------------------------ A policy in five lines --------------------------------
def load(path, env_id=None, device="cpu"):
    """The policy of a checkpoint, from a run folder or a model.pt.

    `policy.make_env()` makes the environment that the policy was trained on. The action is
    `policy.act(obs, L)`; for psd_metra.py `policy.act(obs, L, z)`; for a baseline
    `policy.act(obs, skill)`. An environment that imports a module has to be named by `env_id`."""
    run = open_run(path, device, env_id)
    return run.kind.policy(run)


class Policy:
    """A trained policy: takes observations as the environment returns them."""

    def __init__(self, run):
        self.run = run
        self.script = run.script
        self.args = run.args
        self.periods = None  # the trained L, if there are any
        self.skills = None  # the z that evaluate.py measures, if there are any; NumPy, (n, D)
        if run.kind.has_L:
            self.periods = trained_periods(run)
        if run.kind.directions is not None:
            self.skills = run.kind.directions(run.args).numpy()

    def make_env(self, **kwargs):
        """The environment that the policy was trained on; kwargs as in gym.make (render_mode)."""
        return make_env(self.script, self.args, **kwargs)

    def normalize(self, obs):
        """What the networks see of raw observations (n, ...), as in `rollout`."""
        if self.run.kind.has_pixels:
            return obs
        statistics = training_statistics(self.run)
        return ((obs - statistics.mean) / statistics.std).astype(np.float32)

    def act_on(self, obs, skill, deterministic):
        """The action, (action_dim,) or (n, action_dim), of a skill (D,)."""
        obs, single = self.check_obs(obs)
        obs = torch.as_tensor(self.normalize(obs), device=self.run.device)
        skill = skill.expand(len(obs), -1)
        actions = self.run.agent.act(obs, skill, deterministic).cpu().numpy()
        return actions[0] if single else actions

    def check_obs(self, obs):
        """`obs` as a batch, and whether it was a single observation."""
        shape = self.run.observation_space.shape
        wanted = f"{self.args.env_id} has observations of the shape {shape}, or (n, ...) for n"
        try:
            obs = np.asarray(obs)
        except ValueError:
            raise ValueError(f"obs is no array: {wanted}") from None
        if obs.shape != shape and obs.shape[1:] != shape:
            raise ValueError(f"obs has the shape {obs.shape}: {wanted}")
        if self.run.kind.has_pixels and obs.dtype != np.uint8:
            raise ValueError(f"obs has the type {obs.dtype}: pictures are uint8, from 0 to 255")
        if obs.dtype.kind not in "biuf":
            raise ValueError(f"obs has the type {obs.dtype}: real numbers are needed")
        single = obs.shape == shape
        return (obs[None] if single else obs), single


def check_period(L):
    """Any positive L will do, trained or not."""
    is_number = isinstance(L, numbers.Real) and not isinstance(L, bool)
    if not is_number or not 0 < L < math.inf:
        raise ValueError(f"L is {L!r}: a positive, finite number is needed")


def check_vector(name, z, size):
    """z as a tensor (size,)."""
    try:
        z = torch.as_tensor(np.atleast_1d(z), dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} is {z!r}: a vector of {size} numbers is needed") from None
    if z.shape != (size,) or not z.isfinite().all():
        raise ValueError(f"{name} is {z.tolist()}: a vector of {size} finite numbers is needed")
    return z


class PeriodPolicy(Policy):
    """pi(a | s, L)."""

    def act(self, obs, L, deterministic=True):
        check_period(L)
        return self.act_on(obs, skill_vector(self.run, L, None), deterministic)


class DirectedPolicy(Policy):
    """pi(a | s, L, z), where the trained z are unit vectors."""

    def act(self, obs, L, z, deterministic=True):
        check_period(L)
        z = check_vector("z", z, self.args.skill_dim)
        return self.act_on(obs, skill_vector(self.run, L, z), deterministic)


class SkillPolicy(Policy):
    """pi(a | s, skill), where a skill is a vector, or its place in `skills`."""

    def act(self, obs, skill, deterministic=True):
        count, size = self.skills.shape
        if isinstance(skill, numbers.Integral):
            if not 0 <= skill < count:
                raise ValueError(f"skill is {skill}: a number from 0 to {count - 1} is needed")
            skill = self.skills[skill]
        z = check_vector("skill", skill, size)
        return self.act_on(obs, skill_vector(self.run, None, z), deterministic)


# ---------------------------------------- ONNX ----------------------------------------
class Deployed(torch.nn.Module):
    """A policy as one network: raw observations (n, ...) and L (n,) in, or z (n, D), or both.

    It normalises, embeds L and acts deterministically, as `Policy.act` does. Its actions are for
    the bare robot: the factor --action-scale, which is a part of `make_env`, is in them."""

    def __init__(self, run):
        super().__init__()
        self.run = run
        self.agent = run.agent
        self.action_scale = run.args.action_scale
        if not run.kind.has_pixels:
            self.register_buffer("mean", run.progress["obs_mean"])
            self.register_buffer("std", run.progress["obs_std"])

    def forward(self, obs, *skill):
        if not self.run.kind.has_pixels:
            obs = (obs - self.mean) / self.std
        vectors = list(skill)
        if self.run.kind.has_L:
            vectors[0] = self.run.script.embed_period(skill[0], self.run.args.embed_dim)
        actions = self.agent.act(obs, torch.cat(vectors, dim=-1), deterministic=True)
        return self.action_scale * actions


def deployed_inputs(run, rng, count):
    """`count` random inputs of the exported policy, by name: NumPy, as onnxruntime wants them."""
    shape = (count, *run.observation_space.shape)
    if run.kind.has_pixels:
        inputs = {"obs": rng.integers(256, size=shape, dtype=np.uint8)}
    else:
        obs = rng.standard_normal(shape) * run.progress["obs_std"].numpy()
        inputs = {"obs": (obs + run.progress["obs_mean"].numpy()).astype(np.float32)}
    if run.kind.has_L:
        inputs["L"] = rng.choice(trained_periods(run), size=count).astype(np.float32)
    if run.kind.directions is not None:
        inputs["z"] = rng.choice(run.kind.directions(run.args).numpy(), size=count)
    return inputs


def write_onnx(options):
    """policy.onnx beside the model, checked: onnxruntime has to act as torch does."""
    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        fail(f"--onnx needs {error.name}: pip install onnx onnxscript onnxruntime")
    run = open_run(options.run, "cpu", options.env_id)
    policy = Deployed(run).eval()
    rng = np.random.default_rng(options.seed)
    inputs = deployed_inputs(run, rng, count=16)
    tensors = tuple(torch.as_tensor(value) for value in inputs.values())
    batch = torch.export.Dim("n")
    shapes = ({0: batch}, tuple({0: batch} for _ in tensors[1:]))
    path = find_model(options.run).with_name("policy.onnx")
    temporary = path.with_name("policy.tmp.onnx")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # or it misses torchvision aloud
    with one_line_if_it_fails(path, temporary), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            policy,
            tensors,
            input_names=list(inputs),
            output_names=["action"],
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
        program.save(str(temporary), include_initializers=True)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        for count in (1, 16):  # a batch of another size, too
            inputs = deployed_inputs(run, rng, count)
            action = session.run(None, inputs)[0]
            expected = policy(*(torch.as_tensor(value) for value in inputs.values())).numpy()
            difference = np.abs(action - expected).max()
            if not difference < 1e-4:
                temporary.unlink()
                fail(
                    f"the ONNX policy differs from torch's by {difference:.1e}: nothing is written"
                )
        os.replace(temporary, path)
    return path


# ---------------------------------- Kinds of scripts ----------------------------------
def unit_vectors(dimension, count):
    """(n, dimension): in two dimensions `count` of them evenly round the circle, else both ends of
    each axis."""
    if dimension == 2:
        angle = torch.arange(count) * (2 * torch.pi / count)
        return torch.stack([angle.cos(), angle.sin()], dim=1)
    axes = torch.eye(dimension)
    return torch.cat([axes, -axes])


def metra_directions(args):
    """The z of psd_metra.py to measure, each with every L."""
    return unit_vectors(args.skill_dim, count=8)


def baseline_skills(args):
    """The skills of a baseline to measure: all discrete ones, or directions."""
    if args.num_skills > 0:
        return torch.eye(args.num_skills)
    return unit_vectors(dimension=2, count=16)


@dataclass(frozen=True)
class Kind:
    """What sets one kind of script apart from another."""

    policy: type  # what `load` returns
    has_L: bool  # its skills have a period variable L, and the state should have the period 2L
    has_pixels: bool = False  # its observations are pictures, and the state is in `info`
    directions: Callable | None = None  # from args to the z to measure, (n, D); None: no z


# By an argument that only this kind has; the first one that fits
KINDS = {
    "image_size": Kind(PeriodPolicy, has_L=True, has_pixels=True),  # psd_pixel.py
    "skill_dim": Kind(DirectedPolicy, has_L=True, directions=metra_directions),  # psd_metra.py
    "embed_dim": Kind(PeriodPolicy, has_L=True),  # psd.py
    "num_skills": Kind(SkillPolicy, has_L=False, directions=baseline_skills),  # the baselines
}


def kind_of(script, saved_args):
    """The kind of a script, by the arguments in its checkpoint."""
    kinds = [kind for argument, kind in KINDS.items() if argument in saved_args]
    if not kinds:
        fail(f"{script.__name__}.py has neither L nor z: evaluate.py cannot measure it")
    kind = kinds[0]
    functions = "Args Agent make_env rollout robot_name has_fallen"
    if kind.has_L:
        functions += " embed_period encode latent_statistics side_length candidate_periods"
    functions += " check_env" if kind.has_pixels else " observation_statistics"
    for function in functions.split():
        if not hasattr(script, function):
            fail(f"{script.__name__}.py has no {function}: evaluate.py cannot measure it")
    return kind


# -------------------------------- Opening a checkpoint --------------------------------
# Arguments of a run whose values are checked, if its script has them
NUMBERS = "kappa action_scale"
SIZES = """episode_length num_periods embed_dim latent_dim hidden_layers hidden_units skill_dim
    position_dim num_skills image_size crop_size frame_stack num_filters feature_dim"""
MAY_BE_ZERO = "position_dim num_skills"


def find_model(run):
    """The checkpoint that a path means: the file itself, or model.pt in the folder."""
    path = Path(run)
    if path.is_dir():
        path = path / "model.pt"
    if not path.is_file():
        fail(f"{path} is missing: give a run folder with a model.pt in it")
    return path


def check_device(name):
    """The device, if it can compute here."""
    try:
        device = torch.device(name)
        torch.zeros((), device=device).item()
    except Exception as error:  # of many types
        reason = str(error).split("\n")[0]
        if str(name).startswith("cuda") and not torch.cuda.is_available():
            reason = "torch finds no CUDA device on this machine"
        fail(f"--device {name}: {reason}; --device cpu always works")
    return device


def read_checkpoint(path):
    """The content of a checkpoint: tensors and plain values only, so that it cannot run code."""
    try:
        with open(path, "rb") as file:
            damaged = zipfile.ZipFile(file).testzip()  # torch.load does not look at checksums
            if damaged is not None:
                fail(f"{path} is damaged: the checksum of {damaged} is wrong")
            file.seek(0)
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of many types
        fail(f"{path} is damaged or no checkpoint ({type(error).__name__})")
    if not isinstance(checkpoint, dict):
        fail(f"{path} is no checkpoint: it holds a {type(checkpoint).__name__}")
    if "progress" not in checkpoint and "state" in checkpoint:
        checkpoint["progress"] = checkpoint["state"]  # as older checkpoints call it
    parts = {"script": str, "args": dict, "progress": dict, "agent": dict}
    for part, needed in parts.items():
        if part not in checkpoint:
            fail(f"{path} has no {part}: it is no checkpoint of these scripts")
        if not isinstance(checkpoint[part], needed):
            found = type(checkpoint[part]).__name__
            fail(f"{path} is no checkpoint: its {part} is a {found}, not a {needed.__name__}")
    return checkpoint


def import_script(name):
    """The script that wrote a checkpoint, as a module: beside this file, or in baselines/."""
    candidates = []
    if re.fullmatch(r"\w+", name) and name not in TOOLS:
        candidates = [HERE / f"{name}.py", HERE / "baselines" / f"{name}.py"]
    paths = [path for path in candidates if path.is_file()]
    if not paths:
        fail(f"the checkpoint is of the script {name!r}, which is neither here nor in baselines/")
    loaded = sys.modules.get(name)
    loaded_file = getattr(loaded, "__file__", None)
    if loaded_file is not None and Path(loaded_file).resolve() == paths[0]:
        return loaded
    spec = importlib.util.spec_from_file_location(name, paths[0])
    script = importlib.util.module_from_spec(spec)
    sys.modules[name] = script  # where dataclass looks it up
    spec.loader.exec_module(script)
    return script


RETIRED = ["radius_coef"]  # arguments of older runs that changed the reward alone


def read_args(path, script, saved_args):
    """The arguments of the run, as the script's Args."""
    known = {name: value for name, value in saved_args.items() if name not in RETIRED}
    try:
        args = script.Args(**known)
        json.dumps(vars(args), allow_nan=False)  # plain values, and no nan
    except (TypeError, ValueError) as error:
        fail(f"{path} does not fit {script.__name__}.py ({error})")
    if not isinstance(args.env_id, str):
        fail(f"{path} has env_id = {args.env_id!r}: not the name of an environment")
    for name in NUMBERS.split():
        value = getattr(args, name, 1.0)
        if type(value) not in (int, float):
            fail(f"{path} has {name} = {value!r}: not a number")
    for name in SIZES.split():
        value = getattr(args, name, 1)
        smallest = 0 if name in MAY_BE_ZERO.split() else 1
        if type(value) is not int or not smallest <= value <= MAX_SIZE:
            fail(f"{path} has {name} = {value!r}: not a number from {smallest} to {MAX_SIZE:,}")
    return args


def check_env_id(path, env_id, allowed):
    """An env_id with a colon imports a module: only if the user has named it."""
    if allowed is not None and allowed != env_id:
        fail(f"--env-id {allowed}: {path} was trained on {env_id}")
    if ":" in env_id and allowed is None:
        module = env_id.split(":")[0]
        what = f"{path} was trained on {env_id}, which imports the Python module {module}"
        fail(f"{what}: if you trust that module, add --env-id {env_id}")


def check_progress(path, kind, args, obs_shape, progress):
    """How far the run came, its range of L, and the statistics of its observations."""
    for name in ("epoch", "global_step"):
        value = progress.get(name)
        if type(value) is not int or value < 0:
            fail(f"{path} has no {name}: {value!r} is no count")
    if kind.has_L:
        bounds = progress.get("bounds")
        if not isinstance(bounds, list | tuple) or len(bounds) < 2:
            fail(f"{path} has no bounds: {bounds!r} is no range of L")
        L_min, L_max = bounds[:2]
        whole = type(L_min) is int and type(L_max) is int
        if not whole or not 1 <= L_min <= L_max <= args.episode_length:
            fail(f"{path} has wrong bounds: L from {L_min!r} to {L_max!r}")
    if kind.has_pixels:
        return
    for name in ("obs_mean", "obs_std"):
        value = progress.get(name)
        if not torch.is_tensor(value) or value.dtype not in (torch.float32, torch.float64):
            fail(f"{path} has no {name}: the observations cannot be normalised")
        if value.shape != obs_shape:
            found = tuple(value.shape)
            fail(f"{path} has {name} of the shape {found}, the environment {obs_shape}")
        if not value.isfinite().all():
            fail(f"{path} has {name} with values that are not finite")
    if progress["obs_std"].min() <= 0:
        fail(f"{path} has obs_std with values that are not positive")


def check_weights(path, name, weights, expected):
    """Whether the weights of a checkpoint are those that the script's networks need."""
    for key, weight in weights.items():
        if not torch.is_tensor(weight) or key not in expected:
            fail(f"{path} does not fit {name}.py: there is no place for {key}")
        if weight.shape != expected[key].shape:
            found = tuple(weight.shape)
            needed = tuple(expected[key].shape)
            fail(f"{path} does not fit {name}.py: {key} has the shape {found}, not {needed}")
        if not weight.isfinite().all():
            fail(f"{path} has weights that are not finite: {key}")
    for key in expected:
        if key.startswith(("actor.", "phi.")) and key not in weights:
            fail(f"{path} does not fit {name}.py: {key} is missing")


def open_run(path, device="cpu", env_id=None):
    """The run of a checkpoint, from a run folder or a model.pt; a faulty one ends in one line."""
    path = find_model(path)
    device = check_device(device)
    checkpoint = read_checkpoint(path)
    script = import_script(checkpoint["script"])
    kind = kind_of(script, checkpoint["args"])
    args = read_args(path, script, checkpoint["args"])
    check_env_id(path, args.env_id, env_id)
    env = make_env(script, args)
    try:
        agent = make_agent(script, args, env, device)
    except Exception as error:  # of many types
        fail(f"{path} does not fit {script.__name__}.py ({type(error).__name__}: {error})")
    check_weights(path, script.__name__, checkpoint["agent"], agent.state_dict())
    check_progress(path, kind, args, env.observation_space.shape, checkpoint["progress"])
    agent.load_state_dict(checkpoint["agent"], strict=False)  # critics are missing, and not needed
    env.close()
    return Run(
        path=path,
        script=script,
        kind=kind,
        args=args,
        progress=checkpoint["progress"],
        agent=agent,
        device=device,
        observation_space=env.observation_space,
        action_space=env.action_space,
    )


# ------------------------------------- The state --------------------------------------
PENDULUM = [("cos of angle", "1"), ("sin of angle", "1"), ("angular velocity", "rad/s")]
FREE_JOINT = 0  # MuJoCo's numbers of joints
JOINT_UNITS = {2: "m", 3: "rad"}  # a slide, a hinge


def num_root_positions(model):
    """Global positions of a robot: x and y of a free joint, x of a planar robot."""
    return 2 if model.jnt_type[0] == FREE_JOINT else 1


def num_global(env, args=None):
    """How many of the first observations are global position: never a part of the period."""
    position_dim = getattr(args, "position_dim", None)
    if position_dim is not None:  # psd_metra.py is told
        return position_dim
    robot = env.unwrapped
    if getattr(robot, "_exclude_current_positions_from_observation", True):
        return 0
    if is_cut(env):  # such as the one of docs/your_robot.md, which has left out position itself
        return 0
    return num_root_positions(robot.model)


def is_cut(env):
    """Whether a wrapper has made other observations out of the robot's."""
    return env.observation_space.shape != env.unwrapped.observation_space.shape


def joint_dimensions(name, joint_type):
    """Names and units of the positions, and of the velocities, of one joint."""
    if joint_type != FREE_JOINT:
        unit = JOINT_UNITS.get(joint_type, "1")
        return [(name, unit)], [(f"{name} velocity", f"{unit}/s")]
    positions = [(f"{name} {axis}", "m") for axis in "xyz"]
    positions += [(f"{name} q{axis}", "1") for axis in "wxyz"]
    velocities = [(f"{name} {axis} velocity", "m/s") for axis in "xyz"]
    velocities += [(f"{name} {axis} rotation", "rad/s") for axis in "xyz"]
    return positions, velocities


def is_gymnasium_robot(env):
    """Only Gymnasium's own robots are known to observe positions first and velocities next. A robot
    derived from them is, too, unless it has a `_get_obs` of its own."""
    observe = getattr(type(env.unwrapped), "_get_obs", None)
    return getattr(observe, "__module__", "").startswith("gymnasium.envs.mujoco")


def dimensions(env, args=None):
    """Name and unit of each dimension of the state: of MuJoCo, positions, velocities, others."""
    count = env.observation_space.shape[0] - num_global(env, args)
    names = []
    if is_gymnasium_robot(env) and not is_cut(env):
        model = env.unwrapped.model
        positions = []
        velocities = []
        for j in range(model.njnt):
            of_joint = joint_dimensions(model.joint(j).name, int(model.jnt_type[j]))
            positions += of_joint[0]
            velocities += of_joint[1]
        if hasattr(env.unwrapped, "_exclude_current_positions_from_observation"):
            positions = positions[num_root_positions(model) :]
        names = (positions + velocities)[:count]
    elif env.spec.id.startswith("Pendulum"):
        names = list(PENDULUM)
    for i in range(len(names), count):
        names.append((f"observation {i}", "1"))
    return names


def physical_states(episode, statistics, skip):
    """The states of an episode in physical units, without global position; (n + 1, D)."""
    obs = episode.obs * statistics.std + statistics.mean
    return obs[:, skip:].astype(np.float64)


class Recorded(gym.Wrapper):
    """Keeps what an Episode does not: the states behind pixels, and the steps after a fall."""

    def __init__(self, env, run):
        super().__init__(env)
        self.script = run.script
        self.is_cheetah = robot_name(run) == "HalfCheetah"

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.states = [info.get("state")]
        self.fallen = []  # of a HalfCheetah, one entry per step
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.states.append(info.get("state"))
        if self.is_cheetah:
            self.fallen.append(self.script.has_fallen(self.unwrapped))
        return obs, reward, terminated, truncated, info


def recorded_env(run, max_steps):
    """The environment of a run; `states_of` finds the states of its episode."""
    return Recorded(make_env(run.script, run.args, max_steps), run)


def state_env(run, env):
    """The environment whose observations are the state: behind the pixels, if there are any."""
    if not run.kind.has_pixels:
        return env
    shape = env.env.observation_space.shape
    if shape is None or len(shape) != 1:
        space = env.env.observation_space
        fail(f"{run.args.env_id} has observations {space}: no state to measure")
    return env.env


def states_of(run, env, episode):
    """The states of an episode that `env` has just played; (n + 1, D)."""
    skip = num_global(env, run.args)
    if run.kind.has_pixels:
        return np.array(env.states, np.float64)[:, skip:]
    return physical_states(episode, training_statistics(run), skip)


def picture(args, obs):
    """What the agent sees: the newest frame, cropped as for acting, as a PNG in base64."""
    import cv2

    low = (args.image_size - args.crop_size) // 2
    high = low + args.crop_size
    frame = obs[-3:, low:high, low:high].transpose(1, 2, 0)  # (crop, crop, 3)
    blue_first = np.ascontiguousarray(frame[..., ::-1])  # as OpenCV has it
    _, png = cv2.imencode(".png", blue_first)
    return base64.b64encode(png.tobytes()).decode()


# --------------------------------- Skills to measure ----------------------------------
@dataclass
class Skill:
    """One skill to measure, and how it is rolled out."""

    index: int  # among the z
    L: int | None
    z: torch.Tensor | None
    trained: bool  # is L in use at the end of training?
    vector: torch.Tensor  # what the policy is given, (D,)
    actor: Any  # takes the actions: act(obs, skill, deterministic)
    key: tuple  # seeds the rollouts
    steps: int  # per rollout


class RandomActions:
    """An actor that takes uniform actions, whatever the state and the skill."""

    def __init__(self, action_space, seed):
        low = action_space.low
        high = action_space.high
        self.scale = torch.as_tensor((high - low) / 2, dtype=torch.float32)
        self.bias = torch.as_tensor((high + low) / 2, dtype=torch.float32)
        self.generator = torch.Generator().manual_seed(seed)

    def act(self, obs, skill, deterministic):
        uniform = torch.rand(len(obs), len(self.scale), generator=self.generator)
        return (2 * uniform - 1) * self.scale + self.bias


def record_length(T, L):
    """T steps, or as many as hold, after the first quarter of T, three cycles of a period 6L."""
    return max(T, T // 4 + 20 * L)


def default_periods(trained, count=16):
    """The trained L and `count` integers evenly over their range (Figures 3 and 10)."""
    evenly = np.round(np.linspace(min(trained), max(trained), count)).astype(int)
    return sorted(set(trained) | set(evenly.tolist()))


def chosen_periods(run, options):
    """The L to measure, in order."""
    T = run.args.episode_length
    for L in options.periods:
        if not 1 <= L <= T:
            fail(f"--periods: L = {L} is not from 1 to the episode length, {T}")
    if options.periods:
        return sorted(set(options.periods))
    trained = trained_periods(run)
    if run.kind.directions is not None:  # each with every z: the trained ones will do
        return trained
    return default_periods(trained)


def period_skills(run, options):
    """Every L, with every z if there are any."""
    trained = trained_periods(run)
    directions = [None]
    if run.kind.directions is not None:
        directions = run.kind.directions(run.args)
    skills = []
    for L in chosen_periods(run, options):
        for i, z in enumerate(directions):
            key = (STREAM, options.seed, L)
            if z is not None:
                key += (i,)
            skill = Skill(
                index=i,
                L=L,
                z=z,
                trained=L in trained,
                vector=skill_vector(run, L, z),
                actor=run.agent,
                key=key,
                steps=record_length(run.args.episode_length, L),
            )
            skills.append(skill)
    return skills


def skills_without_L(run, options):
    """Every skill of a baseline; or random actions, 16 times."""
    if options.periods or options.switch_steps is not None:
        what = "random actions have" if options.random_actions else f"{run.script.__name__}.py has"
        fail(f"{what} no L: leave --periods and --switch-steps out")
    if options.random_actions:
        directions = torch.zeros(NUM_RANDOM, 1)
    else:
        directions = run.kind.directions(run.args)
    skills = []
    for i, z in enumerate(directions):
        key = (STREAM, options.seed, i)
        actor = run.agent
        if options.random_actions:
            seed = int(np.random.SeedSequence(key).generate_state(1)[0])
            actor = RandomActions(run.action_space, seed)
        skill = Skill(
            index=i,
            L=None,
            z=None if options.random_actions else z,
            trained=True,
            vector=skill_vector(run, None, z),
            actor=actor,
            key=key,
            # T steps and no more: beyond them a global position is one that was never seen
            steps=run.args.episode_length,
        )
        skills.append(skill)
    return skills


def skills_to_measure(run, options):
    """One entry per row of the table."""
    if run.kind.has_L and not options.random_actions:
        return period_skills(run, options)
    return skills_without_L(run, options)


def periods_to_switch(skills):
    """The trained L among those that are measured, or all; of more than six, six evenly."""
    periods = sorted({skill.L for skill in skills if skill.trained})
    if not periods:
        periods = sorted({skill.L for skill in skills})
    places = np.round(np.linspace(0, len(periods) - 1, NUM_SWITCHED)).astype(int)
    return [periods[i] for i in np.unique(places)]


def check_numbers(options):
    """Before any work: are the numbers on the command line possible?"""
    if not 1 <= options.episodes <= MAX_EPISODES:
        fail(f"--episodes {options.episodes} is not from 1 to {MAX_EPISODES}")
    switch_steps = 1 if options.switch_steps is None else options.switch_steps
    if not 1 <= switch_steps <= MAX_SWITCH_STEPS:
        fail(f"--switch-steps {switch_steps} is not from 1 to {MAX_SWITCH_STEPS:,}")
    if options.seed < 0:
        fail(f"--seed {options.seed} is negative")


def check_memory(run, episodes, steps, advice):
    """Before any work: do the observations of a rollout fit into memory?"""
    bytes_per_number = 1 if run.kind.has_pixels else 4
    bytes_per_step = math.prod(run.observation_space.shape) * bytes_per_number
    gigabytes = episodes * (steps + 1) * bytes_per_step / 1e9
    if gigabytes > MAX_GIGABYTES:
        size = f"{gigabytes:.0f} GB of observations, and {MAX_GIGABYTES:.0f} GB are possible"
        fail(f"{episodes} episodes of {steps} steps have {size}: {advice}")


# ------------------------------------- Measuring --------------------------------------
def verdict(period, L):
    """What the period says of the skill."""
    if period is None:
        return "FALSE: no period"
    error = period / (2 * L) - 1
    for name, limit in VERDICTS.items():
        if abs(error) <= limit:
            return name
    return "FALSE: too slow" if error > 0 else "FALSE: too fast"


def rounded(values, digits=4):
    """Nested lists of floats with as many digits as a figure can show; None if not finite."""
    if np.ndim(values) > 0:
        return [rounded(value, digits) for value in values]
    if values is None or not np.isfinite(values):
        return None
    return float(f"{values:.{digits}g}")


def mean_or_none(values):
    return np.mean(values) if len(values) > 0 else None


def about_equal(period, other):
    """Are both periods known, and within 10 %?"""
    if period is None or other is None:
        return False
    return abs(period / other - 1) <= VERDICTS["close"]


def common_period(periods):
    """The median, if all episodes but one have about this period, or None."""
    found = sorted(period for period in periods if period is not None)
    if not found:
        return None
    median = found[(len(found) - 1) // 2]  # measured: the mean of 12 and 36 would be neither
    num_agree = sum(about_equal(period, median) for period in found)
    needed = max(len(periods) - 1, 1)
    return median if num_agree >= needed else None


def steps_on_feet(run, env):
    """Of the first T steps that `env` has just played, those on the robot's feet; None if unknown.

    A robot that Gymnasium terminates ends its episode by falling. HalfCheetah plays on after a
    fall, so there the steps count in which it has not fallen."""
    T = run.args.episode_length
    if env.is_cheetah:
        return env.fallen[:T].count(False)
    if getattr(env.unwrapped, "_terminate_when_unhealthy", False):
        return min(len(env.states) - 1, T)
    return None


def roll_out(run, skill, num_episodes):
    """Episodes of one skill, the states of each, (n + 1, D), and the share of T on its feet."""
    envs = [recorded_env(run, skill.steps) for _ in range(num_episodes)]
    vectors = skill.vector.expand(num_episodes, -1)
    episodes = rollout(run, envs, skill.key, skill.actor, vectors)
    states = []
    on_feet = []
    for env, episode in zip(envs, episodes):
        states.append(states_of(run, env, episode))
        on_feet.append(steps_on_feet(run, env))
        env.close()
    upright = None
    if None not in on_feet:
        upright = rounded(np.mean(on_feet) / run.args.episode_length)
    return episodes, states, upright


def mean_return_error(records, lag):
    """Over the records that are long enough; None without any, or without a lag."""
    if lag is None:
        return None
    errors = [return_error(record, lag) for record in records]
    return mean_or_none([error for error in errors if error is not None])


def pooled_spectrum(amplitude):
    """The largest amplitude of each few neighbours, at 512 frequencies."""
    whole = len(amplitude) // NUM_FREQUENCIES * NUM_FREQUENCIES
    return amplitude[:whole].reshape(NUM_FREQUENCIES, -1).max(axis=1)


def measure_state(episodes, states, statistics, T, lag):
    """What every method is measured by: the row of a skill, and its period.

    `states` are those of each episode. `lag` is the step after which the state should be back
    (None: its own period). The episode to draw is the first that has the period, or the first."""
    records = []
    for trajectory in states:
        start = min(T, len(trajectory)) // 4  # of a short episode, its own quarter
        records.append((trajectory[start:] - statistics.mean) / statistics.std)
    found = [state_period(record) for record in records]
    periods = [period for period, _ in found]
    peaks = [peak for _, peak in found]
    period = common_period(periods)
    agree = [about_equal(own, period) for own in periods]
    drawn = 0
    if period is not None:
        drawn = agree.index(True)
        lag = lag or round(period)
    amplitude, dominant = spectrum(records[drawn])
    speed = np.concatenate([episode.velocity[:T] for episode in episodes])
    lengths = [min(len(trajectory) - 1, T) for trajectory in states]
    row = {
        "period": rounded(period, 6),
        "peak": rounded(np.median(peaks)),
        "periods": rounded(periods, 6),
        "agree": sum(agree),
        "episode": drawn,
        "return_error": rounded(mean_return_error(records, lag)),
        "speed": rounded(speed.mean()) if speed.any() else None,
        "episode_length": float(np.mean(lengths)),
        "record_length": float(np.mean([len(record) for record in records])),
        "dominant": [{"frequency": rounded(f), "amplitude": rounded(a)} for f, a in dominant],
        "spectrum": rounded(pooled_spectrum(amplitude), 3),
    }
    return row, period


def distances(latents, optimum, lag, rng):
    """Figures 6 and 12: latent distances over `lag` steps, of transitions drawn at random."""
    per_episode = []
    for z in latents:
        if len(z) > lag:
            per_episode.append(np.linalg.norm(z[lag:] - z[:-lag], axis=-1))
    values = np.zeros(0)
    mean = np.nan
    std = np.nan
    if per_episode:
        values = np.concatenate(per_episode)
        if len(values) > NUM_TRANSITIONS:
            values = rng.choice(values, NUM_TRANSITIONS, replace=False)
        mean = values.mean()
        std = values.std()
    limit = 1.5 * optimum
    counts, _ = np.histogram(values, NUM_BINS, (0.0, limit))
    return {
        "optimum": rounded(optimum, 6),
        "mean": rounded(mean, 6),
        "std": rounded(std),
        "error": rounded(abs(mean / optimum - 1), 6),
        "transitions": len(values),
        "histogram": counts.tolist(),
        "beyond": int((values > limit).sum()),
    }


def measure_circle(run, skill, episodes, drawn):
    """The latent circle of a skill with L, over the first T steps."""
    T = run.args.episode_length
    L = skill.L
    latents = [encode(run, episode, skill.vector) for episode in episodes]
    first = [z[: T + 1] for z in latents]
    r_psd = []
    radius = []
    for z in first:
        of_episode = latent_statistics(run, z, L)
        num_steps = len(z) - 1
        r_psd.append(of_episode["r_psd"] * num_steps / T)  # what comes after a fall counts as 0
        radius.append(of_episode["radius"])
    rng = np.random.default_rng(skill.key)
    return {
        "r_psd": rounded(np.mean(r_psd), 6),
        "one_step": distances(first, side_length(run, L), 1, rng),
        "L_step": distances(first, float(L), L, rng),
        "radius": rounded(np.mean(radius), 6),
        "latents": rounded(latents[drawn][-6 * L - 1 :]),  # the start may be a transient
    }


def measure_travel(run, episodes, drawn):
    """Where the episodes of a (z, L) went in T steps (Figure 8): mean displacement, its direction,
    mean distance as the crow flies, and the path of the episode to draw."""
    position_dim = run.args.position_dim
    if position_dim == 0:
        return {"displacement": None, "direction": None, "distance": None, "path": None}
    statistics = training_statistics(run)
    mean = statistics.mean[:position_dim]
    std = statistics.std[:position_dim]
    paths = []
    for episode in episodes:
        obs = episode.obs[: run.args.episode_length + 1, :position_dim]
        paths.append((obs * std + mean).astype(np.float64))  # in metres
    ways = np.array([path[-1] - path[0] for path in paths])  # (n, position_dim)
    displacement = ways.mean(axis=0)
    x = displacement[0]
    y = displacement[1] if position_dim > 1 else 0.0
    path = paths[drawn] - paths[drawn][0]
    return {
        "displacement": rounded(displacement),
        "direction": rounded(np.degrees(np.arctan2(y, x))),
        "distance": rounded(np.linalg.norm(ways, axis=1).mean()),
        "path": rounded(path.T),
    }


def measure(run, skill, options, statistics):
    """Everything about one skill: its row, and the states of the episode to draw, (n + 1, D).

    `statistics` are those of the state under random actions."""
    episodes, states, upright = roll_out(run, skill, options.episodes)
    T = run.args.episode_length
    z = None if skill.z is None else rounded(skill.z.tolist())
    if skill.L is None:
        row, _ = measure_state(episodes, states, statistics, T, lag=None)
        drawn = row["episode"]
        return {"skill": skill.index, "z": z, "upright": upright} | row, states[drawn]
    row, period = measure_state(episodes, states, statistics, T, lag=2 * skill.L)
    drawn = row["episode"]
    row = {"L": skill.L, "upright": upright} | row
    row["period_error"] = None if period is None else rounded(period / (2 * skill.L) - 1, 6)
    row["verdict"] = verdict(period, skill.L)
    row |= measure_circle(run, skill, episodes, drawn)
    if skill.z is not None:
        row["z"] = z
        row |= measure_travel(run, episodes, drawn)
    row["trained"] = skill.trained
    return row, states[drawn]


class Switching:
    """An actor that holds each skill for a number of steps, one after the other."""

    def __init__(self, actor, skills, steps):
        self.actor = actor
        self.skills = skills  # (number of skills, D)
        self.steps = steps
        self.t = 0

    def act(self, obs, skill, deterministic):
        i = min(self.t // self.steps, len(self.skills) - 1)
        self.t += 1
        skill = self.skills[i].expand(len(obs), -1)
        return self.actor.act(obs, skill, deterministic)


def switch_steps(periods, options):
    """Steps per L: three cycles of the longest period, unless told otherwise."""
    return options.switch_steps or 6 * max(periods)


def measure_switching(run, skills, options):
    """Figure 5: one episode in which L switches at fixed intervals, and its states. Each latent is
    encoded by the L in force; z, if there is one, stays the first."""
    periods = periods_to_switch(skills)
    steps = switch_steps(periods, options)
    z = skills[0].z
    vectors = torch.stack([skill_vector(run, L, z) for L in periods])
    env = recorded_env(run, steps * len(periods))
    actor = Switching(run.agent, vectors, steps)
    (episode,) = rollout(run, [env], (STREAM, options.seed), actor, vectors[:1])
    states = states_of(run, env, episode)
    env.close()
    num_steps = len(episode.actions)
    segments = []
    for i, L in enumerate(periods):
        start = i * steps
        stop = min(start + steps, num_steps)
        if start < stop:
            latents = encode(run, part_of(episode, start, stop), vectors[i])
            segment = {"L": L, "start": start, "stop": stop, "latents": rounded(latents)}
            segments.append(segment)
    switch = {"steps": steps, "segments": segments}
    if run.kind.has_pixels:
        switch["frame"] = picture(run.args, episode.obs[num_steps // 2])
    return switch, states


def shown_dimensions(rows, states, names, statistics):
    """The dimensions to draw, best first: those that repeat best over all trained L and move
    visibly; positions and angles rather than velocities and forces."""
    score = np.zeros(len(names))
    places = [unit in ("rad", "m") for _, unit in names]
    if not any(places):  # an environment whose dimensions have no names
        places = [unit == "1" for _, unit in names]
    for row, trajectory in zip(rows, states):
        lag = round(row["period"] or 2 * row.get("L", 0))
        x = trajectory[len(trajectory) // 4 :]
        trained = row.get("trained", True)
        if not trained or not 0 < 2 * lag <= len(x):
            continue
        for i in np.flatnonzero(places):
            single = standardize(x[:, i : i + 1])
            moves = single.shape[1] > 0
            if moves:
                repeats = max(autocorrelation(single, lag)[lag], 0.0)
                visible = min(x[:, i].std() / statistics.std[i], 1.0)
                score[i] += repeats * visible
    best_first = np.argsort(-score, kind="stable")
    return best_first[:NUM_SHOWN].tolist()


# -------------------------------------- Summary ---------------------------------------
def direction_errors(displacements, z):
    """Degrees between each displacement (n, p) and its z (n, p), after the rotation or reflection
    of all z that fits best: METRA chooses which way the axes of phi_m lie. None for what rests.
    Fewer z than dimensions always fit: at least four directions say something."""
    ways = np.asarray(displacements, float)
    z = np.asarray(z, float)
    length = np.linalg.norm(ways, axis=1)
    units = ways / np.where(length > 0, length, 1.0)[:, None]
    u, _, vt = np.linalg.svd(units.T @ z)
    turned = units @ u @ vt
    cosine = (turned * z).sum(axis=1) / np.linalg.norm(z, axis=1)
    degrees = np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))
    errors = []
    for i in range(len(ways)):
        errors.append(float(degrees[i]) if length[i] > 0 else None)
    return errors


def errors_of_rows(rows):
    """direction_errors of rows of the table."""
    displacements = [row["displacement"] for row in rows]
    return direction_errors(displacements, [row["z"] for row in rows])


def largest_error(errors):
    """What rests has no direction, and so not the right one."""
    return rounded(max(180.0 if error is None else error for error in errors))


def judge_directions(rows):
    """Writes `direction_error` into each row, by one turn of the axes per L. Returns a summary, in
    which `common` is by one turn for all L. None if there is no position, or not as many as z."""
    first = rows[0]
    no_position = any(row["displacement"] is None for row in rows)
    if no_position or len(first["displacement"]) != len(first["z"]):
        for row in rows:
            row["direction_error"] = None
        return {"distance": None, "direction_error": None, "common": None}
    for L in {row["L"] for row in rows}:
        own = [row for row in rows if row["L"] == L]
        for row, error in zip(own, errors_of_rows(own)):
            row["direction_error"] = rounded(error)
    return {
        "distance": rounded(np.mean([row["distance"] for row in rows])),
        "direction_error": largest_error([row["direction_error"] for row in rows]),
        "common": largest_error(errors_of_rows(rows)),
    }


def spread(periods, factor=1.05):
    """Smallest and largest of some periods, and how many differ by more than 5 %."""
    periods = sorted(period for period in periods if period is not None)
    if not periods:
        return {"min": None, "max": None, "distinct": 0}
    distinct = 0
    last = 0.0
    for period in periods:
        if period > factor * last:
            distinct += 1
            last = period
    return {"min": rounded(periods[0]), "max": rounded(periods[-1]), "distinct": distinct}


def strongest_period(row):
    """One over the strongest frequency of the spectrum; None if nothing moves."""
    if not row["dominant"]:
        return None
    return 1 / row["dominant"][0]["frequency"]


def count_within(rows, limit):
    """How many rows have a period that differs from 2L by at most `limit`."""
    errors = [row["period_error"] for row in rows if row["period_error"] is not None]
    return sum(abs(error) <= limit for error in errors)


def summarize(rows):
    """How many skills have the period they should have, or any, and what periods there are."""
    summary = {"skills": len(rows)}
    if "L" in rows[0]:
        trained = [row for row in rows if row["trained"]]
        summary["within_5_percent"] = count_within(rows, 0.05)
        summary["within_10_percent"] = count_within(rows, 0.10)
        summary["trained"] = len(trained)
        summary["trained_within_5_percent"] = count_within(trained, 0.05)
        summary["trained_within_10_percent"] = count_within(trained, 0.10)
        for name in ("return_error", "upright", "speed"):
            known = [row[name] for row in trained if row[name] is not None]
            summary[f"trained_{name}"] = rounded(mean_or_none(known))
    else:
        summary["with_period"] = sum(row["period"] is not None for row in rows)
    summary["state_period"] = spread([row["period"] for row in rows])
    summary["dominant_period"] = spread([strongest_period(row) for row in rows])
    return summary


# -------------------------------------- The JSON --------------------------------------
def versions():
    found = {"python": platform.python_version()}
    for name in ("torch", "gymnasium", "numpy", "mujoco"):
        if name in sys.modules:
            found[name] = sys.modules[name].__version__
    return found


def prepare(options):
    """The run and the skills to measure, checked, before any work."""
    check_numbers(options)
    run = open_run(options.run, options.device, options.env_id)
    skills = skills_to_measure(run, options)
    steps = max(skill.steps for skill in skills)
    check_memory(run, options.episodes, steps, "choose fewer --episodes, or smaller --periods")
    if skills[0].L is not None:
        periods = periods_to_switch(skills)
        steps = switch_steps(periods, options) * len(periods)
        check_memory(run, 1, steps, "choose fewer --switch-steps")
    return run, skills


def measure_all(run, skills, options, statistics, names):
    """The skills, their summary, and all else of the JSON that comes from rollouts."""
    rows = []
    states = []
    for skill in tqdm(skills, "evaluate", unit="skill", disable=None):
        row, drawn = measure(run, skill, options, statistics)
        rows.append(row)
        states.append(drawn)
    summary = summarize(rows)
    if "direction" in rows[0]:
        summary["travel"] = judge_directions(rows)
    shown = shown_dimensions(rows, states, names, statistics)
    for row, trajectory in zip(rows, states):
        row["states"] = rounded(trajectory[: run.args.episode_length + 1, shown].T)
    result = {
        "dimensions": [{"name": names[i][0], "unit": names[i][1]} for i in shown],
        "skills": rows,
    }
    if "L" in rows[0]:
        switch, switch_states = measure_switching(run, skills, options)
        switch["states"] = rounded(switch_states[:, shown].T)
        result["bounds"] = list(run.progress["bounds"][:2])
        result["switch"] = switch
    else:
        result["actions"] = "random" if options.random_actions else "policy"
        result["switch"] = None
    result["summary"] = summary
    return result


def evaluate(options):
    """The content of the JSON, for `options` as on the command line. Writes nothing."""
    run, skills = prepare(options)
    if options.video:
        check_rendering(run)
    env = make_env(run.script, run.args)
    if run.kind.has_pixels:
        check_pixels(run, env)
    robot = state_env(run, env)
    names = dimensions(robot, run.args)
    skip = num_global(robot, run.args)
    mean, std = random_statistics(run, robot, options.seed)
    statistics = Statistics(mean[skip:], std[skip:])
    dt = getattr(env.unwrapped, "dt", None)
    env.close()
    result = {
        "format": 1,
        "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": options.seed,
        "episodes": options.episodes,
        "versions": versions(),
        "run": run.path.resolve().parent.name,
        "script": run.script.__name__,
        "env_id": run.args.env_id,
        "epoch": run.progress["epoch"],
        "global_step": run.progress["global_step"],
        "args": dataclasses.asdict(run.args),
        "T": run.args.episode_length,
        "dt": rounded(dt, 6),
    }
    return result | measure_all(run, skills, options, statistics, names)


# --------------------------------------- Video ----------------------------------------
PACKAGES = "on Debian: apt-get install libegl1 libgl1-mesa-dri"
WHITE = (255, 255, 255)
BLACK = (0, 0, 0)
ORANGE = (213, 94, 0)
GIF_SIZE = (200, 150)  # of one skill
GIF_FPS = 10
GIF_SECONDS = 8


def make_filmed_env(run, width=480, height=360, max_steps=None):
    """An environment that renders off-screen, with the settings that make MuJoCo fast."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")
    kwargs = {"render_mode": "rgb_array"}
    probe = make_env(run.script, run.args)
    is_mujoco = isinstance(getattr(probe.unwrapped, "model", None), mujoco.MjModel)
    if is_gymnasium_robot(probe):  # a robot of one's own has a size and a camera of its own
        kwargs |= {"width": width, "height": height, "camera_name": "track"}
    probe.close()
    env = make_env(run.script, run.args, max_steps, **kwargs)
    if is_mujoco:
        model = env.unwrapped.model
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = 0
        model.mat_reflectance[:] = 0
    return env


def check_rendering(run):
    """Before any work: can a frame be rendered, and a video written?"""
    try:
        import cv2  # noqa: F401
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        fail(f"videos need {error.name}: pip install opencv-python-headless imageio imageio-ffmpeg")
    env = make_filmed_env(run)
    try:
        env.reset(seed=0)
        if env.render() is None:
            raise RuntimeError("no frame")
    except gym.error.DependencyNotInstalled as error:
        fail(f"{run.args.env_id} cannot be rendered: {error}")
    except Exception as error:  # of many types, by the library that is missing
        gl = os.environ.get("MUJOCO_GL")
        why = f"{type(error).__name__}: {error}"
        fail(f"off-screen rendering with MUJOCO_GL={gl} fails ({why}); {PACKAGES}")
    env.close()


class Filmed(gym.Wrapper):
    """Keeps a frame of every state of the episode."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.frames = [self.env.render()]
        return obs, info

    def step(self, action):
        result = self.env.step(action)
        self.frames.append(self.env.render())
        return result


def latent_phase(latents):
    """The angle of each latent (n, d) in its principal plane, rising with time; [0, 2 pi)."""
    centred = latents - latents.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = latents @ directions[:2].T  # (n, 2)
    angle = np.arctan2(plane[:, -1], plane[:, 0])
    forward = np.sin(np.diff(angle)).sum() >= 0
    if not forward:
        angle = -angle
    return angle % (2 * np.pi)


def film(run, skill, row, num_episodes):
    """Frames of the episode to draw, over T steps; its latent phases, if it has L; and its fps."""
    # All environments as in the measurement: one policy call, one random stream
    envs = [make_env(run.script, run.args) for _ in range(num_episodes)]
    drawn = row["episode"]
    filmed = Filmed(make_filmed_env(run))
    envs[drawn] = filmed
    vectors = skill.vector.expand(num_episodes, -1)
    episode = rollout(run, envs, skill.key, skill.actor, vectors)[drawn]
    phases = None
    if skill.L is not None:
        phases = latent_phase(encode(run, episode, skill.vector))
    dt = getattr(filmed.unwrapped, "dt", None) or 0.05
    for env in envs:
        env.close()
    return filmed.frames, phases, min(1 / dt, 60.0)


def draw_phase(frame, phase):
    """A clock in the upper right corner, whose hand turns with the latent."""
    import cv2

    radius = 24
    x = frame.shape[1] - 40
    y = 40
    tip = (int(x + radius * np.cos(phase)), int(y - radius * np.sin(phase)))
    cv2.circle(frame, (x, y), radius, WHITE, 2, cv2.LINE_AA)
    cv2.line(frame, (x, y), tip, WHITE, 1, cv2.LINE_AA)
    cv2.circle(frame, tip, 6, ORANGE, -1, cv2.LINE_AA)


def write_video(path, title, frames, phases, fps):
    """An mp4 with the step, and the latent phase if there is one, on each frame."""
    import cv2
    import imageio_ffmpeg

    height = frames[0].shape[0] // 2 * 2  # H.264 needs even sides
    width = frames[0].shape[1] // 2 * 2
    zoom = math.ceil(360 / width)  # what psd_pixel.py sees is small
    size = (zoom * width, zoom * height)
    writer = imageio_ffmpeg.write_frames(
        str(path),
        size,
        fps=fps,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        output_params=["-movflags", "+faststart"],
    )
    writer.send(None)  # starts it
    for t, frame in enumerate(frames):
        frame = np.ascontiguousarray(frame[:height, :width])
        if zoom > 1:
            frame = cv2.resize(frame, size, interpolation=cv2.INTER_NEAREST)
        text = f"{title}   step {t}"
        if phases is not None:
            text += f"   phase {np.degrees(phases[t]):3.0f} deg"
        cv2.rectangle(frame, (0, 0), (300, 32), BLACK, -1)
        cv2.putText(frame, text, (10, 22), 0, 0.55, WHITE, 1, cv2.LINE_AA)
        if phases is not None:
            draw_phase(frame, phases[t])
        writer.send(frame)
    writer.close()


def video_title(skill):
    """What stands on each frame."""
    if skill.L is None:
        return f"skill {skill.index}"
    if skill.z is None:
        return f"L = {skill.L}"
    return f"L = {skill.L}   z {skill.index}"


def video_name(row, out):
    """The file name, without its ending."""
    if "L" not in row:
        return f"{out.stem}_skill{row['skill']:02d}"
    name = f"L{row['L']:03d}"
    if "z" in row:
        name += "_z" + "_".join(f"{component:+.2f}" for component in row["z"])
    return name


def write_videos(options, out, rows):
    """One mp4 per row, named in the row."""
    run, skills = prepare(options)
    folder = out.parent / "videos"
    folder.mkdir(exist_ok=True)
    for skill, row in zip(tqdm(skills, "video", unit="skill", disable=None), rows):
        path = folder / f"{video_name(row, out)}.mp4"
        frames, phases, fps = film(run, skill, row, options.episodes)
        temporary = path.with_suffix(".tmp.mp4")
        with one_line_if_it_fails(path, temporary):
            write_video(temporary, video_title(skill), frames, phases, fps)
            os.replace(temporary, path)
        row["video"] = f"videos/{path.name}"


def write_gif(options):
    """The first, a middle and the last skill side by side, in real time."""
    import cv2
    import imageio.v2 as imageio

    path = Path(options.gif)
    if path.suffix != ".gif" or not path.parent.is_dir():
        fail(f"--gif {path} has to end in .gif, in a folder that exists")
    run, skills = prepare(options)
    check_rendering(run)
    chosen = [skills[i] for i in sorted({0, len(skills) // 2, len(skills) - 1})]
    columns = []
    for skill in chosen:
        frames, phases, fps = film(run, skill, {"episode": 0}, num_episodes=1)
        every = math.ceil(fps / GIF_FPS)
        column = []
        for t in range(0, min(len(frames), round(GIF_SECONDS * fps)), every):
            frame = cv2.resize(frames[t], GIF_SIZE, interpolation=cv2.INTER_AREA)
            if phases is not None:
                draw_phase(frame, phases[t])
            cv2.putText(frame, video_title(skill), (8, 20), 0, 0.55, WHITE, 1, cv2.LINE_AA)
            column.append(frame)
        columns.append(column)
    length = max(len(column) for column in columns)
    for column in columns:  # a robot that has fallen stays where it fell
        column += [column[-1]] * (length - len(column))
    pictures = [np.hstack(row) for row in zip(*columns)]
    temporary = path.with_name(f"{path.stem}.tmp.gif")
    with one_line_if_it_fails(path, temporary):
        imageio.mimwrite(temporary, pictures, duration=1000 * every / fps, loop=0, palettesize=32)
        os.replace(temporary, path)


# --------------------------------------- Output ---------------------------------------
def cell(value, form):
    """A number as text; nothing if it is unknown."""
    return "" if value is None else form.format(value)


def percent(fraction, form="{:.1f} %"):
    return "" if fraction is None else form.format(100 * fraction)


def period_cells(row, num_episodes):
    """The row of a skill with L: heading and text of each column."""
    cells = {
        "": "" if row["trained"] else "*",
        "L": str(row["L"]),
        "2L": str(2 * row["L"]),
        "period": cell(row["period"], "{:.1f}") or "none",
        "error": percent(row["period_error"], "{:+.1f} %"),
        "return": cell(row["return_error"], "{:.2f}"),
        "agree": f"{row['agree']}/{num_episodes}",
        "upright": percent(row["upright"], "{:.0f} %"),
        "speed": cell(row["speed"], "{:.2f}"),
        "r_PSD": cell(row["r_psd"], "{:.2f}"),
        "1-step": percent(row["one_step"]["error"]),
        "L-step": percent(row["L_step"]["error"]),
        "radius": cell(row["radius"], "{:.2f}"),
    }
    if "z" in row:
        cells["z"] = " ".join(f"{component:+.2f}" for component in row["z"])
        cells["distance"] = cell(row["distance"], "{:.2f}")
        cells["off z"] = cell(row["direction_error"], "{:.0f} deg")
    cells["verdict"] = row["verdict"]
    return cells


def skill_cells(row, num_episodes):
    """The row of a skill without L: there is nothing to hold its period against."""
    return {
        "skill": str(row["skill"]),
        "period": cell(row["period"], "{:.1f}") or "none",
        "strongest": cell(strongest_period(row), "{:.1f}"),
        "peak": cell(row["peak"], "{:.2f}"),
        "return": cell(row["return_error"], "{:.2f}"),
        "upright": percent(row["upright"], "{:.0f} %"),
        "speed": cell(row["speed"], "{:.2f}"),
        "length": f"{row['episode_length']:.0f}",
        "agree": f"{row['agree']}/{num_episodes}",
    }


def period_summary(summary):
    """The lines below the table of skills with L."""
    within_5 = summary["within_5_percent"]
    within_10 = summary["within_10_percent"]
    trained_5 = summary["trained_within_5_percent"]
    trained_10 = summary["trained_within_10_percent"]
    line = f"{summary['skills']} skills: {within_5} within 5 %, {within_10} within 10 % of 2L; "
    line += f"of the trained ones {trained_5} and {trained_10} of {summary['trained']}"
    lines = [f"{line}   (* never trained)"]
    means = {
        "return error": cell(summary["trained_return_error"], "{:.2f}"),
        "upright": percent(summary["trained_upright"], "{:.0f} %"),
        "speed": cell(summary["trained_speed"], "{:.2f} m/s"),
    }
    known = [f"{name} {text}" for name, text in means.items() if text]
    if known:
        lines.append(f"means over the trained ones: {', '.join(known)}")
    travel = summary.get("travel")
    if travel is not None and travel["distance"] is not None:
        line = f"distance {travel['distance']:.2f}; "
        line += f"at most {travel['direction_error']:.0f} deg off z "
        lines.append(f"{line}({travel['common']:.0f} by one turn of axes for all L)")
    return lines


def skill_summary(summary):
    """The line below the table of skills without L."""
    found = summary["state_period"]
    line = f"{summary['with_period']} of {summary['skills']} have a period"
    if found["distinct"] > 0:
        line += f": {found['min']:.1f} to {found['max']:.1f} steps, {found['distinct']} distinct"
    return [line]


def coloured(text):
    """A verdict in green, yellow or red."""
    shades = {"true": 32, "close": 33, "FALSE": 31}
    shade = shades.get(text.split(":")[0])
    return text if shade is None else f"\033[{shade}m{text}\033[0m"


def table(result, colour=False):
    """What a person reads, one line per skill; with `colour`, a false skill stands in red."""
    has_L = "L" in result["skills"][0]
    cells_of = period_cells if has_L else skill_cells
    rows = [cells_of(row, result["episodes"]) for row in result["skills"]]
    headings = {heading: heading for heading in rows[0]}
    rows.insert(0, headings)
    widths = {}
    for heading in headings:
        widths[heading] = max(len(row[heading]) for row in rows)
    lines = []
    for row in rows:
        line = []
        for heading, text in row.items():
            if heading != "verdict":
                text = text.rjust(widths[heading])
            elif colour:
                text = coloured(text)
            line.append(text)
        lines.append("  ".join(line))
    lines += period_summary(result["summary"]) if has_L else skill_summary(result["summary"])
    return "\n".join(lines)


def is_ours(path):
    """Is a file the JSON of evaluate.py?"""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and {"format", "skills", "summary"} <= content.keys()


def check_output(out, video):
    """Before any work: can the JSON be written, and is nothing else lost by it?"""
    if not out.parent.is_dir():
        fail(f"{out.parent} is missing: there is nowhere to write {out.name}")
    if not os.access(out.parent, os.W_OK):
        fail(f"{out.parent} cannot be written to: choose another --out")
    if out.is_dir():
        fail(f"--out {out} is a folder: give the name of a JSON file in it")
    if os.path.lexists(out) and not is_ours(out):
        fail(f"{out} exists and is no JSON of evaluate.py: choose another --out, or move it away")
    videos = out.parent / "videos"
    if video and videos.exists() and not videos.is_dir():
        fail(f"{videos} is no folder: --video needs it for the videos")


@contextlib.contextmanager
def one_line_if_it_fails(path, temporary):
    """A disk that is full, say: the temporary file goes, and what was at `path` stays."""
    try:
        yield
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        reason = error.strerror or error
        fail(f"{path} cannot be written ({reason}): what was there before is unchanged")


def write_json(path, result):
    """All or nothing, and the same bytes for the same result."""
    text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    temporary = path.with_name(f"{path.name}.tmp")
    with one_line_if_it_fails(path, temporary):
        with open(temporary, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def main(argv=None):
    options = tyro.cli(Args, args=argv, description=__doc__)
    torch.set_num_threads(1)  # batches of a few states: more threads only wait for each other
    if options.onnx:
        print(f"wrote {write_onnx(options)}")
        return
    if options.gif is not None:
        write_gif(options)
        print(f"wrote {options.gif}")
        return
    name = "random.json" if options.random_actions else "evaluation.json"
    model = find_model(options.run)
    out = Path(options.out) if options.out else model.with_name(name)
    check_output(out, options.video)
    result = evaluate(options)
    write_json(out, result)
    if options.video:
        write_videos(options, out, result["skills"])
        write_json(out, result)  # with the names of the videos
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(table(result, colour))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
