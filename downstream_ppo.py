"""Downstream tasks of Periodic Skill Discovery (PSD), and PPO over frozen skills: Park et al.,
NeurIPS 2025, Section 4, Question 2, and Appendix C.

Hurdles to jump over, and feet whose friction changes. Every H steps a high-level policy
pi^h(L | s_task, s) chooses a skill, which the policy of a checkpoint then carries out. That one is
frozen: it may be of psd.py, or of a baseline with discrete skills z.

    python downstream_ppo.py --task HalfCheetahHurdle-v0 --skills runs/NAME
    python downstream_ppo.py --task HalfCheetahHurdle-v0 --skills runs/NAME --policy fixed

    tasks           HurdleTask, FrictionTask: registered with Gymnasium when this file is imported
    skills          Skills: the frozen policy;  SkillEnv: a task as pi^h sees it, skill by skill
    PPO, Table 4    HighLevelAgent, discounted_returns, ppo_loss, update
    Table 1         evaluate_policy, and its controls: skills chosen at random, the best one alone

Differs from psd.py in: nearly everything. The skill policy's parts are copies.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

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

SCRIPT = Path(__file__).stem  # written into checkpoints: which script can read them


# ------------------------------------------- Arguments --------------------------------------------
@dataclass
class Args:
    task: str = "HalfCheetahHurdle-v0"  # one of the table
    skills: str | None = None  # run folder, or file, of psd.py or a baseline with discrete skills
    policy: str = "learned"  # or a control, without training: random skills, or fixed, the best one
    seed: int = 1  # of everything: the same seed gives the same run, to the bit on the CPU
    cuda: bool = False  # train on the GPU, if there is one
    num_threads: int = 1  # CPU threads of torch; one a run is best where runs share a machine
    run_name: str | None = None  # folder below runs/ (None: {env}__{script}__{seed}__{time})
    resume: str | None = None  # run folder to continue with its arguments; flags on the line win
    save_minutes: float = 10.0  # between checkpoints; SIGINT, SIGTERM and the end save as well
    eval_episodes: int = 100  # behind the mean that is reported, two or more
    video: bool = False  # an mp4 of one episode at the end, with skill and reward on each frame
    # Proximal policy optimisation (Table 4)
    total_epochs: int = 25_000  # number of epochs
    episodes_per_epoch: int = 4  # episodes collected an epoch, stepped together
    updates_per_epoch: int = 80  # gradient steps an epoch
    skill_steps: int = 10  # H, the steps for which a skill is kept
    hidden_layers: int = 2  # hidden layers of every network
    hidden_units: int = 256  # units of each hidden layer
    actor_lr: float = 3e-4  # learning rate of pi^h
    critic_lr: float = 1e-3  # learning rate of its critic
    clip: float = 0.2  # epsilon: the ratio of probabilities counts from 1 - epsilon to 1 + epsilon
    value_coef: float = 0.5  # coefficient of the critic's loss
    entropy_coef: float = 0.01  # coefficient of the entropy
    gamma: float = 0.99  # discount factor


POLICIES = ["learned", "random", "fixed"]
MAY_BE_ZERO = ["seed", "value_coef", "entropy_coef", "gamma"]
FIXED_ON_RESUME = """task skills policy skill_steps episodes_per_epoch hidden_layers
    hidden_units""".split()  # they make it another run, or shape what is stored


def fail(message):  # in one line, with a non-zero exit
    raise SystemExit(f"{SCRIPT}.py: error: {' '.join(message.split())}")


def parse_args(argv=None):
    """The arguments, checked; and the checkpoint to resume, if any."""
    rows = [("task", "robot", "T"), *((k, *v[1:]) for k, v in TASKS.items())]
    table = "\n".join("    {:<24}{:<16}{:>4}".format(*row) for row in rows)
    description = f"{__doc__}\nTasks:\n\n{table}"
    line, checkpoint, defaults = tyro.cli(Args, args=argv, description=description), None, Args()
    if line.resume is not None:
        checkpoint = load_checkpoint(Path(line.resume) / "resume.pt")
        defaults = Args(**{k: v for k, v in checkpoint["args"].items() if k in vars(Args())})
    args = tyro.cli(Args, args=argv, default=defaults)
    if checkpoint:
        for name in FIXED_ON_RESUME:
            if getattr(args, name) != getattr(defaults, name):
                fail(f"{name} cannot change on --resume, it was {getattr(defaults, name)}")
    for name, value in vars(args).items():
        number = type(value) in (int, float)
        if number and not (0 < value < 2**63 or value == 0 and name in MAY_BE_ZERO):
            fail(f"--{name.replace('_', '-')} cannot be {value}")
    if args.eval_episodes < 2:
        fail("--eval-episodes 1 gives no interval: take 2 or more")
    for name, value, known in [("task", args.task, TASKS), ("policy", args.policy, POLICIES)]:
        if value not in known:
            fail(f"--{name} {value}: choose one of {', '.join(known)}")
    if args.skills is None:
        fail("--skills is missing: a run folder of psd.py, or of a baseline with discrete skills")
    return args, checkpoint


# ------------------------------------------ Environment -------------------------------------------
HALF_DEPTH = 0.05  # of a hurdle, in metres
FRICTIONS, FRICTION_STEPS = (0.5, 1.5, 2.0), 100  # in turn, and the steps for which each lasts
COLOURS = {0.5: (0.5, 0.75, 1.0), 1.5: (0.95, 0.95, 0.6), 2.0: (1.0, 0.6, 0.45)}  # of the floor


class Task:
    """A Gymnasium robot with a model edited by `edit`; s_task is the last of its observations."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **({"camera_name": "track"} | kwargs))  # else it stays behind
        size = self.observation_space.shape[0] + 1
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self.foot_ids = [self.model.geom(name).id for name in self.feet]

    def _initialize_simulation(self):
        spec = mujoco.MjSpec.from_file(self.fullpath)
        self.edit(spec)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an attribute of HalfCheetah's file, deprecated
            model = spec.compile()
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, self.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, self.height)
        return model, mujoco.MjData(model)

    def _get_obs(self):
        return np.append(super()._get_obs(), self.task_state())


class HurdleTask(Task):
    """+1 for each hurdle, once, when the rearmost foot is behind it.
    NOTE(paper): s_task is the distance to the next one not cleared; the paper's, to the nearest."""

    def edit(self, spec):
        half_height = self.top / 2
        for x in self.hurdles:
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                size=[HALF_DEPTH, 1.0, half_height],
                pos=[x, 0.0, half_height],
                conaffinity=1,  # the file's default, 0, would make a ghost of it
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
        self.cleared = max(self.cleared, int(passed))  # who goes back is not paid again

    def step(self, action):
        before = self.cleared
        obs, _, terminated, truncated, info = super().step(action)
        reward = float(self.cleared - before)
        return obs, reward, terminated, truncated, info | {"cleared": self.cleared}

    def task_state(self):
        """Signed, from the torso; behind the last hurdle, to that one."""
        following = self.hurdles[min(self.cleared, len(self.hurdles) - 1)]
        return following - self.data.qpos[0]


class FrictionTask(Task):
    """Metres travelled forward, v_x dt, while the friction of the feet changes; s_task is it."""

    def edit(self, spec):
        for name in self.feet:  # else the floor's counts where it is higher
            spec.geom(name).priority = 1

    def reset_model(self):
        self.num_steps = 0
        self.set_friction()
        return super().reset_model()

    def set_friction(self):
        self.friction = FRICTIONS[self.num_steps // FRICTION_STEPS % len(FRICTIONS)]
        self.model.geom_friction[self.foot_ids, 0] = self.friction
        self.model.geom_rgba[self.model.geom("floor").id, :3] = COLOURS.get(self.friction, 1.0)

    def do_simulation(self, ctrl, n_frames):
        super().do_simulation(ctrl, n_frames)
        self.num_steps += 1
        if self.num_steps % FRICTION_STEPS == 0:
            self.set_friction()  # of the next step, so that s_task tells it

    def step(self, action):
        friction = self.friction
        obs, _, terminated, truncated, info = super().step(action)
        reward = float(info["x_velocity"] * self.dt)
        return obs, reward, terminated, truncated, info | {"friction": friction}

    def task_state(self):
        return self.friction


class HalfCheetahHurdle(HurdleTask, HalfCheetahEnv):
    feet = ("bfoot", "ffoot")
    hurdles, top = (2.5, 4.0, 7.0, 10.0, 15.0, 22.0, 30.0), 0.26


class Walker2dHurdle(HurdleTask, Walker2dEnv):
    feet = ("foot_geom", "foot_left_geom")
    hurdles, top = (1.2, 2.7, 4.1, 5.8, 7.0, 9.2, 11.0, 12.8, 14.2), 0.11


class HalfCheetahFriction(FrictionTask, HalfCheetahEnv):
    feet = HalfCheetahHurdle.feet


class Walker2dFriction(FrictionTask, Walker2dEnv):
    feet = Walker2dHurdle.feet


TASKS = {  # its class; the robot, whose checkpoints fit; the length of an episode
    "HalfCheetahHurdle-v0": (HalfCheetahHurdle, "HalfCheetah-v4", 300),
    "Walker2dHurdle-v0": (Walker2dHurdle, "Walker2d-v4", 600),
    "HalfCheetahFriction-v0": (HalfCheetahFriction, "HalfCheetah-v4", 500),
    "Walker2dFriction-v0": (Walker2dFriction, "Walker2d-v4", 500),
}
for task_id, (task_class, _, task_length) in TASKS.items():
    gym.register(task_id, task_class, max_episode_steps=task_length)


def make_task(task, **kwargs):
    mujoco.set_mju_user_warning(lambda message: None)  # HalfCheetah's would write a log file
    return gym.make(task, disable_env_checker=True, **kwargs)


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


def embed_period(L, embed_dim):
    """Embed(L): sin(L w_i) for even i and cos(L w_i) for odd i, w_i = 10000^(-2 floor(i/2) / D)."""
    i = torch.arange(embed_dim, device=L.device)
    angle = L[..., None] * 10000.0 ** (-2.0 * (i // 2) / embed_dim)  # (..., D)
    return torch.where(i % 2 == 0, angle.sin(), angle.cos()) if embed_dim > 1 else angle


class Actor(nn.Module):
    """pi(a | s, skill): a Gaussian, squashed by tanh into the range of the actions."""

    def __init__(self, *sizes, action_low, action_high):
        super().__init__()
        self.net = MLP(*sizes, 2 * len(action_low))
        scale, bias = (action_high - action_low) / 2, (action_high + action_low) / 2
        self.register_buffer("action_scale", torch.as_tensor(scale, dtype=torch.float32))
        self.register_buffer("action_bias", torch.as_tensor(bias, dtype=torch.float32))
        self.log_constant = float(np.log(4 * scale * np.sqrt(2 * np.pi)).sum())

    def forward(self, obs, skill):
        mean, log_std = self.net(obs, skill).chunk(2, dim=-1)
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


def tanh_layers(*sizes):
    """As in the paper's PPO code base: tanh, and PyTorch's own initialisation."""
    layers = []
    for size_in, size_out in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(size_in, size_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# ----------------------------------------- Frozen skills ------------------------------------------
MAX_PERIODS = 16  # values of L to choose from
SEES_POSITION = dict.fromkeys(["psd", "psd_metra", "diayn", "dads"], False)
SEES_POSITION |= {"metra": True, "csd": True}


def candidate_periods(L_min, L_max, num_periods):
    """The values of L in use: evenly over the range, both ends among them."""
    return np.unique(np.round(np.linspace(L_min, L_max, num_periods))).astype(int)


def load_skills(path):
    """What a checkpoint says about its policy, with tensors and plain values only."""
    file = Path(path) / "model.pt" if Path(path).is_dir() else Path(path)
    try:
        checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        if checkpoint["script"] not in SEES_POSITION:
            known = ", ".join(f"{name}.py" for name in SEES_POSITION)
            fail(f"{file} is of {checkpoint['script']}.py: the skills of {known} can be used")
        skills = {k: checkpoint[k] for k in ("script", "args", "state", "agent")}
        state = {k: skills["state"][k] for k in ("obs_mean", "obs_std")}
    except Exception as error:  # of many types
        reason = "damaged or no checkpoint" if file.is_file() else "missing"
        fail(f"{file} is {reason} ({type(error).__name__})")
    if skills["args"].get("num_skills") == 0:
        fail(f"{file} has continuous skills: train with --num-skills 16 for these tasks")
    actor = {k[6:]: w for k, w in skills["agent"].items() if k.startswith("actor.")}
    if not actor or not all(w.isfinite().all() for w in actor.values()):
        fail(f"{file} has no actor, or one with weights that are not finite")
    state |= {k: skills["state"].get(k) for k in ("bounds", "epoch")}
    return skills | {"agent": actor, "state": state}


class Skills:
    """The frozen policy pi(a | s, skill) of a checkpoint, and the skills to choose from."""

    def __init__(self, content, task, device):
        script, args, state = (content[k] for k in ("script", "args", "state"))
        robot = TASKS[task][1]
        if args["env_id"] != robot:
            fail(f"{task} needs skills of {robot}, these are of {args['env_id']}")
        if script in ("psd", "psd_metra"):
            # NOTE(paper): which L pi^h may choose is open: evenly over the range that was trained
            periods = candidate_periods(*state["bounds"][:2], MAX_PERIODS)
            self.names = [f"L = {L}" for L in periods]
            vectors = embed_period(torch.tensor(periods).float(), args["embed_dim"])
            z = args.get("skill_dim", 0)  # and each with both ends of each axis of z: pairs (z, L)
            if z:
                ends = torch.cat([torch.eye(z), -torch.eye(z)])  # (2 z, z)
                self.names = [f"z = {i}, {L}" for i in range(2 * z) for L in self.names]
                vectors, ends = vectors.repeat(2 * z, 1), ends.repeat_interleave(len(vectors), 0)
                vectors = torch.cat([vectors, ends], dim=1)
        else:
            self.names = [f"z = {i}" for i in range(args["num_skills"])]
            vectors = torch.eye(args["num_skills"])
        self.content, self.sees_position = content, SEES_POSITION[script]
        self.vectors = vectors.to(device)  # (number of skills, D)
        self.scale = args.get("action_scale", 1.0)
        unseen = args.get("position_dim", 0)  # by the actor of psd_metra.py
        self.mean, self.std = (state[k][unseen:].numpy() for k in ("obs_mean", "obs_std"))
        hidden = [args["hidden_units"]] * args["hidden_layers"]
        space = make_task(task).action_space
        sizes = (len(self.mean) + self.vectors.shape[1], *hidden)
        with torch.random.fork_rng(devices=[]):  # the first weights are thrown away
            actor = Actor(*sizes, action_low=space.low, action_high=space.high)
        try:
            actor.load_state_dict(content["agent"])
        except RuntimeError as error:
            fail(f"the weights of these skills do not fit {script}.py's actor: {error}")
        self.actor = actor.to(device).requires_grad_(False)

    def see(self, env, obs):
        """What the policy was trained on, of a task's observation: without s_task, with the global
        position where it had that, and normalised as it was."""
        obs = obs[:-1]
        if self.sees_position:
            obs = np.concatenate([env.unwrapped.data.qpos[:1], obs])
        return ((obs - self.mean) / self.std).astype(np.float32)

    def act(self, obs, choices):
        """Actions of the chosen skills. NOTE(paper): deterministic, so a skill does what it can."""
        obs = torch.as_tensor(obs, device=self.vectors.device)
        skill = self.vectors[torch.as_tensor(choices, device=self.vectors.device)]
        return self.scale * self.actor.act(obs, skill, deterministic=True).cpu().numpy()


class SkillEnv(gym.Wrapper, gym.utils.RecordConstructorArgs):
    """The decision process of pi^h as a plain environment: an action is a skill, kept for H steps.
    NOTE(paper): its reward is their sum, and gamma counts decisions."""

    def __init__(self, env, skills, skill_steps):
        own = {"skills": skills, "skill_steps": skill_steps, "_disable_deepcopy": True}
        gym.utils.RecordConstructorArgs.__init__(self, **own)  # for env.spec, to make it again
        gym.Wrapper.__init__(self, env)
        self.skills, self.skill_steps = skills, skill_steps
        self.action_space = gym.spaces.Discrete(len(skills.names))

    def reset(self, **kwargs):
        self.obs, info = super().reset(**kwargs)
        return self.obs, info

    def step(self, action):
        return step_together([self], [action])[0]


def step_together(envs, choices):
    """One decision in each SkillEnv, a batched policy call a step; those that end are left out."""
    skills, results, active = envs[0].skills, [None] * len(envs), list(range(len(envs)))
    rewards, steps = [0.0] * len(envs), 0
    while active and steps < envs[0].skill_steps:
        seen = np.stack([skills.see(envs[i].env, envs[i].obs) for i in active])
        actions = skills.act(seen, [choices[i] for i in active])
        steps += 1
        for i, action in zip(active.copy(), actions):
            envs[i].obs, reward, *ended, info = envs[i].env.step(action)
            rewards[i] += reward
            results[i] = (envs[i].obs, rewards[i], *ended, info | {"steps": steps})
            if any(ended):
                active.remove(i)
    return results


# ---------------------------------- Proximal policy optimisation ----------------------------------
# n decisions of an episode: what pi^h saw, (n, obs_dim), chose and got; and low-level steps
Trajectory = namedtuple("Trajectory", "obs choices rewards steps distance")
Decisions = namedtuple("Decisions", "obs choices log_pi returns advantages")  # each (B, ...)


class HighLevelAgent(nn.Module):
    """All that a gradient step changes: pi^h, its critic, and their optimiser."""

    def __init__(self, args, obs_dim, num_skills, device):
        super().__init__()
        sizes = (obs_dim, *[args.hidden_units] * args.hidden_layers)
        self.actor = tanh_layers(*sizes, num_skills)  # logits
        self.critic = tanh_layers(*sizes, 1)
        self.to(device)
        groups = [(self.actor, args.actor_lr), (self.critic, args.critic_lr)]
        groups = [{"params": list(net.parameters()), "lr": lr} for net, lr in groups]
        fused = torch.device(device).type != "meta"  # all parameters in one kernel; `meta` has none
        self.optimizer = torch.optim.Adam(groups, fused=fused)

    @torch.no_grad()
    def choose(self, obs, generator=None):
        """A skill for each observation, drawn from pi^h; on the host, which carries it out."""
        obs = torch.as_tensor(obs, dtype=torch.float32, device=self.actor[0].weight.device)
        probabilities = self.actor(obs).softmax(dim=-1).cpu()
        return torch.multinomial(probabilities, 1, generator=generator)[:, 0].tolist()


def discounted_returns(rewards, gamma):
    """Monte-Carlo returns of an episode. NOTE(paper): T ends it like a fall, as in its code."""
    returns, future = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        returns[t] = future = rewards[t] + gamma * future
    return returns


@torch.no_grad()
def make_decisions(agent, trajectories, gamma):
    """All decisions of an epoch in one batch, as the agent saw them; returns normalised."""
    # NOTE(paper): "batch size 256", but four episodes hold 120 to 240 decisions: all of them.
    device = agent.actor[0].weight.device
    obs = np.concatenate([trajectory.obs for trajectory in trajectories])
    choices = np.concatenate([trajectory.choices for trajectory in trajectories])
    returns = np.concatenate([discounted_returns(t.rewards, gamma) for t in trajectories])
    returns = (returns - returns.mean()) / (returns.std() + 1e-7)
    obs = torch.as_tensor(obs, dtype=torch.float32, device=device)
    choices = torch.as_tensor(choices, device=device)
    returns = torch.as_tensor(returns, dtype=torch.float32, device=device)
    log_pi = agent.actor(obs).log_softmax(dim=-1).gather(1, choices[:, None])[:, 0]  # (B,)
    return Decisions(obs, choices, log_pi, returns, returns - agent.critic(obs)[:, 0])


def ppo_loss(agent, batch, clip, value_coef, entropy_coef):
    """Clipped surrogate, squared error of the critic, and entropy; no GAE, as in the code base."""
    log_probabilities = agent.actor(batch.obs).log_softmax(dim=-1)  # (B, number of skills)
    log_pi = log_probabilities.gather(1, batch.choices[:, None])[:, 0]  # (B,)
    ratio = (log_pi - batch.log_pi).exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    policy_loss = -torch.min(ratio * batch.advantages, clipped * batch.advantages).mean()
    value_loss = F.mse_loss(agent.critic(batch.obs)[:, 0], batch.returns)
    entropy = -(log_probabilities.exp() * log_probabilities).sum(dim=-1).mean()
    loss = policy_loss + value_coef * value_loss - entropy_coef * entropy
    metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    metrics["clip_fraction"] = (ratio != clipped).float().mean()
    return loss, {f"losses/{name}": value.detach() for name, value in metrics.items()}


def update(agent, batch, args):
    """One gradient step of pi^h and its critic; metrics stay on the device."""
    loss, metrics = ppo_loss(agent, batch, args.clip, args.value_coef, args.entropy_coef)
    agent.optimizer.zero_grad()
    loss.backward()
    agent.optimizer.step()
    return metrics


# -------------------------------------------- Rollouts --------------------------------------------
EVAL_STREAM, EVAL_ENVS = 7_000_000, 20  # sets seeds apart from those of training; stepped together


def collect(envs, key, choose):
    """An episode in each SkillEnv, decision by decision; those that ended are skipped. Resets are
    seeded by `key` and place."""
    seeds = np.random.SeedSequence(key).generate_state(len(envs)).tolist()
    obs = [[env.reset(seed=seed)[0]] for env, seed in zip(envs, seeds)]
    choices, rewards, steps = ([[] for _ in envs] for _ in range(3))
    distance, active = [0.0] * len(envs), list(range(len(envs)))
    while active:
        chosen = choose(np.array([obs[i][-1] for i in active]))
        results = step_together([envs[i] for i in active], chosen)
        for i, choice, result in zip(active.copy(), chosen, results):
            next_obs, reward, terminated, truncated, info = result
            choices[i].append(choice)
            rewards[i].append(reward)
            steps[i].append(info["steps"])
            distance[i] = info.get("x_position", 0.0)
            if terminated or truncated:
                active.remove(i)
            else:
                obs[i].append(next_obs)
    columns = zip(obs, choices, rewards, steps, distance)
    return [Trajectory(np.array(o), np.array(c), r, sum(n), x) for o, c, r, n, x in columns]


def play(envs, key, choose, num_episodes):
    """`num_episodes` trajectories, as many at a time as there are environments."""
    trajectories = []
    while len(trajectories) < num_episodes:
        some = envs[: num_episodes - len(trajectories)]
        trajectories += collect(some, (*key, len(trajectories)), choose)
    return trajectories


def mean_and_interval(returns):
    """The mean, and its 95 % interval by the normal approximation."""
    mean, half = np.mean(returns), 1.96 * np.std(returns, ddof=1) / np.sqrt(len(returns))
    return float(mean), [float(mean - half), float(mean + half)]


def evaluate_policy(envs, args, agent):
    """Returns of fresh episodes, the same for all policies; and the policy, to be filmed."""
    names, result = envs[0].skills.names, {}
    generator = torch.Generator().manual_seed(args.seed)  # that of training stays as it was
    more = (make_skill_env(args, envs[0].skills) for _ in range(EVAL_ENVS - len(envs)))
    envs = [*envs[:EVAL_ENVS], *more]

    def constant(skill):
        return lambda obs: [skill] * len(obs)

    def choose(obs):
        if args.policy == "random":
            return torch.randint(len(names), (len(obs),), generator=generator).tolist()
        return agent.choose(obs, generator)

    if args.policy == "fixed":  # the best is found on other episodes: a winner is often lucky
        trials = []
        for skill in tqdm(range(len(names)), "skills", disable=None):
            key = (EVAL_STREAM, args.seed, 0)
            played = play(envs, key, constant(skill), args.eval_episodes)
            trials.append(float(np.mean([sum(t.rewards) for t in played])))
        choose = constant(int(np.argmax(trials)))
        result = {"best_skill": names[int(np.argmax(trials))], "trials": dict(zip(names, trials))}
    played = play(envs, (EVAL_STREAM, args.seed, 1), choose, args.eval_episodes)
    returns = [sum(trajectory.rewards) for trajectory in played]
    mean, interval = mean_and_interval(returns)
    chosen = np.bincount(np.concatenate([t.choices for t in played]), minlength=len(names))
    result |= {"mean": mean, "interval": interval, "eval_episodes": len(returns)}
    result |= {"returns": returns, "steps": [t.steps for t in played]}
    return result | {"chosen": dict(zip(names, chosen.tolist()))}, choose


class Filmed(gym.Wrapper):
    """Keeps a frame of every step, with its reward."""

    def reset(self, **kwargs):
        result, self.frames = self.env.reset(**kwargs), []
        self.frames.append((self.env.render(), 0.0))
        return result

    def step(self, action):
        result = self.env.step(action)
        self.frames.append((self.env.render(), result[1]))
        return result


def make_filmed_env(args, skills):
    """A SkillEnv that renders off-screen; where that cannot work, one line says so."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        import cv2  # noqa: F401
        import imageio_ffmpeg  # noqa: F401

        env = make_task(args.task, render_mode="rgb_array", width=480, height=360)
        model = env.unwrapped.model
        model.vis.quality.offsamples = model.vis.quality.shadowsize = 0  # 30 times faster
        model.mat_reflectance[:] = 0
        env.reset(seed=0)
        env.render()
    except Exception as error:  # of many types, by the library that is missing
        gl, why = os.environ.get("MUJOCO_GL"), f"{type(error).__name__}: {error}"
        fail(f"--video: off-screen rendering with MUJOCO_GL={gl} fails ({why})")
    return SkillEnv(Filmed(env), skills, args.skill_steps)


def write_video(path, env, choose, seed):
    """An mp4 of one episode, with the chosen skill, the reward and the return on each frame."""
    import cv2
    import imageio_ffmpeg

    obs, ended, labels, total = env.reset(seed=seed)[0], [False], [], 0.0
    while not any(ended):
        choice = choose(obs[None])[0]
        obs, _, *ended, info = env.step(choice)
        labels += [env.skills.names[choice]] * info["steps"]
    frames = env.env.frames
    height, width = frames[0][0].shape[:2]
    fps, temporary = min(1 / env.unwrapped.dt, 60.0), path.with_suffix(".tmp.mp4")
    writer = imageio_ffmpeg.write_frames(
        str(temporary), (width, height), fps=fps, codec="libx264", pix_fmt_out="yuv420p",
        macro_block_size=2, output_params=["-movflags", "+faststart"],
    )  # fmt: skip
    writer.send(None)
    for (frame, reward), label in zip(frames, [labels[0], *labels]):
        frame, total = np.ascontiguousarray(frame), total + reward
        text = f"{label}   reward {reward:.2f}   return {total:.2f}"
        cv2.rectangle(frame, (0, 0), (width, 32), (0, 0, 0), -1)
        cv2.putText(frame, text, (10, 22), 0, 0.55, (255, 255, 255), 1, cv2.LINE_AA)
        writer.send(frame)
    writer.close()
    os.replace(temporary, path)


# ------------------------------------------- Checkpoint -------------------------------------------
def save_checkpoint(run_dir, args, state, agent, skills):
    """resume.pt holds everything, model.pt what it takes to act: both with the frozen skills."""
    model = {"script": SCRIPT, "args": vars(args), "state": state, "skills": skills.content}
    everything = {**model, "agent": agent.state_dict(), "rng": torch.get_rng_state()}
    model["agent"] = {k: w for k, w in agent.state_dict().items() if k.startswith("actor")}
    everything["optimizer"] = agent.optimizer.state_dict()["state"]
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
        return {k: checkpoint[k] for k in "script args state agent optimizer rng skills".split()}
    except Exception as error:  # of many types
        reason = "damaged or no checkpoint" if path.is_file() else "missing"
        fail(f"{path} is {reason} ({type(error).__name__})")


def restore(checkpoint, agent):
    """Everything that training changes; learning rates stay as the arguments have them."""
    agent.load_state_dict(checkpoint["agent"])
    adam = agent.optimizer
    adam.load_state_dict(adam.state_dict() | {"state": checkpoint["optimizer"]})
    torch.set_rng_state(checkpoint["rng"])


def write_json(path, result):
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(temporary, path)


# ---------------------------------------------- Main ----------------------------------------------
def make_skill_env(args, skills):
    return SkillEnv(make_task(args.task), skills, args.skill_steps)


def train(args, state, agent, envs, run_dir):
    """Epoch by epoch: collect, update, log, save. Returns the signal that ended it, if one did."""
    n, start, start_step = args.episodes_per_epoch, state["epoch"], state["global_step"]
    writer = SummaryWriter(run_dir, purge_step=start_step + 1)
    writer.add_text("hyperparameters", "\n".join(f"    {k} = {v}" for k, v in vars(args).items()))
    signals = []  # the first one lets the epoch end and be saved, a second one does not
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda s, _: os._exit(128 + s) if signals else signals.append(s))
    start_time = save_time = time.time()
    bar = tqdm(range(start, args.total_epochs), SCRIPT, args.total_epochs, initial=start)
    for epoch in bar:
        trajectories = collect(envs, (args.seed, epoch), agent.choose)
        state["global_step"] += sum(trajectory.steps for trajectory in trajectories)
        batch = make_decisions(agent, trajectories, args.gamma)
        metrics = [update(agent, batch, args) for _ in range(args.updates_per_epoch)]
        means = torch.stack([torch.stack([m[name] for m in metrics]).mean() for name in metrics[0]])
        # Log, and stop at what is not finite
        logs = dict(zip(metrics[0], means.tolist()))
        logs["losses/weight_norm"] = nn.utils.get_total_norm(agent.parameters()).item()
        returns = [sum(trajectory.rewards) for trajectory in trajectories]
        logs |= {"charts/episodic_return": np.mean(returns), "charts/episodes": (epoch + 1) * n}
        logs["charts/episodic_length"] = np.mean([t.steps for t in trajectories])
        logs["charts/distance"] = np.mean([t.distance for t in trajectories])
        logs["charts/SPS"] = sps = (state["global_step"] - start_step) / (time.time() - start_time)
        for name, value in logs.items():
            if not np.isfinite(value):
                writer.close()
                good = next(run_dir.glob("resume.pt"), "none")
                fail(f"epoch {epoch}: {name} is {value}; not saved, last good checkpoint: {good}")
            writer.add_scalar(name, value, state["global_step"])
        bar.set_postfix_str(f"{sps:.0f} steps/s, return {np.mean(returns):.2f}")
        state["epoch"] = epoch + 1
        last = signals or state["epoch"] == args.total_epochs
        if last or time.time() - save_time > 60 * args.save_minutes:
            save_checkpoint(run_dir, args, state, agent, envs[0].skills)
            save_time = time.time()
        if last:
            break
    writer.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # all is saved: from now on a signal ends it
        signal.signal(number, signal.SIG_DFL)
    return signals[0] if signals else None


def main(argv=None):
    args, checkpoint = parse_args(argv)
    device = torch.device("cuda" if args.cuda and torch.cuda.is_available() else "cpu")
    if args.cuda and device.type == "cpu":
        print(f"{SCRIPT}.py: there is no CUDA device, training on the CPU", file=sys.stderr)
    torch.set_num_threads(args.num_threads)
    torch.manual_seed(args.seed)
    content = checkpoint["skills"] if checkpoint else load_skills(args.skills)
    skills = Skills(content, args.task, device)
    envs = [make_skill_env(args, skills) for _ in range(args.episodes_per_epoch)]
    obs_dim = envs[0].observation_space.shape[0]
    agent = HighLevelAgent(args, obs_dim, len(skills.names), device)
    run_name = args.run_name or f"{args.task}__{SCRIPT}__{args.seed}__{int(time.time())}"
    run_dir = Path(args.resume or f"runs/{run_name}")
    state = checkpoint["state"] if checkpoint else {"epoch": 0, "global_step": 0}
    if checkpoint:
        restore(checkpoint, agent)
    elif run_dir.exists():
        fail(f"{run_dir} exists: --resume it, or choose another --run-name")
    filmed = make_filmed_env(args, skills) if args.video else None  # before any work
    if args.policy == "learned" and state["epoch"] < args.total_epochs:
        number = train(args, state, agent, envs, run_dir)
        print(f"saved {run_dir}; to go on: python {os.path.relpath(__file__)} --resume {run_dir}")
        if number:
            sys.exit(128 + number)
    result, choose = evaluate_policy(envs, args, agent)
    run_dir.mkdir(parents=True, exist_ok=True)  # not before: a control that was killed left nothing
    head = {name: getattr(args, name) for name in ("task", "policy", "seed", "skills")}
    head |= {"method": content["script"], "ext_coef": content["args"]["ext_coef"]}
    head["radius_coef"] = content["args"].get("radius_coef", 0.0)
    head |= {"skill_seed": content["args"]["seed"], "skill_epochs": content["state"]["epoch"]}
    head["num_skills"] = len(skills.names)
    head |= {"epochs": state["epoch"], "episodes": state["epoch"] * args.episodes_per_epoch}
    head["args"] = {k: v for k, v in vars(args).items() if k not in ("run_name", "resume")}
    write_json(run_dir / "downstream.json", head | result)
    low, high = result["interval"]
    print(f"{args.task}, {args.policy}: mean return {result['mean']:.3g} ({low:.3g} to {high:.3g})")
    if filmed:
        write_video(run_dir / "episode.mp4", filmed, choose, args.seed)
    print(f"wrote {run_dir}/downstream.json")


if __name__ == "__main__":
    main()
