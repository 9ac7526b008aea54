"""The judge: does the state of each skill have the period 2L? Reads a checkpoint of any script.

    python evaluate.py runs/NAME                      # table, and evaluation.json beside the model
    python evaluate.py runs/NAME --periods 5 8 11     # these L only
    python evaluate.py runs/NAME --video              # and an mp4 for each L
    python evaluate.py runs/NAME --random-actions     # a control: its environment, random actions

Neither r_PSD nor the latent distances tell that a skill works: a state that goes round too fast, or
an encoder that winds several times round the circle for one cycle of the state, has both. So the
period is measured on the state itself (`state_period`). The baselines have skills z and no L: the
same measures, and no verdict. docs/evaluate.md defines every number.
"""

import base64
import dataclasses
import importlib.util
import json
import os
import platform
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import gymnasium as gym
import numpy as np
import torch
import tyro
from tqdm import tqdm

HERE = Path(__file__).resolve().parent
STREAM = 20250  # sets the seeds of evaluation apart from those of training
VERDICTS = {"true": 0.05, "close": 0.10}  # largest relative error of the period against 2L

# What counts as a period; see state_period
WITHIN = 0.9  # the smallest lag with a peak this high, relative to the highest, is the period
MIN_CYCLES = 3  # in the record
MIN_PEAK = 0.5  # share of the variance that has to come back after one period, and after two
MIN_PROMINENCE = 0.4  # of a peak above the valleys beside it, else noise on a drift has peaks
MIN_ENERGY = 0.1  # of the calmest third of the record against the liveliest: no dying oscillation
MAX_CHANGE = 0.05  # of the period in each half of the record: no chirp
PER_STEP = 8  # lags a step


# ------------------------------------------- Arguments --------------------------------------------
RunPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


@dataclass
class Args:
    run: RunPath  # run folder, or any folder or file with a model.pt
    out: str | None = None  # the JSON to write (None: evaluation.json or random.json, by the model)
    periods: tuple[int, ...] = ()  # values of L (none: the trained ones, and 16 over their range)
    episodes: int = 5  # rollouts for each L, or skill
    seed: int = 0  # of the evaluation alone: the same seed gives the same JSON
    device: str = "cpu"  # where the networks run, as torch names it
    switch_steps: int | None = None  # steps between two L in the rollout that switches (None: 6 L)
    random_actions: bool = False  # uniform random actions instead of the run's: 16 "skills" of them
    video: bool = False  # an mp4 for each L or skill beside the JSON, in videos/


def fail(message):  # in one line, with a non-zero exit
    raise SystemExit(f"evaluate.py: error: {' '.join(str(message).split())}")


# ------------------------------------- The period of a state --------------------------------------
def autocorrelation(x, max_lag, per_step=1):
    """Of x (n, D), summed over dimensions, at lags 0 to max_lag, `per_step` of them a step: 1 where
    x repeats exactly.

    2 sum x_t x_t+k / sum (x_t^2 + x_t+k^2) over the n - k pairs there are: unbiased like a division
    by n - k, but never above 1, so that few pairs at a long lag cannot make the highest peak.
    Between whole lags it is interpolated by its Fourier series."""
    n = len(x)
    power = (np.abs(np.fft.rfft(x, 2 * n, axis=0)) ** 2).sum(axis=1)
    power[-1] /= 1 + (per_step > 1)  # the highest frequency, which the longer series has twice
    lag = np.arange(max_lag * per_step + 1) / per_step
    products = np.fft.irfft(power, 2 * n * per_step)[: len(lag)] * per_step
    energy = np.concatenate([[0.0], np.cumsum((x**2).sum(axis=1))])  # of the first i rows
    first, last = (np.interp(i, np.arange(n + 1), energy) for i in (n - lag, lag))
    pairs = first + energy[n] - last
    return 2 * products / np.where(pairs > 0, pairs, 1.0)


def prominence(r, k):
    """By how much r[k] stands above the higher of the valleys that part it from higher ground."""
    higher = np.flatnonzero(r > r[k])
    left, right = higher[higher < k], higher[higher > k]
    low = left[-1] if len(left) else 0
    high = right[0] if len(right) else len(r)
    return r[k] - max(r[low : k + 1].min(), r[k:high].min())


def refine(r, k):
    """The top of the parabola through r about its peak k, an eighth of k to each side."""
    half = max(1, k // 8)
    lags = np.arange(max(k - half, 0), min(k + half, len(r) - 1) + 1)
    a, b, _ = np.polyfit(lags - k, r[lags], 2)
    return float(k + np.clip(-b / (2 * a), -half, half)) if a < 0 else float(k)


def standardize(states, detrend=True):
    """Unit variance in each dimension that moves, linear drift removed; (n, at most D)."""
    states = np.asarray(states, np.float64)
    t = np.linspace(-1.0, 1.0, len(states))[:, None]
    x = states - states.mean(axis=0)
    if detrend:
        x -= t * (t * x).sum(axis=0) / (t**2).sum()
    std = x.std(axis=0)
    # Below these it is rounding, or a motion too small to be seen
    moves = (std > 1e-3 * std.max(initial=0.0)) & (std > 1e-5 * np.abs(states).max(axis=0))
    return x[:, moves] / std[moves]


def state_period(states, max_lag=None):
    """The period of states (n, D) in steps, or None, and the height of its peak.

    The smallest lag at which the autocorrelation has a peak within 90 % of its highest, refined by
    a parabola; None below three cycles, or if unclear. Leave global position and the transient
    at the start out before the call. A period above `max_lag` counts as none."""
    n = len(states)
    if n < 4 * MIN_CYCLES or not np.isfinite(states).all():
        return None, 0.0
    x = standardize(states)
    if x.shape[1] == 0:
        return None, 0.0
    # Between whole lags too: at whole ones a jitter of 10/3 steps first returns after ten
    unit = PER_STEP
    r = autocorrelation(x, 2 * n // 3, unit)
    # Peaks up to n/2, though a period has to be n/3 or less: else the harmonic of a longer one,
    # whose own peak is out of sight, would be the highest
    k = np.arange(2 * unit - unit // 4, n // 2 * unit)
    k = k[(r[k] > r[k - 1]) & (r[k] >= r[k + 1]) & (r[k] > 0)]
    k = k[[prominence(r, i) >= MIN_PROMINENCE for i in k]] if len(k) else k
    if len(k) == 0:
        return None, 0.0
    highest = r[k].max()
    # Noise, the part that doesn't repeat, moves peaks by about (1 - highest) / sqrt(n): without an
    # allowance a multiple of the period would win by chance
    allowance = 2 * (1 - highest) / np.sqrt(n)
    top = k[r[k] >= WITHIN * highest - allowance][0]
    peak, period = min(float(r[top]), 1.0), refine(r, top) / unit
    if MIN_CYCLES * max(period, top / unit) > n or period > (max_lag or n):
        return None, peak
    near = max(unit, top // 8)
    again = r[2 * top - near : 2 * top + near + 1].max()  # chance seldom strikes twice
    energy = [part.var(axis=0).sum() for part in np.array_split(x, 3)]
    if min(peak, again) < MIN_PEAK or min(energy) < MIN_ENERGY * max(energy):
        return None, peak
    if n >= 2 * MIN_CYCLES * period:  # both halves are long enough to have a say
        low, high = top - round(0.3 * top), top + round(0.3 * top)
        for half in np.array_split(x, 2):
            r_half = autocorrelation(half - half.mean(axis=0), 2 * len(half) // 3, unit)
            own = refine(r_half, low + np.argmax(r_half[low : high + 1])) / unit
            if abs(own - period) > MAX_CHANGE * period:
                return None, peak
    return period, peak


def spectrum(states, count=4, size=4096):
    """The paper's measure (Section 4, Figure 3), of states normalised by random-action statistics:
    first principal component of this trajectory, Hann window, zero padding, FFT. Returns the
    amplitudes at size/2 + 1 frequencies from 0 to 1/2 a step, and the `count` strongest peaks as
    (frequency, amplitude), strongest first."""
    x = np.asarray(states, np.float64)
    n = len(x)
    if n < 4:
        return np.zeros(size // 2 + 1), []
    x = x - x.mean(axis=0)
    component = x @ np.linalg.svd(x, full_matrices=False)[2][0]  # (n,)
    window = np.hanning(n + 1)[:-1]
    size = max(size, 1 << (n - 1).bit_length())
    amplitude = 2 * np.abs(np.fft.rfft(component * window, size)) / window.sum()
    i = np.arange(1, len(amplitude) - 1)
    tops = i[(amplitude[i] > amplitude[i - 1]) & (amplitude[i] >= amplitude[i + 1])]
    # Less than a cycle in the record is drift; less than 3 % of the highest, the window's side lobe
    tops = tops[(tops >= size / n) & (amplitude[tops] > 0.03 * amplitude.max() + 1e-9)]
    tops = tops[np.argsort(-amplitude[tops], kind="stable")][:count]
    return amplitude, [(float(k / size), float(amplitude[k])) for k in tops]


def return_error(states, lag):
    """||s_t+lag - s_t|| over the distance of two states drawn at random, root mean square of both:
    0 if the state returns, 1 if it might be anywhere, more if it is opposite; None if unknown."""
    if len(states) < 2 * lag:
        return None
    x = standardize(states, detrend=False)
    if x.shape[1] == 0:
        return None
    return float(np.sqrt(((x[lag:] - x[:-lag]) ** 2).sum(axis=1).mean() / (2 * x.shape[1])))


def verdict(period, L):
    """What the period says of the skill."""
    if period is None:
        return "FALSE: no period"
    error = period / (2 * L) - 1
    for name, limit in VERDICTS.items():
        if abs(error) <= limit:
            return name
    return "FALSE: too slow" if error > 0 else "FALSE: too fast"


# -------------------------------------------- Loading ---------------------------------------------
def find_model(run):
    """The checkpoint that a path means: the file itself, or model.pt in the folder."""
    path = Path(run)
    path = path / "model.pt" if path.is_dir() else path
    if not path.is_file():
        fail(f"{path} is missing: give a run folder with a model.pt in it")
    return path


def import_script(name):
    """The script that wrote a checkpoint, as a module: beside this file, or in baselines/."""
    paths = [HERE / f"{name}.py", HERE / "baselines" / f"{name}.py"]
    paths = [p for p in paths if re.fullmatch(r"\w+", str(name)) and p.is_file()]
    if not paths or name in ("evaluate", "plot"):
        fail(f"the checkpoint is of the script {name!r}, which is neither here nor in baselines/")
    loaded = sys.modules.get(name)
    if loaded is not None and Path(getattr(loaded, "__file__", None) or "").resolve() == paths[0]:
        return loaded
    spec = importlib.util.spec_from_file_location(name, paths[0])
    script = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclass looks it up
    spec.loader.exec_module(script)
    return script


def load(path, device="cpu"):
    """The script's module, its arguments, the training state, and the agent of a checkpoint."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        name, saved, state, weights = (checkpoint[k] for k in ("script", "args", "state", "agent"))
    except Exception as error:  # of many types
        fail(f"{path} is damaged or no checkpoint ({type(error).__name__})")
    script = import_script(name)
    try:
        device = torch.device(device)
    except RuntimeError as error:
        fail(f"--device {device}: {error}")
    try:
        args = script.Args(**saved)
        env = script.make_env(args)
        with torch.random.fork_rng():  # the networks' first weights are thrown away
            agent = script.Agent(args, env.observation_space.shape[0], env.action_space, device)
        keys = agent.load_state_dict(weights, strict=False)
        lost = [k for k in keys.missing_keys if k.startswith(("actor.", "phi."))]
        if lost or keys.unexpected_keys:
            raise KeyError((lost + keys.unexpected_keys)[0])
    except Exception as error:
        fail(f"{path} does not fit {name}.py ({type(error).__name__}: {error})")
    if not all(w.isfinite().all() for w in weights.values()):
        fail(f"{path} has weights that are not finite")
    return script, args, state, agent.requires_grad_(False)


def default_periods(trained, count=16):
    """The trained L and `count` integers evenly over their range (Figures 3 and 10)."""
    evenly = np.unique(np.round(np.linspace(min(trained), max(trained), count))).astype(int)
    return sorted({*map(int, trained), *evenly.tolist()})


# ------------------------------------------- The state --------------------------------------------
PENDULUM = [("cos of angle", "1"), ("sin of angle", "1"), ("angular velocity", "rad/s")]


def num_global(env, args=None):
    """How many of the first observations are global position: never a part of the period."""
    robot = env.unwrapped
    if getattr(args, "position_dim", None) is not None:  # psd_metra.py is told
        return args.position_dim
    if getattr(robot, "_exclude_current_positions_from_observation", True):
        return 0
    return num_root_positions(robot.model)


def num_root_positions(model):
    return 2 if model.jnt_type[0] == 0 else 1  # x and y of a free joint, x of a planar robot


def dimensions(env, args=None):
    """Name and unit of each dimension of the state: of MuJoCo, positions, velocities, others."""
    count = env.observation_space.shape[0] - num_global(env, args)
    model = getattr(env.unwrapped, "model", None)
    if model is None:
        known = PENDULUM if env.spec.id.startswith("Pendulum") else []
        return known or [(f"observation {i}", "1") for i in range(count)]
    positions, velocities = [], []
    for j in range(model.njnt):
        name, kind = model.joint(j).name, model.jnt_type[j]
        if kind == 0:
            positions += [(f"{name} {c}", "m") for c in "xyz"]
            positions += [(f"{name} q{c}", "1") for c in "wxyz"]
            velocities += [(f"{name} {c} velocity", "m/s") for c in "xyz"]
            velocities += [(f"{name} {c} rotation", "rad/s") for c in "xyz"]
        else:
            unit = {2: "m", 3: "rad"}.get(int(kind), "1")
            positions.append((name, unit))
            velocities.append((f"{name} velocity", f"{unit}/s"))
    if hasattr(env.unwrapped, "_exclude_current_positions_from_observation"):
        positions = positions[num_root_positions(model) :]
    names = (positions + velocities)[:count]
    return names + [(f"observation {i}", "1") for i in range(len(names), count)]


def physical_states(episode, state, skip):
    """An episode's states in physical units, global position left out; (n + 1, D)."""
    obs = episode.obs * state["obs_std"].numpy() + state["obs_mean"].numpy()
    return obs[:, skip:].astype(np.float64)


class Recorded(gym.Wrapper):
    """Keeps the state of every step, which the agent of psd_pixel.py does not see."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.states = [info["state"]]
        return obs, info

    def step(self, action):
        result = self.env.step(action)
        self.states.append(result[-1]["state"])
        return result


def make_env(script, args, steps):
    """The script's environment; one that shows pixels keeps the states, too."""
    env = script.make_env(args, max_steps=steps)
    return Recorded(env) if hasattr(script, "Pixels") else env


def state_env(script, env):
    """The environment whose observations are the state: the one behind the pixels, if any."""
    return env.env if hasattr(script, "Pixels") else env


def states_of(env, episode, state, skip):
    """As `physical_states`, of what has just been rolled out: behind pixels, what was kept."""
    if isinstance(env, Recorded):
        return np.array(env.states, np.float64)[:, skip:]
    return physical_states(episode, state, skip)


def picture(script, args, obs):
    """What the agent sees, the newest frame cropped as for acting, as a PNG in base64."""
    import cv2

    low, crop = (args.image_size - args.crop_size) // 2, args.crop_size
    frame = obs[-3:, low : low + crop, low : low + crop].transpose(1, 2, 0)
    png = cv2.imencode(".png", np.ascontiguousarray(frame[..., ::-1]))[1]  # which takes BGR
    return base64.b64encode(png.tobytes()).decode()


# ------------------------------------------- Measuring --------------------------------------------
def numbers(values, digits=4):
    """Nested lists of floats with as many digits as a figure can show; not finite becomes None."""
    if np.ndim(values):
        return [numbers(v, digits) for v in values]
    return float(f"{values:.{digits}g}") if values is not None and np.isfinite(values) else None


def record_length(T, L):
    """T steps, or as many as hold, after the first quarter of T, three cycles of a period 6L."""
    return max(T, T // 4 + 20 * L)


def common_period(periods):
    """The median, if more than half of the episodes have about this period; else None."""
    found = sorted(p for p in periods if p is not None)
    if not found:
        return None
    median = found[(len(found) - 1) // 2]  # measured: the mean of 12 and 36 would be neither
    agree = sum(abs(p / median - 1) <= VERDICTS["close"] for p in found)
    return median if 2 * agree > len(periods) else None


def distances(latents, L, optimum, lag, rng, sample=1000, bins=60):
    """Figures 6 and 12: latent distances over `lag` steps, of 1000 transitions drawn at random."""
    values = [np.linalg.norm(z[lag:] - z[:-lag], axis=-1) for z in latents if len(z) > lag]
    values = np.concatenate(values) if values else np.zeros(0)
    if len(values) > sample:
        values = rng.choice(values, sample, replace=False)
    mean = values.mean() if len(values) else np.nan
    counts, _ = np.histogram(values, bins, (0.0, 1.5 * optimum))
    return {
        "optimum": numbers(optimum, 6),
        "mean": numbers(mean, 6),
        "std": numbers(values.std() if len(values) else np.nan),
        "error": numbers(abs(mean / optimum - 1), 6),
        "transitions": len(values),
        "histogram": counts.tolist(),  # over 60 bins from 0 to 1.5 times the optimum
        "beyond": int((values > 1.5 * optimum).sum()),
    }


def measure_state(script, args, state, actor, skill, steps, key, lag, statistics):
    """What every method is measured by, of one skill (n, D) in n rollouts of `steps` steps: a row;
    the period; the states of the episode to draw, the first that has this period, or the first;
    and all episodes. `lag` is where the state should be back (None: at its own period)."""
    T = args.episode_length
    envs = [make_env(script, args, steps) for _ in skill]
    skip = num_global(envs[0], args)
    episodes = script.rollout(envs, key, actor, skill, state, deterministic=True)
    for env in envs:
        env.close()
    states = [states_of(env, episode, state, skip) for env, episode in zip(envs, episodes)]
    starts = [min(T, len(s)) // 4 for s in states]  # of a short episode, its own quarter
    mean, std = (statistics[k].numpy()[skip:] for k in ("obs_mean", "obs_std"))
    records = [(s[start:] - mean) / std for s, start in zip(states, starts)]
    found = [state_period(record) for record in records]
    period = common_period([p for p, _ in found])
    agree = [p and period and abs(p / period - 1) <= VERDICTS["close"] for p, _ in found]
    drawn = agree.index(True) if period else 0
    lag = lag or (round(period) if period else None)
    returns = [return_error(record, lag) for record in records] if lag else []
    returns = [e for e in returns if e is not None]
    amplitude, peaks = spectrum(records[drawn])
    pooled = amplitude[: len(amplitude) // 512 * 512].reshape(512, -1).max(axis=1)
    speed = np.concatenate([episode.velocity[:T] for episode in episodes])
    row = {
        "period": numbers(period, 6),
        "peak": numbers(np.median([peak for _, peak in found])),
        "periods": numbers([p for p, _ in found], 6),
        "agree": sum(map(bool, agree)),
        "episode": drawn,
        "return_error": numbers(np.mean(returns) if returns else None),
        "speed": numbers(speed.mean()) if speed.any() else None,
        "episode_length": float(np.mean([min(len(s) - 1, T) for s in states])),
        "record_length": float(np.mean([len(record) for record in records])),
        "dominant": [{"frequency": numbers(f), "amplitude": numbers(a)} for f, a in peaks],
        "spectrum": numbers(pooled, 3),
    }
    return row, period, states[drawn], episodes


def skill_of(script, args, agent, L, z=None):
    """What the policy gets: Embed(L), and the direction z if there is one; (D,) or (D + dim z,)."""
    device = agent.log_alpha.device
    skill = script.embed_period(torch.tensor(float(L), device=device), args.embed_dim)
    return skill if z is None else torch.cat([skill, z.to(device)])


def latents_of(script, args, agent, episode, L, z=None):
    """phi_L of an episode, (n + 1, d); that of psd_metra.py sees z as well."""
    return script.encode(agent, episode, skill_of(script, args, agent, L, z)).cpu().numpy()


def measure(script, args, state, agent, L, options, statistics, z=None, place=()):
    """Everything about one L: a row of the table, and what the figures need. The states of the
    episode to draw come back beside it. psd_metra.py has a z, and its `place` among them."""
    T, n = args.episode_length, options.episodes
    skill = skill_of(script, args, agent, L, z).expand(n, -1)
    key, steps = (STREAM, options.seed, L, *place), record_length(T, L)
    row, period, states, episodes = measure_state(
        script, args, state, agent.actor, skill, steps, key, 2 * L, statistics
    )

    # The latent circle, over the first T steps
    latents = [latents_of(script, args, agent, episode, L, z) for episode in episodes]
    first = [torch.as_tensor(z[: T + 1]) for z in latents]
    latent = [script.latent_statistics(z, L, args.kappa) for z in first]
    r_psd = [m["r_psd"] * (len(z) - 1) / T for m, z in zip(latent, first)]  # a fall counts as 0
    rng = np.random.default_rng(key)
    side = script.side_length(torch.tensor(float(L))).item()
    head = [z.numpy() for z in first]
    circle = {
        "period_error": numbers(period / (2 * L) - 1, 6) if period else None,
        "verdict": verdict(period, L),
        "r_psd": numbers(np.mean(r_psd), 6),
        "one_step": distances(head, L, side, 1, rng),
        "L_step": distances(head, L, float(L), L, rng),
        "radius": numbers(np.mean([m["radius"] for m in latent]), 6),
        # the end: the start may be a transient
        "latents": numbers(latents[row["episode"]][-6 * L - 1 :]),
    }
    if z is not None:
        circle |= {"z": numbers(z.tolist())} | travel(episodes, state, T, row["episode"], args)
    return {"L": L} | row | circle, states


def travel(episodes, state, T, drawn, args):
    """Where the episodes of a (z, L) went in their first T steps: mean displacement, its direction,
    mean distance as the crow flies, and the path of the episode to draw (Figure 8)."""
    p = args.position_dim
    if not p:
        return {"displacement": None, "direction": None, "distance": None, "path": None}
    mean, std = (state[name].numpy()[:p] for name in ("obs_mean", "obs_std"))
    paths = [(episode.obs[: T + 1, :p] * std + mean).astype(np.float64) for episode in episodes]
    ways = np.array([path[-1] - path[0] for path in paths])  # (n, p)
    x, y = np.pad(ways.mean(axis=0), (0, 1))[:2]
    return {
        "displacement": numbers(ways.mean(axis=0)),
        "direction": numbers(np.degrees(np.arctan2(y, x))),
        "distance": numbers(np.linalg.norm(ways, axis=1).mean()),
        "path": numbers((paths[drawn] - paths[drawn][0]).T),
    }


def direction_errors(displacements, z):
    """Degrees between each displacement (n, p) and its z (n, p), after the rotation or reflection
    of all z that fits best: which way phi_m's axes lie is METRA's to choose. None for what rests.
    Fewer z than dimensions fit always: at least four directions say something."""
    ways, z = np.asarray(displacements, float), np.asarray(z, float)
    length = np.linalg.norm(ways, axis=1)
    units = ways / np.where(length > 0, length, 1.0)[:, None]
    u, _, vt = np.linalg.svd(units.T @ z)
    cosine = np.clip((units @ u @ vt * z).sum(axis=1) / np.linalg.norm(z, axis=1), -1.0, 1.0)
    return [float(np.degrees(np.arccos(c))) if way > 0 else None for c, way in zip(cosine, length)]


def judge_directions(rows):
    """`direction_error` into each row, by one turn of the axes for its L; and a summary, in which
    `common` is by one turn for all L. None if there is no position, or not as many as z has."""
    lost = any(row["displacement"] is None for row in rows)
    if lost or len(rows[0]["displacement"]) != len(rows[0]["z"]):
        for row in rows:
            row["direction_error"] = None
        return {"distance": None, "direction_error": None, "common": None}
    for L in {row["L"] for row in rows}:
        own = [row for row in rows if row["L"] == L]
        errors = direction_errors([r["displacement"] for r in own], [r["z"] for r in own])
        for row, error in zip(own, errors):
            row["direction_error"] = numbers(error)
    common = direction_errors([row["displacement"] for row in rows], [row["z"] for row in rows])

    def worst(errors):  # what rests has no direction, and so not the right one
        return numbers(max(180.0 if e is None else e for e in errors))

    return {
        "distance": numbers(np.mean([row["distance"] for row in rows])),
        "direction_error": worst([row["direction_error"] for row in rows]),
        "common": worst(common),
    }


class RandomActions:
    """An actor for `rollout` that takes uniform actions, whatever the state and the skill."""

    def __init__(self, actor, seed):
        self.actor = actor
        self.generator = torch.Generator().manual_seed(seed)

    def act(self, obs, skill, deterministic):
        scale, bias = self.actor.action_scale.cpu(), self.actor.action_bias.cpu()
        uniform = 2 * torch.rand(len(obs), len(scale), generator=self.generator) - 1
        return uniform * scale + bias


def evaluation_directions(skill_dim, count=8):
    """The z of psd_metra.py that are rolled out, (n, skill_dim): both of one dimension, `count`
    spread evenly over two, and in more the two ends of each axis."""
    if skill_dim == 2:
        angle = torch.arange(count) * (2 * torch.pi / count)
        return torch.stack([angle.cos(), angle.sin()], dim=1)
    return torch.cat([torch.eye(skill_dim), -torch.eye(skill_dim)])


def evaluation_skills(args, count=16):
    """The skills of a baseline: all discrete ones, or directions spread evenly; (count, D)."""
    if args.num_skills:
        return torch.eye(args.num_skills)
    angle = torch.arange(count) * (2 * torch.pi / count)
    return torch.stack([angle.cos(), angle.sin()], dim=1)


def skill_rollouts(script, args, agent, options):
    """For each skill of a baseline, or of random actions: actor, the skill n times, and the key."""
    device, n = agent.log_alpha.device, options.episodes
    skills = torch.zeros(16, 1) if options.random_actions else evaluation_skills(args)
    for i, z in enumerate(skills):
        key = (STREAM, options.seed, i)
        seed = int(np.random.SeedSequence(key).generate_state(1)[0])
        actor = RandomActions(agent.actor, seed) if options.random_actions else agent.actor
        yield actor, z.expand(n, -1).to(device), key


def shown_dimensions(rows, states, names, statistics, skip, count=3):
    """The dimensions to draw, best first: those that repeat best over all trained L and move
    visibly; positions and angles rather than velocities."""
    std, score = statistics["obs_std"].numpy()[skip:], np.zeros(len(names))
    for row, s in zip(rows, states):
        lag = round(row["period"] or 2 * row.get("L", 0))
        x = s[len(s) // 4 :]
        if not row.get("trained", True) or not 0 < 2 * lag <= len(x):
            continue
        for i in range(len(names)):
            single = standardize(x[:, i : i + 1])
            if single.shape[1] and names[i][1] in ("rad", "m", "1"):
                repeats = max(autocorrelation(single, lag)[lag], 0.0)
                score[i] += repeats * min(x[:, i].std() / std[i], 1.0)
    return np.argsort(-score, kind="stable")[:count].tolist()


class Switching:
    """An actor for `rollout` that holds each skill for a number of steps, one after the other."""

    def __init__(self, actor, skills, steps):
        self.actor, self.skills, self.steps, self.t = actor, skills, steps, 0

    def act(self, obs, skill, deterministic):
        i = min(self.t // self.steps, len(self.skills) - 1)
        self.t += 1
        return self.actor.act(obs, self.skills[i].expand(len(obs), -1), deterministic)


def switching_rollout(script, args, state, agent, periods, options, z=None):
    """Figure 5: one episode in which L switches at fixed intervals, each latent encoded by the L
    in force; z, where there is one, stays."""
    # three cycles of the longest period, unless told otherwise
    steps = options.switch_steps or 6 * max(periods)
    skills = torch.stack([skill_of(script, args, agent, L, z) for L in periods])
    env = make_env(script, args, steps * len(periods))
    actor = Switching(agent.actor, skills, steps)
    key = (STREAM, options.seed)
    (episode,) = script.rollout([env], key, actor, skills[:1], state, deterministic=True)
    env.close()
    segments, end = [], len(episode.actions)
    for i in range(len(periods)):
        start, stop = i * steps, min((i + 1) * steps, end)
        if start < stop:
            part = episode._replace(obs=episode.obs[start : stop + 1])
            latents = latents_of(script, args, agent, part, periods[i], z)
            segment = {"L": periods[i], "start": start, "stop": stop, "latents": numbers(latents)}
            segments.append(segment)
    switch = {"steps": steps, "segments": segments}
    if hasattr(script, "Pixels"):
        switch["frame"] = picture(script, args, episode.obs[end // 2])
    return switch, states_of(env, episode, state, num_global(env, args))


def spread(periods, factor=1.05):
    """Smallest and largest of some periods, and how many differ by more than 5 %."""
    periods = sorted(p for p in periods if p)
    distinct, last = 0, 0.0
    for p in periods:
        if p > factor * last:
            distinct, last = distinct + 1, p
    ends = (numbers(periods[0]), numbers(periods[-1])) if periods else (None, None)
    return {"min": ends[0], "max": ends[1], "distinct": distinct}


def summarize(rows):
    """How many L have the period they should have, and what periods there are."""
    error = [abs(row["period_error"]) for row in rows if row["period_error"] is not None]
    trained = [row for row in rows if row["trained"]]
    error_trained = [abs(r["period_error"]) for r in trained if r["period_error"] is not None]
    dominant = [1 / row["dominant"][0]["frequency"] for row in rows if row["dominant"]]
    return {
        "skills": len(rows),
        "within_5_percent": sum(e <= 0.05 for e in error),
        "within_10_percent": sum(e <= 0.10 for e in error),
        "trained": len(trained),
        "trained_within_5_percent": sum(e <= 0.05 for e in error_trained),
        "trained_within_10_percent": sum(e <= 0.10 for e in error_trained),
        "state_period": spread([row["period"] for row in rows]),
        "dominant_period": spread(dominant),
    }


def summarize_skills(rows):
    """How many skills have a period at all, and what periods there are."""
    dominant = [1 / row["dominant"][0]["frequency"] for row in rows if row["dominant"]]
    return {
        "skills": len(rows),
        "with_period": sum(row["period"] is not None for row in rows),
        "state_period": spread([row["period"] for row in rows]),
        "dominant_period": spread(dominant),
    }


def evaluate_periods(script, args, state, agent, options, statistics):
    """Each L of psd.py, or each (z, L) of psd_metra.py: rows, the states of each, and what else the
    JSON says of them."""
    needed = "encode latent_statistics side_length candidate_periods"
    lacking = [name for name in needed.split() if not hasattr(script, name)]
    if lacking:
        fail(f"{script.__name__}.py has no {lacking[0]}: evaluate.py cannot measure it")
    T, (L_min, L_max) = args.episode_length, state["bounds"][:2]
    trained = script.candidate_periods(L_min, L_max, args.num_periods).tolist()
    directed = hasattr(args, "skill_dim")  # psd_metra.py's: a grid, for which the trained L will do
    directions = evaluation_directions(args.skill_dim) if directed else [None]
    periods = sorted(set(options.periods)) or (trained if directed else default_periods(trained))
    for L in periods:
        if not 1 <= L <= T:
            fail(f"L = {L} is not from 1 to the episode length, {T}")
    rows, states = [], []
    for L in tqdm(periods, "evaluate", unit="L", disable=None):
        for i, z in enumerate(directions):
            rest = (options, statistics, z, (i,) if directed else ())
            row, first = measure(script, args, state, agent, L, *rest)
            rows.append({**row, "trained": L in trained})
            states.append(first)
    own = [L for L in periods if L in trained] or periods
    few = np.unique(np.round(np.linspace(0, len(own) - 1, 6)).astype(int))  # of more, six are shown
    shown = [own[i] for i in few]
    switch, switched = switching_rollout(script, args, state, agent, shown, options, directions[0])
    more = {"bounds": [L_min, L_max], "switch": switch, "summary": summarize(rows)}
    if directed:
        more["summary"]["travel"] = judge_directions(rows)
    return rows, states, switched, more


def evaluate_skills(script, args, state, agent, options, statistics):
    """Each skill of a baseline, or random actions, likewise."""
    if not (options.random_actions or hasattr(script, "sample_skills")):
        fail(f"{script.__name__}.py has neither L nor z: evaluate.py cannot measure it")
    if options.periods or options.switch_steps:
        what = "random actions have" if options.random_actions else f"{script.__name__}.py has"
        fail(f"{what} no L: leave --periods and --switch-steps out")
    rows, states = [], []
    rollouts = list(skill_rollouts(script, args, agent, options))
    for actor, skill, key in tqdm(rollouts, "evaluate", unit="skill", disable=None):
        # T steps and no more: beyond them a global position is one that was never seen
        rest = (args.episode_length, key, None, statistics)
        row, _, first, _ = measure_state(script, args, state, actor, skill, *rest)
        z = None if options.random_actions else numbers(skill[0].tolist())
        rows.append({"skill": len(rows), "z": z} | row)
        states.append(first)
    actions = "random" if options.random_actions else "policy"
    more = {"actions": actions, "switch": None, "summary": summarize_skills(rows)}
    return rows, states, None, more


def evaluate(options):
    """The content of the JSON, for `options` as on the command line. Writes nothing."""
    path = find_model(options.run)
    script, args, state, agent = load(path, options.device)
    steps = 1 if options.switch_steps is None else options.switch_steps
    if min(options.episodes, steps) < 1 or options.seed < 0:
        fail("--episodes and --switch-steps start at 1, --seed at 0")
    if options.video:
        check_rendering(script, args)
    env = script.make_env(args)
    inner, source = state_env(script, env), script
    if hasattr(script, "Pixels"):
        script.check_env(env, args)
        source = import_script("psd")
        if len(inner.observation_space.shape or ()) != 1:
            fail(f"{args.env_id} has observations {inner.observation_space}: no state to measure")
    names, skip = dimensions(inner, args), num_global(inner, args)
    plain = {**vars(args), "normalize_obs": True, "seed": options.seed, "ext_coef": 0.0}
    statistics = source.observation_statistics(inner, SimpleNamespace(**plain))  # of random actions

    by_period = hasattr(script, "embed_period") and not options.random_actions
    measure_all = evaluate_periods if by_period else evaluate_skills
    rows, states, switched, more = measure_all(script, args, state, agent, options, statistics)
    shown = shown_dimensions(rows, states, names, statistics, skip)
    for row, first in zip(rows, states):
        row["states"] = numbers(first[: args.episode_length + 1, shown].T)
    if switched is not None:
        more["switch"]["states"] = numbers(switched[:, shown].T)
    dt = getattr(env.unwrapped, "dt", None)
    env.close()
    modules = {"torch": torch, "gymnasium": gym, "numpy": np, "mujoco": sys.modules.get("mujoco")}
    return {
        "format": 1,
        "command": shlex.join(["python", Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seed": options.seed,
        "episodes": options.episodes,
        "versions": {"python": platform.python_version()}
        | {name: module.__version__ for name, module in modules.items() if module},
        "run": path.resolve().parent.name,
        "script": script.__name__,
        "env_id": args.env_id,
        "epoch": state["epoch"],
        "global_step": state["global_step"],
        "args": dataclasses.asdict(args),
        "T": args.episode_length,
        "dt": numbers(dt, 6),
        "dimensions": [{"name": names[i][0], "unit": names[i][1]} for i in shown],
        "skills": rows,
    } | more


# --------------------------------------------- Video ----------------------------------------------
PACKAGES = "on Debian: apt-get install libegl1 libgl1-mesa-dri"


def make_filmed_env(script, args, width=480, height=360):
    """An environment that renders off-screen, with the settings that make MuJoCo fast."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")
    kwargs = {"render_mode": "rgb_array"}
    probe = script.make_env(args)
    if hasattr(probe.unwrapped, "model"):
        kwargs |= {"width": width, "height": height, "camera_name": "track"}
    env = script.make_env(args, **kwargs)
    if hasattr(env.unwrapped, "model"):
        model = env.unwrapped.model
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = 0
        model.mat_reflectance[:] = 0
    probe.close()
    return env


def check_rendering(script, args):
    """Before any work: can a frame be rendered, and a video written?"""
    try:
        import cv2  # noqa: F401
        import imageio_ffmpeg  # noqa: F401
    except ImportError as error:
        fail(f"--video: {error}: pip install opencv-python-headless imageio imageio-ffmpeg")
    env = make_filmed_env(script, args)
    try:
        env.reset(seed=0)
        if env.render() is None:
            raise RuntimeError("no frame")
    except gym.error.DependencyNotInstalled as error:
        fail(f"--video: {args.env_id} cannot be rendered: {error}")
    except Exception as error:  # of many types, by the library that is missing
        gl = os.environ.get("MUJOCO_GL")
        why = f"{type(error).__name__}: {error}"
        fail(f"--video: off-screen rendering with MUJOCO_GL={gl} fails ({why}); {PACKAGES}")
    env.close()


class Filmed(gym.Wrapper):
    """Keeps a frame of every state of the episode."""

    def reset(self, **kwargs):
        result, self.frames = self.env.reset(**kwargs), []
        self.frames.append(self.env.render())
        return result

    def step(self, action):
        result = self.env.step(action)
        self.frames.append(self.env.render())
        return result


def latent_phase(latents):
    """The angle of each latent (n, d) in its principal plane, rising with time; [0, 2 pi)."""
    centred = latents - latents.mean(axis=0)
    plane = latents @ np.linalg.svd(centred, full_matrices=False)[2][:2].T  # (n, 2)
    angle = np.arctan2(plane[:, -1], plane[:, 0])
    forward = np.sin(np.diff(angle)).sum() >= 0
    return (angle if forward else -angle) % (2 * np.pi)


def write_video(path, script, args, state, agent, row, options):
    """An mp4 of the episode of a skill that is drawn, with step and latent phase on each frame."""
    import cv2
    import imageio_ffmpeg

    if "L" in row:
        L, actor, z, place = row["L"], agent.actor, None, ()
        name = f"L = {L}"
        if "z" in row:
            directions = evaluation_directions(args.skill_dim)
            i = (directions - torch.tensor(row["z"])).norm(dim=1).argmin().item()  # z was rounded
            z, place, name = directions[i], (i,), f"L = {L}   z {i}"
        skill = skill_of(script, args, agent, L, z).expand(options.episodes, -1)
        key = (STREAM, options.seed, L, *place)
    else:
        actor, skill, key = list(skill_rollouts(script, args, agent, options))[row["skill"]]
        name = f"skill {row['skill']}"
    env, drawn = Filmed(make_filmed_env(script, args)), row["episode"]
    envs = [script.make_env(args) for _ in skill]  # all of them: one policy call, one random stream
    envs[drawn] = env
    episode = script.rollout(envs, key, actor, skill, state, deterministic=True)[drawn]
    phase = None
    if "L" in row:
        phase = latent_phase(latents_of(script, args, agent, episode, L, z))
    height, width = (side // 2 * 2 for side in env.frames[0].shape[:2])  # H.264 needs even sides
    zoom = -(-360 // width)  # what psd_pixel.py sees is small
    fps = min(1 / (getattr(env.unwrapped, "dt", None) or 0.05), 60.0)
    temporary = path.with_suffix(".tmp.mp4")
    writer = imageio_ffmpeg.write_frames(
        str(temporary), (zoom * width, zoom * height), fps=fps, codec="libx264",
        pix_fmt_out="yuv420p", macro_block_size=2, output_params=["-movflags", "+faststart"],
    )  # fmt: skip
    writer.send(None)
    for t, frame in enumerate(env.frames):
        frame = np.ascontiguousarray(frame[:height, :width])
        if zoom > 1:
            size = (zoom * width, zoom * height)
            frame = cv2.resize(frame, size, interpolation=cv2.INTER_NEAREST)
        text = f"{name}   step {t}"
        text += "" if phase is None else f"   phase {np.degrees(phase[t]):3.0f} deg"
        cv2.rectangle(frame, (0, 0), (300, 32), (0, 0, 0), -1)
        cv2.putText(frame, text, (10, 22), 0, 0.55, (255, 255, 255), 1, cv2.LINE_AA)
        if phase is not None:
            centre, radius = (zoom * width - 40, 40), 24
            hand = (np.cos(phase[t]), -np.sin(phase[t]))
            tip = tuple(int(c + radius * h) for c, h in zip(centre, hand))
            cv2.circle(frame, centre, radius, (255, 255, 255), 2, cv2.LINE_AA)
            cv2.line(frame, centre, tip, (255, 255, 255), 1, cv2.LINE_AA)
            cv2.circle(frame, tip, 6, (213, 94, 0), -1, cv2.LINE_AA)
        writer.send(frame)
    writer.close()
    env.close()
    os.replace(temporary, path)


# --------------------------------------------- Output ---------------------------------------------
def skill_table(result):
    """The rows of a method without L: what periods there are, and nothing to hold them against."""
    lines = ["skill period strongest peak return speed length agree".split()]
    for row in result["skills"]:
        strongest = 1 / row["dominant"][0]["frequency"] if row["dominant"] else None
        line = [str(row["skill"]), "none" if row["period"] is None else f"{row['period']:.1f}"]
        line.append("" if strongest is None else f"{strongest:.1f}")
        for value in (row["peak"], row["return_error"], row["speed"]):
            line.append("" if value is None else f"{value:.2f}")
        line += [f"{row['episode_length']:.0f}", f"{row['agree']}/{result['episodes']}"]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines)]
    text = ["  ".join(cell.rjust(w) for cell, w in zip(line, widths)) for line in lines]
    s, found = result["summary"], result["summary"]["state_period"]
    count = f"{s['with_period']} of {s['skills']} have a period"
    if found["distinct"]:
        count += f": {found['min']:.1f} to {found['max']:.1f} steps, {found['distinct']} distinct"
    text.append(count)
    return "\n".join(text)


def table(result, colour=False):
    """The rows that a person reads; a skill with a high reward and a false period stands in red."""
    if "L" not in result["skills"][0]:
        return skill_table(result)
    head = "L 2L period error r_PSD 1-step L-step radius return agree verdict".split()
    directed = "z" in result["skills"][0]
    head[-1:-1] = ["z", "distance", "off z"] if directed else []
    lines = [["", *head]]
    percent = "{:+.1f} %".format
    for row in result["skills"]:
        error = [row["one_step"]["error"], row["L_step"]["error"]]
        line = ["" if row["trained"] else "*", str(row["L"]), str(2 * row["L"])]
        line.append("none" if row["period"] is None else f"{row['period']:.1f}")
        line.append("" if row["period"] is None else percent(100 * row["period_error"]))
        line.append(f"{row['r_psd']:.2f}")
        line += ["" if e is None else f"{100 * e:.1f} %" for e in error]
        line.append("" if row["radius"] is None else f"{row['radius']:.2f}")
        line.append("" if row["return_error"] is None else f"{row['return_error']:.2f}")
        line.append(f"{row['agree']}/{result['episodes']}")
        if directed:
            line.append(" ".join(f"{c:+.2f}" for c in row["z"]))
            way, off = row["distance"], row["direction_error"]
            line += ["" if way is None else f"{way:.2f}", "" if off is None else f"{off:.0f} deg"]
        lines.append([*line, row["verdict"]])
    widths = [max(map(len, column)) for column in zip(*lines)]
    shades = {"true": 32, "close": 33, "FALSE": 31}
    text = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[:-1], widths)]
        shade = shades.get(line[-1].split(":")[0])
        last = f"\033[{shade}m{line[-1]}\033[0m" if colour and shade else line[-1]
        text.append("  ".join([*cells, last]))
    s = result["summary"]
    count = f"{s['within_5_percent']} within 5 %, {s['within_10_percent']} within 10 % of 2L"
    own = f"{s['trained_within_5_percent']} and {s['trained_within_10_percent']} of {s['trained']}"
    text.append(f"{s['skills']} skills: {count}; of the trained ones {own}   (* never trained)")
    if directed and s["travel"]["distance"] is not None:
        off = "at most {direction_error:.0f} deg off z ({common:.0f} by one turn of axes for all L)"
        text.append(f"distance {s['travel']['distance']:.2f}; " + off.format(**s["travel"]))
    return "\n".join(text)


def write_json(path, result):
    """All or nothing, and the same bytes for the same result."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(result, separators=(",", ":"), allow_nan=False) + "\n")
    os.replace(temporary, path)


def main(argv=None):
    options = tyro.cli(Args, args=argv, description=__doc__)
    torch.set_num_threads(1)  # batches of a few states: more threads only wait for each other
    model = find_model(options.run)
    default = "random.json" if options.random_actions else "evaluation.json"
    out = Path(options.out) if options.out else model.with_name(default)
    if not out.parent.is_dir():
        fail(f"{out.parent} is missing: there is nowhere to write {out.name}")
    result = evaluate(options)
    if options.video:
        script, args, state, agent = load(model, options.device)
        folder = out.parent / "videos"
        folder.mkdir(exist_ok=True)
        for row in tqdm(result["skills"], "video", unit="L", disable=None):
            name = f"L{row['L']:03d}" if "L" in row else f"{out.stem}_skill{row['skill']:02d}"
            if "L" in row and "z" in row:
                name += "_z" + "_".join(f"{c:+.2f}" for c in row["z"])
            path = folder / f"{name}.mp4"
            write_video(path, script, args, state, agent, row, options)
            row["video"] = f"videos/{path.name}"
    write_json(out, result)
    print(table(result, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR")))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
