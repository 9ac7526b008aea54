"""A moving picture of trained skills: the robot under several L, and a strip of its state below.

    python benchmark/film.py results/halfcheetah --periods 6 12 20 --out skills.gif
    python benchmark/film.py results/halfcheetah results/ant --periods 6 12 20 --out robots.gif

One row per run, one column per L, in real time. The strip shows the state dimension that repeats
best; its grid lines are 2L steps apart, so the curve of a true skill looks the same between them.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import cv2  # noqa: E402
import imageio.v2 as imageio  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402

import evaluate  # noqa: E402

WHITE = (255, 255, 255)
DARK = (40, 40, 40)
GRID = (200, 200, 200)
ORANGE = (213, 94, 0)
BLUE = (0, 90, 160)
HEADER = 28  # heights in pixels
STRIP = 48


@dataclass
class Args:
    runs: Annotated[tuple[str, ...], tyro.conf.Positional]
    """run folders, or any folders or files with a model.pt"""
    out: str = "skills.gif"
    """the GIF to write"""
    periods: tuple[int, ...] = ()
    """values of L (none: the smallest, a middle and the largest trained one of each run)"""
    seconds: float = 6.0
    """length of the picture"""
    skip: float = 2.0
    """seconds left out at the start, in which the robot finds its gait"""
    width: int = 240
    """pixels per robot"""
    seed: int = 0
    """seed of the first states"""


def fail(message):
    """Ends the program with one line and a non-zero exit code."""
    raise SystemExit(f"film.py: error: {' '.join(str(message).split())}")


def check_args(args):
    """Refuses, before any work, values that make no sense."""
    out = Path(args.out)
    if out.suffix != ".gif" or not out.parent.is_dir():
        fail(f"--out {out} has to end in .gif, in a folder that exists")
    for name in ("seconds", "skip"):
        value = getattr(args, name)
        if not 0 <= value <= 60:
            fail(f"--{name} {value} is not from 0 to 60")
    if args.seconds == 0:
        fail("--seconds 0 is no picture: give more")
    if not 100 <= args.width <= 1000:
        fail(f"--width {args.width} is not from 100 to 1000 pixels")


# -------------------------------------- Rollouts --------------------------------------
@dataclass
class Clip:
    """One skill, filmed."""

    L: int
    frames: list
    states: np.ndarray  # (n + 1, D)
    speed: float
    dt: float


def film(run, L, args):
    """Frames and states of one episode of a skill."""
    dt = time_step(run)
    num_steps = math.ceil((args.skip + args.seconds) / dt)
    height = args.width * 3 // 4
    env = evaluate.Filmed(evaluate.make_filmed_env(run, args.width, height, num_steps))
    skill = evaluate.skill_vector(run, L, None)[None]
    (episode,) = evaluate.rollout(run, [env], (args.seed, L), run.agent, skill)
    states = evaluate.states_of(run, env, episode)
    frames = env.frames
    env.close()
    return Clip(L, frames, states, float(episode.velocity.mean()), dt)


def time_step(run):
    """Seconds per step of the environment."""
    env = evaluate.make_env(run.script, run.args)
    dt = getattr(env.unwrapped, "dt", None) or 0.05
    env.close()
    return dt


def best_dimension(run, clips):
    """The state dimension that repeats best over the clips of a run, and its name."""
    env = evaluate.make_env(run.script, run.args)
    names = evaluate.dimensions(env, run.args)
    statistics = evaluate.random_statistics(run, env, seed=0)
    env.close()
    rows = [{"L": clip.L, "period": None} for clip in clips]
    best = evaluate.shown_dimensions(rows, [clip.states for clip in clips], names, statistics)[0]
    return best, names[best][0]


# -------------------------------------- Drawing ---------------------------------------
def header(width, clip):
    """L, the period that it asks for, and the speed, in letters that can be read."""
    image = np.full((HEADER, width, 3), WHITE, np.uint8)
    text = f"L = {clip.L}   2L = {2 * clip.L * clip.dt:.2f} s   {clip.speed:.1f} m/s"
    cv2.putText(image, text, (6, 19), cv2.FONT_HERSHEY_SIMPLEX, 0.42, DARK, 1, cv2.LINE_AA)
    return image


def strip(width, clip, curve, t, first, last, name):
    """The curve from step `first` to `last`, drawn up to step t; grid lines are 2L steps apart."""
    image = np.full((STRIP, width, 3), WHITE, np.uint8)
    scale = (width - 1) / (last - first)
    for step in range(first, last + 1, 2 * clip.L):
        x = int((step - first) * scale)
        cv2.line(image, (x, 0), (x, STRIP), GRID, 1)
    shown = curve[first : last + 1]
    low = shown.min()
    span = max(shown.max() - low, 1e-9)
    x = np.arange(t - first + 1) * scale
    y = STRIP - 6 - (curve[first : t + 1] - low) / span * (STRIP - 12)
    points = np.stack([x, y], axis=1).round().astype(np.int32)
    cv2.polylines(image, [points], False, BLUE, 1, cv2.LINE_AA)
    cv2.circle(image, tuple(points[-1].tolist()), 3, ORANGE, -1, cv2.LINE_AA)
    cv2.putText(image, name, (4, STRIP - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.3, DARK, 1, cv2.LINE_AA)
    return image


def tile(clip, dimension, name, seconds, args):
    """One robot with its header and strip, `seconds` after the start. A fallen one stands still."""
    end = len(clip.frames) - 1
    first = round(args.skip / clip.dt)
    last = first + round(args.seconds / clip.dt)
    t = min(first + round(seconds / clip.dt), end)
    curve = clip.states[:, dimension]
    frame = clip.frames[t]
    width = frame.shape[1]
    below = strip(width, clip, curve, max(t, first), first, last, name)
    return np.concatenate([header(width, clip), frame, below])


def pictures(rows, args):
    """All frames of the GIF. `rows` are (clips, dimension, name) of each run."""
    step = max(0.04, max(clips[0].dt for clips, _, _ in rows))  # 25 frames per second at most
    frames = []
    for i in range(int(args.seconds / step)):
        lines = []
        for clips, dimension, name in rows:
            tiles = [tile(clip, dimension, name, i * step, args) for clip in clips]
            lines.append(np.concatenate(tiles, axis=1))
        frames.append(np.concatenate(lines))
    return frames, step


def default_periods(run):
    """The smallest, a middle and the largest trained L."""
    trained = evaluate.trained_periods(run)
    return sorted({trained[0], trained[len(trained) // 2], trained[-1]})


def main(argv=None):
    args = tyro.cli(Args, args=argv, description=__doc__)
    check_args(args)
    torch.set_num_threads(1)
    rows = []
    for path in args.runs:
        run = evaluate.open_run(path)
        if not run.kind.has_L or run.kind.has_pixels or run.kind.directions is not None:
            fail(f"{path} is not of psd.py: film.py shows skills that have an L and no z")
        evaluate.check_rendering(run)
        clips = [film(run, L, args) for L in args.periods or default_periods(run)]
        dimension, name = best_dimension(run, clips)
        rows.append((clips, dimension, name))
    frames, step = pictures(rows, args)
    imageio.mimsave(args.out, frames, duration=1000 * step, loop=0, palettesize=64)
    print(f"wrote {args.out}: {len(frames)} frames, {Path(args.out).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
