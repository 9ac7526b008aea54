"""The page that `python play.py RUN --export page.html` writes: rollouts of every trained L.

One file, about half a megabyte, that any browser opens from the disk without a network. Robots are
drawn as capsules. play.html is its template; this file records what it shows.
"""

import base64
import json
import os
from pathlib import Path

import mujoco
import numpy as np

import evaluate
from period import MIN_CYCLES, state_period

TEMPLATE = evaluate.HERE / "play.html"
MARK = b"written by play.py"  # at the top of such a page
SECONDS = 10.0  # per rollout
FRAME_RATE = 30.0  # per second, at most
PLANE = int(mujoco.mjtGeom.mjGEOM_PLANE)
SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
CAPSULE = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
CYLINDER = int(mujoco.mjtGeom.mjGEOM_CYLINDER)


# --------------------------------- Shared with play.py --------------------------------
def cycle_of(robot):
    """2L steps; without L as many as take a second."""
    if robot.L is None:
        return round(1 / robot.env.unwrapped.dt)
    return 2 * robot.L


def principal_plane(latents, last):
    """The plane (d, 2) of latents (n, d), turned as near to the last one as possible."""
    if latents.shape[1] <= 2 or len(latents) < 3:
        return last
    _, _, directions = np.linalg.svd(latents, full_matrices=False)
    plane = directions[:2].T  # (d, 2)
    left, _, right = np.linalg.svd(plane.T @ last)
    return plane @ left @ right


# -------------------------------------- Recording -------------------------------------
def is_static(model, geom):
    return model.body_weldid[model.geom_bodyid[geom]] == 0


def geom_colour(model, geom):
    rgba = model.geom_rgba[geom]
    material = model.geom_matid[geom]
    if material >= 0:
        rgba = model.mat_rgba[material]
    red, green, blue = (int(255 * channel) for channel in rgba[:3])
    return f"rgb({red},{green},{blue})"


def capsule_of(model, geom):
    """A geom as a capsule: half its axis in the geom's frame, (3,), and its radius."""
    kind = int(model.geom_type[geom])
    size = model.geom_size[geom]
    axis = np.zeros(3)
    if kind == SPHERE:
        return axis, size[0]
    if kind in (CAPSULE, CYLINDER):
        axis[2] = size[1]
        return axis, size[0]
    longest = int(np.argmax(size))  # boxes and meshes: what a line can show of them
    radius = float(np.sort(size)[1])
    axis[longest] = max(size[longest] - radius, 0.0)
    return axis, radius


class Recorder:
    """Draws the moving geoms of a model as capsules, in millimetres."""

    def __init__(self, model, data):
        self.data = data
        self.geoms = []
        self.boxes = []  # such as hurdles: centre and half sizes
        for geom in range(model.ngeom):
            if model.geom_type[geom] == PLANE:
                continue
            if is_static(model, geom):
                centre = model.geom_pos[geom].tolist()
                self.boxes.append([centre, model.geom_size[geom].tolist()])
            elif model.geom_rgba[geom, 3] > 0:
                self.geoms.append(geom)
        capsules = [capsule_of(model, geom) for geom in self.geoms]
        self.axes = np.array([axis for axis, _ in capsules])  # (n, 3)
        self.radii = [float(radius) for _, radius in capsules]
        self.colours = [geom_colour(model, geom) for geom in self.geoms]

    def frame(self):
        """Both ends of every capsule relative to the torso's place on the ground, and that."""
        place = self.data.xpos[1].copy()
        place[2] = 0.0
        centres = self.data.geom_xpos[self.geoms] - place
        rotations = self.data.geom_xmat[self.geoms].reshape(-1, 3, 3)
        axes = np.einsum("nij,nj->ni", rotations, self.axes)  # (n, 3)
        ends = np.stack([centres - axes, centres + axes], axis=1)  # (n, 2, 3)
        return ends, place[:2]


def packed(numbers, kind):
    """Whole numbers for the page: base64 of their bytes, the lowest first."""
    limits = np.iinfo(kind)
    whole = np.clip(np.round(numbers), limits.min, limits.max).astype(kind)
    return base64.b64encode(whole.astype(whole.dtype.newbyteorder("<")).tobytes()).decode()


def record(robot, recorder, seed):
    """One rollout as the page wants it: whole cycles, so that their repetition looks endless."""
    dt = robot.env.unwrapped.dt
    cycle = cycle_of(robot)
    num_cycles = max(round(SECONDS / (cycle * dt)), MIN_CYCLES)
    transition = 2 * cycle
    robot.reset()
    obs, _ = robot.env.reset(seed=seed)
    frames = []
    states = []
    latents = []
    ended = False
    while not ended and len(frames) < transition + num_cycles * cycle:
        obs, _, terminated, truncated, info = robot.env.step(robot.act(obs))
        frames.append(recorder.frame())
        states.append(robot.state(obs, info))
        latents.append(robot.latent(obs))
        ended = terminated or truncated
    start = 0 if ended else transition
    period, _ = state_period(np.array(states[start:], np.float64))
    ends = np.array([ends for ends, _ in frames[start:]])  # (n, geoms, 2, 3)
    places = np.array([place for _, place in frames[start:]])  # (n, 2)
    distance = places[-1, 0] - places[0, 0]
    stride = max(round(1 / (FRAME_RATE * dt)), 1)  # steps per frame
    rollout = {
        "L": robot.L,
        "period": period,
        "speed": distance / (max(len(places) - 1, 1) * dt),
        "falls": bool(terminated),
        "frames": len(ends[::stride]),
        "seconds": stride * dt,  # per frame
        "ends": packed(1000 * ends[::stride], np.int16),
        "places": packed(1000 * places[::stride], np.int32),
    }
    if latents[0] is not None:
        latents = np.array(latents[start:])
        plane = principal_plane(latents, np.eye(latents.shape[1], 2))
        rollout["latents"] = packed(100 * (latents @ plane)[::stride], np.int16)
    return rollout


def record_all(robot, recorder, seed):
    """A rollout of every trained L with every z, of every skill, or of pi^h."""
    rollouts = []
    for L in robot.trained or [None]:
        for i in range(1 if robot.directions is None else len(robot.directions)):
            z = None if robot.directions is None else robot.directions[i]
            robot.choose(L, z)
            rollouts.append(record(robot, recorder, seed) | {"skill": i})
    return rollouts


# ------------------------------------- The page ---------------------------------------
def check_output(path):
    """Before any work: can the page be written, and is nothing else lost by it?"""
    if not path.parent.is_dir():
        evaluate.fail(f"{path.parent} is missing: there is nowhere to write {path.name}")
    if path.is_dir():
        evaluate.fail(f"--export {path} is a folder: give the name of an HTML file in it")
    if path.exists() and MARK not in path.read_bytes()[:200]:
        advice = "choose another name, or move it away"
        evaluate.fail(f"{path} exists and is no page of play.py: {advice}")


def export(robot, out, seed):
    """Writes the page, all or nothing."""
    path = Path(out)
    check_output(path)
    unwrapped = robot.env.unwrapped
    recorder = Recorder(unwrapped.model, unwrapped.data)
    content = {
        "name": robot.name,
        "rollouts": record_all(robot, recorder, seed),
        "num_skills": 1 if robot.directions is None else len(robot.directions),
        "radii": recorder.radii,
        "colours": recorder.colours,
        "boxes": recorder.boxes,
        "dt": unwrapped.dt,
    }
    data = json.dumps(content, separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c")  # no name can end the script
    page = TEMPLATE.read_text().replace("/*DATA*/ null", data)
    temporary = path.with_name(f"{path.name}.tmp")
    with evaluate.one_line_if_it_fails(path, temporary):
        temporary.write_text(page)
        os.replace(temporary, path)
    print(f"wrote {path}, {path.stat().st_size / 1e6:.1f} MB: open it in any browser")
