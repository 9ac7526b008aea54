"""A robot in the browser, and a slider for L: turn it, and the robot moves slower or faster.

    python play.py results/halfcheetah                        # then open http://127.0.0.1:8080
    python play.py results/halfcheetah --export page.html     # one file that plays without Python

The page shows the robot live, the latent circle of the chosen L with the moving point, and the
period that the state has had in the last cycles beside 2L. Checkpoints of psd_metra.py have a dial
for z, those of a baseline a list of skills. A run of downstream_ppo.py shows its task, and the
skill that pi^h chooses or the visitor's own choice. All visitors see and steer one simulation.
docs/play.md describes the page. `pip install -r requirements-play.txt` installs what it needs.
"""

import contextlib
import copy
import io
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

import mujoco
import numpy as np
import torch
import tyro

import evaluate
from period import MIN_CYCLES, state_period
from play_export import cycle_of, export, principal_plane

FOREVER = 10**9  # steps per episode
TICK = 1 / 30  # seconds between two pictures of the robot
TICKS_PER_PANEL = 3  # about 10 pictures of the circle per second
TICKS_PER_MEASUREMENT = 15
MAX_DEBT = 0.2  # seconds to catch up at most; what is lost beyond them is lost
NUM_CYCLES = 8  # of 2L steps, in which the period is measured
SECONDS_WITHOUT_L = 10.0  # the same for skills that have no L
PUSH = 1.5  # m/s
SLOWEST = 0.25
FASTEST = 4.0
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


# ------------------------------------- Arguments --------------------------------------
@dataclass
class Args:
    run: evaluate.RunPath
    """run folder, or any folder or file with a model.pt"""
    L: int | None = None
    """L at the start (None: the middle of the trained range)"""
    host: str = "127.0.0.1"
    """address to serve on; 0.0.0.0 lets everyone in the network watch and steer"""
    port: int = 8080
    """port to serve on (0: any free one)"""
    open: bool = False
    """open the page in the default browser"""
    export: str | None = None
    """write a page that plays recorded rollouts of every trained L, instead of serving one"""
    seed: int = 0
    """seed of resets, pushes and the choices of pi^h"""
    env_id: str | None = None
    """the run's environment, to be named if making it imports a module (module:Name-v0)"""


def fail(message):
    """Ends in one line, with a non-zero exit."""
    raise SystemExit(f"play.py: error: {' '.join(str(message).split())}")


# ------------------------------------- The robots -------------------------------------
class SkillRobot:
    """A robot under a policy of evaluate.load: pi(a | s, L), pi(a | s, L, z) or pi(a | s, z)."""

    task_lines = ()  # nothing to tell beside the figures that every robot has

    def __init__(self, policy):
        self.policy = policy
        self.run = policy.run
        self.env = policy.make_env(max_steps=FOREVER)
        check_model(self.env, policy.args.env_id)
        self.num_global = evaluate.num_global(self.env, policy.args)
        self.name = policy.args.env_id
        self.trained = policy.periods  # the trained L, or None
        self.directions = policy.skills  # the z to choose from, (n, D), or None
        self.latent_dim = getattr(policy.args, "latent_dim", None)
        self.L = None
        self.z = None
        if self.directions is not None:
            self.z = self.directions[0]
        if self.trained is not None:
            self.L = self.trained[len(self.trained) // 2]
        self.choose()

    def choose(self, L=None, z=None):
        """Another L, another z, or both."""
        if L is not None:
            self.L = L
        if z is not None:
            self.z = z
        z = None if self.z is None else torch.as_tensor(self.z, dtype=torch.float32)
        self.vector = evaluate.skill_vector(self.run, self.L, z)

    def act(self, obs):
        return self.policy.act_on(obs, self.vector, deterministic=True)

    def state(self, obs, info):
        """The state whose period is measured: without global position."""
        if self.run.kind.has_pixels:
            obs = info["state"]
        return obs[self.num_global :]

    def latent(self, obs):
        """phi_L(s), (d,); None for a skill without L."""
        if self.L is None:
            return None
        episode = SimpleNamespace(obs=self.policy.normalize(obs[None]))
        return evaluate.encode(self.run, episode, self.vector)[0]

    def reset(self):
        """Nothing of its own to forget."""


class TaskRobot:
    """A robot in a task of downstream_ppo.py, whose skills pi^h chooses, or the visitor."""

    trained = None
    directions = None
    L = None
    z = None

    def __init__(self, path, checkpoint, seed):
        script = evaluate.import_script("downstream_ppo")
        self.args = evaluate.read_args(path, script, checkpoint["args"])
        if self.args.task not in script.TASKS:
            fail(f"{path} has an unknown task, {self.args.task!r}")
        if type(self.args.skill_steps) is not int or self.args.skill_steps < 1:
            fail(f"{path} has skill_steps = {self.args.skill_steps!r}: not a number of steps")
        skills = checkpoint.get("skills")
        if not isinstance(skills, dict):
            fail(f"{path} has no skills: it is no checkpoint of downstream_ppo.py")
        script.check_skills(path, skills)
        self.env = script.make_task(self.args.task)
        obs_dim = self.env.observation_space.shape[0]
        try:
            self.skills = script.Skills(skills, self.args.task, torch.device("cpu"))
            self.names = self.skills.names
            agent = script.HighLevelAgent(self.args, obs_dim, len(self.names), "cpu")
        except Exception as error:  # of many types
            fail(f"{path} does not fit downstream_ppo.py ({type(error).__name__}: {error})")
        evaluate.check_weights(path, "downstream_ppo", checkpoint["agent"], agent.state_dict())
        agent.load_state_dict(checkpoint["agent"], strict=False)  # the critic is not needed
        self.agent = agent.requires_grad_(False)
        self.name = self.args.task
        self.generator = torch.Generator().manual_seed(seed)
        self.by_hand = False
        self.chosen_by_hand = 0
        self.reset()

    def reset(self):
        self.choice = 0
        self.num_steps = 0

    def choose(self, L=None, z=None):
        """Nothing: the skills of a task have numbers, `choice`."""

    def act(self, obs):
        """Every H steps pi^h chooses a skill, unless the visitor does."""
        if self.by_hand:
            self.choice = self.chosen_by_hand
        elif self.num_steps % self.args.skill_steps == 0:
            self.choice = self.agent.choose(obs[None], self.generator)[0]
        self.num_steps += 1
        seen = self.skills.see(self.env, obs)
        return self.skills.act(seen[None], [self.choice])[0]

    def state(self, obs, info):
        return obs[:-1]  # without s_task

    def latent(self, obs):
        """Checkpoints of downstream_ppo.py hold no encoder."""
        return None

    @property
    def task_lines(self):
        """Who chose which skill, and how the task stands."""
        who = "your choice" if self.by_hand else "chosen by π<sup>h</sup>"
        lines = [("skill", f"{self.names[self.choice]}, {who}")]
        task = self.env.unwrapped
        if hasattr(task, "hurdles"):
            lines.append(("hurdles", f"{task.cleared} of {len(task.hurdles)} cleared"))
            lines.append(("next hurdle", f"{task.task_state():.1f} m ahead"))
        else:
            lines.append(("friction", f"{task.task_state():.1f}"))
        return lines


def check_model(env, name):
    """The page draws the bodies of a MuJoCo model."""
    if not hasattr(env.unwrapped, "model"):
        fail(f"{name} has no MuJoCo model: play.py cannot draw it (evaluate.py --video can)")
    for attribute in ("data", "dt"):
        if not hasattr(env.unwrapped, attribute):
            fail(f"{name} has no attribute {attribute!r}, which play.py needs: add it")


def open_robot(options):
    """The robot of a checkpoint, at the L of the command line."""
    path = evaluate.find_model(options.run)
    checkpoint = evaluate.read_checkpoint(path)
    if checkpoint["script"] == "downstream_ppo":
        robot = TaskRobot(path, checkpoint, options.seed)
    else:
        robot = SkillRobot(evaluate.load(path, options.env_id))
    if options.L is not None:
        if robot.trained is None:
            fail(f"--L {options.L}: the skills of {path} have no L to choose")
        low, high = robot.trained[0], robot.trained[-1]
        if not low <= options.L <= high:
            fail(f"--L {options.L} is outside the trained range, {low} to {high}")
        robot.choose(L=options.L)
    return robot


# ----------------------------------- The simulation -----------------------------------
class Simulation:
    """One robot in simulated time. Whoever calls a method from another thread holds `lock`."""

    def __init__(self, robot, seed=0):
        self.lock = threading.Lock()
        self.robot = robot
        self.model = robot.env.unwrapped.model
        self.data = robot.env.unwrapped.data
        self.dt = robot.env.unwrapped.dt
        self.rng = np.random.default_rng(seed)
        self.paused = False
        self.speed = 1.0
        self.debt = 0.0  # simulated seconds that are due
        self.time = 0.0
        self.num_falls = 0
        self.plane = None
        if getattr(robot, "latent_dim", None) is not None:
            self.plane = np.eye(robot.latent_dim, 2)
        self.obs, self.info = robot.env.reset(seed=seed)
        self.forget()
        self.qpos = self.data.qpos.copy()
        self.last_qpos = self.qpos

    def reset(self):
        self.robot.reset()
        self.obs, self.info = self.robot.env.reset()
        self.forget()
        self.qpos = self.data.qpos.copy()
        self.last_qpos = self.qpos

    def forget(self):
        """The motion so far says nothing about the motion to come."""
        self.steps_since = 0
        self.states = deque(maxlen=self.window())
        self.positions = deque(maxlen=cycle_of(self.robot) + 1)
        self.latents = deque(maxlen=cycle_of(self.robot) + 1)
        self.period = None
        self.forward_speed = None

    def window(self):
        """The steps in which the period is measured."""
        if self.robot.L is None:
            return round(SECONDS_WITHOUT_L / self.dt)
        return NUM_CYCLES * cycle_of(self.robot)

    def set_L(self, L):
        """A visitor's L; one that no slider offers changes nothing."""
        trained = self.robot.trained
        if trained[0] <= L <= trained[-1] and L != self.robot.L:
            self.robot.choose(L=int(L))
            self.forget()

    def set_z(self, z):
        self.robot.choose(z=z)
        self.forget()

    def set_speed(self, speed):
        """A visitor's speed; one that no slider offers, such as nan, changes nothing."""
        if SLOWEST <= speed <= FASTEST:
            self.speed = float(speed)

    def push(self):
        """A sudden change of the velocity, forward or back, or in any direction of a plane."""
        n = evaluate.num_root_positions(self.model)
        direction = self.rng.normal(size=n)
        self.data.qvel[:n] += PUSH * direction / np.linalg.norm(direction)
        self.forget()

    def step(self):
        """One step of the robot; a fall, or the end of a task, starts it anew."""
        action = self.robot.act(self.obs)
        self.obs, _, terminated, truncated, self.info = self.robot.env.step(action)
        self.time += self.dt
        self.last_qpos = self.qpos
        self.qpos = self.data.qpos.copy()
        self.steps_since += 1
        if self.steps_since > cycle_of(self.robot):  # the first cycle is the transition
            self.states.append(self.robot.state(self.obs, self.info))
        self.positions.append(self.qpos[0])
        latent = self.robot.latent(self.obs)
        if latent is not None:
            self.latents.append(latent)
        if terminated:
            self.num_falls += 1
        if terminated or truncated:
            self.reset()

    def advance(self, seconds):
        """The steps that fall into `seconds` of wall time. Returns the simulated seconds."""
        if self.paused:
            return 0.0
        self.debt = min(self.debt + seconds * self.speed, MAX_DEBT * self.speed + self.dt)
        before = self.time
        while self.debt >= self.dt:
            self.step()
            self.debt -= self.dt
        return self.time - before

    def measure(self):
        """Period and forward speed of the motion since the last change."""
        cycle = cycle_of(self.robot)
        if len(self.states) >= MIN_CYCLES * cycle or self.robot.L is None:
            self.period, _ = state_period(np.array(self.states, np.float64))
        if len(self.positions) > 1:
            seconds = (len(self.positions) - 1) * self.dt
            self.forward_speed = (self.positions[-1] - self.positions[0]) / seconds

    def latent_points(self):
        """The latents of the last cycle in their principal plane, (n, 2), the newest last."""
        if len(self.latents) == 0:
            return np.zeros((0, 2))
        latents = np.array(self.latents)
        self.plane = principal_plane(latents, self.plane)
        return latents @ self.plane

    def pose(self, data):
        """Writes the pose between the last two steps into `data`; at 20 steps per second the
        robot would jerk without it."""
        change = np.zeros(self.model.nv)
        mujoco.mj_differentiatePos(self.model, change, 1.0, self.last_qpos, self.qpos)
        data.qpos[:] = self.last_qpos
        mujoco.mj_integratePos(self.model, data.qpos, change, min(self.debt / self.dt, 1.0))
        mujoco.mj_kinematics(self.model, data)


# -------------------------------------- The page --------------------------------------
def circle_svg(points, L, L_max, z=None):
    """The circle of diameter L, the path of the last cycle, the moving point, and z as an arrow."""
    half = 0.62 * L_max  # the largest circle, with a margin
    parts = [
        f'<svg viewBox="{-half} {-half} {2 * half} {2 * half}" style="width:100%;max-height:220px">'
    ]
    stroke = half / 100
    circle = '<circle r="{}" fill="none" stroke="{}" stroke-width="{}" stroke-dasharray="{}"/>'
    parts.append(circle.format(L_max / 2, "#dddddd", stroke, "none"))
    parts.append(circle.format(L / 2, "#0072b2", 2 * stroke, 4 * stroke))
    path = " ".join(f"{x:.2f},{-y:.2f}" for x, y in points)
    parts.append(
        f'<polyline points="{path}" fill="none" stroke="#999999" stroke-width="{stroke}"/>'
    )
    if z is not None and len(z) == 2:  # an arrow has a direction only in a plane
        x, y = 0.25 * half * z
        line = '<line x2="{:.2f}" y2="{:.2f}" stroke="#009e73" stroke-width="{}"/>'
        parts.append(line.format(x, -y, 3 * stroke))
    if len(points) > 0:
        x, y = points[-1]
        parts.append(f'<circle cx="{x:.2f}" cy="{-y:.2f}" r="{4 * stroke}" fill="#d55e00"/>')
    return "".join(parts) + "</svg>"


def period_line(period, L, dt):
    """The measured period, and 2L beside it."""
    text = "none" if period is None else f"{period:.1f} steps ({period * dt:.2f} s)"
    if L is None:
        return text
    text += f" &nbsp; 2L = {2 * L}"
    if period is None:
        return text
    error = abs(period / (2 * L) - 1)
    colour = "#c00000"
    if error <= evaluate.VERDICTS["close"]:
        colour = "#b06000"
    if error <= evaluate.VERDICTS["true"]:
        colour = "#008000"
    return f'<span style="color:{colour}">{text}</span>'


def figures_html(lines):
    rows = [f"<tr><td>{name}</td><td><b>{value}</b></td></tr>" for name, value in lines]
    return f'<table style="margin:0 1em;font-size:0.85em">{"".join(rows)}</table>'


class Page:
    """What the visitors see. All of it is shared, so a visitor who leaves leaves nothing behind."""

    def __init__(self, server, simulation):
        from mjviser import ViserMujocoScene

        self.server = server
        self.simulation = simulation
        model = copy.copy(simulation.model)  # mjviser changes colours in its model
        self.scene = ViserMujocoScene(server, model, num_envs=1)
        self.scene.camera_tracking_enabled = False  # it would hide the up and down of the robot
        self.data = mujoco.MjData(model)
        height = simulation.data.xpos[1, 2]  # of the torso, at the start
        aside = 0.4  # metres, so that the panel hides nothing
        server.initial_camera.position = (aside, -1.5 - 1.5 * height, 0.5 + 0.5 * height)
        server.initial_camera.look_at = (aside, 0.0, 0.6 * height)
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        self.circle = server.gui.add_html("")
        self.figures = server.gui.add_html("")
        self.add_skill_controls()
        self.add_time_controls()
        self.real_time = 1.0  # share of it that is reached
        self.busy = 0.0  # share of one core

    def add_skill_controls(self):
        """The slider for L, the dial for z, the list of skills, or the task's switch."""
        gui = self.server.gui
        simulation = self.simulation
        robot = simulation.robot
        if robot.trained is not None:
            low, high = robot.trained[0], robot.trained[-1]
            marks = ((low, str(low)), *robot.trained[1:-1], (high, str(high)))
            hint = "the motion should take 2L steps; the marks are the trained L"
            slider = gui.add_slider(
                "L", low, high, step=1, initial_value=robot.L, marks=marks, hint=hint
            )
            self.when_changed(slider, simulation.set_L)
        if robot.directions is not None:
            self.add_directions(robot)
        if isinstance(robot, TaskRobot):
            by_hand = gui.add_checkbox("choose by hand", initial_value=False)
            skill = gui.add_dropdown("skill", robot.names)

            def on_choice(_):
                with simulation.lock:
                    robot.by_hand = by_hand.value
                    robot.chosen_by_hand = robot.names.index(skill.value)
                    simulation.forget()

            by_hand.on_update(on_choice)
            skill.on_update(on_choice)

    def add_directions(self, robot):
        """A dial for z in a plane, else a list."""
        if robot.trained is not None and robot.directions.shape[1] == 2:
            dial = self.server.gui.add_slider("z in degrees", 0, 355, step=5, initial_value=0)

            def set_angle(degrees):
                angle = np.radians(degrees)
                self.simulation.set_z(np.array([np.cos(angle), np.sin(angle)]))

            self.when_changed(dial, set_angle)
        else:
            names = [f"skill {i}" for i in range(len(robot.directions))]
            menu = self.server.gui.add_dropdown("skill", names)

            def set_skill(name):
                self.simulation.set_z(robot.directions[names.index(name)])

            self.when_changed(menu, set_skill)

    def add_time_controls(self):
        """Pause, reset, push and speed."""
        gui = self.server.gui
        simulation = self.simulation
        speed = gui.add_slider("speed ×", SLOWEST, FASTEST, step=0.25, initial_value=1.0)
        self.when_changed(speed, simulation.set_speed)
        pause = gui.add_checkbox("pause", initial_value=False)

        def set_paused(paused):
            simulation.paused = bool(paused)

        self.when_changed(pause, set_paused)
        for label, action in [("reset", simulation.reset), ("random push", simulation.push)]:
            button = gui.add_button(label)

            def on_click(_, action=action):
                with simulation.lock:
                    action()

            button.on_click(on_click)

    def when_changed(self, control, action):
        """Calls `action` with the control's new value, while the simulation stands still."""

        def on_update(_):
            with self.simulation.lock:
                action(control.value)

        control.on_update(on_update)

    def draw_robot(self):
        """The robot in the middle of the picture, with the ground moving below it."""
        with self.simulation.lock:
            self.simulation.pose(self.data)
        offset = -self.data.xpos[1]  # body 0 is the world
        offset[2] = 0.0
        positions = self.data.xpos[None] + offset
        rotations = self.data.xmat.reshape(1, -1, 3, 3)
        with self.server.atomic():
            self.scene.update_from_arrays(positions, rotations)
            self.scene.fixed_bodies_frame.position = offset

    def draw_panel(self):
        """The latent circle, and the figures below it."""
        simulation = self.simulation
        robot = simulation.robot
        with simulation.lock:
            lines = [("period", period_line(simulation.period, robot.L, simulation.dt))]
            if simulation.forward_speed is not None:
                lines.append(("forward", f"{simulation.forward_speed:.2f} m/s"))
            lines += robot.task_lines
            lines.append(("time", f"{simulation.time:.1f} s, {simulation.num_falls} falls"))
            points = simulation.latent_points()
        load = f"{self.real_time:.0%} of real time"
        if simulation.paused:
            load = "paused"
        lines.append(("load", f"{load}, {self.busy:.0%} of a core"))
        if robot.L is not None:
            self.circle.content = circle_svg(points, robot.L, robot.trained[-1], robot.z)
        self.figures.content = figures_html(lines)


def serve(server, simulation, stop):
    """Simulates and draws until `stop` is set. Nobody watching, nothing moves."""
    page = Page(server, simulation)
    page.draw_robot()
    page.draw_panel()
    tick = 0
    simulated = 0.0
    due = 0.0
    busy = 0.0
    before = time.perf_counter()
    while not stop.is_set():
        start = time.perf_counter()
        elapsed = start - before
        before = start
        if len(server.get_clients()) > 0:
            with simulation.lock:
                simulated += simulation.advance(elapsed)
                due += elapsed * simulation.speed
            page.draw_robot()
            if tick % TICKS_PER_PANEL == 0:
                page.draw_panel()
            if tick % TICKS_PER_MEASUREMENT == 0:
                page.real_time = min(simulated / max(due, 1e-9), 1.0)
                page.busy = busy / max(due / simulation.speed, 1e-9)
                simulated = due = busy = 0.0
                with simulation.lock:
                    simulation.measure()
            tick += 1
        spent = time.perf_counter() - start
        busy += spent
        time.sleep(max(TICK - spent, 0.001))


# ------------------------------------- The server -------------------------------------
def check_packages():
    try:
        import mjviser  # noqa: F401
        import viser  # noqa: F401
    except ImportError as error:
        fail(f"{error}: pip install -r requirements-play.txt (--export does without)")


def check_address(host, port):
    """viser would take the next port if this one is in use, and wait forever on a wrong host."""
    if not 0 <= port <= 65535:
        fail(f"--port {port} is not from 0 to 65535")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        fail(f"cannot serve on {host}, port {port} ({error.strerror}): try another --port")


def start_server(host, port, title):
    """viser's server, without its own messages, and without its public tunnel."""
    import viser

    check_address(host, port)
    with contextlib.redirect_stdout(io.StringIO()):
        server = viser.ViserServer(host=host, port=port, label=title, verbose=False)
    if port != 0 and server.get_port() != port:
        server.stop()
        fail(f"cannot serve on {host}, port {port} (Address already in use): try another --port")
    # A visitor's message could ask viser for a public address of this page. Nobody gets one.
    server.request_share_url = lambda verbose=True: None
    return server


def stop_on_signals():
    """An event that Ctrl-C and SIGTERM set."""
    stop = threading.Event()

    def on_signal(number, frame):
        stop.set()

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    return stop


def play(options, robot):
    """Serves the page until Ctrl-C or SIGTERM."""
    simulation = Simulation(robot, options.seed)
    server = start_server(options.host, options.port, robot.name)
    stop = stop_on_signals()
    if options.host not in LOCAL_HOSTS:
        warning = f"--host {options.host}: everyone who reaches this address can watch and steer"
        print(f"play.py: {warning} the robot", file=sys.stderr)
    url = f"http://{options.host}:{server.get_port()}"
    print(f"{robot.name}: open {url} in a browser, end with Ctrl-C", flush=True)
    if options.open:
        webbrowser.open(url)
    serve(server, simulation, stop)
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()


# ---------------------------------------- Main ----------------------------------------
def main(argv=None):
    options = tyro.cli(Args, args=argv, description=__doc__)
    torch.set_num_threads(1)  # one state at a time: more threads only wait for each other
    try:
        if options.export is None:
            check_packages()
        robot = open_robot(options)
        if options.export is None:
            play(options, robot)
        else:
            export(robot, options.export, options.seed)
    except SystemExit as error:  # of a script, whose name stands in front
        fail(str(error).split("error: ", 1)[-1])


if __name__ == "__main__":
    main()
