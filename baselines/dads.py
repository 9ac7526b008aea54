"""DADS, a baseline of Periodic Skill Discovery (PSD): Sharma et al., ICLR 2020.

Skill dynamics q(s' | s, z) predict the next state. A policy pi(a | s, z) is rewarded for steps that
they foresee under its skill and not under others. So each skill learns to move in its own way.

    python baselines/dads.py --env-id Ant-v4 --cuda                # the paper's setting
    python baselines/dads.py --env-id HalfCheetah-v4 --preset cpu  # half an hour on a CPU

Where to find what the PSD paper defines:

    q(s' | s, z)   Dynamics            the skill dynamics (Section 4)
    p(z)           sample_skills       one skill per episode (Appendix C)
    r_ext          external_reward     pay for moving forward (Appendix C)
    Algorithm 1    train, update       with z in place of L, and so without line 3

The paper has no equation for DADS. These are its authors':

    -E[log q(s' | s, z)]                dynamics_loss
    log q(s' | s, z) - log q(s' | s)    dads_reward
    q(s' | s)                           the mean over candidate_skills

Differs from psd.py in: skills z instead of periods L (no embedding, no adaptive sampling), and
skill dynamics in place of the encoder, with their loss and reward.

Names: `skill` is what the networks are conditioned on, here z itself. NOTE(paper) marks what the
paper leaves open, and what this script does there.

Not in the paper, and off by default: --action-scale, --end-when-fallen, --frame-skip,
--normalize-obs, --preset cpu.
"""

import argparse
import contextlib
import copy
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections import defaultdict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gymnasium as gym
import mujoco
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import tyro
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows, where run folders are not locked
    fcntl = None

HANGUP = getattr(signal, "SIGHUP", signal.SIGABRT)  # a closed terminal; on Windows a stand-in
SCRIPT = Path(__file__).stem  # stored in checkpoints; those of another script are refused


# ------------------------------------- Arguments --------------------------------------
@dataclass
class Args:
    env_id: str = "Ant-v4"
    """Gymnasium environment, or module:EnvId; its actions are a bounded Box"""
    preset: Literal["paper", "cpu"] = "paper"
    """defaults of the other flags: the paper's, or our own for a CPU (docs/recipes.md)"""
    seed: int = 1
    """random seed; on a CPU, equal seeds give bit-identical runs"""
    cuda: bool = False
    """train on the GPU, if there is one"""
    num_threads: int = 1
    """CPU threads of torch; 1 is best where several runs share a machine"""
    run_name: str | None = None
    """folder below runs/ (None: {env}__{script}__{seed}__{time})"""
    resume: str | None = None
    """run folder to continue with its saved arguments; flags on the command line win"""
    save_minutes: float = 10.0
    """minutes between checkpoints; the end of training and SIGINT, SIGTERM, SIGHUP save as well"""
    track: bool = False
    """log to Weights & Biases as well as to TensorBoard; needs `pip install wandb`"""
    wandb_project_name: str = "periodic-skill-discovery"
    """project of Weights & Biases"""
    wandb_entity: str | None = None
    """user or team of Weights & Biases (None: your own)"""
    capture_video_every: int = 0
    """epochs between two GIFs of the skills in TensorBoard; 0 is none"""

    # Training (Table 2; T and v* from Appendix C)
    total_epochs: int = 40_000
    """number of epochs; the default is the length of the authors' Figure 9: 320,000 episodes"""
    episodes_per_epoch: int = 8
    """episodes collected per epoch, stepped together"""
    updates_per_epoch: int = 64
    """gradient steps per epoch"""
    episode_length: int | None = None
    """T, the maximum length of an episode (None: by robot)"""
    terminate: bool = True
    """end an episode when the robot falls, as Gymnasium does; the paper does not say"""
    end_when_fallen: bool = False
    """end a HalfCheetah's episode when it lies, or tilts by more than 0.8 rad (ours)"""
    frame_skip: int | None = None
    """physics steps per environment step, the unit of L (None: by preset, or Gymnasium's; ours)"""
    action_scale: float = 1.0
    """factor on every action; below 1 the motors are weaker (ours)"""
    normalize_obs: bool = False
    """normalise observations by mean and std of random-action rollouts, fixed at the start"""
    buffer_size: int = 500_000
    """capacity of the replay buffer, in transitions; slightly fewer where episodes end early"""
    hidden_layers: int = 2
    """hidden layers per network"""
    hidden_units: int = 1024
    """units per hidden layer"""
    critic_layer_norm: bool = False
    """layer normalisation after each hidden linear layer of the critics (ours)"""

    # Skill discovery (Appendix C)
    num_skills: int | None = None
    """number of discrete skills; 0 for continuous ones, in 2-D (None: by robot)"""
    dynamics_lr: float = 1e-4
    """learning rate of the skill dynamics q"""
    dynamics_batch_size: int = 256
    """minibatch size of the skill dynamics q"""
    prior_samples: int = 100
    """number of other skills that represent a continuous prior in the reward"""
    ext_coef: float = 0.0
    """coefficient of r_ext; 1 for Figure 9 and for downstream skills"""
    v_star: float | None = None
    """v*, the forward velocity at which r_ext reaches 1 (None: by robot)"""

    # Soft actor-critic (Table 2)
    sac_lr: float = 1e-4
    """learning rate of actor and critics"""
    alpha_lr: float = 1e-4
    """learning rate of the temperature"""
    batch_size: int = 256
    """minibatch size of actor, critics and temperature"""
    gamma: float = 0.99
    """discount factor"""
    tau: float = 0.005
    """step of the target critics towards the critics; 1 minus the paper's smoothing coefficient"""


# The paper's values by robot. 0 skills stand for continuous ones.
ROBOT_COLUMNS = ("episode_length", "v_star", "num_skills")
ROBOTS = {
    "Ant": (200, 0.5, 0),
    "HalfCheetah": (200, 0.5, 16),
    "Humanoid": (400, 1.0, 0),
    "Hopper": (400, 1.0, 16),
    "Walker2d": (400, 1.0, 16),
    "any other": (200, 0.5, 16),
}

# --preset cpu (ours): values for every robot, then values that a robot has instead. The results on
# HalfCheetah, the only robot measured, are in README.md.
CPU_PRESET = {
    "normalize_obs": True,
    "hidden_units": 256,
    "dynamics_lr": 1e-3,
    "sac_lr": 3e-4,
    "alpha_lr": 6e-4,
    "total_epochs": 600,
}
CPU_PRESET_BY_ROBOT = {}

SKILL_DIM = 2  # of a continuous skill
MAY_BE_ZERO = ["seed", "capture_video_every", "num_skills", "ext_coef", "gamma"]
AT_MOST = {  # catches typos before they fill the memory
    "gamma": 1,
    "tau": 1,
    "num_threads": os.cpu_count() or 1,
    "hidden_layers": 100,
    "hidden_units": 16_384,
    "num_skills": 1_024,
    "prior_samples": 10_000,
    "episodes_per_epoch": 1_000,
    "episode_length": 1_000_000,
    "frame_skip": 1_000,
}
FIXED_ON_RESUME = [  # they shape what is stored; and `preset`, which sets defaults of new runs only
    "env_id", "preset", "terminate", "end_when_fallen", "frame_skip", "action_scale",
    "normalize_obs", "episode_length", "episodes_per_epoch", "buffer_size", "hidden_layers",
    "hidden_units", "critic_layer_norm", "num_skills",
]  # fmt: skip


# ------------------------------------- The method -------------------------------------
def dynamics_loss(log_q, terminated):
    """-E[log q(s' | s, z)] over transitions that do not end in a fall."""
    num_kept = (~terminated).sum().clamp(min=1)
    loss = -(log_q * ~terminated).sum() / num_kept
    return loss, {"losses/dynamics_loss": loss.detach()}


def dads_reward(log_q):
    """log q(s' | s, z) - log q(s' | s), from log q (1 + N, B) of the own skill and of N others.

    q(s' | s) is the mean over these skills. So the reward is log(1 + N) where the others foresee
    nothing, and 0 where they foresee the step as well."""
    ratio = (log_q[1:] - log_q[0]).clamp(-50, 50).exp()  # (N, B)
    num_candidates = len(log_q)
    return math.log(num_candidates) - torch.log1p(ratio.sum(dim=0))


def candidate_skills(skill, args):
    """A skill (B, D) and N others, (1 + N, B, D).

    Of one-hot skills each of the others once, which makes the mean over the prior exact. Of
    continuous skills a sample of the prior."""
    if args.num_skills > 0:
        return torch.stack([skill.roll(i, dims=-1) for i in range(args.num_skills)])
    batch_size = len(skill)
    others = sample_skills(args.prior_samples * batch_size, args, skill.device)
    others = others.view(args.prior_samples, batch_size, SKILL_DIM)
    return torch.cat([skill[None], others])


def external_reward(velocity, v_star):
    """r_ext of Appendix C: v_x / v*, at most 1."""
    # NOTE(paper): its coefficient is open. Here a flag, 0 by default
    return (velocity / v_star).clamp(max=1.0)


def sample_skills(count, args, device):
    """p(z), (count, D): one-hot, each equally likely, or uniform over [-1, 1]^D."""
    if args.num_skills > 0:
        index = torch.randint(args.num_skills, (count,), device=device)
        return F.one_hot(index, args.num_skills).float()
    return 2 * torch.rand(count, SKILL_DIM, device=device) - 1


@torch.no_grad()
def intrinsic_reward(agent, obs, next_obs, skill, args):
    """The reward of transitions, (B,)."""
    skills = candidate_skills(skill, args)  # (1 + N, B, D)
    agent.dynamics.eval()  # running statistics
    log_q = agent.dynamics.log_prob(obs, next_obs, skills)  # (1 + N, B)
    return dads_reward(log_q)


# -------------------------------------- Networks --------------------------------------
class MLP(nn.Sequential):
    """Linear layers with ReLU in between, initialised as in the SAC code that the paper uses. Layer
    normalisation, before each ReLU, is ours."""

    def __init__(self, size_in, hidden_layers, hidden_units, size_out, layer_norm=False):
        sizes = [size_in] + hidden_layers * [hidden_units] + [size_out]
        layers = []
        for i in range(len(sizes) - 1):
            linear = nn.Linear(sizes[i], sizes[i + 1])
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
            layers.append(linear)
            if i < hidden_layers:  # nothing follows the last linear layer
                if layer_norm:
                    layers.append(nn.LayerNorm(hidden_units))
                layers.append(nn.ReLU())
        super().__init__(*layers)

    def forward(self, *inputs):
        return super().forward(torch.cat(inputs, dim=-1))


class Actor(nn.Module):
    """pi(a | s, skill): a Gaussian, squashed by tanh into the range of the actions."""

    def __init__(self, size_in, hidden_layers, hidden_units, action_space):
        super().__init__()
        scale = (action_space.high - action_space.low) / 2
        bias = (action_space.high + action_space.low) / 2
        self.net = MLP(size_in, hidden_layers, hidden_units, 2 * len(scale))
        # Half the range of the actions and its middle, not the flag --action-scale
        self.register_buffer("action_scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("action_bias", torch.as_tensor(bias, dtype=torch.float32))
        # The constants of the log-probability in `sample`, where they are derived
        self.log_constant = float(np.log(4 * scale * np.sqrt(2 * np.pi)).sum())

    def forward(self, obs, skill):
        mean, log_std = self.net(obs, skill).chunk(2, dim=-1)
        return mean, log_std.clamp(-20, 2)

    def sample(self, obs, skill):
        """A reparameterised action and its log-probability."""
        mean, log_std = self(obs, skill)
        noise = torch.randn_like(mean)
        u = mean + log_std.exp() * noise
        # log pi(a) = log N(u) - log(da/du), where da/du = scale (1 - tanh(u)^2), and
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)), which is exact for large |u| as well.
        # The constants are log(sqrt(2 pi)) of N(u), log(scale) and 2 log 2: log_constant.
        log_pi = 2 * (u + F.softplus(-2 * u)) - log_std - 0.5 * noise**2
        log_pi = log_pi.sum(dim=-1) - self.log_constant
        action = torch.tanh(u) * self.action_scale + self.action_bias
        return action, log_pi

    @torch.no_grad()
    def act(self, obs, skill, deterministic):
        """An action for the environment: sampled, or tanh of the mean."""
        mean, log_std = self(obs, skill)
        u = mean
        if not deterministic:
            u = mean + log_std.exp() * torch.randn_like(mean)
        return torch.tanh(u) * self.action_scale + self.action_bias


class Critic(nn.ModuleList):
    """Two Q(s, skill, a), of which SAC takes the smaller."""

    def __init__(self, size_in, hidden_layers, hidden_units, layer_norm):
        qf1 = MLP(size_in, hidden_layers, hidden_units, 1, layer_norm)
        qf2 = MLP(size_in, hidden_layers, hidden_units, 1, layer_norm)
        super().__init__([qf1, qf2])

    def forward(self, obs, skill, actions):
        qf1, qf2 = self
        x = torch.cat([obs, skill, actions], dim=-1)
        return qf1(x).squeeze(-1), qf2(x).squeeze(-1)  # (B,) each


class Dynamics(nn.Module):
    """q(s' | s, z): s' - s is Gaussian, of unit variance once it is normalised by batch statistics.

    That norm learns no scale, because a scale of 0 would be the easiest to predict."""

    def __init__(self, obs_dim, skill_dim, hidden_layers, hidden_units):
        super().__init__()
        self.obs_norm = nn.BatchNorm1d(obs_dim)
        self.step_norm = nn.BatchNorm1d(obs_dim, affine=False)
        self.net = MLP(obs_dim + skill_dim, hidden_layers, hidden_units, obs_dim)

    def log_prob(self, obs, next_obs, skills):
        """log q(s' | s, z) without the constant, (N, B), for N skills per transition, (N, B, D)."""
        x = self.obs_norm(obs)
        step = self.step_norm(next_obs - obs)
        mean = self.net(x.expand(len(skills), -1, -1), skills)  # (N, B, obs_dim)
        return -0.5 * ((step - mean) ** 2).sum(dim=-1)


class Agent(nn.Module):
    """All that a gradient step changes: networks, temperature, and their optimisers."""

    def __init__(self, args, obs_dim, action_space, device):
        super().__init__()
        action_dim = action_space.shape[0]
        self.skill_dim = args.num_skills or SKILL_DIM
        size_in = obs_dim + self.skill_dim
        layers = args.hidden_layers
        units = args.hidden_units
        self.dynamics = Dynamics(obs_dim, self.skill_dim, layers, units)
        self.actor = Actor(size_in, layers, units, action_space)
        self.critic = Critic(size_in + action_dim, layers, units, args.critic_layer_norm)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        # NOTE(paper): the first temperature and the target entropy are open. Usual values of SAC
        self.log_alpha = nn.Parameter(torch.zeros(()))  # a temperature of 1
        self.target_entropy = -float(action_dim)
        self.device = torch.device(device)
        self.to(self.device)

        fused = self.device.type != "meta"  # faster; tests run on `meta`, which does not have it
        q = self.dynamics.parameters()
        self.optimizers = {
            "dynamics": torch.optim.Adam(q, args.dynamics_lr, fused=fused),
            "critic": torch.optim.Adam(self.critic.parameters(), args.sac_lr, fused=fused),
            "actor": torch.optim.Adam(self.actor.parameters(), args.sac_lr, fused=fused),
            "alpha": torch.optim.Adam([self.log_alpha], args.alpha_lr, fused=fused),
        }

    def act(self, obs, skill, deterministic):
        """What a rollout calls. In psd_metra.py this method cuts off a part of the observations."""
        return self.actor.act(obs, skill, deterministic)


# --------------------------------- Soft actor-critic ----------------------------------
def critic_loss(agent, batch, reward, alpha, gamma):
    """Squared Bellman error of both critics."""
    # NOTE(paper): open, what ends an episode. Here a terminated transition does not bootstrap, and
    # one that is cut off at T does
    with torch.no_grad():
        next_actions, next_log_pi = agent.actor.sample(batch.next_obs, batch.skill)
        qf1_next, qf2_next = agent.target_critic(batch.next_obs, batch.skill, next_actions)
        min_qf_next = torch.min(qf1_next, qf2_next) - alpha * next_log_pi
        next_q_value = reward + gamma * ~batch.terminated * min_qf_next
    qf1, qf2 = agent.critic(batch.obs, batch.skill, batch.actions)
    loss = F.mse_loss(qf1, next_q_value) + F.mse_loss(qf2, next_q_value)
    metrics = {
        "losses/critic_loss": loss.detach(),
        "losses/qf_values": qf1.detach().mean(),
        "losses/reward": reward.mean(),
    }
    return loss, metrics


def actor_loss(agent, batch, alpha):
    """E[alpha log pi - min Q]; and the entropy, which the temperature needs."""
    actions, log_pi = agent.actor.sample(batch.obs, batch.skill)
    qf1, qf2 = agent.critic(batch.obs, batch.skill, actions)
    loss = (alpha * log_pi - torch.min(qf1, qf2)).mean()
    entropy = -log_pi.detach().mean()
    return loss, entropy, {"losses/actor_loss": loss.detach(), "losses/entropy": entropy}


def temperature_loss(agent, entropy):
    """A gradient step on it raises the temperature if the entropy is below its target."""
    return agent.log_alpha * (entropy - agent.target_entropy)


def update(agent, buffer, args):
    """Lines 8 to 10 of Algorithm 1: one gradient step of every network.

    The metrics are tensors on the device, so that a GPU need not wait."""
    metrics = {}

    # Line 8: the skill dynamics
    batch = buffer.sample(args.dynamics_batch_size)
    agent.dynamics.train()  # statistics of the batch
    log_q = agent.dynamics.log_prob(batch.obs, batch.next_obs, batch.skill[None])[0]  # (B,)
    q_loss, q_metrics = dynamics_loss(log_q, batch.terminated)
    agent.optimizers["dynamics"].zero_grad()
    q_loss.backward()
    agent.optimizers["dynamics"].step()
    metrics.update(q_metrics)

    # Line 9: rewards of a fresh batch, from the dynamics just updated
    batch = buffer.sample(args.batch_size)
    reward = intrinsic_reward(agent, batch.obs, batch.next_obs, batch.skill, args)
    reward += args.ext_coef * external_reward(batch.velocity, args.v_star)

    # Line 10: soft actor-critic
    alpha = agent.log_alpha.detach().exp()
    metrics["losses/alpha"] = alpha

    qf_loss, qf_metrics = critic_loss(agent, batch, reward, alpha, args.gamma)
    agent.optimizers["critic"].zero_grad()
    qf_loss.backward()
    agent.optimizers["critic"].step()
    metrics.update(qf_metrics)

    agent.critic.requires_grad_(False)  # the actor's step needs no gradients of the critic
    pi_loss, entropy, pi_metrics = actor_loss(agent, batch, alpha)
    agent.optimizers["actor"].zero_grad()
    pi_loss.backward()
    agent.optimizers["actor"].step()
    agent.critic.requires_grad_(True)
    metrics.update(pi_metrics)

    alpha_loss = temperature_loss(agent, entropy)
    agent.optimizers["alpha"].zero_grad()
    alpha_loss.backward()
    agent.optimizers["alpha"].step()

    with torch.no_grad():
        for target, source in zip(agent.target_critic.parameters(), agent.critic.parameters()):
            target.lerp_(source, args.tau)
    return metrics


# ----------------------------------- Replay buffer ------------------------------------
# n + 1 observations, n actions, n forward velocities, and whether the episode was terminated
# (True) or truncated at T (False)
Episode = namedtuple("Episode", "obs actions velocity terminated")
# B transitions for SAC, each entry (B, ...)
Batch = namedtuple("Batch", "obs actions next_obs velocity terminated skill period")


class ReplayBuffer:
    """A ring of rows, one row per observation: an episode of n transitions fills n + 1 rows.

    Each observation is stored once, and s_{t+1} and s_{t+L} are look-ups. The oldest episodes make
    room for new ones."""

    def __init__(self, capacity, episode_length, obs_dim, action_dim, skill_dim, device):
        num_episodes = math.ceil(capacity / episode_length)
        num_rows = capacity + num_episodes  # one more per episode, for its last observation
        # One entry per row
        self.obs = torch.zeros(num_rows, obs_dim, device=device)
        self.actions = torch.zeros(num_rows, action_dim, device=device)
        self.velocity = torch.zeros(num_rows, device=device)
        self.terminated = torch.zeros(num_rows, device=device, dtype=torch.bool)
        # One entry per episode, the oldest first
        self.start = torch.zeros(0, device=device, dtype=torch.long)
        self.length = torch.zeros(0, device=device, dtype=torch.long)
        self.period = torch.zeros(0, device=device)
        self.skill = torch.zeros(0, skill_dim, device=device)
        self.rows_per_episode = []  # length + 1, as Python ints, so that `add` need not ask the GPU
        self.head = 0  # the row to write next

    def add(self, episode, skill, period):
        """Stores an episode with its skill and its L."""
        device = self.obs.device
        num_rows = len(self.obs)
        new_rows = len(episode.obs)
        dropped = 0
        while sum(self.rows_per_episode[dropped:]) + new_rows > num_rows:
            dropped += 1
        self.rows_per_episode = self.rows_per_episode[dropped:] + [new_rows]

        rows = torch.arange(self.head, self.head + new_rows, device=device) % num_rows
        self.obs[rows] = torch.as_tensor(episode.obs, device=device)
        self.actions[rows[:-1]] = torch.as_tensor(episode.actions, device=device)
        self.velocity[rows[:-1]] = torch.as_tensor(episode.velocity, device=device)
        self.terminated[rows] = False
        last_transition = rows[-2:-1]  # not rows[-2], whose value the CPU would have to fetch
        self.terminated[last_transition] = episode.terminated
        self.head = (self.head + new_rows) % num_rows

        length = torch.full((1,), new_rows - 1, device=device)
        period = torch.full((1,), float(period), device=device)
        self.start = torch.cat([self.start[dropped:], rows[:1]])
        self.length = torch.cat([self.length[dropped:], length])
        self.period = torch.cat([self.period[dropped:], period])
        self.skill = torch.cat([self.skill[dropped:], skill.to(device)[None]])

    def draw_episodes(self, weight, size):
        """`size` episodes, drawn with probabilities in proportion to integer (or bool) weights."""
        cumulative = weight.cumsum(0)
        # Lay the episodes end to end, each as long as its weight; pick a point, and the episode
        # that it lies in. float64, because float32 counts to 2^24 only
        point = torch.rand(size, device=weight.device, dtype=torch.float64) * cumulative[-1]
        return torch.searchsorted(cumulative, point.long(), right=True)

    def rows(self, episode, t):
        """The row of an episode's observation at time t."""
        return (self.start[episode] + t) % len(self.obs)

    def sample(self, batch_size):
        """Transitions, uniformly over all that are stored."""
        episode = self.draw_episodes(self.length, batch_size)
        t = (torch.rand(batch_size, device=self.obs.device) * self.length[episode]).long()
        row = self.rows(episode, t)
        next_row = self.rows(episode, t + 1)
        return Batch(
            obs=self.obs[row],
            actions=self.actions[row],
            next_obs=self.obs[next_row],
            velocity=self.velocity[row],
            terminated=self.terminated[row],
            skill=self.skill[episode],
            period=self.period[episode],
        )


# ------------------------------ Environment and rollouts ------------------------------
def robot_name(env_id):
    """Walker2d for Walker2d-v4 and for module:Walker2d-v4."""
    return env_id.split(":")[-1].split("-")[0]


def has_fallen(cheetah):
    """Is a HalfCheetah's torso below half its height, or tilted by more than 0.8 rad, or does its
    torso or head touch the floor?"""
    _, height, pitch = cheetah.data.qpos[:3]  # the height counts from the 0.7 m of a standing one
    parts = {cheetah.model.geom(name).id for name in ("torso", "head")}
    touching = cheetah.data.contact.geom  # one row per contact; a cheetah collides with floors only
    return bool(height < -0.35 or abs(pitch) > 0.8 or not parts.isdisjoint(touching.flat))


class EndWhenFallen(gym.Wrapper):
    """Ours: a fall ends the episode, as it does for the robots that Gymnasium terminates."""

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated or has_fallen(self.unwrapped), truncated, info


def make_env(args, max_steps=None, **kwargs):
    """The environment, if its spaces suit this script. evaluate.py asks for other lengths than T,
    and for rendering."""
    gym.logger.min_level = gym.logger.ERROR  # v4 ids are deprecated, but used on purpose
    mujoco.set_mju_user_warning(lambda message: None)  # or HalfCheetah writes MUJOCO_LOG.TXT
    if args.env_id.split(":")[-1] in ("Ant", "Ant-v5"):  # without a version Gymnasium takes v5
        # NOTE(paper): the version is open. No contact forces in v5, as in v4
        kwargs["include_cfrc_ext_in_observation"] = False
    if not args.terminate:
        kwargs["terminate_when_unhealthy"] = False
    steps = max_steps or args.episode_length
    try:
        env = gym.make(args.env_id, max_episode_steps=steps, **kwargs)
    except Exception as error:  # of many types
        if "terminate_when_unhealthy" in str(error):
            fail(f"{args.env_id} cannot switch its termination off: leave --no-terminate out")
        fail(f"cannot make {args.env_id!r}: {error}")
    if isinstance(env.observation_space, gym.spaces.Dict):
        env = gym.wrappers.FlattenObservation(env)
    check_space(args.env_id, "observations", env.observation_space)
    check_space(args.env_id, "actions", env.action_space)
    if args.frame_skip is not None:
        if not hasattr(env.unwrapped, "frame_skip"):
            fail(f"--frame-skip is for MuJoCo robots, not {args.env_id}: leave it out")
        env.unwrapped.frame_skip = args.frame_skip  # and with it dt, which x_velocity divides by
    if args.end_when_fallen:
        if robot_name(args.env_id) != "HalfCheetah":
            fail(f"--end-when-fallen is for HalfCheetah, not {args.env_id}: leave it out")
        env = EndWhenFallen(env)
    if not env.action_space.is_bounded() or env.action_space.dtype.kind != "f":
        fail(f"{args.env_id} has actions {env.action_space}: {SCRIPT}.py needs bounded floats")
    return gym.wrappers.TransformAction(env, lambda a: args.action_scale * a, env.action_space)


def check_space(env_id, kind, space):
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        fail(f"{env_id} has {kind} {space}: {SCRIPT}.py needs a Box of one dimension")
    if space.shape[0] == 0:
        fail(f"{env_id} has no {kind}: {SCRIPT}.py needs one at least")


def check_velocity(env, args):
    """r_ext needs an environment that reports its forward velocity."""
    if args.ext_coef:
        env.reset(seed=args.seed)
        env.action_space.seed(args.seed)
        info = env.step(env.action_space.sample())[-1]
        if "x_velocity" not in info:
            fail(f"{args.env_id} reports no x_velocity for r_ext: set --ext-coef 0")


def observation_statistics(env, args, num_steps=10_000):
    """Mean and std of random-action rollouts if observations are normalised, else 0 and 1."""
    obs, _ = env.reset(seed=args.seed)
    if not args.normalize_obs:
        return {"obs_mean": torch.zeros(len(obs)), "obs_std": torch.ones(len(obs))}
    env.action_space.seed(args.seed)
    observations = []
    for _ in range(num_steps):
        observations.append(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    observations = torch.tensor(np.array(observations), dtype=torch.float32)
    std = observations.std(dim=0, correction=0)
    std = torch.where(std > 1e-3, std, 1.0)  # a dimension that hardly moves keeps its scale
    return {"obs_mean": observations.mean(dim=0), "obs_std": std}


def rollout(envs, key, agent, skill, progress, deterministic=False):
    """One episode per environment, with one batched policy call per step.

    `progress` holds the mean and std that normalise observations; episodes come back normalised.
    Environment i is reset with a seed made from `key` and i, so a resumed run needs no saved
    environments."""
    mean = progress["obs_mean"].numpy()
    std = progress["obs_std"].numpy()
    num_envs = len(envs)
    T = envs[0].spec.max_episode_steps
    obs_dim = envs[0].observation_space.shape[0]
    action_dim = envs[0].action_space.shape[0]
    obs = np.zeros((num_envs, T + 1, obs_dim), np.float32)
    actions = np.zeros((num_envs, T, action_dim), np.float32)
    velocity = np.zeros((num_envs, T), np.float32)
    terminated = [False] * num_envs
    length = [0] * num_envs

    seeds = np.random.SeedSequence(key).generate_state(num_envs).tolist()
    for i in range(num_envs):
        first_obs, _ = envs[i].reset(seed=seeds[i])
        obs[i, 0] = (first_obs - mean) / std

    active = list(range(num_envs))  # the environments whose episode has not ended
    t = 0
    while active:
        policy_obs = torch.as_tensor(obs[active, t], device=skill.device)
        actions[active, t] = agent.act(policy_obs, skill[active], deterministic).cpu().numpy()
        for i in active.copy():
            next_obs, _, terminated[i], truncated, info = envs[i].step(actions[i, t])
            obs[i, t + 1] = (next_obs - mean) / std
            velocity[i, t] = info.get("x_velocity", 0.0)
            if terminated[i] or truncated:
                length[i] = t + 1
                active.remove(i)
        t += 1

    episodes = []
    for i, n in enumerate(length):
        if not np.isfinite(obs[i, : n + 1]).all():
            raise FloatingPointError("the environment returned an observation that is not finite")
        end = bool(terminated[i])
        episodes.append(Episode(obs[i, : n + 1], actions[i, :n], velocity[i, :n], end))
    return episodes


# ---------------------- Checking arguments, saving and resuming -----------------------
def fail(message):
    """Exits with an error message and a non-zero exit code."""
    one_line = " ".join(message.split())
    raise SystemExit(f"{SCRIPT}.py: error: {one_line}")


def describe_presets():
    """The tables that --help prints."""
    lines = ["--preset paper, by robot (v4 and v5):"]
    for robot, values in ROBOTS.items():
        cells = [f"{name} {value}" for name, value in zip(ROBOT_COLUMNS, values)]
        lines.append(f"    {robot:<12}" + ", ".join(cells))
    lines.append("--preset cpu, for every robot:")
    cells = [f"{name} {value}" for name, value in CPU_PRESET.items()]
    lines.append("    " + ", ".join(cells))
    if CPU_PRESET_BY_ROBOT:  # some scripts have none
        lines.append("--preset cpu, exceptions by robot:")
    for robot, values in CPU_PRESET_BY_ROBOT.items():
        cells = [f"{name} {value}" for name, value in values.items()]
        lines.append(f"    {robot:<12}" + ", ".join(cells))
    return "\n".join(lines)


def peek(argv):
    """A first look at the command line, before tyro reads all of it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # The defaults of the other flags depend on these
    parser.add_argument("--env-id", "--env_id", default=Args.env_id)
    parser.add_argument("--preset", default=Args.preset)
    parser.add_argument("--resume")
    # With --resume it matters whether this was given at all
    parser.add_argument("--run-name", "--run_name")
    return parser.parse_known_args(argv)[0]


def default_args(env_id, preset):
    """The defaults of a new run."""
    robot = robot_name(env_id)
    values = dict(zip(ROBOT_COLUMNS, ROBOTS.get(robot, ROBOTS["any other"])))
    if preset == "cpu":
        values.update(CPU_PRESET)
        values.update(CPU_PRESET_BY_ROBOT.get(robot, {}))
    return Args(**values)


def saved_args(checkpoint, given):
    """The arguments of the run to resume."""
    if given.run_name is not None:
        fail("--run-name cannot be given with --resume: a run stays in its folder")
    known = {k: v for k, v in checkpoint["args"].items() if k in vars(Args())}
    defaults = Args(**known)
    env_id = str(defaults.env_id)
    if ":" in env_id and given.env_id != env_id:
        module = env_id.split(":")[0]
        fail(
            f"{given.resume} imports the module {module!r}: if you trust it, add --env-id {env_id}"
        )
    return defaults


def parse_args(argv=None):
    """The arguments, checked, and the checkpoint to resume, if any."""
    given = peek(argv)
    checkpoint = None
    if given.resume is None:
        defaults = default_args(given.env_id, given.preset)
    else:
        checkpoint = load_checkpoint(resume_path(given.resume))
        defaults = saved_args(checkpoint, given)

    description = f"{__doc__}\n{describe_presets()}"
    args = tyro.cli(Args, args=argv, default=defaults, description=description)
    for name, value in vars(defaults).items():
        if getattr(args, name) is None:  # as in --v-star None, which means the default
            setattr(args, name, value)
    if checkpoint is not None:
        args.resume = str(resume_path(args.resume).parent)
        check_resume(args, defaults, checkpoint["progress"])
    check_args(args)
    return args, checkpoint


def check_resume(args, defaults, progress):
    """Exits with an error if a run cannot continue with these arguments."""
    for name in FIXED_ON_RESUME:
        if getattr(args, name) != getattr(defaults, name):
            fail(f"{name} cannot change on --resume, it was {getattr(defaults, name)}")
    if progress["epoch"] >= args.total_epochs:
        fail(f"{args.resume} has finished its {args.total_epochs} epochs: raise --total-epochs")


def check_numbers(args):
    """Exits with an error if a number is out of its range."""
    for name, value in vars(args).items():
        if type(value) not in (int, float):
            continue
        flag = "--" + name.replace("_", "-")
        is_positive = value > 0  # False for nan
        is_allowed_zero = value == 0 and name in MAY_BE_ZERO
        if not is_positive and not is_allowed_zero:
            fail(f"{flag} cannot be {value}")
        highest = AT_MOST.get(name, 2**63 - 1)  # the largest integer of torch; refuses inf, too
        if value > highest:
            fail(f"{flag} cannot be {value}: at most {highest} is possible here")
    gigabytes = 4e-9 * args.hidden_layers * args.hidden_units**2
    if gigabytes > 2:
        fail(f"--hidden-units makes networks of {gigabytes:.0f} GB each: choose fewer")


def check_args(args):
    """Exits with an error if a value cannot work."""
    check_numbers(args)
    needed = args.episodes_per_epoch * args.episode_length
    for name, value in vars(args).items():
        if name.endswith("batch_size"):
            needed = max(needed, value)
    if args.buffer_size < needed:
        fail(f"--buffer-size must hold a batch and an epoch's episodes: {needed} or more")


def run_folder(args):
    """The folder of the run: the one to resume, or one below runs/."""
    if args.resume is not None:
        return Path(args.resume)
    env_name = args.env_id.replace(":", "_")
    name = args.run_name or f"{env_name}__{SCRIPT}__{args.seed}__{int(time.time())}"
    if Path(name).is_absolute() or ".." in Path(name).parts:
        fail(f"--run-name {name!r} leads out of runs/: choose a name below it")
    return Path("runs") / name


def open_run_folder(run_dir, is_new):
    """Makes the run folder and locks it against other processes. Returns the open lock file; the
    operating system releases the lock when the process ends."""
    try:
        if is_new and ((run_dir / "resume.pt").exists() or (run_dir / "model.pt").exists()):
            fail(f"{run_dir} exists: --resume it, or choose another --run-name")
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = open(run_dir / "lock", "w")
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fail(f"{run_dir} is in use by another process: wait for it, or choose another --run-name")
    except OSError as error:
        fail(f"cannot write to {run_dir}: {error.strerror}")
    return lock


def save_checkpoint(run_dir, args, progress, agent, buffer):
    """resume.pt holds everything; model.pt holds what acting and evaluation need."""
    weights = agent.state_dict()
    model = {"script": SCRIPT, "args": vars(args), "progress": progress}
    everything = dict(model)
    model["agent"] = {k: w for k, w in weights.items() if k.startswith(("actor", "phi"))}
    everything["agent"] = weights
    everything["buffer"] = vars(buffer)
    # Adam's moments; the learning rates are those of the arguments
    everything["optimizers"] = {k: o.state_dict()["state"] for k, o in agent.optimizers.items()}
    everything["rng"] = [torch.get_rng_state()]
    if agent.device.type == "cuda":
        everything["rng"].append(torch.cuda.get_rng_state())
    write_file(run_dir / "resume.pt", everything)
    write_file(run_dir / "model.pt", model)


def write_file(path, content):
    """Writes beside the old file and then renames, so that a kill leaves the old or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(content, file)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(f"cannot write {path} ({error})") from error


def resume_path(resume):
    """--resume takes the run folder or the file in it."""
    path = Path(resume)
    return path if path.name == "resume.pt" else path / "resume.pt"


# What resume.pt holds
PARTS = {
    "script": str,
    "args": dict,
    "progress": dict,
    "agent": dict,
    "buffer": dict,
    "optimizers": dict,
    "rng": list,
}
PROGRESS = {
    "epoch": int,
    "global_step": int,  # environment steps of training so far
    "obs_mean": torch.Tensor,
    "obs_std": torch.Tensor,
}


def time_saved(path):
    return path.stat().st_mtime_ns


def read_checkpoint(path):
    """What a checkpoint holds: only tensors and plain values are read, so it cannot run code."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # compares checksums, which torch.load does not
        if damaged is not None:
            raise zipfile.BadZipFile(damaged)
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(checkpoint, dict) or "script" not in checkpoint:
            raise KeyError("script")
    except Exception as error:  # of many types
        fail(f"{path} is damaged or no checkpoint ({type(error).__name__})")
    return checkpoint


def load_checkpoint(path):
    """What resume.pt holds, checked."""
    if not path.is_file():
        fail(f"{path} is missing. Was the run stopped before its first save? Then start it anew")
    saved_at = time_saved(path)  # `train` compares it, once the run folder is locked
    checkpoint = read_checkpoint(path)
    if checkpoint["script"] != SCRIPT:
        fail(f"{path} was written by {checkpoint['script']}.py, not by {SCRIPT}.py")
    check_parts(path, checkpoint, PARTS)
    check_parts(path, checkpoint["progress"], PROGRESS)
    checkpoint["saved_at"] = saved_at
    return checkpoint


def check_parts(path, saved, parts):
    """Exits with an error if a part of a checkpoint is missing, of another type, or not finite."""
    for name, kind in parts.items():
        if not isinstance(saved.get(name), kind):
            fail(f"{path} is damaged: {name} is missing or not a {kind.__name__}")
        if kind is torch.Tensor and not saved[name].isfinite().all():
            fail(f"{path} is damaged: {name} is not finite")


def restore(checkpoint, agent, buffer):
    """Everything that training changes; learning rates stay as the arguments have them."""
    agent.load_state_dict(checkpoint["agent"])
    for name, optimizer in agent.optimizers.items():
        moments = checkpoint["optimizers"][name]
        optimizer.load_state_dict(optimizer.state_dict() | {"state": moments})
    for name, new in vars(buffer).items():
        value = checkpoint["buffer"][name]
        if torch.is_tensor(new):
            # A new buffer has all its rows, but no episodes yet: tensors per episode get longer
            if value.shape[1:] != new.shape[1:] or len(value) < len(new):
                raise ValueError(f"buffer.{name} has the shape {tuple(value.shape)}")
            value = value.to(new.device)
        setattr(buffer, name, value)
    rng = checkpoint["rng"]
    torch.set_rng_state(rng[0])
    if agent.device.type == "cuda" and len(rng) > 1:
        torch.cuda.set_rng_state(rng[1])


def catch_signals():
    """A list that collects signals. The first one lets the epoch end and be saved. A later one ends
    the process at once."""
    received = []
    first_time = math.inf

    def on_signal(number, frame):
        nonlocal first_time
        if time.time() > first_time + 1:  # within a second it may be the same one, delivered twice
            os._exit(128 + number)
        first_time = min(first_time, time.time())
        received.append(number)

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    if signal.getsignal(HANGUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(HANGUP, on_signal)
    return received


def explain(error, args, progress, run_dir):
    """One line that says what stopped a run. An unforeseen error prints its traceback first."""
    text = str(error)
    asked = re.search(r"allocate ([\d.]+) (bytes|[KMGTPE]iB)", text)  # torch and NumPy say it so
    if asked:
        power = "bytes KiB MiB GiB TiB PiB EiB".split().index(asked[2])
        reason = f"out of memory: {float(asked[1]) * 1024**power / 1e9:,.1f} GB asked for"
    elif isinstance(error, (OSError, FloatingPointError)):
        reason = text
    else:
        traceback.print_exception(error)
        reason = f"{type(error).__name__}: {text}"
    saved = run_dir / "resume.pt"
    last = saved if saved.is_file() else "none"
    epoch = progress["epoch"]
    return f"{args.env_id}, epoch {epoch}: {reason}; not saved, last good checkpoint: {last}"


def resume_command(args, run_dir, progress):
    """The command that continues the run."""
    command = ["python", os.path.relpath(__file__), "--resume", str(run_dir)]
    if ":" in args.env_id:  # `saved_args` asks for it before a module is imported
        command += ["--env-id", args.env_id]
    if progress["epoch"] == args.total_epochs:
        command += ["--total-epochs", str(2 * args.total_epochs)]
    return shlex.join(command)


def say(text):
    """Prints; a closed stdout is ignored."""
    try:
        print(text, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")


# ---------------------------------------- Main ----------------------------------------
def start_tracking(args, run_dir):
    """Weights & Biases copies what TensorBoard is given. A resumed run continues its page there."""
    try:
        import wandb
    except ImportError:
        fail("--track needs Weights & Biases: pip install wandb")
    id_file = run_dir / "wandb_id"
    if not id_file.exists():
        id_file.write_text(os.urandom(8).hex())
    try:
        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            id=id_file.read_text(),
            resume="allow",
            name=run_dir.name,
            config=vars(args),
            dir=run_dir,
            sync_tensorboard=True,
        )
    except Exception as error:  # of many types
        fail(f"Weights & Biases does not start ({error}): wandb login, or leave --track out")


def log_video(writer, run_dir, args, global_step):
    """A GIF of three skills for TensorBoard. evaluate.py makes it from model.pt, in a process of
    its own: it changes no random number of training, and if it dies, training goes on."""
    folders = Path(__file__).resolve().parents[:2]  # baselines/ lies one folder further down
    evaluator = next((f / "evaluate.py" for f in folders if (f / "evaluate.py").is_file()), None)
    if evaluator is None:
        say(f"--capture-video-every needs evaluate.py beside {SCRIPT}.py: no picture")
        return
    path = run_dir / "skills.gif"
    command = [sys.executable, evaluator, run_dir, "--gif", path, "--env-id", args.env_id]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        say(f"no picture: {error}")
        return
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()  # none if the process was killed
        say(f"no picture: {lines[-1] if lines else f'exit code {result.returncode}'}")
        return
    picture = path.read_bytes()
    width = int.from_bytes(picture[6:8], "little")  # where a GIF has its size
    height = int.from_bytes(picture[8:10], "little")
    # TensorBoard plays a GIF that is logged as an image, and Weights & Biases takes it as a video
    image = Summary.Image(encoded_image_string=picture, width=width, height=height, colorspace=3)
    summary = Summary(value=[Summary.Value(tag="videos/skills", image=image)])
    writer.file_writer.add_summary(summary, global_step)


def mean_metrics(metrics):
    """The mean of each metric over the updates of an epoch, read from the device at once."""
    names = list(metrics[0])
    means = [torch.stack([one_update[name] for one_update in metrics]).mean() for name in names]
    return dict(zip(names, torch.stack(means).tolist()))


def episode_metrics(agent, episodes, skill, args):
    """Means over an epoch's episodes: length, velocity, intrinsic reward."""
    values = defaultdict(list)
    for i in range(len(episodes)):
        num_steps = len(episodes[i].actions)
        values["charts/episodic_length"].append(num_steps)
        values["charts/velocity"].append(episodes[i].velocity.mean())
        obs = torch.as_tensor(episodes[i].obs, device=agent.device)
        skill_of_steps = skill[i].expand(num_steps, -1)
        reward = intrinsic_reward(agent, obs[:-1], obs[1:], skill_of_steps, args)
        values["charts/intrinsic_reward"].append(reward.mean().item())
    return {name: np.mean(value) for name, value in values.items()}


def train(args, checkpoint, progress, run_dir):
    """Algorithm 1, with a skill z in place of L, and so without line 3."""
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    if args.cuda and device.type == "cpu":
        print(f"{SCRIPT}.py: there is no CUDA device, training on the CPU", file=sys.stderr)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)

    # Line 1: networks and replay buffer
    T = args.episode_length
    num_episodes = args.episodes_per_epoch
    envs = [make_env(args) for _ in range(num_episodes)]
    check_velocity(envs[0], args)
    obs_dim = envs[0].observation_space.shape[0]
    action_space = envs[0].action_space
    action_dim = action_space.shape[0]
    agent = Agent(args, obs_dim, action_space, device)
    buffer = ReplayBuffer(args.buffer_size, T, obs_dim, action_dim, agent.skill_dim, device)
    if checkpoint is None:
        progress.update(observation_statistics(envs[0], args))
    else:
        try:
            restore(checkpoint, agent, buffer)
        except Exception as error:  # of many types
            fail(f"{run_dir}/resume.pt does not fit its arguments ({error!s:.200})")

    signals = catch_signals()
    lock = open_run_folder(run_dir, is_new=checkpoint is None)
    if checkpoint is not None and checkpoint["saved_at"] != time_saved(run_dir / "resume.pt"):
        # Another process saved between our load_checkpoint and our lock
        fail(f"{run_dir} has just been saved by another process: resume it again")
    if args.track:
        start_tracking(args, run_dir)
    # purge_step hides what a killed run logged after its last save
    writer = SummaryWriter(run_dir, purge_step=progress["global_step"] + 1)
    bar = tqdm(desc=SCRIPT, total=args.total_epochs, initial=progress["epoch"])
    with lock, writer, bar:
        table = "\n".join(f"    {name} = {value}" for name, value in vars(args).items())
        writer.add_text("hyperparameters", table)
        start_time = time.time()
        save_time = time.time()
        start_step = progress["global_step"]

        # Line 2: for each training epoch
        for epoch in range(progress["epoch"], args.total_epochs):
            # Lines 4 to 7: sample z, execute pi(a | s, z) for an episode, store it
            skill = sample_skills(num_episodes, args, device)  # (num_episodes, D)
            episodes = rollout(envs, (args.seed, epoch), agent, skill, progress)
            for i in range(num_episodes):
                buffer.add(episodes[i], skill[i], period=0.0)  # there is no L
                progress["global_step"] += len(episodes[i].actions)

            # Lines 8 to 10: update the networks
            metrics = []
            for _ in range(args.updates_per_epoch):
                metrics.append(update(agent, buffer, args))

            # Log. A weight that is not finite shows in weight_norm
            seconds = time.time() - start_time
            logs = mean_metrics(metrics)
            logs.update(episode_metrics(agent, episodes, skill, args))
            logs["losses/weight_norm"] = nn.utils.get_total_norm(agent.parameters()).item()
            logs["charts/episodes"] = (epoch + 1) * num_episodes
            logs["charts/SPS"] = (progress["global_step"] - start_step) / seconds
            for name, value in logs.items():
                if not np.isfinite(value):
                    raise FloatingPointError(f"{name} is {value}")
                writer.add_scalar(name, value, progress["global_step"])
            progress["epoch"] = epoch + 1
            try:
                bar.set_postfix(intrinsic_reward=logs["charts/intrinsic_reward"])
                bar.update()
            except OSError:  # nobody reads the output any more: save and stop, as for a signal
                bar.disable = True
                signals.append(HANGUP)

            # Save
            last = bool(signals) or progress["epoch"] == args.total_epochs
            every = args.capture_video_every
            film = every > 0 and progress["epoch"] % every == 0
            if last or film or time.time() - save_time > 60 * args.save_minutes:
                save_checkpoint(run_dir, args, progress, agent, buffer)
                save_time = time.time()
            if film:
                log_video(writer, run_dir, args, progress["global_step"])
            if last:
                break
    say(f"saved {run_dir}; to continue: {resume_command(args, run_dir, progress)}")
    if signals:
        sys.exit(128 + signals[0])


def main(argv=None):
    args, checkpoint = parse_args(argv)
    run_dir = run_folder(args)
    if checkpoint is None:
        progress = {"epoch": 0, "global_step": 0}
    else:
        progress = checkpoint["progress"]
    try:
        train(args, checkpoint, progress, run_dir)
    except Exception as error:
        fail(explain(error, args, progress, run_dir))


if __name__ == "__main__":
    main()
