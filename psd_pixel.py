"""Periodic Skill Discovery (PSD) from pixels: Park et al., NeurIPS 2025, Figure 7 and Table 3.

An encoder phi_L maps images onto a latent circle of diameter L. A policy pi(a | s, L) is rewarded
when each step covers one side of the regular 2L-gon in that circle. Going round takes 2L steps, so
the policy learns motions of period 2L.

    python psd_pixel.py --env-id HalfCheetah-v4 --cuda         # the paper's setting
    python psd_pixel.py --env-id HalfCheetah-v4 --preset cpu   # about an hour on one CPU core

Where to find what the paper defines:

    Eq. (4)        psd_objective       opposite states far apart, their midpoint at the origin,
    Eq. (5)        diameter_slack      but no further apart than L,
    Eq. (6)        side_slack          and neighbours no further apart than a side of the 2L-gon
    Eq. (7)        encoder_loss        the three in one, with fixed multipliers
    Eq. (8)        psd_reward          r_PSD, from a single step
    Embed(L)       embed_period        how the networks see L (Appendix C)
    r_ext          external_reward     pay for moving forward (Appendix C)
    p(L)           candidate_periods, sample_periods     four values of L (Appendix C)
    s_{t+L}        sample_triplets     (L, s_t, s_{t+1}, s_{t+L}) from the replay buffer
    R_L            period_return       the score of a bound of L (Section 3.4)
    90 x 90 x 3    Pixels              images of the camera, stacked frames (Table 3)
    84 x 84 x 3    ReplayBuffer        random crops, in `stacks` (Table 3)
    Encoder        CNN                 one of phi, one of actor and critic (Table 3)
    Algorithm 1    train, update
    Algorithm 2    adapt_bounds        adaptive sampling (Section 3.4)

Differs from psd.py in: Pixels, which shows frames instead of the state; the buffer, which
keeps each frame once and hands out stacks, cropped at random; a CNN before each network; the
decoder of regularity, which guesses thumbnails instead of states.

Names: `period` is the paper's period variable L (the motion takes 2L steps); `skill` is what the
networks are conditioned on, here Embed(L). NOTE(paper) marks what the paper leaves open, and what
this script does there.

Not in the paper, and without effect by default: turn and regularity (--turn-coef,
--regularity-coef, --psd-coef; docs/traps.md), --turn-epochs, --ext-in-turn, --anneal-lr,
--final-entropy, --critic-layer-norm, --adaptive-gate, --action-scale, --end-when-fallen,
--frame-skip, --plain-floor, --preset cpu.
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
from collections import defaultdict, deque, namedtuple
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
    env_id: str = "HalfCheetah-v4"
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

    # Training (Tables 2 and 3; T and v* from Appendix C)
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
    buffer_size: int = 30_000
    """capacity of the replay buffer, in transitions; slightly fewer where episodes end early"""
    hidden_layers: int = 2
    """hidden layers per network"""
    hidden_units: int = 1024
    """units per hidden layer"""
    critic_layer_norm: bool = False
    """layer normalisation after each hidden linear layer of the critics (ours)"""

    # Pixels (Table 3; the CNN is CURL's)
    image_size: int = 90
    """side of the square images; smaller ones are rendered at 90 and scaled down"""
    crop_size: int = 84
    """side of the crop that the networks see: random in training, central in rollouts"""
    plain_floor: bool = False
    """a floor without tiles, which fill most of a small image (ours)"""
    frame_stack: int = 3
    """consecutive images per observation"""
    num_filters: int = 32
    """filters per convolution"""
    feature_dim: int = 50
    """features that the CNN makes of an observation"""

    # Skill discovery (Tables 2 and 3)
    phi_lr: float = 1e-4
    """learning rate of the encoder phi"""
    phi_batch_size: int = 512
    """minibatch size of the encoder phi"""
    latent_dim: int | None = None
    """d, the dimension of the latent space (None: by robot)"""
    embed_dim: int = 128
    """D, the dimension of Embed(L); 1 feeds L itself to the networks, for an ablation"""
    k: float = 0.5
    """weight of the term that centres the circle, Eq. (4)"""
    lam_1: float | None = None
    """lambda_1, fixed weight of the diameter constraint, Eq. (5) (None: by robot)"""
    lam_2: float | None = None
    """lambda_2, fixed weight of the side constraint, Eq. (6) (None: by robot)"""
    epsilon: float = 1e-5
    """epsilon of Eq. (7): slack beyond it earns nothing, so it has no gradient"""
    kappa: float = 10.0
    """sharpness of r_PSD, Eq. (8)"""
    psd_coef: float = 1.0
    """coefficient of r_PSD; 1 is the paper's"""
    turn_coef: float = 0.0
    """weight of turn (ours); 0 is the paper's reward, above 0 `rhythm_reward` replaces it"""
    regularity_coef: float = 0.0
    """coefficient of regularity, times turn (ours); its decoder has phi's rate and batch size"""
    turn_epochs: int = 0
    """number of first epochs that pay turn and r_ext only; needs --turn-coef (ours)"""
    ext_coef: float = 0.0
    """coefficient of r_ext; 1 for Figure 9 and for downstream skills"""
    ext_in_turn: bool = False
    """in `rhythm_reward`, multiply by 1 + ext_coef r_ext instead of adding ext_coef r_ext (ours)"""
    v_star: float | None = None
    """v*, the forward velocity at which r_ext reaches 1 (None: by robot)"""

    # Period sampling (Section 3.4, Table 2)
    adaptive_sampling: bool = True
    """move the bounds of L by Algorithm 2; otherwise the range of L stays as given"""
    L_min: int | None = None
    """initial L_min (None: the robot's first L)"""
    L_max: int | None = None
    """initial L_max (None: the robot's first L)"""
    num_periods: int = 4
    """at most how many values of L are trained, spaced evenly from L_min to L_max"""
    adaptive_step: int = 1
    """N, the step of a bound"""
    adaptive_interval: int = 2000
    """episodes between two evaluations of the bounds; Table 2 says 2000, the text 1000"""
    adaptive_episodes: int = 5
    """evaluation episodes per bound"""
    adaptive_gate: Literal["r_psd", "turn"] = "r_psd"
    """the reward that is summed to judge a bound: r_PSD (paper) or turn (ours)"""
    adaptive_alpha: float = 0.9
    """alpha: a bound with a return above alpha T expands"""
    adaptive_beta: float = 0.4
    """beta: a bound with a return below beta T shrinks, if it was above alpha T before"""

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
    anneal_lr: bool = False
    """decay all learning rates linearly to 0 at --total-epochs (ours)"""
    final_entropy: float = 1.0
    """target entropy at the last epoch, in units of -|A|; it starts at 1 unit (ours)"""


# The paper's values by robot. NOTE(paper): the first L is open. The authors' Figure 9 starts near
# 25, which is taken for the robots with short time steps (8 to 15 ms). 10 is our choice for Ant and
# HalfCheetah (50 ms). Table 2 has d = 3 or 6 without naming robots: Ant and Walker2d are from Table
# 5, the others are our choice.
# lambda_1 and lambda_2 of Ant and HalfCheetah are from Table 3, the others from Table 2.
ROBOT_COLUMNS = ("episode_length", "lam_1", "lam_2", "latent_dim", "v_star", "first_L")
ROBOTS = {
    "Ant": (200, 5.0, 5.0, 6, 0.5, 10),
    "HalfCheetah": (200, 3.0, 3.0, 3, 0.5, 10),
    "Humanoid": (400, 10.0, 10.0, 6, 1.0, 25),
    "Hopper": (400, 10.0, 10.0, 3, 1.0, 25),
    "Walker2d": (400, 10.0, 10.0, 3, 1.0, 25),
    "any other": (200, 5.0, 5.0, 3, 0.5, 10),
}

# --preset cpu (ours): values for every robot, then values that a robot has instead. Reward, rates
# and exploration as in psd.py, and a fixed range of L.
CPU_PRESET = {
    "adaptive_sampling": False,
    "image_size": 32,
    "crop_size": 32,
    "plain_floor": True,
    "num_filters": 8,
    "hidden_units": 128,
    "critic_layer_norm": True,
    "phi_batch_size": 128,
    "batch_size": 128,
    "buffer_size": 100_000,
    "episodes_per_epoch": 4,
    "updates_per_epoch": 128,
    "phi_lr": 1e-3,
    "sac_lr": 1e-3,
    "alpha_lr": 1e-3,
    "anneal_lr": True,
    "final_entropy": 3.0,
    "gamma": 0.95,
    "latent_dim": 2,
    "psd_coef": 2.0,
    "turn_coef": 1.0,
    "regularity_coef": 5.0,
    "L_min": 6,
    "L_max": 12,
    "num_periods": 7,
    "total_epochs": 500,
}
CPU_PRESET_BY_ROBOT = {
    "HalfCheetah": {
        "end_when_fallen": True,
        "ext_coef": 2.0,
        "ext_in_turn": True,
    },
}

RENDER_SIZE = 90  # of images that are smaller, before they are scaled down
THUMBNAIL_SIZE = 8  # side of what the decoder guesses, in tiles
MIN_CROP = 15  # the four convolutions leave nothing of a smaller one
MIN_PERIOD = 5  # adaptive sampling goes no lower (Appendix D)
MAY_BE_ZERO = [
    "seed", "k", "lam_1", "lam_2", "epsilon", "ext_coef", "gamma", "psd_coef", "turn_coef",
    "regularity_coef", "turn_epochs", "capture_video_every",
]  # fmt: skip
AT_MOST = {  # what makes sense, or fits into memory
    "gamma": 1,
    "tau": 1,
    "num_threads": os.cpu_count() or 1,
    "hidden_layers": 100,
    "hidden_units": 16_384,
    "latent_dim": 1_024,
    "embed_dim": 1_024,
    "episodes_per_epoch": 1_000,
    "adaptive_episodes": 1_000,
    "num_periods": 1_000,
    "episode_length": 1_000_000,
    "frame_skip": 1_000,
}
AT_MOST |= {
    "image_size": 1_024,
    "frame_stack": 100,
    "num_filters": 1_024,
    "feature_dim": 16_384,
}
FIXED_ON_RESUME = [  # they shape what is stored; and `preset`, which sets defaults of new runs only
    "env_id", "preset", "terminate", "end_when_fallen", "frame_skip", "action_scale",
    "episode_length", "episodes_per_epoch", "buffer_size", "image_size", "crop_size", "plain_floor",
    "frame_stack", "num_filters", "feature_dim", "hidden_layers", "hidden_units",
    "critic_layer_norm", "latent_dim", "embed_dim",
]  # fmt: skip


# ------------------------------------- The method -------------------------------------
def distance(x, y):
    return (x - y).norm(dim=-1)  # torch's gradient at 0 is 0: equal latents give no nan


def side_length(L):
    """L sin(pi/2L), the side of the regular 2L-gon in a circle of diameter L."""
    return L * torch.sin(torch.pi / (2 * L))


def psd_objective(phi_s, phi_opposite, k):
    """Eq. (4): ||phi_L(s_{t+L}) - phi_L(s_t)|| - k ||phi_L(s_{t+L}) + phi_L(s_t)||."""
    return distance(phi_opposite, phi_s) - k * (phi_opposite + phi_s).norm(dim=-1)


def diameter_slack(phi_s, phi_opposite, L):
    """Eq. (5): L - ||phi_L(s_{t+L}) - phi_L(s_t)||, negative where it is violated."""
    return L - distance(phi_opposite, phi_s)


def side_slack(phi_s, phi_next, L):
    """Eq. (6): L sin(pi/2L) - ||phi_L(s_{t+1}) - phi_L(s_t)||, negative where it is violated."""
    return side_length(L) - distance(phi_next, phi_s)


def encoder_loss(phi_s, phi_next, phi_opposite, L, k, lam_1, lam_2, epsilon):
    """Eq. (7): -J_PSD,phi."""
    # NOTE(paper): Section 3.2 has dual gradient descent, Appendix C fixed multipliers. Fixed here.
    objective = psd_objective(phi_s, phi_opposite, k)  # (B,)
    diameter = diameter_slack(phi_s, phi_opposite, L)  # (B,)
    side = side_slack(phi_s, phi_next, L)  # (B,)
    J = objective + lam_1 * diameter.clamp(max=epsilon) + lam_2 * side.clamp(max=epsilon)
    loss = -J.mean()
    metrics = {
        "losses/phi_loss": loss.detach(),
        "psd/objective": objective.detach().mean(),
        "psd/diameter_slack": diameter.detach().mean(),
        "psd/side_slack": side.detach().mean(),
    }
    return loss, metrics


def psd_reward(phi_s, phi_next, L, kappa):
    """Eq. (8): r_PSD = exp(-kappa Delta^2), 1 when a step has the side length of the 2L-gon."""
    delta = distance(phi_next, phi_s) - side_length(L)  # (B,)
    return torch.exp(-kappa * delta**2)


def external_reward(velocity, v_star):
    """r_ext of Appendix C: v_x / v*, at most 1."""
    # NOTE(paper): its coefficient is open. Here a flag, 0 by default
    return (velocity / v_star).clamp(max=1.0)


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


def sample_periods(bounds, args):
    """p(L): one L per episode, (episodes_per_epoch,), each candidate equally likely."""
    L_min, L_max, _, _ = bounds
    candidates = torch.tensor(candidate_periods(L_min, L_max, args.num_periods)).float()
    choice = torch.randint(len(candidates), (args.episodes_per_epoch,))
    return candidates[choice]


def sample_triplets(buffer, batch_size):
    """B times s_t, s_{t+1}, s_{t+L} of an episode, (3, B, ...), with its L and Embed(L)."""
    # NOTE(paper): how to draw is open. Here every episode of at least L steps is equally likely,
    # then every t with t + L <= its length. So s_{t+L} always exists.
    long_enough = buffer.length >= buffer.period
    episode = buffer.draw_episodes(long_enough, batch_size)  # (B,)
    L = buffer.period[episode]  # (B,), whole numbers stored as floats
    num_starts = buffer.length[episode] - L + 1
    t = (torch.rand_like(L) * num_starts).long()
    times = torch.stack([t, t + 1, t + L.long()])  # (3, B)
    obs = buffer.stacks(episode, times)
    return obs, L, buffer.skill[episode]


def adapt_bounds(bounds, R_min, R_max, T, args):
    """Algorithm 2: a bound expands if its return is above alpha T, and shrinks if its return is
    below beta T and it was above alpha T before."""
    L_min, L_max, updated_once_min, updated_once_max = bounds
    N = args.adaptive_step
    # NOTE(paper): T stays the maximum length when episodes end early, so a fall is a failure
    high = args.adaptive_alpha * T
    low = args.adaptive_beta * T
    # NOTE(paper): MIN_PERIOD is the paper's. Two limits are ours: L_max is at most T/2, so that a
    # cycle fits into an episode, and the bounds do not cross.
    if R_min > high:
        L_min = max(L_min - N, MIN_PERIOD)
        updated_once_min = True
    if R_max > high:
        L_max = min(L_max + N, T // 2)
        updated_once_max = True
    if R_min < low and updated_once_min:
        L_min = min(L_min + N, L_max)
    if R_max < low and updated_once_max:
        L_max = max(L_max - N, L_min)
    return L_min, L_max, updated_once_min, updated_once_max


def period_return(envs, agent, L, progress, args):
    """R_L of Section 3.4: the sum of r_PSD over an episode, averaged over several episodes. With
    --adaptive-gate turn (ours) the sum of turn, which is low where the latent goes round in fewer
    than 2L steps; r_PSD can be 1 there."""
    # NOTE(paper): how to act is open. Here deterministically, from other seeds than training
    num_episodes = args.adaptive_episodes
    period = torch.full((num_episodes,), float(L), device=agent.device)
    skill = embed_period(period, args.embed_dim)
    # `rollout` takes the seeds of the resets from `key`, and the normalisation from `progress`
    key = (args.seed, progress["epoch"], L)
    episodes = rollout(envs[:num_episodes], key, agent, skill, progress, deterministic=True)
    phi = [encode(agent, episodes[i], skill[i]) for i in range(num_episodes)]  # (n + 1, d) each
    phi_s = torch.cat([one[:-1] for one in phi])
    phi_next = torch.cat([one[1:] for one in phi])
    L_of_step = torch.full((len(phi_s),), float(L), device=agent.device)
    if args.adaptive_gate == "turn":
        score = turn(phi_s, phi_next, L_of_step)  # with one direction for all episodes
    else:
        score = psd_reward(phi_s, phi_next, L_of_step, args.kappa)
    return score.sum().item() / num_episodes


def latent_statistics(phi, L, kappa):
    """Means over an episode's latents (n + 1, d): r_PSD, the distances over one step and over L
    steps, and the radius, each divided by its value on the 2L-gon. So 1 is perfect."""
    period = torch.tensor(float(L), device=phi.device)
    one_step = distance(phi[1:], phi[:-1]).mean()
    L_step = distance(phi[L:], phi[:-L]).mean()  # nan for an episode shorter than L
    radius = phi.norm(dim=-1).mean()
    return {
        "r_psd": psd_reward(phi[:-1], phi[1:], period, kappa).mean().item(),
        "one_step": (one_step / side_length(period)).item(),
        "L_step": (L_step / period).item(),
        "radius": (radius / (period / 2)).item(),
    }


# -------------------------------- Ours, off by default --------------------------------
def same_period(L):
    """Ours: which samples of a batch have the same L, (B, B)."""
    return L[:, None] == L


def turning_direction(phi_s, phi_next, L):
    """Ours: 1 if the latents of one L, over this batch, turn counter-clockwise, -1 if clockwise."""
    x, y = phi_s.unbind(dim=-1)  # (B,) each; turning has a direction only in a plane, so d is 2
    next_x, next_y = phi_next.unbind(dim=-1)
    swept = x * next_y - y * next_x  # (B,), twice the area that each step sweeps over
    swept_by_period = same_period(L).to(swept.dtype) @ swept
    return torch.where(swept_by_period < 0, -1.0, 1.0)


def turn(phi_s, phi_next, L):
    """Ours: radius max(0, 1 - error / 2)^2, at most 1, with

        error  = ||phi_L(s_{t+1}) - R phi_L(s_t)|| / side of the 2L-gon, R the rotation by pi/L
        radius = min(2 ||phi_L(s_{t+1})|| / L, 1)

    On the circle a latent at rest earns 1/4, and a step back next to nothing. R turns as the
    latents do: Eq. (7) does not fix the direction, and a mirrored encoder is as good."""
    x, y = phi_s.unbind(dim=-1)
    cos = torch.cos(torch.pi / L)
    sin = torch.sin(torch.pi / L) * turning_direction(phi_s, phi_next, L)
    turned = torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)  # (B, 2)
    error = distance(phi_next, turned) / side_length(L)
    radius = (2 * phi_next.norm(dim=-1) / L).clamp(max=1.0)
    return radius * (1 - error / 2).clamp(min=0.0) ** 2


def thumbnail(obs):
    """Ours: what the decoder guesses in place of a state. A stack of images (B, num_channels, H, W)
    is cut into 8 x 8 tiles: the mean of each, (B, 64 num_channels). The offset of a random crop is
    noise in it; the preset has no random crops."""
    return F.adaptive_avg_pool2d(obs / 255, THUMBNAIL_SIZE).flatten(1)


def decode(agent, phi, L, skill):
    """Ours: g(2 phi_L(s) / L, Embed(L)), the decoder's guess of the state, (B, obs_dim)."""
    return agent.decoder(2 * phi / L[:, None], skill)


def decoding_error(decoded, obs, variance):
    """Ours: ||decoded - obs||^2 / variance, (B,). Its mean is the share of the variance that the
    decoder leaves unexplained. `variance` is summed over the dimensions: that of all samples, (),
    in the decoder's loss, and that under each sample's L, (B,), in `regularity`."""
    squared_error = ((decoded - obs) ** 2).sum(dim=-1)
    return squared_error / variance.clamp(min=1e-6)  # no 0/0 where nothing moves


def variance_by_period(obs, L):
    """Ours: for each sample, the variance of the states with the same L, summed over dimensions,
    (B,). 1 % of the variance of the whole batch is added: a skill at rest has almost none."""
    same = same_period(L).to(obs.dtype)  # (B, B)
    count = same.sum(dim=-1, keepdim=True)
    mean = same @ obs / count
    mean_square = same @ obs**2 / count
    variance = (mean_square - mean**2).clamp(min=0.0)  # (B, obs_dim)
    unbiased = variance * count / (count - 1).clamp(min=1)  # as torch's var
    return (unbiased + 0.01 * obs.var(dim=0)).sum(dim=-1)


def regularity(decoded, obs, L):
    """Ours: max(0, 1 - decoding error), (B,). 1 if the decoder recovers the state from the latent.
    Low if it knows no more than the mean state of that L (an error of 1 on average), as where the
    latent goes round twice per cycle of the state, and two states share one latent."""
    error = decoding_error(decoded, obs, variance_by_period(obs, L))
    return (1 - error).clamp(min=0.0)


def rhythm_reward(agent, batch, phi_s, phi_next, r_psd, ext_reward, args):
    """Ours, with ext_reward = ext_coef r_ext:

        rhythm = turn (turn_coef + psd_coef r_PSD + regularity_coef regularity)
        reward = rhythm + ext_reward            without --ext-in-turn
        reward = rhythm (1 + ext_reward)        with --ext-in-turn

    Times turn, neither r_PSD nor regularity pays much on a circle that is too small or too fast. In
    the first --turn-epochs both count as 0. Paid from the start, they let all L of a walker share
    one gait, and the latents of a short L go round twice per cycle of that gait."""
    in_turn = turn(phi_s, phi_next, batch.period)
    metrics = {"psd/turn": in_turn.mean()}
    factor = args.turn_coef + agent.late_weight * args.psd_coef * r_psd
    if args.regularity_coef > 0:
        decoded = decode(agent, phi_next, batch.period, batch.skill)
        regular = regularity(decoded, batch.next_obs, batch.period)
        factor += agent.late_weight * args.regularity_coef * regular
        metrics["psd/regularity"] = regular.mean()
    if args.ext_in_turn:
        # r_ext has no lower bound: this is negative for moving backwards faster than v*/ext_coef
        factor *= 1 + ext_reward
        return in_turn * factor, metrics
    return in_turn * factor + ext_reward, metrics


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


class CNN(nn.Module):
    """CURL's: four 3x3 convolutions, a linear layer and LayerNorm. It sees the central crop."""

    def __init__(self, num_channels, args):
        super().__init__()
        # NOTE(paper): open, which CNN. The crops are CURL's, so the CNN is, too. Its tanh is
        # left out, and its weights are initialised like those of the other networks.
        num_filters = args.num_filters
        self.crop_size = args.crop_size
        self.convolutions = nn.Sequential(
            nn.Conv2d(num_channels, num_filters, 3, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_filters, num_filters, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_filters, num_filters, 3),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_filters, num_filters, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        side = (args.crop_size - 3) // 2 + 1  # behind the first convolution
        side = side - 2 - 2 - 2  # and behind the others
        linear = nn.Linear(num_filters * side**2, args.feature_dim)
        self.head = nn.Sequential(linear, nn.LayerNorm(args.feature_dim))
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, obs, train_convolutions=True):
        """(..., feature_dim) of observations (..., num_channels, H, W), uint8."""
        low = (obs.shape[-1] - self.crop_size) // 2  # 0 for crops from the buffer
        high = low + self.crop_size
        images = obs[..., low:high, low:high].flatten(0, -4)
        images = images.to(torch.float32, memory_format=torch.channels_last)  # a faster layout
        images = images.div_(255).sub_(0.5)  # from -0.5 to 0.5
        features = self.convolutions(images)
        if not train_convolutions:
            features = features.detach()
        return self.head(features).unflatten(0, obs.shape[:-3])


class Encoder(nn.Module):
    """phi_L(s) = phi(s, Embed(L)), from pixels."""

    def __init__(self, cnn, size_in, hidden_layers, hidden_units, size_out):
        super().__init__()
        self.cnn = cnn
        self.net = MLP(size_in, hidden_layers, hidden_units, size_out)

    def forward(self, obs, skill):
        return self.net(self.cnn(obs), skill)


class Actor(nn.Module):
    """pi(a | s, skill): a Gaussian, squashed by tanh into the range of the actions."""

    def __init__(self, cnn, size_in, hidden_layers, hidden_units, action_space):
        super().__init__()
        self.cnn = cnn
        scale = (action_space.high - action_space.low) / 2
        bias = (action_space.high + action_space.low) / 2
        self.net = MLP(size_in, hidden_layers, hidden_units, 2 * len(scale))
        # Half the range of the actions and its middle, not the flag --action-scale
        self.register_buffer("action_scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("action_bias", torch.as_tensor(bias, dtype=torch.float32))
        # The constants of the log-probability in `sample`, where they are derived
        self.log_constant = float(np.log(4 * scale * np.sqrt(2 * np.pi)).sum())

    def forward(self, obs, skill):
        # The critic's loss alone trains the convolutions that actor and critic share
        features = self.cnn(obs, train_convolutions=False)
        mean, log_std = self.net(features, skill).chunk(2, dim=-1)
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


class Critic(nn.Module):
    """Two Q(s, skill, a), of which SAC takes the smaller, behind one CNN."""

    def __init__(self, cnn, size_in, hidden_layers, hidden_units, layer_norm):
        super().__init__()
        self.cnn = cnn
        qf1 = MLP(size_in, hidden_layers, hidden_units, 1, layer_norm)
        qf2 = MLP(size_in, hidden_layers, hidden_units, 1, layer_norm)
        self.qfs = nn.ModuleList([qf1, qf2])

    def forward(self, obs, skill, actions):
        qf1, qf2 = self.qfs
        x = torch.cat([self.cnn(obs), skill, actions], dim=-1)
        return qf1(x).squeeze(-1), qf2(x).squeeze(-1)  # (B,) each


class Agent(nn.Module):
    """Networks, temperature and optimisers; and two numbers that `train` sets in every epoch:
    target_entropy and late_weight, the weight of r_PSD and regularity in `rhythm_reward`."""

    def __init__(self, args, num_channels, action_space, device):
        super().__init__()
        action_dim = action_space.shape[0]
        size_in = args.feature_dim + args.embed_dim
        layers = args.hidden_layers
        units = args.hidden_units
        self.phi = Encoder(CNN(num_channels, args), size_in, layers, units, args.latent_dim)
        self.critic = Critic(
            CNN(num_channels, args), size_in + action_dim, layers, units, args.critic_layer_norm
        )
        self.actor = Actor(CNN(num_channels, args), size_in, layers, units, action_space)
        # NOTE(paper): open, who shares a CNN. As in CURL, actor and critic share convolutions,
        # but not the head behind them. phi has a CNN of its own.
        self.actor.cnn.convolutions = self.critic.cnn.convolutions
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        # NOTE(paper): the first temperature and the target entropy are open. Usual values of SAC
        self.log_alpha = nn.Parameter(torch.zeros(()))  # a temperature of 1
        self.target_entropy = -float(action_dim)
        self.late_weight = 1.0  # ours; `train` sets 0 in the first --turn-epochs
        if args.regularity_coef > 0:
            thumbnail_dim = num_channels * THUMBNAIL_SIZE**2
            self.decoder = MLP(args.latent_dim + args.embed_dim, layers, units, thumbnail_dim)
        self.device = torch.device(device)
        self.to(self.device)

        own = list(self.actor.cnn.head.parameters()) + list(self.actor.net.parameters())
        fused = self.device.type != "meta"  # faster; tests run on `meta`, which does not have it
        self.optimizers = {
            "phi": torch.optim.Adam(self.phi.parameters(), args.phi_lr, fused=fused),
            "critic": torch.optim.Adam(self.critic.parameters(), args.sac_lr, fused=fused),
            "actor": torch.optim.Adam(own, args.sac_lr, fused=fused),
            "alpha": torch.optim.Adam([self.log_alpha], args.alpha_lr, fused=fused),
        }
        if args.regularity_coef > 0:
            decoder = torch.optim.Adam(self.decoder.parameters(), args.phi_lr, fused=fused)
            self.optimizers["decoder"] = decoder

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


def update(agent, buffer, args, train_phi=True):
    """Lines 8 to 10 of Algorithm 1: one gradient step of every network.

    The metrics are tensors on the device, so that a GPU need not wait."""
    metrics = {}

    # Line 8: the encoder
    if train_phi:
        obs, L, skill = sample_triplets(buffer, args.phi_batch_size)
        phi_s, phi_next, phi_opposite = agent.phi(obs, skill.expand(3, -1, -1))  # (B, d) each
        phi_loss, phi_metrics = encoder_loss(
            phi_s, phi_next, phi_opposite, L, args.k, args.lam_1, args.lam_2, args.epsilon
        )
        agent.optimizers["phi"].zero_grad()
        phi_loss.backward()
        agent.optimizers["phi"].step()
        metrics.update(phi_metrics)

        if args.regularity_coef > 0:  # ours: train the decoder; no gradient reaches the encoder
            small = thumbnail(obs[0])
            decoded = decode(agent, phi_s.detach(), L, skill)
            decoder_loss = decoding_error(decoded, small, small.var(dim=0).sum()).mean()
            agent.optimizers["decoder"].zero_grad()
            decoder_loss.backward()
            agent.optimizers["decoder"].step()
            metrics["losses/decoder_loss"] = decoder_loss.detach()

    # Line 9: rewards of a fresh batch, from the encoder just updated
    batch = buffer.sample(args.batch_size)
    L = batch.period
    with torch.no_grad():
        pair = torch.stack([batch.obs, batch.next_obs])  # (2, B, obs_dim)
        phi_s, phi_next = agent.phi(pair, batch.skill.expand(2, -1, -1))  # (B, d) each
        r_psd = psd_reward(phi_s, phi_next, L, args.kappa)
        ext_reward = args.ext_coef * external_reward(batch.velocity, args.v_star)
        if args.turn_coef > 0:  # ours
            small_batch = batch._replace(next_obs=thumbnail(batch.next_obs))
            reward, rhythm_metrics = rhythm_reward(
                agent, small_batch, phi_s, phi_next, r_psd, ext_reward, args
            )
            metrics.update(rhythm_metrics)
        else:
            reward = args.psd_coef * r_psd + ext_reward

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
# n + 1 stacks of frames, n actions, n forward velocities, and whether the episode was terminated
# (True) or truncated at T (False)
Episode = namedtuple("Episode", "obs actions velocity terminated")
# B transitions for SAC, each entry (B, ...)
Batch = namedtuple("Batch", "obs actions next_obs velocity terminated skill period")


class ReplayBuffer:
    """A ring of rows, one row per frame: an episode of n transitions fills n + 1 rows.

    Each frame is stored once, and the stacks of s_t, s_{t+1} and s_{t+L} are look-ups. The
    oldest episodes make room for new ones."""

    def __init__(
        self, capacity, episode_length, obs_shape, crop_size, action_dim, skill_dim, device
    ):
        num_channels, height, width = obs_shape
        self.stack = num_channels // 3  # frames per observation
        self.crop_size = crop_size
        num_episodes = math.ceil(capacity / episode_length)
        num_rows = capacity + num_episodes  # one more per episode, for its last observation
        # One entry per row
        self.obs = torch.zeros(num_rows, 3, height, width, device=device, dtype=torch.uint8)
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
        newest = episode.obs[:, -3:]  # of each stack, in red, green and blue
        self.obs[rows] = torch.as_tensor(newest, device=device)
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
        # float64, because float32 counts to 2^24 only
        u = torch.rand(size, device=weight.device, dtype=torch.float64) * cumulative[-1]
        # A whole number below the sum; it falls to the first episode of a larger cumulative weight
        return torch.searchsorted(cumulative, u.long(), right=True)

    def rows(self, episode, t):
        """The row of an episode's frame at time t."""
        return (self.start[episode] + t) % len(self.obs)

    def stacks(self, episode, t):
        """Observations at times t, (..., B), cropped: (..., B, 3 stack, crop_size, crop_size).
        The first frame of an episode also stands for the frames before it."""
        age = torch.arange(self.stack - 1, -1, -1, device=t.device)  # the newest frame last
        times = (t[..., None] - age).clamp(min=0)  # (..., B, stack)
        rows = self.rows(episode[:, None], times)
        # All crops of all frames, as a view: (num_rows, 3, offsets, offsets, size, size)
        crops = self.obs.unfold(2, self.crop_size, 1).unfold(3, self.crop_size, 1)
        # NOTE(paper): open, who shares an offset. As in CURL, the frames of a stack do, so that
        # motion stays motion. s_t, s_{t+1} and s_{t+L} draw their own.
        y, x = torch.randint(crops.shape[2], (2, *t.shape, 1), device=t.device)
        return crops[rows, :, y, x].flatten(-4, -3)

    def sample(self, batch_size):
        """Transitions, uniformly over all that are stored."""
        episode = self.draw_episodes(self.length, batch_size)
        t = (torch.rand(batch_size, device=self.obs.device) * self.length[episode]).long()
        row = self.rows(episode, t)
        obs, next_obs = self.stacks(episode, torch.stack([t, t + 1]))
        return Batch(
            obs=obs,
            actions=self.actions[row],
            next_obs=next_obs,
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
    kwargs["render_mode"] = "rgb_array"
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")  # needs no screen
    steps = max_steps or args.episode_length
    try:
        env = gym.make(args.env_id, max_episode_steps=steps, **kwargs)
    except Exception as error:  # of many types
        if "terminate_when_unhealthy" in str(error):
            fail(f"{args.env_id} cannot switch its termination off: leave --no-terminate out")
        fail(f"cannot make {args.env_id!r}: {error}")
    if isinstance(env.observation_space, gym.spaces.Dict):
        env = gym.wrappers.FlattenObservation(env)
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
    env = gym.wrappers.TransformAction(env, lambda a: args.action_scale * a, env.action_space)
    return Pixels(env, args)


class Pixels(gym.Wrapper):
    """Observations are the last frames, (3 frame_stack, size, size), uint8, the newest last.

    The state goes into `info`, for evaluate.py to measure. No network sees it."""

    def __init__(self, env, args):
        super().__init__(env)
        self.size = args.image_size
        self.frames = deque(maxlen=args.frame_stack)
        shape = (3 * args.frame_stack, self.size, self.size)
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.renderer = getattr(env.unwrapped, "mujoco_renderer", None)
        if self.renderer is not None:
            self.prepare_renderer(args.plain_floor)

    def prepare_renderer(self, plain_floor):
        """Sets up MuJoCo's renderer, before it renders for the first time."""
        model = self.env.unwrapped.model
        side = max(self.size, RENDER_SIZE)
        self.renderer.width = side
        self.renderer.height = side
        model.vis.global_.offwidth = side
        model.vis.global_.offheight = side
        camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
        self.renderer.camera_id = camera  # -1, the default view, if there is none
        self.shown = mujoco.MjData(model)  # a copy, so that the physics stay untouched
        self.renderer.data = self.shown
        # 25 to 35 times faster than with multisampling, shadows and reflections
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = 0
        model.mat_reflectance[:] = 0
        if plain_floor:
            planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
            model.mat_texid[model.geom_matid[planes]] = -1

    def render(self):
        if self.renderer is not None:
            self.show_current_state()
        image = self.env.render()[..., :3]  # (height, width, 3)
        if image.shape[:2] != (self.size, self.size):
            import cv2  # its mean over an area keeps a leg that is thinner than a pixel

            image = cv2.resize(image, (self.size, self.size), interpolation=cv2.INTER_AREA)
        return image

    def show_current_state(self):
        """mj_step leaves the bodies where its last substep began. This shows them as they are."""
        data = self.env.unwrapped.data
        self.shown.qpos[:] = data.qpos
        self.shown.mocap_pos[:] = data.mocap_pos
        self.shown.mocap_quat[:] = data.mocap_quat
        mujoco.mj_fwdPosition(self.env.unwrapped.model, self.shown)
        if self.renderer.viewer is not None:  # every environment has an OpenGL context
            self.renderer.viewer.make_context_current()

    def reset(self, **kwargs):
        state, info = self.env.reset(**kwargs)
        image = self.render()
        for _ in range(self.frames.maxlen):
            self.frames.append(image)
        return self.observation(), info | {"state": state}

    def step(self, action):
        state, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append(self.render())
        return self.observation(), reward, terminated, truncated, info | {"state": state}

    def observation(self):
        return np.concatenate(self.frames, axis=-1).transpose(2, 0, 1)


def check_space(env_id, kind, space):
    if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
        fail(f"{env_id} has {kind} {space}: {SCRIPT}.py needs a Box of one dimension")
    if space.shape[0] == 0:
        fail(f"{env_id} has no {kind}: {SCRIPT}.py needs one at least")


def check_env(env, args):
    """The crop has to fit into the image, and the environment has to render."""
    if not MIN_CROP <= args.crop_size <= args.image_size:
        fail(f"""--crop-size {args.crop_size} is not
            from {MIN_CROP} to --image-size {args.image_size}""")
    try:
        env.reset(seed=args.seed)
    except gym.error.DependencyNotInstalled as error:
        fail(f"{args.env_id} cannot be rendered: {error}")
    except Exception as error:  # of many types, by what is missing
        sys.unraisablehook = lambda _: None  # or a half-made renderer complains at its end
        backend = os.environ.get("MUJOCO_GL")
        fail(f"""{args.env_id} cannot be rendered
            (MUJOCO_GL={backend}, {type(error).__name__}: {error}):
            Debian's libegl1 and libgl1-mesa-dri are needed to render,
            libgl1 and libglib2.0-0 by opencv-python, but not by opencv-python-headless""")


def check_velocity(env, args):
    """r_ext needs an environment that reports its forward velocity."""
    if args.ext_coef:
        env.reset(seed=args.seed)
        env.action_space.seed(args.seed)
        info = env.step(env.action_space.sample())[-1]
        if "x_velocity" not in info:
            fail(f"{args.env_id} reports no x_velocity for r_ext: set --ext-coef 0")


def rollout(envs, key, agent, skill, progress, deterministic=False):
    """One episode per environment, with one batched policy call per step.

    `progress` is not needed here: images are not normalised.
    Environment i is reset with a seed made from `key` and i, so a resumed run needs no saved
    environments."""
    num_envs = len(envs)
    T = envs[0].spec.max_episode_steps
    num_channels, height, width = envs[0].observation_space.shape
    action_dim = envs[0].action_space.shape[0]
    obs = np.zeros((num_envs, T + 1, num_channels, height, width), np.uint8)
    actions = np.zeros((num_envs, T, action_dim), np.float32)
    velocity = np.zeros((num_envs, T), np.float32)
    terminated = [False] * num_envs
    length = [0] * num_envs

    seeds = np.random.SeedSequence(key).generate_state(num_envs).tolist()
    for i in range(num_envs):
        obs[i, 0], _ = envs[i].reset(seed=seeds[i])

    active = list(range(num_envs))  # the environments whose episode has not ended
    t = 0
    while active:
        policy_obs = torch.as_tensor(obs[active, t], device=skill.device)
        actions[active, t] = agent.act(policy_obs, skill[active], deterministic).cpu().numpy()
        for i in active.copy():
            obs[i, t + 1], _, terminated[i], truncated, info = envs[i].step(actions[i, t])
            velocity[i, t] = info.get("x_velocity", 0.0)
            if terminated[i] or truncated:
                length[i] = t + 1
                active.remove(i)
        t += 1

    episodes = []
    for i, n in enumerate(length):
        end = bool(terminated[i])
        episodes.append(Episode(obs[i, : n + 1], actions[i, :n], velocity[i, :n], end))
    return episodes


@torch.no_grad()
def encode(agent, episode, skill):
    """phi_L of an episode, (n + 1, d), for the skill of that episode, (D,)."""
    obs = torch.as_tensor(episode.obs, device=agent.device)
    return agent.phi(obs, skill.expand(len(obs), -1))


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
    # With --resume it matters whether these were given at all
    parser.add_argument("--run-name", "--run_name")
    parser.add_argument("--L-min", "--L_min")
    parser.add_argument("--L-max", "--L_max")
    return parser.parse_known_args(argv)[0]


def default_args(env_id, preset):
    """The defaults of a new run."""
    robot = robot_name(env_id)
    values = dict(zip(ROBOT_COLUMNS, ROBOTS.get(robot, ROBOTS["any other"])))
    values.pop("first_L")  # not an argument, see fill_in_first_L
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
        if getattr(args, name) is None:  # as in --lam-1 None, which means the default
            setattr(args, name, value)
    if checkpoint is None:
        fill_in_first_L(args)
        check_args(args, args.L_min, args.L_max)
    else:
        progress = checkpoint["progress"]
        args.resume = str(resume_path(args.resume).parent)
        check_resume(args, defaults, progress)
        if (args.regularity_coef > 0) != (defaults.regularity_coef > 0):
            fail("--resume cannot switch regularity on or off: its decoder is part of the run")
        move_bounds(args, given, progress)
        L_min, L_max, _, _ = progress["bounds"]
        check_args(args, L_min, L_max)
    return args, checkpoint


def fill_in_first_L(args):
    """A bound that is not given is the robot's first L. If that is 10, --L-max 7 gives L_min 7."""
    first_L = ROBOTS.get(robot_name(args.env_id), ROBOTS["any other"])[-1]
    if args.L_min is None:
        args.L_min = min(first_L, args.L_max or first_L)
    if args.L_max is None:
        args.L_max = max(first_L, args.L_min)


def check_resume(args, defaults, progress):
    """Exits with an error if a run cannot continue with these arguments."""
    for name in FIXED_ON_RESUME:
        if getattr(args, name) != getattr(defaults, name):
            fail(f"{name} cannot change on --resume, it was {getattr(defaults, name)}")
    if progress["epoch"] >= args.total_epochs:
        fail(f"{args.resume} has finished its {args.total_epochs} epochs: raise --total-epochs")


def move_bounds(args, given, progress):
    """A resumed run keeps its bounds of L, except those on the command line."""
    L_min, L_max, updated_once_min, updated_once_max = progress["bounds"]
    # `given` is text: "None" stands for --L-min None, which is as good as no flag
    if given.L_min not in (None, "None"):
        L_min = args.L_min
    if given.L_max not in (None, "None"):
        L_max = args.L_max
    progress["bounds"] = (L_min, L_max, updated_once_min, updated_once_max)


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


def check_args(args, L_min, L_max):
    """Exits with an error if a value cannot work."""
    check_numbers(args)
    T = args.episode_length
    needed = max(args.batch_size, args.phi_batch_size, args.episodes_per_epoch * T)
    if args.buffer_size < needed:
        fail(f"--buffer-size must hold a batch and an epoch's episodes: {needed} or more")
    if args.turn_coef == 0 and (args.regularity_coef > 0 or args.ext_in_turn):
        fail(
            "--regularity-coef and --ext-in-turn need turn: set --turn-coef, or leave turn out "
            "with --regularity-coef 0 --no-ext-in-turn"
        )
    uses_turn = args.turn_coef > 0 or args.adaptive_gate == "turn"
    if uses_turn and args.latent_dim != 2:
        fail(f"turn needs --latent-dim 2, not {args.latent_dim}: it turns latents in a plane")
    if args.adaptive_alpha <= args.adaptive_beta:
        fail("--adaptive-alpha has to be above --adaptive-beta, or a bound expands and shrinks")
    if args.regularity_coef > 0 and min(args.batch_size, args.phi_batch_size) < 2:
        fail("--regularity-coef needs batches of 2 or more, for it measures a variance")
    if args.psd_coef + args.turn_coef + args.ext_coef == 0:
        fail("every coefficient of the reward is 0: set --psd-coef")
    if args.num_periods < 2:
        fail("--num-periods is 2 or more; for a single L set --L-min and --L-max to it")
    low = 1
    high = T
    if args.adaptive_sampling:
        low = MIN_PERIOD
        high = T // 2
    if not low <= L_min <= L_max <= high:
        fail(f"L_min {L_min}, L_max {L_max}: need {low} <= L_min <= L_max <= {high}")


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
    "bounds": tuple,  # L_min, L_max, updated_once_min, updated_once_max of Algorithm 2
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


def episode_metrics(agent, episodes, periods, skill, args):
    """Means over an epoch's episodes: length, velocity, latent statistics, also for each L."""
    values = defaultdict(list)
    for i, L in enumerate(periods):
        num_steps = len(episodes[i].actions)
        values["charts/episodic_length"].append(num_steps)
        values["charts/velocity"].append(episodes[i].velocity.mean())
        phi = encode(agent, episodes[i], skill[i])
        statistics = latent_statistics(phi, L, args.kappa)
        if num_steps < L:
            del statistics["L_step"]  # no two states are L steps apart
        for name, value in statistics.items():
            values[f"psd/{name}"].append(value)
            values[f"psd/{name}/L{L}"].append(value)
    return {name: np.mean(value) for name, value in values.items()}


def anneal_learning_rates(agent, fraction):
    """Ours: sets every learning rate to a fraction of its first value."""
    for optimizer in agent.optimizers.values():
        optimizer.param_groups[0]["lr"] = fraction * optimizer.defaults["lr"]


def lower_target_entropy(agent, fraction, final_entropy):
    """Ours: moves the target entropy from -|A|, at fraction 0, to -final_entropy |A|, at 1."""
    action_dim = len(agent.actor.action_bias)
    agent.target_entropy = -action_dim * (1 + fraction * (final_entropy - 1))


def evaluation_is_due(epoch, args):
    """Whether the last epoch has filled another interval of adaptive_interval episodes."""
    if epoch == 0:
        return False
    episodes = epoch * args.episodes_per_epoch
    episodes_before = episodes - args.episodes_per_epoch
    return episodes // args.adaptive_interval > episodes_before // args.adaptive_interval


def train(args, checkpoint, progress, run_dir):
    """Algorithm 1."""
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    if args.cuda and device.type == "cpu":
        print(f"{SCRIPT}.py: there is no CUDA device, training on the CPU", file=sys.stderr)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)

    # Line 1: policy, encoder and replay buffer; the bounds of L are in `progress`
    T = args.episode_length
    num_episodes = args.episodes_per_epoch
    num_envs = max(num_episodes, args.adaptive_episodes)
    envs = [make_env(args) for _ in range(num_envs)]
    check_env(envs[0], args)
    check_velocity(envs[0], args)
    obs_shape = envs[0].observation_space.shape
    action_space = envs[0].action_space
    action_dim = action_space.shape[0]
    agent = Agent(args, obs_shape[0], action_space, device)
    buffer = ReplayBuffer(
        args.buffer_size, T, obs_shape, args.crop_size, action_dim, args.embed_dim, device
    )
    if checkpoint is not None:
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
            logs = {}

            # Line 3: update L_min and L_max
            if args.adaptive_sampling and evaluation_is_due(epoch, args):
                L_min, L_max, _, _ = progress["bounds"]
                R_min = period_return(envs, agent, L_min, progress, args)
                R_max = R_min  # the same episodes while the bounds are equal
                if L_max > L_min:
                    R_max = period_return(envs, agent, L_max, progress, args)
                progress["bounds"] = adapt_bounds(progress["bounds"], R_min, R_max, T, args)
                logs.update({"eval/return_L_min": R_min, "eval/return_L_max": R_max})

            # Lines 4 to 7: sample L, execute pi(a | s, L) for an episode, store it
            period = sample_periods(progress["bounds"], args)  # (num_episodes,)
            skill = embed_period(period, args.embed_dim).to(device)  # (num_episodes, D)
            episodes = rollout(envs[:num_episodes], (args.seed, epoch), agent, skill, progress)
            for i in range(num_episodes):
                buffer.add(episodes[i], skill[i], period[i])
                progress["global_step"] += len(episodes[i].actions)

            if args.anneal_lr:
                anneal_learning_rates(agent, 1 - epoch / args.total_epochs)
            lower_target_entropy(agent, epoch / args.total_epochs, args.final_entropy)
            agent.late_weight = 0.0 if epoch < args.turn_epochs else 1.0

            # Lines 8 to 10: update phi and pi; phi once there is an episode of at least L steps.
            # NOTE(paper): the steps of phi and pi alternate
            train_phi = bool((buffer.length >= buffer.period).any())
            if epoch == 10 and not train_phi:
                say("phi is not trained: every episode has been shorter than its L; lower --L-min")
            metrics = []
            for _ in range(args.updates_per_epoch):
                metrics.append(update(agent, buffer, args, train_phi))

            # Log. A weight that is not finite shows in weight_norm
            seconds = time.time() - start_time
            logs.update(mean_metrics(metrics))
            logs.update(episode_metrics(agent, episodes, period.int().tolist(), skill, args))
            logs["losses/weight_norm"] = nn.utils.get_total_norm(agent.parameters()).item()
            logs["psd/L_min"], logs["psd/L_max"], _, _ = progress["bounds"]
            logs["charts/episodes"] = (epoch + 1) * num_episodes
            logs["charts/SPS"] = (progress["global_step"] - start_step) / seconds
            for name, value in logs.items():
                if not np.isfinite(value):
                    raise FloatingPointError(f"{name} is {value}")
                writer.add_scalar(name, value, progress["global_step"])
            progress["epoch"] = epoch + 1
            try:
                bounds = f"{logs['psd/L_min']}-{logs['psd/L_max']}"
                bar.set_postfix(L=bounds, r_PSD=round(logs["psd/r_psd"], 2))
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
        bounds = (args.L_min, args.L_max, False, False)
        progress = {"epoch": 0, "global_step": 0, "bounds": bounds}
    else:
        progress = checkpoint["progress"]
    try:
        train(args, checkpoint, progress, run_dir)
    except Exception as error:
        fail(explain(error, args, progress, run_dir))


if __name__ == "__main__":
    main()
