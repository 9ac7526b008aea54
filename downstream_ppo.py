"""Downstream tasks, and PPO over frozen skills: Park et al. (PSD), NeurIPS 2025, Question 2.

A robot jumps over hurdles, or runs while the friction of its feet changes. Every H steps a
high-level policy pi^h(L | s_task, s) chooses a skill. The policy of a checkpoint carries that skill
out and stays frozen. The checkpoint is of psd.py, of psd_metra.py (whose skills are pairs of z and
L), or of a baseline with discrete skills z.

    python downstream_ppo.py --task HalfCheetahHurdle-v0 --skills runs/NAME    # the paper's setting
    python downstream_ppo.py --task HalfCheetahHurdle-v0 --skills runs/NAME --preset cpu

The second command takes less than half an hour on one CPU core.

Where to find what the paper defines:

    hurdle tasks            HurdleTask           +1 per hurdle that is cleared (Appendix C)
    friction tasks          FrictionTask         metres travelled as friction changes (Appendix C)
    s_task                  task_state           of either task: distance, or friction (Appendix C)
    pi(a | s, L), frozen    load_skills, Skills  the policy of a checkpoint, and its skills
    Embed(L)                embed_period         how that policy sees L
    H                       SkillEnv             a skill is kept for H steps (Table 4)
    pi^h(L | s_task, s)     HighLevelAgent       and its critic (Table 4)
    PPO                     make_decisions, ppo_loss, update
    Table 1                 evaluate_policy      mean return of fresh episodes
    Table 4                 Args                 all settings of PPO

Not in the paper, and off by default: --policy random, --policy fixed, --preset cpu, --video.

Differs from psd.py in: the tasks, the frozen skills, PPO instead of SAC, and the evaluation at the
end. The skill policy (MLP, Actor, embed_period) is a copy, and so is saving and resuming.
"""

import argparse
import contextlib
import json
import math
import os
import re
import shlex
import signal
import sys
import time
import traceback
import warnings
import zipfile
from collections import namedtuple
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
from gymnasium.envs.mujoco.half_cheetah_v4 import HalfCheetahEnv
from gymnasium.envs.mujoco.walker2d_v4 import Walker2dEnv
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
    task: str = "HalfCheetahHurdle-v0"
    """the task to learn, one of the table above"""
    skills: str | None = None
    """run folder or model.pt of psd.py, psd_metra.py or a baseline with discrete skills"""
    policy: str = "learned"
    """learned, or a control without training: random skills, or fixed, the best single skill"""
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
    eval_episodes: int = 100
    """episodes behind the mean return that is reported at the end, 2 or more"""
    video: bool = False
    """write an mp4 of one episode at the end, with skill and reward on each frame"""

    # Proximal policy optimisation (Table 4)
    total_epochs: int = 25_000
    """number of epochs; the default is the length of the paper's training: 100,000 episodes"""
    episodes_per_epoch: int = 4
    """episodes collected per epoch, stepped together"""
    updates_per_epoch: int = 80
    """gradient steps per epoch"""
    skill_steps: int = 10
    """H, the number of steps for which a skill is kept"""
    hidden_layers: int = 2
    """hidden layers per network"""
    hidden_units: int = 256
    """units per hidden layer"""
    actor_lr: float = 3e-4
    """learning rate of pi^h"""
    critic_lr: float = 1e-3
    """learning rate of the critic of pi^h"""
    clip: float = 0.2
    """epsilon: ratios of probabilities are clipped to the range from 1 - epsilon to 1 + epsilon"""
    value_coef: float = 0.5
    """coefficient of the critic's loss (the PPO code that the paper uses)"""
    entropy_coef: float = 0.01
    """coefficient of the entropy of pi^h (the PPO code that the paper uses)"""
    gamma: float = 0.99
    """discount factor"""

    @property
    def env_id(self):
        """The name by which functions that all scripts share know the task."""
        return self.task


# --preset cpu (ours): gentle updates, and a tenth of the episodes. After 80 gradient steps on four
# episodes most ratios lie beyond the clip. 10 steps did better (docs/downstream_ppo.md).
CPU_PRESET = {"updates_per_epoch": 10, "total_epochs": 2500}

POLICIES = ["learned", "random", "fixed"]
MAY_BE_ZERO = ["seed", "value_coef", "entropy_coef", "gamma"]
AT_MOST = {  # catches typos before they fill the memory
    "gamma": 1,
    "num_threads": os.cpu_count() or 1,
    "hidden_layers": 100,
    "hidden_units": 16_384,
    "episodes_per_epoch": 1_000,
    "eval_episodes": 1_000_000,
}
FIXED_ON_RESUME = [  # because they shape what is stored, or would make it another run
    "task", "skills", "policy", "preset", "skill_steps", "episodes_per_epoch", "hidden_layers",
    "hidden_units",
]  # fmt: skip


# --------------------------------------- Tasks ----------------------------------------
HALF_DEPTH = 0.05  # of a hurdle, in metres
FRICTIONS = (0.5, 1.5, 2.0)  # of the feet, in turn
FRICTION_STEPS = 100  # for which each friction lasts
FLOOR_COLOURS = {0.5: (0.5, 0.75, 1.0), 1.5: (0.95, 0.95, 0.6), 2.0: (1.0, 0.6, 0.45)}


class Task:
    """A Gymnasium robot whose model `edit` changes. s_task comes last in its observations."""

    def __init__(self, *args, **kwargs):
        kwargs.setdefault("camera_name", "track")  # the default camera stays behind
        super().__init__(*args, **kwargs)
        size = self.observation_space.shape[0] + 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.foot_ids = [self.model.geom(name).id for name in self.feet]

    def _initialize_simulation(self):
        spec = mujoco.MjSpec.from_file(self.fullpath)
        self.edit(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # HalfCheetah's file has a deprecated attribute
            model = spec.compile()
        view = model.vis.global_
        view.offwidth = max(view.offwidth, self.width)
        view.offheight = max(view.offheight, self.height)
        return model, mujoco.MjData(model)

    def _get_obs(self):
        return np.append(super()._get_obs(), self.task_state())


class HurdleTask(Task):
    """+1 per hurdle, once, when the rearmost foot is behind it."""

    def edit(self, spec):
        half_height = self.top / 2
        for x in self.hurdles:
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                size=[HALF_DEPTH, 1.0, half_height],
                pos=[x, 0.0, half_height],
                conaffinity=1,  # with the file's default, 0, the robot would pass through
                rgba=[0.8, 0.2, 0.2, 1.0],
            )

    def reset_model(self):
        self.cleared = 0
        return super().reset_model()

    def do_simulation(self, ctrl, n_frames):
        super().do_simulation(ctrl, n_frames)
        mujoco.mj_kinematics(self.model, self.data)  # mj_step leaves positions a substep behind
        rear = self.data.geom_xpos[self.foot_ids, 0].min()
        passed = np.searchsorted(np.array(self.hurdles) + HALF_DEPTH, rear)
        self.cleared = max(self.cleared, int(passed))  # going back and forth pays nothing

    def step(self, action):
        before = self.cleared
        obs, _, terminated, truncated, info = super().step(action)
        reward = float(self.cleared - before)
        return obs, reward, terminated, truncated, info | {"cleared": self.cleared}

    def task_state(self):
        """Signed distance from the torso to the next hurdle, and at the end to the last one."""
        # NOTE(paper): the paper takes the nearest hurdle, which may lie behind the robot already.
        following = min(self.cleared, len(self.hurdles) - 1)
        return self.hurdles[following] - self.data.qpos[0]


class FrictionTask(Task):
    """Metres travelled forward while the friction of the feet changes. s_task is the friction."""

    # NOTE(paper): in turn, as in Appendix C (Section 4: at random). The reward v_x dt is in metres,
    # which fits the size of the returns in Table 1.

    def edit(self, spec):
        for name in self.feet:  # otherwise the higher friction counts, foot or floor
            spec.geom(name).priority = 1

    def reset_model(self):
        self.num_steps = 0
        self.set_friction()
        return super().reset_model()

    def set_friction(self):
        self.friction = FRICTIONS[self.num_steps // FRICTION_STEPS % len(FRICTIONS)]
        self.model.geom_friction[self.foot_ids, 0] = self.friction
        floor = self.model.geom("floor").id
        self.model.geom_rgba[floor, :3] = FLOOR_COLOURS.get(self.friction, 1.0)

    def do_simulation(self, ctrl, n_frames):
        super().do_simulation(ctrl, n_frames)
        self.num_steps += 1
        if self.num_steps % FRICTION_STEPS == 0:
            self.set_friction()  # of the next step, so that s_task reveals it

    def step(self, action):
        friction = self.friction
        obs, _, terminated, truncated, info = super().step(action)
        reward = float(info["x_velocity"] * self.dt)
        return obs, reward, terminated, truncated, info | {"friction": friction}

    def task_state(self):
        return self.friction


class HalfCheetahHurdle(HurdleTask, HalfCheetahEnv):
    feet = ("bfoot", "ffoot")
    hurdles = (2.5, 4.0, 7.0, 10.0, 15.0, 22.0, 30.0)
    top = 0.26


class Walker2dHurdle(HurdleTask, Walker2dEnv):
    feet = ("foot_geom", "foot_left_geom")
    hurdles = (1.2, 2.7, 4.1, 5.8, 7.0, 9.2, 11.0, 12.8, 14.2)
    top = 0.11


class HalfCheetahFriction(FrictionTask, HalfCheetahEnv):
    feet = HalfCheetahHurdle.feet


class Walker2dFriction(FrictionTask, Walker2dEnv):
    feet = Walker2dHurdle.feet


# The class of a task, the robot whose skills fit, and the length of an episode
TaskEntry = namedtuple("TaskEntry", "env_class robot T")
TASKS = {
    "HalfCheetahHurdle-v0": TaskEntry(HalfCheetahHurdle, "HalfCheetah-v4", 300),
    "Walker2dHurdle-v0": TaskEntry(Walker2dHurdle, "Walker2d-v4", 600),
    "HalfCheetahFriction-v0": TaskEntry(HalfCheetahFriction, "HalfCheetah-v4", 500),
    "Walker2dFriction-v0": TaskEntry(Walker2dFriction, "Walker2d-v4", 500),
}
for task_id, entry in TASKS.items():
    gym.register(task_id, entry.env_class, max_episode_steps=entry.T)


def make_task(task, **kwargs):
    mujoco.set_mju_user_warning(lambda message: None)  # or HalfCheetah writes MUJOCO_LOG.TXT
    return gym.make(task, disable_env_checker=True, **kwargs)


# ----------------------------------- Frozen skills ------------------------------------
MAX_PERIODS = 16  # values of L to choose from
HAS_PERIODS = ["psd", "psd_metra"]  # the scripts whose skills have an L
# The scripts whose skills can be used, and whether the policy sees the global position
SEES_POSITION = {
    "psd": False,
    "psd_metra": False,
    "diayn": False,
    "dads": False,
    "metra": True,
    "csd": True,
}


def embed_period(L, embed_dim):
    """Embed(L): sin(L w_i) for even i and cos(L w_i) for odd i, w_i = 10000^(-2 floor(i/2) / D)."""
    i = torch.arange(embed_dim, device=L.device)
    angle = L[..., None] * 10000.0 ** (-2.0 * (i // 2) / embed_dim)  # (..., D)
    if embed_dim == 1:
        return angle  # L itself
    return torch.where(i % 2 == 0, angle.sin(), angle.cos())


def candidate_periods(L_min, L_max, num_periods):
    """The values of L that are trained: spaced evenly, both bounds included."""
    # NOTE(paper): "uniformly sample four discrete values" is read as evenly spaced
    return np.unique(np.round(np.linspace(L_min, L_max, num_periods))).astype(int)


def period_skills(bounds, embed_dim):
    """The skills of psd.py: their names, and what its policy sees of them, (n, D)."""
    # NOTE(paper): which L pi^h may choose is left open. Here: evenly over the range of training.
    L_min, L_max = bounds[:2]
    if not 1 <= L_min <= L_max:
        raise ValueError(f"L_min {L_min}, L_max {L_max}")
    periods = candidate_periods(L_min, L_max, MAX_PERIODS)
    names = [f"L = {L}" for L in periods]
    return names, embed_period(torch.tensor(periods).float(), embed_dim)


def pair_skills(names, vectors, skill_dim):
    """The skills of psd_metra.py: each L with both ends of each axis of z."""
    ends = torch.cat([torch.eye(skill_dim), -torch.eye(skill_dim)])  # (2 skill_dim, skill_dim)
    pair_names = [f"z = {i}, {name}" for i in range(len(ends)) for name in names]
    pairs = [torch.cat([L, z]) for z in ends for L in vectors]
    return pair_names, torch.stack(pairs)  # (2 skill_dim n, D + skill_dim)


def one_hot_skills(num_skills):
    """The skills of a baseline: their names, and what its policy sees of them, (n, n)."""
    return [f"z = {i}" for i in range(num_skills)], torch.eye(num_skills)


class Skills:
    """The frozen policy pi(a | s, skill) of a checkpoint, and the skills to choose from."""

    def __init__(self, content, task, device):
        script = content["script"]
        args = content["args"]
        progress = content["progress"]
        robot = TASKS[task].robot
        if args["env_id"] != robot:  # never made, so that module:EnvId imports nothing
            fail(f"{task} needs skills of {robot}, these are of {args['env_id']}")
        if script in HAS_PERIODS:
            names, vectors = period_skills(progress["bounds"], args["embed_dim"])
        else:
            names, vectors = one_hot_skills(args["num_skills"])
        if script == "psd_metra":
            names, vectors = pair_skills(names, vectors, args["skill_dim"])
        self.names = names
        self.content = content
        self.sees_position = SEES_POSITION[script]
        self.vectors = vectors.to(device)  # (number of skills, D)
        self.action_scale = args.get("action_scale", 1.0)  # older checkpoints have none
        if not 0 < self.action_scale < np.inf:
            raise ValueError(f"action_scale {self.action_scale}")

        env = make_task(task)
        task_frame_skip = env.unwrapped.frame_skip
        frame_skip = args.get("frame_skip") or task_frame_skip
        if frame_skip % task_frame_skip != 0:
            fail(f"{task} needs skills with a multiple of --frame-skip {task_frame_skip}")
        self.hold_steps = frame_skip // task_frame_skip  # of the task, per action of the skill

        obs_dim = env.observation_space.shape[0] - 1  # without s_task
        if self.sees_position:
            obs_dim += 1
        unseen = args.get("position_dim", 0)  # the actor of psd_metra.py sees no global position
        self.mean = progress["obs_mean"][unseen:].numpy()
        self.std = progress["obs_std"][unseen:].numpy()
        if self.mean.shape != (obs_dim,) or self.std.shape != (obs_dim,):
            raise ValueError(f"the statistics are not those of {obs_dim} observations")

        size_in = obs_dim + self.vectors.shape[1]
        layers = args["hidden_layers"]
        with torch.random.fork_rng(devices=[]):  # the first weights are thrown away
            actor = Actor(size_in, layers, args["hidden_units"], env.action_space)
        actor.load_state_dict(content["agent"])
        self.actor = actor.to(device).requires_grad_(False)

    def see(self, env, obs):
        """What the policy sees of a task's observation: not s_task, but the global position if it
        was trained with that, normalised as in training."""
        obs = obs[:-1]
        if self.sees_position:
            obs = np.concatenate([env.unwrapped.data.qpos[:1], obs])
        return ((obs - self.mean) / self.std).astype(np.float32)

    def act(self, obs, choices):
        """The actions of the chosen skills."""
        # NOTE(paper): deterministic, so that a skill is as good as it can be.
        device = self.vectors.device
        obs = torch.as_tensor(obs, device=device)
        skill = self.vectors[torch.as_tensor(choices, device=device)]
        return self.action_scale * self.actor.act(obs, skill, deterministic=True).cpu().numpy()


class SkillEnv(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """A task as pi^h sees it: an action is the number of a skill, which is kept for H steps."""

    def __init__(self, env, skills, skill_steps):
        gym.utils.RecordConstructorArgs.__init__(  # for env.spec, to make the environment again
            self, skills=skills, skill_steps=skill_steps, _disable_deepcopy=True
        )
        gym.Wrapper.__init__(self, env)
        self.skills = skills
        self.skill_steps = skill_steps
        self.action_space = gym.spaces.Discrete(len(skills.names))

    def reset(self, **kwargs):
        self.obs, info = super().reset(**kwargs)
        return self.obs, info

    def step(self, action):
        return step_together([self], [action])[0]


def step_together(envs, choices):
    """One decision per SkillEnv, with one batched policy call per step of the robots."""
    # NOTE(paper): the reward of a decision is the sum over its H steps, and gamma counts decisions.
    skills = envs[0].skills
    rewards = [0.0] * len(envs)
    results = [None] * len(envs)
    active = list(range(len(envs)))  # the environments whose episode has not ended
    for step in range(envs[0].skill_steps):
        if step % skills.hold_steps == 0:
            seen = np.stack([skills.see(envs[i].env, envs[i].obs) for i in active])
            actions = dict(zip(active, skills.act(seen, [choices[i] for i in active])))
        for i in active.copy():
            obs, reward, terminated, truncated, info = envs[i].env.step(actions[i])
            envs[i].obs = obs
            rewards[i] += reward
            results[i] = (obs, rewards[i], terminated, truncated, info | {"steps": step + 1})
            if terminated or truncated:
                active.remove(i)
        if not active:
            break
    return results


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


def tanh_layers(size_in, hidden_layers, hidden_units, size_out):
    """Linear layers with tanh in between, initialised as in the PPO code that the paper uses."""
    sizes = [size_in] + hidden_layers * [hidden_units] + [size_out]
    layers = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.Tanh()]
    return nn.Sequential(*layers[:-1])  # no tanh at the end


class HighLevelAgent(nn.Module):
    """All that a gradient step changes: pi^h, its critic, and their optimiser."""

    def __init__(self, args, obs_dim, num_skills, device):
        super().__init__()
        layers = args.hidden_layers
        units = args.hidden_units
        self.actor = tanh_layers(obs_dim, layers, units, num_skills)  # logits of pi^h
        self.critic = tanh_layers(obs_dim, layers, units, 1)
        self.device = torch.device(device)
        self.to(self.device)

        fused = self.device.type != "meta"  # faster; tests run on `meta`, which does not have it
        actor_group = {"params": list(self.actor.parameters()), "lr": args.actor_lr}
        critic_group = {"params": list(self.critic.parameters()), "lr": args.critic_lr}
        self.optimizer = torch.optim.Adam([actor_group, critic_group], fused=fused)

    @torch.no_grad()
    def choose(self, obs, generator=None):
        """One skill per observation, drawn from pi^h. The draw is on the host, which acts."""
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.device)
        probabilities = self.actor(obs).softmax(dim=-1).cpu()
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1).tolist()


# ---------------------------- Proximal policy optimisation ----------------------------
# The n decisions of an episode: what pi^h saw, (n, obs_dim), chose and earned; the number of steps
# of the robot, and its x at the end
Trajectory = namedtuple("Trajectory", "obs choices rewards steps distance")
# What PPO learns from, each (B, ...)
Decisions = namedtuple("Decisions", "obs choices log_pi returns advantages")


def discounted_returns(rewards, gamma):
    """The Monte-Carlo return of each decision of an episode."""
    # NOTE(paper): the end at T is treated like a fall, as in the PPO code that the paper uses.
    returns = np.zeros(len(rewards))
    future = 0.0
    for t in reversed(range(len(rewards))):
        future = rewards[t] + gamma * future
        returns[t] = future
    return returns


@torch.no_grad()
def make_decisions(agent, trajectories, gamma):
    """All decisions of an epoch in one batch, with normalised returns."""
    # NOTE(paper): Table 4 has batches of 256, but four episodes hold 120 to 240 decisions: all of
    # them. No GAE, as in the PPO code that the paper uses.
    obs = np.concatenate([trajectory.obs for trajectory in trajectories])
    choices = np.concatenate([trajectory.choices for trajectory in trajectories])
    returns = [discounted_returns(trajectory.rewards, gamma) for trajectory in trajectories]
    returns = np.concatenate(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-7)

    obs = torch.as_tensor(obs, dtype=torch.float32, device=agent.device)  # (B, obs_dim)
    choices = torch.as_tensor(choices, device=agent.device)  # (B,)
    returns = torch.as_tensor(returns, dtype=torch.float32, device=agent.device)  # (B,)
    log_probabilities = agent.actor(obs).log_softmax(dim=-1)  # (B, number of skills)
    log_pi = log_probabilities.gather(1, choices[:, None]).squeeze(-1)  # (B,)
    advantages = returns - agent.critic(obs).squeeze(-1)  # (B,)
    return Decisions(obs, choices, log_pi, returns, advantages)


def ppo_loss(agent, batch, clip, value_coef, entropy_coef):
    """Clipped surrogate objective, squared error of the critic, and entropy of pi^h."""
    log_probabilities = agent.actor(batch.obs).log_softmax(dim=-1)  # (B, number of skills)
    log_pi = log_probabilities.gather(1, batch.choices[:, None]).squeeze(-1)  # (B,)
    ratio = (log_pi - batch.log_pi).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    policy_loss = -torch.min(ratio * batch.advantages, clipped * batch.advantages).mean()
    value_loss = F.mse_loss(agent.critic(batch.obs).squeeze(-1), batch.returns)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1).mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    metrics = {
        "losses/policy_loss": policy_loss.detach(),
        "losses/value_loss": value_loss.detach(),
        "losses/entropy": entropy.detach(),
        "losses/clip_fraction": (ratio != clipped).float().mean(),
    }
    return loss, metrics


def update(agent, batch, args):
    """One gradient step of pi^h and its critic. Metrics stay on the device."""
    loss, metrics = ppo_loss(agent, batch, args.clip, args.value_coef, args.entropy_coef)
    agent.optimizer.zero_grad()
    loss.backward()
    agent.optimizer.step()
    return metrics


# ------------------------------ Environment and rollouts ------------------------------
def make_skill_env(args, skills):
    return SkillEnv(make_task(args.task), skills, args.skill_steps)


def collect(envs, key, choose):
    """One trajectory per SkillEnv, decision by decision. `choose` maps observations to skills.

    Environment i is reset with a seed made of `key` and i, so that no environment's state needs
    saving."""
    num_envs = len(envs)
    obs = [[] for _ in range(num_envs)]
    choices = [[] for _ in range(num_envs)]
    rewards = [[] for _ in range(num_envs)]
    steps = [0] * num_envs
    distance = [0.0] * num_envs

    seeds = np.random.SeedSequence(key).generate_state(num_envs).tolist()
    for i in range(num_envs):
        first_obs, _ = envs[i].reset(seed=seeds[i])
        obs[i].append(first_obs)

    active = list(range(num_envs))  # the environments whose episode has not ended
    while active:
        chosen = choose(np.array([obs[i][-1] for i in active]))
        results = step_together([envs[i] for i in active], chosen)
        for i, choice, result in zip(active.copy(), chosen, results):
            next_obs, reward, terminated, truncated, info = result
            if not np.isfinite(next_obs).all():
                raise FloatingPointError("the task returned an observation that is not finite")
            choices[i].append(choice)
            rewards[i].append(reward)
            steps[i] += info["steps"]
            distance[i] = info.get("x_position", 0.0)
            if terminated or truncated:
                active.remove(i)
            else:
                obs[i].append(next_obs)

    trajectories = []
    for i in range(num_envs):
        obs_i = np.array(obs[i])
        choices_i = np.array(choices[i])
        trajectories.append(Trajectory(obs_i, choices_i, rewards[i], steps[i], distance[i]))
    return trajectories


# ------------------------------------- Evaluation -------------------------------------
EVAL_STREAM = 7_000_000  # keeps the seeds of evaluation apart from those of training
EVAL_ENVS = 20  # stepped together


def play(envs, key, choose, num_episodes):
    """The trajectories of `num_episodes` episodes, as many at once as there are environments."""
    trajectories = []
    while len(trajectories) < num_episodes:
        missing = num_episodes - len(trajectories)
        trajectories += collect(envs[:missing], (*key, len(trajectories)), choose)
    return trajectories


def episode_returns(trajectories):
    return [sum(trajectory.rewards) for trajectory in trajectories]


def mean_and_interval(returns):
    """The mean, and its 95 % interval by the normal approximation."""
    mean = np.mean(returns)
    half = 1.96 * np.std(returns, ddof=1) / np.sqrt(len(returns))
    return float(mean), [float(mean - half), float(mean + half)]


def always(skill):
    """A policy that chooses one skill whatever it sees."""
    return lambda obs: [skill] * len(obs)


def try_skills(envs, args):
    """The mean return of each skill alone."""
    # The best skill is evaluated on other episodes: the highest of 16 noisy means is too high.
    key = (EVAL_STREAM, args.seed, 0)
    means = []
    for skill in tqdm(range(len(envs[0].skills.names)), "skills", disable=None):
        trajectories = play(envs, key, always(skill), args.eval_episodes)
        means.append(float(np.mean(episode_returns(trajectories))))
    return means


def evaluate_policy(envs, args, agent):
    """A number of Table 1 for downstream.json, and the policy behind it. The episodes start the
    same for every policy."""
    skills = envs[0].skills
    names = skills.names
    generator = torch.Generator().manual_seed(args.seed)  # that of training stays as it was
    envs = envs[:EVAL_ENVS]
    while len(envs) < EVAL_ENVS:
        envs.append(make_skill_env(args, skills))

    result = {}
    if args.policy == "fixed":
        means = try_skills(envs, args)
        best = int(np.argmax(means))
        result["best_skill"] = names[best]
        result["trials"] = dict(zip(names, means))

    def choose(obs):
        if args.policy == "fixed":
            return [best] * len(obs)
        if args.policy == "random":
            return torch.randint(len(names), (len(obs),), generator=generator).tolist()
        return agent.choose(obs, generator)

    trajectories = play(envs, (EVAL_STREAM, args.seed, 1), choose, args.eval_episodes)
    returns = episode_returns(trajectories)
    choices = np.concatenate([trajectory.choices for trajectory in trajectories])
    counts = np.bincount(choices, minlength=len(names)).tolist()
    result["mean"], result["interval"] = mean_and_interval(returns)
    result["eval_episodes"] = len(returns)
    result["returns"] = returns
    result["steps"] = [trajectory.steps for trajectory in trajectories]
    result["chosen"] = dict(zip(names, counts))
    return result, choose


class Filmed(gym.Wrapper):
    """Keeps a frame of every step, with its reward."""

    def reset(self, **kwargs):
        result = self.env.reset(**kwargs)
        self.frames = [(self.env.render(), 0.0)]
        return result

    def step(self, action):
        result = self.env.step(action)
        self.frames.append((self.env.render(), result[1]))
        return result


def make_filmed_env(args, skills):
    """A SkillEnv that renders off-screen."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import cv2  # noqa: F401
        import imageio_ffmpeg  # noqa: F401

        env = make_task(args.task, render_mode="rgb_array", width=480, height=360)
        model = env.unwrapped.model
        model.vis.quality.offsamples = 0  # without these three it is 30 times slower
        model.vis.quality.shadowsize = 0
        model.mat_reflectance[:] = 0
        env.reset(seed=0)
        env.render()
    except Exception as error:  # of many types, by the library that is missing
        gl = os.environ.get("MUJOCO_GL")
        reason = f"{type(error).__name__}: {error}"
        fail(f"--video: off-screen rendering with MUJOCO_GL={gl} fails ({reason})")
    return SkillEnv(Filmed(env), skills, args.skill_steps)


def write_video(path, env, choose, seed):
    """An mp4 of one episode, with the chosen skill, the reward and the return on each frame."""
    import cv2
    import imageio_ffmpeg

    obs, _ = env.reset(seed=seed)
    labels = []
    ended = False
    while not ended:
        choice = choose(obs[None])[0]
        obs, _, terminated, truncated, info = env.step(choice)
        labels += [env.skills.names[choice]] * info["steps"]
        ended = terminated or truncated
    labels.insert(0, labels[0])  # of the frame before the first step

    frames = env.env.frames
    height, width = frames[0][0].shape[:2]
    temporary = path.with_suffix(".tmp.mp4")
    writer = imageio_ffmpeg.write_frames(
        str(temporary),
        (width, height),
        fps=min(1 / env.unwrapped.dt, 60.0),
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        output_params=["-movflags", "+faststart"],
    )
    writer.send(None)
    total = 0.0
    for (image, reward), label in zip(frames, labels):
        total += reward
        image = np.ascontiguousarray(image)
        text = f"{label}   reward {reward:.2f}   return {total:.2f}"
        cv2.rectangle(image, (0, 0), (width, 32), (0, 0, 0), -1)
        cv2.putText(image, text, (10, 22), 0, 0.55, (255, 255, 255), 1, cv2.LINE_AA)
        writer.send(image)
    writer.close()
    os.replace(temporary, path)


# ---------------------- Checking arguments, saving and resuming -----------------------
def fail(message):
    """Exits with an error message and a non-zero exit code."""
    one_line = " ".join(message.split())
    raise SystemExit(f"{SCRIPT}.py: error: {one_line}")


def describe_presets():
    """The tables that --help prints."""
    lines = ["tasks, the robots whose skills they take, and the length of an episode:"]
    for task, entry in TASKS.items():
        lines.append(f"    {task:<24}{entry.robot:<16}{entry.T:>4}")
    lines.append("--preset paper: Table 4, the defaults of the flags below")
    cells = [f"{name} {value}" for name, value in CPU_PRESET.items()]
    lines.append("--preset cpu, on top of that: " + ", ".join(cells))
    return "\n".join(lines)


def peek(argv):
    """A first look at the command line: the flags on which the defaults of the others depend."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--task", dest="env_id", default=Args.task)
    parser.add_argument("--preset", default=Args.preset)
    parser.add_argument("--resume")
    parser.add_argument("--run-name", "--run_name")
    return parser.parse_known_args(argv)[0]


def default_args(preset):
    """The defaults of a new run."""
    if preset == "cpu":
        return Args(**CPU_PRESET)
    return Args()


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
        defaults = default_args(given.preset)
    else:
        checkpoint = load_checkpoint(resume_path(given.resume))
        defaults = saved_args(checkpoint, given)

    description = f"{__doc__}\n{describe_presets()}"
    args = tyro.cli(Args, args=argv, default=defaults, description=description)
    if checkpoint is None:
        check_args(args)
        return args, None

    args.resume = str(resume_path(args.resume).parent)
    for name in FIXED_ON_RESUME:
        if getattr(args, name) != getattr(defaults, name):
            fail(f"{name} cannot change on --resume, it was {getattr(defaults, name)}")
    check_args(args)
    return args, checkpoint


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
    if args.eval_episodes < 2:
        fail("--eval-episodes 1 gives no interval: take 2 or more")
    if args.task not in TASKS:
        fail(f"--task {args.task}: choose one of {', '.join(TASKS)}")
    if args.policy not in POLICIES:
        fail(f"--policy {args.policy}: choose one of {', '.join(POLICIES)}")
    if args.skills is None:
        fail("""--skills is missing: a run folder of psd.py, of psd_metra.py, or of a baseline with
            discrete skills""")


# What is in a checkpoint of skills, in its progress, and in its arguments
SKILL_PARTS = {"script": str, "args": dict, "progress": dict, "agent": dict}
SKILL_PROGRESS = {"epoch": int, "obs_mean": torch.Tensor, "obs_std": torch.Tensor}
SKILL_ARGS = {"env_id": str, "seed": int, "ext_coef": float}
# The sizes among those arguments, each at least 1 and at most this. No script has all of them.
SKILL_SIZES = {
    "hidden_layers": 100,
    "hidden_units": 16_384,
    "embed_dim": 1_024,
    "skill_dim": 1_024,
    "num_skills": 1_024,
}


def load_skills(path):
    """The frozen skills of a run folder or model.pt: only tensors and plain values are read."""
    path = Path(path)
    if path.is_dir():
        path = path / "model.pt"
    if not path.is_file():
        fail(f"{path} is missing: --skills takes a run folder or a model.pt")
    checkpoint = read_checkpoint(path)
    if "state" in checkpoint:
        checkpoint["progress"] = checkpoint["state"]  # as older files call it
    check_parts(path, checkpoint, SKILL_PARTS)

    progress = {}
    for name in ("obs_mean", "obs_std", "bounds", "epoch"):
        progress[name] = checkpoint["progress"].get(name)  # a baseline has no bounds of L
    actor = {}
    for name, weight in checkpoint["agent"].items():
        if str(name).startswith("actor."):
            actor[name.removeprefix("actor.")] = weight
    content = {"script": checkpoint["script"], "args": checkpoint["args"]}
    content["progress"] = progress
    content["agent"] = actor
    check_skills(path, content)
    return content


def check_skills(path, content):
    """Exits with an error if frozen skills cannot be used here, lack a part, or are damaged."""
    check_parts(path, content, SKILL_PARTS)
    script = content["script"]
    args = content["args"]
    if script not in SEES_POSITION:
        known = ", ".join(f"{name}.py" for name in SEES_POSITION)
        fail(f"{path} is of {script}.py: the skills of {known} can be used")
    if args.get("num_skills") == 0:
        fail(f"{path} has continuous skills: train with --num-skills 16 for these tasks")
    check_parts(path, args, SKILL_ARGS)
    check_parts(path, content["progress"], SKILL_PROGRESS)
    for name, highest in SKILL_SIZES.items():
        if args.get(name, 1) not in range(1, highest + 1):
            fail(f"{path} is damaged: {name} is {args[name]}")
    if not (content["progress"]["obs_std"] > 0).all():
        fail(f"{path} is damaged: obs_std is not positive")
    for weight in content["agent"].values():
        if not torch.is_tensor(weight) or not weight.isfinite().all():
            fail(f"{path} is damaged: its actor has weights that are not finite")


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


def save_checkpoint(run_dir, args, progress, agent, skills):
    """resume.pt holds everything; model.pt holds what it takes to act. Both have the skills."""
    weights = agent.state_dict()
    model = {"script": SCRIPT, "args": vars(args), "progress": progress, "skills": skills.content}
    everything = dict(model)
    model["agent"] = {k: w for k, w in weights.items() if k.startswith("actor")}
    everything["agent"] = weights
    everything["optimizer"] = agent.optimizer.state_dict()["state"]
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


def write_json(path, content):
    """Writes beside the old file and then renames, as write_file does."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(temporary, path)


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
    "skills": dict,
    "optimizer": dict,
    "rng": list,
}
PROGRESS = {
    "epoch": int,
    "global_step": int,  # environment steps so far
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


def restore(checkpoint, agent):
    """Everything that training changes; learning rates stay as the arguments have them."""
    agent.load_state_dict(checkpoint["agent"])
    moments = checkpoint["optimizer"]
    agent.optimizer.load_state_dict(agent.optimizer.state_dict() | {"state": moments})
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


def release_signals():
    """Undoes catch_signals: everything is saved, so a signal may end the process at once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(HANGUP) != signal.SIG_IGN:  # nohup ignores it
        signal.signal(HANGUP, signal.SIG_DFL)


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


def mean_metrics(metrics):
    """The mean of each metric over the updates of an epoch, read from the device at once."""
    names = list(metrics[0])
    means = [torch.stack([one_update[name] for one_update in metrics]).mean() for name in names]
    return dict(zip(names, torch.stack(means).tolist()))


def train_epochs(args, progress, agent, envs, run_dir):
    """PPO, epoch by epoch. A signal ends the process after the epoch, which is saved."""
    signals = catch_signals()
    if args.track:
        start_tracking(args, run_dir)
    # purge_step hides what a killed run logged after its last save
    writer = SummaryWriter(run_dir, purge_step=progress["global_step"] + 1)
    bar = tqdm(desc=SCRIPT, total=args.total_epochs, initial=progress["epoch"])
    with writer, bar:
        table = "\n".join(f"    {name} = {value}" for name, value in vars(args).items())
        writer.add_text("hyperparameters", table)
        start_time = time.time()
        save_time = time.time()
        start_step = progress["global_step"]

        for epoch in range(progress["epoch"], args.total_epochs):
            # Collect
            trajectories = collect(envs, (args.seed, epoch), agent.choose)
            lengths = [trajectory.steps for trajectory in trajectories]
            distances = [trajectory.distance for trajectory in trajectories]
            progress["global_step"] += sum(lengths)

            # Update
            batch = make_decisions(agent, trajectories, args.gamma)
            metrics = []
            for _ in range(args.updates_per_epoch):
                metrics.append(update(agent, batch, args))

            # Log. A weight that is not finite shows in weight_norm
            seconds = time.time() - start_time
            logs = mean_metrics(metrics)
            logs["losses/weight_norm"] = nn.utils.get_total_norm(agent.parameters()).item()
            logs["charts/episodic_return"] = np.mean(episode_returns(trajectories))
            logs["charts/episodic_length"] = np.mean(lengths)
            logs["charts/distance"] = np.mean(distances)
            logs["charts/episodes"] = (epoch + 1) * args.episodes_per_epoch
            logs["charts/SPS"] = (progress["global_step"] - start_step) / seconds
            for name, value in logs.items():
                if not np.isfinite(value):
                    raise FloatingPointError(f"{name} is {value}")
                writer.add_scalar(name, value, progress["global_step"])
            progress["epoch"] = epoch + 1
            try:
                bar.set_postfix(episodic_return=logs["charts/episodic_return"])
                bar.update()
            except OSError:  # nobody reads the output any more: save and stop, as for a signal
                bar.disable = True
                signals.append(HANGUP)

            # Save
            last = bool(signals) or progress["epoch"] == args.total_epochs
            if last or time.time() - save_time > 60 * args.save_minutes:
                save_checkpoint(run_dir, args, progress, agent, envs[0].skills)
                save_time = time.time()
            if last:
                break
    release_signals()
    say(f"saved {run_dir}; to continue: {resume_command(args, run_dir, progress)}")
    if signals:
        sys.exit(128 + signals[0])


def report(args, progress, skills, result, run_dir):
    """Writes downstream.json: what was measured, and of what."""
    own_args = vars(args).copy()
    del own_args["run_name"], own_args["resume"]
    skill_args = skills.content["args"]
    head = {
        "task": args.task,
        "policy": args.policy,
        "seed": args.seed,
        "skills": args.skills,
        "method": skills.content["script"],
        "ext_coef": skill_args["ext_coef"],
        "psd_coef": skill_args.get("psd_coef"),
        "turn_coef": skill_args.get("turn_coef"),
        "skill_seed": skill_args["seed"],
        "skill_epochs": skills.content["progress"]["epoch"],
        "num_skills": len(skills.names),
        "epochs": progress["epoch"],
        "episodes": progress["epoch"] * args.episodes_per_epoch,
        "args": own_args,
    }
    write_json(run_dir / "downstream.json", head | result)
    low, high = result["interval"]
    mean = result["mean"]
    say(f"{args.task}, {args.policy}: mean return {mean:.3g} ({low:.3g} to {high:.3g})")


def train(args, checkpoint, progress, run_dir):
    """PPO over the frozen skills, unless the policy is a control; then the evaluation."""
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    if args.cuda and device.type == "cpu":
        print(f"{SCRIPT}.py: there is no CUDA device, training on the CPU", file=sys.stderr)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)

    # The frozen skills: those of a resumed run are in its checkpoint
    if checkpoint is None:
        content = load_skills(args.skills)
    else:
        content = checkpoint["skills"]
        check_skills(run_dir / "resume.pt", content)
    try:
        skills = Skills(content, args.task, device)
    except Exception as error:  # of many types
        reason = f"{type(error).__name__}: {error!s:.200}"
        fail(f"{args.skills}: these skills do not fit {content['script']}.py's actor ({reason})")

    # The tasks, pi^h and its critic
    envs = [make_skill_env(args, skills) for _ in range(args.episodes_per_epoch)]
    obs_dim = envs[0].observation_space.shape[0]
    agent = HighLevelAgent(args, obs_dim, len(skills.names), device)
    if checkpoint is not None:
        try:
            restore(checkpoint, agent)
        except Exception as error:  # of many types
            fail(f"{run_dir}/resume.pt does not fit its arguments ({error!s:.200})")
    if args.video:
        filmed = make_filmed_env(args, skills)  # now, because it may fail

    lock = open_run_folder(run_dir, is_new=checkpoint is None)
    if checkpoint is not None and checkpoint["saved_at"] != time_saved(run_dir / "resume.pt"):
        # Another process saved between our load_checkpoint and our lock
        fail(f"{run_dir} has just been saved by another process: resume it again")
    if checkpoint is None and (run_dir / "downstream.json").exists():  # that of a control
        fail(f"{run_dir} holds the result of another run: choose another --run-name")
    with lock:
        if args.policy == "learned" and progress["epoch"] < args.total_epochs:
            train_epochs(args, progress, agent, envs, run_dir)
        result, choose = evaluate_policy(envs, args, agent)
        report(args, progress, skills, result, run_dir)
        if args.video:
            write_video(run_dir / "episode.mp4", filmed, choose, args.seed)
    say(f"wrote {run_dir}/downstream.json")


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
