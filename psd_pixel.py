"""Periodic Skill Discovery (PSD) from pixels: Park et al., NeurIPS 2025, Figure 7 and Table 3.

An encoder phi_L maps states onto a latent circle of diameter L; a policy pi(a | s, L) is rewarded
for going round it, a side of the regular 2L-gon a step, and so learns behaviours of period 2L.

    python psd_pixel.py --env-id HalfCheetah-v4 --cuda

    Eq. (4)  psd_objective     opposite states far apart, their midpoint at the origin,
    Eq. (5)  diameter_slack    but no further apart than L,
    Eq. (6)  side_slack        and neighbours no further apart than a side of the 2L-gon
    Eq. (7)  encoder_loss      the three in one, with Lagrange multipliers
    Eq. (8)  psd_reward        r_PSD, from a single step
    Embed(L) embed_period;  r_ext external_reward;  Algorithm 1 main, update;  2 adapt_bounds

Differs from psd.py in: `Pixels`, which shows a stack of camera frames instead of the state; the
buffer, which keeps each frame once and hands out stacks, cropped at random; and the `CNN`, one of
phi and one that actor and critic share.
"""

import copy
import os
import signal
import sys
import time
from collections import defaultdict, deque, namedtuple
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import mujoco
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

SCRIPT = Path(__file__).stem  # written into checkpoints: which script can read them


# ------------------------------------------- Arguments --------------------------------------------
@dataclass
class Args:
    env_id: str = "HalfCheetah-v4"  # Gymnasium environment with Box observations and Box actions
    seed: int = 1  # of everything: the same seed gives the same run, to the bit on the CPU
    cuda: bool = False  # train on the GPU, if there is one
    num_threads: int = 1  # CPU threads of torch; one a run is best where runs share a machine
    run_name: str | None = None  # folder below runs/ (None: {env}__{script}__{seed}__{time})
    resume: str | None = None  # run folder to continue with its arguments; flags on the line win
    save_minutes: float = 10.0  # between checkpoints; SIGINT, SIGTERM and the end save as well
    # Training (Tables 2 and 3; a None stands for the robot's value, see the table)
    total_epochs: int = 20_000  # number of epochs
    episodes_per_epoch: int = 8  # episodes collected an epoch, stepped together
    updates_per_epoch: int = 64  # gradient steps an epoch
    episode_length: int | None = None  # T, the maximum length of an episode
    terminate: bool = True  # end an episode when the robot falls, if the environment has that
    action_scale: float = 1.0  # factor on every action (ours); below 1: weaker motors
    buffer_size: int = 30_000  # capacity of the replay buffer in transitions
    hidden_layers: int = 2  # hidden layers of every network
    hidden_units: int = 1024  # units of each hidden layer
    # Pixels (Table 3; the CNN is CURL's)
    image_size: int = 90  # side of the square image; a smaller one is the paper's, scaled down
    crop_size: int = 84  # side of the crop that the networks see: random to learn, central to act
    plain_floor: bool = False  # a floor without tiles (ours): they are most of a small picture
    frame_stack: int = 3  # consecutive images that make an observation
    num_filters: int = 32  # filters of each of the four convolutions
    feature_dim: int = 50  # features that the CNN makes of an observation
    # Skill discovery (Tables 2 and 3)
    phi_lr: float = 1e-4  # learning rate of the encoder phi
    phi_batch_size: int = 512  # minibatch size of the encoder phi
    latent_dim: int | None = None  # d, the dimension of the latent space
    embed_dim: int = 128  # D, the dimension of Embed(L); 1: L itself, for an ablation
    k: float = 0.5  # weight of the term that centres the circle, Eq. (4)
    lam_1: float | None = None  # lambda_1, multiplier of the diameter constraint, Eq. (5)
    lam_2: float | None = None  # lambda_2, multiplier of the side constraint, Eq. (6)
    epsilon: float = 1e-5  # up to which the slack of a satisfied constraint counts
    kappa: float = 10.0  # sharpness of r_PSD, Eq. (8)
    radius_coef: float = 0.0  # coefficient of the radius bonus (ours; 0: the paper's reward)
    ext_coef: float = 0.0  # coefficient of r_ext; 1 for Figure 9 and for downstream skills
    v_star: float | None = None  # v*, the forward velocity at which r_ext reaches 1
    # Period sampling (Section 3.4, Table 2)
    adaptive_sampling: bool = True  # Algorithm 2; off: the range of L stays as given
    L_min: int | None = None  # L_min at the start; None: the robot's first L
    L_max: int | None = None  # L_max at the start; None: the robot's first L
    num_periods: int = 4  # values of L in use, two or more, evenly over the range with its bounds
    adaptive_step: int = 1  # N, by which a bound moves
    adaptive_interval: int = 2000  # episodes between two evaluations of the bounds
    adaptive_episodes: int = 5  # evaluation episodes for each bound
    adaptive_alpha: float = 0.9  # alpha: a bound with a return above alpha T expands
    adaptive_beta: float = 0.4  # beta: one that has expanded shrinks again below beta T
    # Soft actor-critic (Table 2)
    sac_lr: float = 1e-4  # learning rate of actor and critics
    alpha_lr: float = 1e-4  # learning rate of the temperature
    batch_size: int = 256  # minibatch size of actor, critics and temperature
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # Polyak step of the target critics: 1 - the paper's smoothing coefficient


# What the paper sets by robot. NOTE(paper): the first L is open; these are cycles of 0.3 to 1 s.
# From pixels, it has Ant and HalfCheetah only; the others are as from states.
ROBOTS = {  # T, lambda_1 = lambda_2, d, v*, first L
    "Ant": (200, 5.0, 6, 0.5, 10),
    "HalfCheetah": (200, 3.0, 3, 0.5, 10),
    "Humanoid": (400, 10.0, 6, 1.0, 20),
    "Hopper": (400, 10.0, 3, 1.0, 20),
    "Walker2d": (400, 10.0, 3, 1.0, 20),
    "any other": (200, 5.0, 3, 0.5, 10),
}
RENDER_SIZE = 90  # of smaller images, before they are scaled down
MIN_PERIOD = 5  # adaptive sampling goes no lower (Appendix D)
MAY_BE_ZERO = ["seed", "k", "lam_1", "lam_2", "epsilon", "radius_coef", "ext_coef", "gamma"]
FIXED_ON_RESUME = """env_id terminate action_scale episode_length episodes_per_epoch buffer_size
    image_size crop_size plain_floor frame_stack num_filters feature_dim hidden_layers hidden_units
    latent_dim embed_dim""".split()  # shaping what is stored
PACKAGES = """Debian's libegl1 and libgl1-mesa-dri are needed to render, libgl1 and libglib2.0-0 by
    opencv-python, but not by opencv-python-headless"""


def fail(message):  # in one line, with a non-zero exit
    raise SystemExit(f"{SCRIPT}.py: error: {' '.join(message.split())}")


def parse_args(argv=None):
    """The arguments, checked, with the robot's values; and the checkpoint to resume, if any."""
    rows = [("robot", "T", "lambda", "d", "v*", "first L"), *((k, *v) for k, v in ROBOTS.items())]
    table = "\n".join("    {:<12}{:>5}{:>8}{:>4}{:>6}{:>9}".format(*row) for row in rows)
    description = f"{__doc__}\nBy robot, v4 and v5, where a flag says None:\n\n{table}"
    line, checkpoint = tyro.cli(Args, args=argv, description=description), None
    if line.resume is None:  # the robot's values become the defaults
        T, lam, d, v_star, L = ROBOTS.get(line.env_id.split("-")[0], ROBOTS["any other"])
        defaults = Args(episode_length=T, lam_1=lam, lam_2=lam, latent_dim=d, v_star=v_star)
        defaults.L_min, defaults.L_max = min(L, line.L_max or L), max(L, line.L_min or L)
    else:  # the run's do
        checkpoint = load_checkpoint(Path(line.resume) / "resume.pt")
        defaults = Args(**{k: v for k, v in checkpoint["args"].items() if k in vars(Args())})
    args = tyro.cli(Args, args=argv, default=defaults)
    vars(args).update({k: getattr(defaults, k) for k, v in vars(args).items() if v is None})
    T, L_min, L_max = args.episode_length, args.L_min, args.L_max
    if checkpoint:
        for name in FIXED_ON_RESUME:
            if getattr(args, name) != getattr(defaults, name):
                fail(f"{name} cannot change on --resume, it was {getattr(defaults, name)}")
        if checkpoint["state"]["epoch"] >= args.total_epochs:
            fail(f"{args.resume} has had its {args.total_epochs} epochs: raise --total-epochs")
        L_min, L_max, *updated_once = checkpoint["state"]["bounds"]
        L_min, L_max = line.L_min or L_min, line.L_max or L_max
        checkpoint["state"]["bounds"] = (L_min, L_max, *updated_once)
    for name, value in vars(args).items():
        number = type(value) in (int, float)
        if number and not (0 < value < 2**63 or value == 0 and name in MAY_BE_ZERO):
            fail(f"--{name.replace('_', '-')} cannot be {value}")
    needed = max(args.batch_size, args.phi_batch_size, args.episodes_per_epoch * T)
    if args.buffer_size < needed:
        fail(f"--buffer-size {args.buffer_size} is less than a batch or an epoch: take {needed}")
    if not 15 <= args.crop_size <= args.image_size:  # of 14, four convolutions leave nothing
        fail(f"--crop-size {args.crop_size} is not from 15 to --image-size {args.image_size}")
    low, high = (MIN_PERIOD, T // 2) if args.adaptive_sampling else (1, T)
    if not low <= L_min <= L_max <= high:
        fail(f"L_min {L_min}, L_max {L_max}: not {low} <= L_min <= L_max <= {high} (adaptive: T/2)")
    return args, checkpoint


# ------------------------------------------ Environment -------------------------------------------
def make_env(args, max_steps=None, **kwargs):
    """An environment of `max_steps` (by default T) steps; one of no use here ends in one line."""
    gym.logger.min_level = gym.logger.ERROR  # v4 ids are deprecated, and meant
    mujoco.set_mju_user_warning(lambda message: None)  # HalfCheetah's would write a log file
    if args.env_id in ("Ant", "Ant-v5"):
        kwargs["include_cfrc_ext_in_observation"] = False  # as in v4
    kwargs |= {} if args.terminate else {"terminate_when_unhealthy": False}
    kwargs["render_mode"] = "rgb_array"
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # needs no screen
    try:
        env = gym.make(args.env_id, max_episode_steps=max_steps or args.episode_length, **kwargs)
    except Exception as error:
        fail(f"cannot make {args.env_id!r}{' with --no-terminate' * (not args.terminate)}: {error}")
    space = env.action_space
    if not (isinstance(space, gym.spaces.Box) and len(space.shape) == 1):
        fail(f"{args.env_id} has actions {space}: {SCRIPT}.py needs a Box of one dimension")
    if not space.is_bounded() or space.dtype.kind != "f":
        fail(f"{args.env_id} has actions {space}: tanh needs real ones, with bounds")
    env = gym.wrappers.TransformAction(env, lambda a: args.action_scale * a, space)
    return Pixels(env, args)


class Pixels(gym.Wrapper):
    """Observations are the last frames, RGB, the newest last: (3 frame_stack, size, size), uint8.
    The state goes into `info`, for evaluate.py to measure; no network sees it."""

    def __init__(self, env, args):
        super().__init__(env)
        self.size, self.frames = args.image_size, deque(maxlen=args.frame_stack)
        shape = (3 * args.frame_stack, self.size, self.size)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.renderer = getattr(env.unwrapped, "mujoco_renderer", None)
        if self.renderer:  # it has not rendered yet, and so will do as it is told here
            model, side = env.unwrapped.model, max(self.size, RENDER_SIZE)
            self.renderer.width = self.renderer.height = side
            self.renderer.data = self.shown = mujoco.MjData(model)  # so that physics stay untouched
            camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
            self.renderer.camera_id = camera  # -1, which is the default view, if there is none
            model.vis.global_.offwidth = model.vis.global_.offheight = side
            # 25 to 35 times faster than with multisampling, shadows and reflections
            model.vis.quality.offsamples = model.vis.quality.shadowsize = 0
            model.mat_reflectance[:] = 0
            if args.plain_floor:
                planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
                model.mat_texid[model.geom_matid[planes]] = -1

    def render(self):
        if self.renderer:
            # mj_step leaves behind the bodies of its last substep but one; show them as they are
            data, shown = self.env.unwrapped.data, self.shown
            shown.qpos[:], shown.mocap_pos[:] = data.qpos, data.mocap_pos
            shown.mocap_quat[:] = data.mocap_quat
            mujoco.mj_fwdPosition(self.env.unwrapped.model, shown)
            if self.renderer.viewer:  # each environment has its own OpenGL context
                self.renderer.viewer.make_context_current()
        image = self.env.render()[..., :3]  # (height, width, 3)
        if image.shape[:2] != (self.size, self.size):
            import cv2  # its mean over an area keeps what is thinner than a pixel, like a leg

            image = cv2.resize(image, (self.size, self.size), interpolation=cv2.INTER_AREA)
        return image

    def reset(self, **kwargs):
        state, info = self.env.reset(**kwargs)
        self.frames.extend([self.render()] * self.frames.maxlen)
        return self.observation(), info | {"state": state}

    def step(self, action):
        state, *result, info = self.env.step(action)
        self.frames.append(self.render())
        return self.observation(), *result, info | {"state": state}

    def observation(self):
        return np.concatenate(self.frames, axis=-1).transpose(2, 0, 1)


def check_env(env, args):
    """Before any work: can it be rendered, and does it report what r_ext needs?"""
    try:
        env.reset(seed=args.seed)
        info = env.step(env.action_space.low)[-1]
    except gym.error.DependencyNotInstalled as error:
        fail(f"{args.env_id} cannot be rendered: {error}")
    except Exception as error:  # of many types, by what is missing
        sys.unraisablehook = lambda _: None  # a half-made renderer complains when it is deleted
        why = f"MUJOCO_GL={os.environ.get('MUJOCO_GL')}, {type(error).__name__}: {error}"
        fail(f"{args.env_id} cannot be rendered ({why}): {PACKAGES}")
    if args.ext_coef and "x_velocity" not in info:
        fail(f"{args.env_id} reports no x_velocity for r_ext: leave --ext-coef out")


# ----------------------------------------- Replay buffer ------------------------------------------
# n + 1 stacks of frames, n actions, n forward velocities, and whether it ended by itself, not at T
Episode = namedtuple("Episode", "obs actions velocity terminated")
Batch = namedtuple("Batch", "obs actions next_obs velocity terminated skill")  # each (B, ...)


class ReplayBuffer:
    """A ring of rows, in which an episode of n transitions fills n + 1, one a frame: each is stored
    once, and stacks of s_t, s_t+1 and s_t+L are look-ups. Old episodes make way for new ones."""

    def __init__(self, capacity, episode_length, obs_shape, crop, action_dim, skill_dim, device):
        num_rows = capacity + -(-capacity // episode_length)  # with room for last observations
        self.obs = torch.zeros(num_rows, 3, *obs_shape[1:], device=device, dtype=torch.uint8)
        self.stack, self.crop = obs_shape[0] // 3, crop
        self.actions = torch.zeros(num_rows, action_dim, device=device)
        self.velocity = torch.zeros(num_rows, device=device)
        self.terminated = torch.zeros(num_rows, device=device, dtype=torch.bool)
        self.start = torch.zeros(0, device=device, dtype=torch.long)
        self.length = torch.zeros(0, device=device, dtype=torch.long)
        self.skill = torch.zeros(0, skill_dim, device=device)
        self.lengths, self.head = [], 0  # self.length again, on the host; the row to write next

    def add(self, episode, skill):
        n, num_rows, device, dropped = len(episode.actions), len(self.obs), self.obs.device, 0
        while sum(self.lengths[dropped:]) + len(self.lengths) - dropped + n + 1 > num_rows:
            dropped += 1
        rows = torch.arange(self.head, self.head + n + 1, device=device) % num_rows
        self.obs[rows] = torch.as_tensor(episode.obs[:, -3:], device=device)  # the newest of each
        self.actions[rows[:-1]] = torch.as_tensor(episode.actions, device=device)
        self.velocity[rows[:-1]] = torch.as_tensor(episode.velocity, device=device)
        self.terminated[rows] = False
        self.terminated[rows[-2:-1]] = episode.terminated
        self.start = torch.cat([self.start[dropped:], rows[:1]])
        self.length = torch.cat([self.length[dropped:], torch.full_like(rows[:1], n)])
        self.skill = torch.cat([self.skill[dropped:], skill.to(device)[None]])
        self.lengths = self.lengths[dropped:] + [n]
        self.head = (self.head + n + 1) % num_rows

    def draw(self, weight, size):
        """`size` episodes, each in proportion to its integer weight, without asking the host."""
        cumulative = weight.cumsum(0)
        u = torch.rand(size, device=weight.device, dtype=torch.float64) * cumulative[-1]
        return torch.searchsorted(cumulative, u.long(), right=True)

    def rows(self, episode, t):
        """Where the frame of an episode at time t is stored."""
        return (self.start[episode] + t) % len(self.obs)

    def stacks(self, episode, t):
        """The observations at times t (..., B), each cropped at an offset that it draws for itself:
        (..., B, 3 stack, crop, crop). Where there is no frame yet, the first one is repeated."""
        age = torch.arange(self.stack - 1, -1, -1, device=t.device)  # the newest last
        rows = self.rows(episode[:, None], (t[..., None] - age).clamp(min=0))  # (..., B, stack)
        windows = self.obs.unfold(2, self.crop, 1).unfold(3, self.crop, 1)  # a view
        y, x = torch.randint(windows.shape[2], (2, *t.shape, 1), device=t.device)
        return windows[rows, :, y, x].flatten(-4, -3)

    def sample(self, batch_size):
        """Transitions, uniformly over all that are stored."""
        episode = self.draw(self.length, batch_size)
        t = (torch.rand(batch_size, device=self.obs.device) * self.length[episode]).long()
        obs, next_obs = self.stacks(episode, torch.stack([t, t + 1]))
        i = self.rows(episode, t)
        transition = (obs, self.actions[i], next_obs, self.velocity[i], self.terminated[i])
        return Batch(*transition, self.skill[episode])


# -------------------------------------------- Networks --------------------------------------------
class MLP(nn.Sequential):
    """ReLU layers over the concatenated inputs, initialised as in the paper's SAC code base."""

    def __init__(self, *sizes):
        layers = []
        for size_in, size_out in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(size_in, size_out), nn.ReLU(inplace=True)]
            nn.init.xavier_uniform_(layers[-2].weight)
            nn.init.zeros_(layers[-2].bias)
        super().__init__(*layers[:-1])

    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, dim=-1) if len(inputs) > 1 else inputs[0])


class CNN(nn.Module):
    """CURL's: four 3x3 convolutions, then a linear layer and LayerNorm. Sees the central crop.
    With the convolutions of `owner`, it reads them, and leaves them to the owner's loss."""

    def __init__(self, channels, args, owner=None):
        super().__init__()
        layers, side = [], (args.crop_size - 3) // 2 + 1 - 6  # of what they leave of an image
        for stride in (2, 1, 1, 1):
            layers += [nn.Conv2d(channels, args.num_filters, 3, stride), nn.ReLU(inplace=True)]
            channels = args.num_filters
        linear = nn.Linear(channels * side**2, args.feature_dim)
        for layer in [*layers[::2], linear]:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.convolutions = owner.convolutions if owner else nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(linear, nn.LayerNorm(args.feature_dim))
        self.crop, self.owns = args.crop_size, owner is None

    def forward(self, obs):
        """Of (..., channels, H, W), cropped or whole frames, to (..., feature_dim)."""
        low = (obs.shape[-1] - self.crop) // 2  # 0, for crops
        images = obs[..., low : low + self.crop, low : low + self.crop].flatten(0, -4)
        images = images.to(torch.float32, memory_format=torch.channels_last)  # faster so
        with torch.set_grad_enabled(self.owns and torch.is_grad_enabled()):
            features = self.convolutions(images.div_(255).sub_(0.5))
        return self.head(features).unflatten(0, obs.shape[:-3])


class Encoder(nn.Module):
    """phi_L(s) = phi(s, Embed(L)), from pixels."""

    def __init__(self, cnn, *sizes):
        super().__init__()
        self.cnn, self.net = cnn, MLP(*sizes)

    def forward(self, obs, skill):
        return self.net(self.cnn(obs), skill)


def embed_period(L, embed_dim):
    """Embed(L): sin(L w_i) for even i and cos(L w_i) for odd i, w_i = 10000^(-2 floor(i/2) / D)."""
    i = torch.arange(embed_dim, device=L.device)
    angle = L[..., None] * 10000.0 ** (-2.0 * (i // 2) / embed_dim)  # (..., D)
    return torch.where(i % 2 == 0, angle.sin(), angle.cos()) if embed_dim > 1 else angle


class Actor(nn.Module):
    """pi(a | s, skill): a Gaussian, squashed by tanh into the range of the actions."""

    def __init__(self, cnn, *sizes, action_low, action_high):
        super().__init__()
        self.cnn = cnn
        self.net = MLP(*sizes, 2 * len(action_low))
        scale, bias = (action_high - action_low) / 2, (action_high + action_low) / 2
        self.register_buffer("action_scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("action_bias", torch.as_tensor(bias, dtype=torch.float32))
        self.log_constant = float(np.log(4 * scale * np.sqrt(2 * np.pi)).sum())

    def forward(self, obs, skill):
        mean, log_std = self.net(self.cnn(obs), skill).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)

    def sample(self, obs, skill):
        """An action, reparameterised, and its log-probability log N(u) - log da/du. For the latter,
        log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact for large |u|, too."""
        mean, log_std = self(obs, skill)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        log_pi = 2 * (u + F.softplus(-2 * u)) - log_std - 0.5 * noise**2  # but for constants
        action = torch.tanh(u) * self.action_scale + self.action_bias
        return action, log_pi.sum(dim=-1) - self.log_constant

    @torch.no_grad()
    def act(self, obs, skill, deterministic):
        mean, log_std = self(obs, skill)
        u = mean if deterministic else mean + log_std.exp() * torch.randn_like(mean)
        return torch.tanh(u) * self.action_scale + self.action_bias


class Critic(nn.Module):
    """Two Q(s, skill, a), of which SAC takes the smaller, behind one CNN."""

    def __init__(self, cnn, *sizes):
        super().__init__()
        self.cnn, self.qfs = cnn, nn.ModuleList([MLP(*sizes), MLP(*sizes)])

    def forward(self, obs, skill, actions):
        x = torch.cat([self.cnn(obs), skill, actions], dim=-1)
        return [qf(x).squeeze(-1) for qf in self.qfs]


# ---------------------------------------- Skill discovery -----------------------------------------
def distance(x, y):
    return (x - y).norm(dim=-1)  # its gradient where x = y is 0, not nan


def side_length(L):
    """L sin(pi/2L), the side of the regular 2L-gon in a circle of diameter L."""
    return L * torch.sin(torch.pi / (2 * L))


def psd_objective(phi_s, phi_L, k):
    """Eq. (4): ||phi_L(s_t+L) - phi_L(s_t)|| - k ||phi_L(s_t+L) + phi_L(s_t)||."""
    return distance(phi_L, phi_s) - k * distance(phi_L, -phi_s)


def diameter_slack(phi_s, phi_L, L):
    """Eq. (5): L - ||phi_L(s_t+L) - phi_L(s_t)|| >= 0."""
    return L - distance(phi_L, phi_s)


def side_slack(phi_s, phi_next, L):
    """Eq. (6): L sin(pi/2L) - ||phi_L(s_t+1) - phi_L(s_t)|| >= 0."""
    return side_length(L) - distance(phi_next, phi_s)


def encoder_loss(phi_s, phi_next, phi_L, L, k, lam_1, lam_2, epsilon):
    """Eq. (7): -J_PSD,phi; a constraint that holds counts as epsilon at most."""
    # NOTE(paper): Section 3.2 has dual gradient descent, Appendix C fixed multipliers; so has this.
    objective = psd_objective(phi_s, phi_L, k)  # (B,)
    diameter, side = diameter_slack(phi_s, phi_L, L), side_slack(phi_s, phi_next, L)
    J = objective + lam_1 * diameter.clamp(max=epsilon) + lam_2 * side.clamp(max=epsilon)
    terms = {"objective": objective, "diameter_slack": diameter, "side_slack": side}
    return -J.mean(), {f"psd/{name}": term.detach().mean() for name, term in terms.items()}


def psd_reward(phi_s, phi_next, L, kappa):
    """Eq. (8): r_PSD = exp(-kappa Delta^2), 1 when a step has the side length of the 2L-gon."""
    delta = distance(phi_next, phi_s) - side_length(L)  # (B,)
    return torch.exp(-kappa * delta**2)


def radius_bonus(phi_next, L):
    """Ours, not the paper's: 2 ||phi_L(s')|| / L, at most 1. See docs/traps.md."""
    return (2 * phi_next.norm(dim=-1) / L).clamp(max=1.0)


def external_reward(velocity, v_star):
    """r_ext of Appendix C: v_x / v*, at most 1."""
    return (velocity / v_star).clamp(max=1.0)


def sample_triplets(buffer, batch_size):
    """s_t, s_t+1 and s_t+L of one episode, (3, B, ...), its L, (B,), and Embed(L), (B, D)."""
    # NOTE(paper): an episode shorter than its L is never drawn, and t + L never clamped to its end.
    episode = buffer.draw(buffer.length >= buffer.skill[:, 0], batch_size)
    L, skill = buffer.skill[episode, 0], buffer.skill[episode, 1:]
    t = (torch.rand_like(L) * (buffer.length[episode] - L + 1)).long()
    return buffer.stacks(episode, torch.stack([t, t + 1, t + L.long()])), L, skill


def candidate_periods(L_min, L_max, num_periods):
    """The values of L in use: evenly over the range, both ends among them."""
    return np.unique(np.round(np.linspace(L_min, L_max, num_periods))).astype(int)


def adapt_bounds(bounds, R_min, R_max, T, args):
    """Algorithm 2: a bound with a return above alpha T expands; one below beta T shrinks again."""
    N, alpha, beta = args.adaptive_step, args.adaptive_alpha, args.adaptive_beta
    L_min, L_max, updated_once_min, updated_once_max = bounds
    if R_min > alpha * T:
        L_min, updated_once_min = max(L_min - N, MIN_PERIOD), True
    if R_max > alpha * T:
        L_max, updated_once_max = min(L_max + N, T // 2), True
    if R_min < beta * T and updated_once_min:
        L_min = min(L_min + N, L_max)
    if R_max < beta * T and updated_once_max:
        L_max = max(L_max - N, L_min)
    return L_min, L_max, updated_once_min, updated_once_max


def latent_statistics(phi, L, kappa):
    """Of an episode's latents (n + 1, d): mean r_PSD, and mean lengths over those of the 2L-gon."""
    shift, L = int(L), torch.tensor(float(L), device=phi.device)
    return {
        "r_psd": psd_reward(phi[:-1], phi[1:], L, kappa).mean().item(),
        "one_step": (distance(phi[1:], phi[:-1]).mean() / side_length(L)).item(),
        "L_step": (distance(phi[shift:], phi[:-shift]).mean() / L).item(),  # nan if shorter than L
        "radius": (phi.norm(dim=-1).mean() / (L / 2)).item(),
    }


# --------------------------------------- Soft actor-critic ----------------------------------------
class Agent(nn.Module):
    """All that a gradient step changes: networks, temperature, and their optimisers."""

    def __init__(self, args, channels, action_space, device):
        super().__init__()
        hidden, action_dim = [args.hidden_units] * args.hidden_layers, action_space.shape[0]
        sizes = (args.feature_dim + args.embed_dim, *hidden)
        self.phi = Encoder(CNN(channels, args), *sizes, args.latent_dim)
        self.critic = Critic(CNN(channels, args), sizes[0] + action_dim, *hidden, 1)
        low, high = action_space.low, action_space.high
        cnn = CNN(channels, args, owner=self.critic.cnn)  # whose convolutions the critic trains
        self.actor = Actor(cnn, *sizes, action_low=low, action_high=high)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        # NOTE(paper): "auto-tuned" leaves first temperature and target entropy open: 1 and -|A|.
        self.log_alpha, self.target_entropy = nn.Parameter(torch.zeros(())), -float(action_dim)
        self.to(device)
        fused = torch.device(device).type != "meta"  # all parameters in one kernel; `meta` has none
        temperature = {"params": [self.log_alpha], "lr": args.alpha_lr}
        own = [*self.actor.cnn.head.parameters(), *self.actor.net.parameters()]
        policy = [{"params": own}, temperature]
        self.optimizers = {
            "phi": torch.optim.Adam(self.phi.parameters(), args.phi_lr, fused=fused),
            "critic": torch.optim.Adam(self.critic.parameters(), args.sac_lr, fused=fused),
            "actor": torch.optim.Adam(policy, args.sac_lr, fused=fused),
        }


def critic_loss(agent, batch, skill, reward, alpha, gamma):
    """Squared Bellman error of both critics; a terminated transition does not bootstrap."""
    with torch.no_grad():
        next_actions, log_pi = agent.actor.sample(batch.next_obs, skill)
        min_qf_next_target = torch.min(*agent.target_critic(batch.next_obs, skill, next_actions))
        next_q_value = reward + gamma * ~batch.terminated * (min_qf_next_target - alpha * log_pi)
    qf1, qf2 = agent.critic(batch.obs, skill, batch.actions)
    loss = F.mse_loss(qf1, next_q_value) + F.mse_loss(qf2, next_q_value)
    return loss, {"losses/qf_values": qf1.detach().mean(), "losses/reward": reward.mean()}


def actor_loss(agent, batch, skill, alpha):
    """E[alpha log pi - min Q]."""
    actions, log_pi = agent.actor.sample(batch.obs, skill)
    min_qf = torch.min(*agent.critic(batch.obs, skill, actions))
    loss, entropy = (alpha * log_pi - min_qf).mean(), -log_pi.detach().mean()
    return loss, {"losses/actor_loss": loss.detach(), "losses/entropy": entropy}


def temperature_loss(agent, entropy):
    """Raises alpha while the entropy is below its target."""
    return agent.log_alpha * (entropy - agent.target_entropy), {}


def update(agent, buffer, args, train_phi=True):
    """One gradient step of everything; metrics stay on the device."""
    alpha, metrics = agent.log_alpha.detach().exp(), {}

    def step(name, loss, loss_metrics):
        parameters = [p for g in agent.optimizers[name].param_groups for p in g["params"]]
        for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            p.grad = gradient  # of nothing else: the critics have none in the actor's step
        agent.optimizers[name].step()
        metrics.update({f"losses/{name}_loss": loss.detach()} | loss_metrics)

    if train_phi:
        obs, L, skill = sample_triplets(buffer, args.phi_batch_size)
        phi = agent.phi(obs, skill.expand(3, -1, -1))  # (3, B, d)
        step("phi", *encoder_loss(*phi, L, args.k, args.lam_1, args.lam_2, args.epsilon))
    batch = buffer.sample(args.batch_size)
    L, skill = batch.skill[:, 0], batch.skill[:, 1:]
    with torch.no_grad():  # the reward is that of the current phi
        pair = torch.stack([batch.obs, batch.next_obs])  # (2, B, obs_dim)
        phi_s, phi_next = agent.phi(pair, skill.expand(2, -1, -1))
        reward = psd_reward(phi_s, phi_next, L, args.kappa)
        reward += args.radius_coef * radius_bonus(phi_next, L)
        reward += args.ext_coef * external_reward(batch.velocity, args.v_star)
    step("critic", *critic_loss(agent, batch, skill, reward, alpha, args.gamma))
    pi_loss, pi_metrics = actor_loss(agent, batch, skill, alpha)
    alpha_loss, _ = temperature_loss(agent, pi_metrics["losses/entropy"])
    step("actor", pi_loss + alpha_loss, pi_metrics)  # one step is faster than two
    with torch.no_grad():
        targets, sources = agent.target_critic.parameters(), agent.critic.parameters()
        torch._foreach_lerp_(list(targets), list(sources), args.tau)
    return metrics | {"losses/alpha": alpha}


# -------------------------------------------- Rollouts --------------------------------------------
def rollout(envs, key, actor, skill, state, deterministic=False):
    """An episode in each environment, a batched policy call a step; those that ended are skipped.
    Resets are seeded by `key` and place. `state` is not needed here: pixels are not normalised."""
    seeds = np.random.SeedSequence(key).generate_state(len(envs)).tolist()
    n, T = len(envs), envs[0].spec.max_episode_steps
    obs = np.zeros((n, T + 1, *envs[0].observation_space.shape), np.uint8)
    actions = np.zeros((n, T, *envs[0].action_space.shape), np.float32)
    velocity, length, terminated = np.zeros((n, T), np.float32), [0] * n, [False] * n
    for i, env in enumerate(envs):
        obs[i, 0] = env.reset(seed=seeds[i])[0]
    active, t = list(range(n)), 0
    while active:
        policy_obs = torch.as_tensor(obs[active, t], device=skill.device)
        actions[active, t] = actor.act(policy_obs, skill[active], deterministic).cpu().numpy()
        for i in active.copy():
            obs[i, t + 1], _, terminated[i], truncated, info = envs[i].step(actions[i, t])
            velocity[i, t] = info.get("x_velocity", 0.0)
            if terminated[i] or truncated:
                active.remove(i)
                length[i] = t + 1
        t += 1
    episodes = zip(obs, actions, velocity, terminated, length)
    return [Episode(o[: n + 1], a[:n], v[:n], end) for o, a, v, end, n in episodes]


@torch.no_grad()
def encode(agent, episode, skill):
    """The latents of an episode, (n + 1, d)."""
    obs = torch.as_tensor(episode.obs, device=agent.log_alpha.device)
    return agent.phi(obs, skill.expand(len(obs), -1))  # which all have the same


def period_return(envs, agent, L, state, args):
    """R_L of Section 3.4: mean sum of r_PSD. NOTE(paper): it is smaller after an early end."""
    n, key = args.adaptive_episodes, (args.seed, state["epoch"], L)
    skill = embed_period(torch.full((n,), L, device=agent.log_alpha.device), args.embed_dim)
    episodes = rollout(envs[:n], key, agent.actor, skill, state, deterministic=True)
    latents = [encode(agent, episodes[i], skill[i]) for i in range(n)]
    return np.mean([latent_statistics(z, L, args.kappa)["r_psd"] * (len(z) - 1) for z in latents])


# ------------------------------------------- Checkpoint -------------------------------------------
def save_checkpoint(run_dir, args, state, agent, buffer):
    """resume.pt holds everything; model.pt what it takes to act and to measure."""
    model = {"script": SCRIPT, "args": vars(args), "state": state}
    everything = {**model, "agent": agent.state_dict(), "buffer": vars(buffer)}
    model["agent"] = {k: w for k, w in agent.state_dict().items() if k.startswith(("actor", "phi"))}
    everything["optimizers"] = {k: o.state_dict()["state"] for k, o in agent.optimizers.items()}
    everything["rng"] = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    for name, content in [("resume.pt", everything), ("model.pt", model)]:
        with open(run_dir / f"{name}.tmp", "wb") as file:
            torch.save(content, file)
            os.fsync(file.fileno())
        os.replace(run_dir / f"{name}.tmp", run_dir / name)  # a kill leaves the old or the new file


def load_checkpoint(path):
    """Tensors and plain values only: a checkpoint cannot run code."""
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["script"] != SCRIPT:
            fail(f"{path} was written by {checkpoint['script']}.py, not by {SCRIPT}.py")
        return {k: checkpoint[k] for k in "script args state agent buffer optimizers rng".split()}
    except Exception as error:  # of many types
        reason = "damaged or no checkpoint" if path.is_file() else "missing"
        fail(f"{path} is {reason} ({type(error).__name__})")


def restore(checkpoint, agent, buffer):
    """Everything that training changes; learning rates stay as the arguments have them."""
    agent.load_state_dict(checkpoint["agent"])
    for name, adam in agent.optimizers.items():
        adam.load_state_dict(adam.state_dict() | {"state": checkpoint["optimizers"][name]})
    for name, value in checkpoint["buffer"].items():
        setattr(buffer, name, value.to(buffer.obs.device) if torch.is_tensor(value) else value)
    torch.set_rng_state(checkpoint["rng"][0])
    torch.cuda.set_rng_state_all(checkpoint["rng"][1 : 1 + torch.cuda.device_count()])


# ---------------------------------------------- Main ----------------------------------------------
def main(argv=None):
    args, checkpoint = parse_args(argv)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    if args.cuda and device.type == "cpu":
        print(f"{SCRIPT}.py: there is no CUDA device, training on the CPU", file=sys.stderr)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    n, T, D = args.episodes_per_epoch, args.episode_length, args.embed_dim
    envs = [make_env(args) for _ in range(max(n, args.adaptive_episodes))]
    check_env(envs[0], args)
    obs_shape, action_space = envs[0].observation_space.shape, envs[0].action_space
    agent = Agent(args, obs_shape[0], action_space, device)
    sizes = (obs_shape, args.crop_size, action_space.shape[0], 1 + D)
    buffer = ReplayBuffer(args.buffer_size, T, *sizes, device)
    run_name = args.run_name or f"{args.env_id}__{SCRIPT}__{args.seed}__{int(time.time())}"
    run_dir = Path(args.resume or f"runs/{run_name}")
    if checkpoint:
        state = checkpoint["state"]
        restore(checkpoint, agent, buffer)
    elif run_dir.exists():
        fail(f"{run_dir} exists: --resume it, or choose another --run-name")
    else:
        state = {"epoch": 0, "global_step": 0, "bounds": (args.L_min, args.L_max, False, False)}
    writer = SummaryWriter(run_dir, purge_step=state["global_step"] + 1)
    writer.add_text("hyperparameters", "\n".join(f"    {k} = {v}" for k, v in vars(args).items()))
    signals = []  # the first one lets the epoch end and be saved, a second one does not
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda s, _: os._exit(128 + s) if signals else signals.append(s))
    start_time = save_time = time.time()
    start, start_step = state["epoch"], state["global_step"]
    bar = tqdm(range(start, args.total_epochs), SCRIPT, args.total_epochs, initial=start)
    for epoch in bar:
        logs = {}
        if args.adaptive_sampling and epoch > 0 and epoch * n % args.adaptive_interval < n:
            R = [period_return(envs, agent, L, state, args) for L in state["bounds"][:2]]
            logs = {"eval/return_L_min": R[0], "eval/return_L_max": R[1]}
            state["bounds"] = adapt_bounds(state["bounds"], *R, T, args)
        # Collect
        L_min, L_max = state["bounds"][:2]
        periods = torch.tensor(candidate_periods(L_min, L_max, args.num_periods)).float()
        L = periods[torch.randint(len(periods), (n,))]
        skill = torch.cat([L[:, None], embed_period(L, D)], dim=1).to(device)  # (n, 1 + D)
        episodes = rollout(envs[:n], (args.seed, epoch), agent.actor, skill[:, 1:], state)
        for i in range(n):
            buffer.add(episodes[i], skill[i])
        state["global_step"] += sum(len(episode.actions) for episode in episodes)
        # Update. phi waits for the first episode that is as long as its L
        train_phi = bool((buffer.length >= buffer.skill[:, 0]).any())
        metrics = [update(agent, buffer, args, train_phi) for _ in range(args.updates_per_epoch)]
        means = torch.stack([torch.stack([m[name] for m in metrics]).mean() for name in metrics[0]])
        logs |= dict(zip(metrics[0], means.tolist()))
        logs["losses/weight_norm"] = nn.utils.get_total_norm(agent.parameters()).item()
        # Log, and stop at what is not finite
        by_period = defaultdict(list)
        for episode, period, row in zip(episodes, L.int().tolist(), skill[:, 1:]):
            phi = encode(agent, episode, row)
            for name, value in latent_statistics(phi, period, args.kappa).items():
                if name != "L_step" or len(phi) > period:  # a shorter episode has no pair
                    by_period[f"psd/{name}"].append(value)
                    by_period[f"psd/{name}/L{period}"].append(value)
        logs |= {name: np.mean(values) for name, values in by_period.items()}
        logs |= {"psd/L_min": L_min, "psd/L_max": L_max, "charts/episodes": (epoch + 1) * n}
        logs["charts/episodic_length"] = np.mean([len(episode.actions) for episode in episodes])
        logs["charts/velocity"] = np.mean([episode.velocity.mean() for episode in episodes])
        logs["charts/SPS"] = sps = (state["global_step"] - start_step) / (time.time() - start_time)
        for name, value in logs.items():
            if not np.isfinite(value):
                writer.close()
                good = next(run_dir.glob("resume.pt"), "none")
                fail(f"epoch {epoch}: {name} is {value}; not saved, last good checkpoint: {good}")
            writer.add_scalar(name, value, state["global_step"])
        bar.set_postfix_str(f"{sps:.0f} steps/s, L {L_min}-{L_max}, r_PSD {logs['psd/r_psd']:.2f}")
        state["epoch"] = epoch + 1
        last = signals or state["epoch"] == args.total_epochs
        if last or time.time() - save_time > 60 * args.save_minutes:
            save_checkpoint(run_dir, args, state, agent, buffer)
            save_time = time.time()
        if last:
            break
    writer.close()
    print(f"saved {run_dir}; to go on: python {os.path.relpath(__file__)} --resume {run_dir}")
    if signals:
        sys.exit(128 + signals[0])


if __name__ == "__main__":
    main()
