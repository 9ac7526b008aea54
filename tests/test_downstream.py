"""Hurdles, friction, frozen skills and PPO: downstream_ppo.py against plain physics and NumPy."""

import json
import os
import re
import shlex
import shutil
import signal
import types
from dataclasses import replace

import gymnasium as gym
import mujoco
import numpy as np
import pytest
import torch
from conftest import REPO
from gymnasium.utils.env_checker import check_env
from test_cli import commands, python
from test_device import Devices, HostCalls
from test_resume import differences, read_some, same

import downstream_ppo as ppo
import psd
import psd_metra
import psd_pixel
from baselines import csd, dads, diayn, metra

HURDLES = ["HalfCheetahHurdle-v0", "Walker2dHurdle-v0"]
FRICTIONS = ["HalfCheetahFriction-v0", "Walker2dFriction-v0"]
REST = np.zeros(6, np.float32)
TINY = """--hidden-units 16 --total-epochs 2 --episodes-per-epoch 2 --updates-per-epoch 3
    --eval-episodes 3""".split()


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ppo, "EVAL_ENVS", 2)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def save_skills(script, folder, env_id, *flags):
    """A checkpoint of random weights, written by the script itself; what was written."""
    small = "--hidden-units 16 --batch-size 16 --buffer-size 6000 --ext-coef 1".split()
    args, _ = script.parse_args(["--env-id", env_id, *small, *flags])
    env = script.make_env(args)
    torch.manual_seed(0)
    agent = script.Agent(args, env.observation_space.shape[0], env.action_space, "cpu")
    progress = {"epoch": 1, "global_step": 1, "bounds": (5, 40, True, True)}
    progress |= script.observation_statistics(env, args, num_steps=300)
    folder.mkdir(parents=True)
    script.save_checkpoint(folder, args, progress, agent, types.SimpleNamespace())
    return args, agent, progress


def save_pixels(folder):
    """A checkpoint as psd_pixel.py writes it: no statistics of observations."""
    args = psd_pixel.Args(image_size=15, crop_size=15, num_filters=2, hidden_units=8, latent_dim=2)
    agent = psd_pixel.Agent(args, 9, gym.spaces.Box(-1, 1, (6,)), "cpu")
    progress = {"epoch": 1, "global_step": 1, "bounds": (5, 40, True, True)}
    folder.mkdir(parents=True)
    psd_pixel.save_checkpoint(folder, args, progress, agent, types.SimpleNamespace())


@pytest.fixture
def cheetah(tmp_path):
    save_skills(psd, tmp_path / "cheetah", "HalfCheetah-v4")
    return "cheetah"


@pytest.fixture
def walker(tmp_path):
    """Falls within a second: the shortest episodes there are."""
    save_skills(metra, tmp_path / "walker", "Walker2d-v4")
    return "walker"


# --------------------------------------------- Tasks ----------------------------------------------
@pytest.mark.parametrize("task", ppo.TASKS)
def test_tasks_are_sound_gymnasium_environments(task):
    env = ppo.make_task(task)
    check_env(env.unwrapped, skip_render_check=True)
    assert env.spec.max_episode_steps == {"H": 300, "W": 600}[task[0]] or "Friction" in task
    assert env.spec.max_episode_steps == 500 or "Hurdle" in task
    assert env.observation_space.shape == (18,)


def trajectory(env, num_steps, seed=3):
    """States, and Gym's own observations, under random actions."""
    obs, _ = env.reset(seed=seed)
    rng, states, seen = np.random.default_rng(0), [], []
    for _ in range(num_steps):
        states.append(env.unwrapped.state_vector())
        seen.append(obs[:17])
        obs, *_ = env.step(rng.uniform(-1, 1, 6).astype(np.float32))
    return np.array(states), np.array(seen)


@pytest.mark.parametrize("task", HURDLES)
def test_without_a_hurdle_in_reach_it_is_the_base_to_the_bit(task):
    robot = ppo.TASKS[task][1]
    args, _ = psd.parse_args(["--env-id", robot, "--episode-length", "120"])
    base, own = trajectory(psd.make_env(args), 100), trajectory(ppo.make_task(task), 100)
    assert np.array_equal(base[0], own[0]) and np.array_equal(base[1], own[1])


def test_with_the_floors_own_friction_it_is_the_base_to_the_bit(monkeypatch):
    args, _ = psd.parse_args(["--env-id", "HalfCheetah-v4"])
    base = trajectory(psd.make_env(args), 100)[0]
    assert not np.array_equal(base, trajectory(ppo.make_task(FRICTIONS[0]), 100)[0])
    monkeypatch.setattr(ppo, "FRICTIONS", (0.4,))
    assert np.array_equal(base, trajectory(ppo.make_task(FRICTIONS[0]), 100)[0])


def place(env, rear_foot, height=2.0):
    """Puts the robot so that its rearmost foot is there, in the air, at rest; then one step."""
    robot = env.unwrapped
    qpos = robot.init_qpos.copy()
    qpos[1] += height
    robot.set_state(qpos, 0 * robot.init_qvel)
    qpos[0] = rear_foot - robot.data.geom_xpos[robot.foot_ids, 0].min()
    robot.set_state(qpos, 0 * robot.init_qvel)
    obs, reward, *_, info = env.step(REST)
    assert robot.data.geom_xpos[robot.foot_ids, 0].min() == pytest.approx(rear_foot, abs=0.02)
    return obs, reward, info


@pytest.mark.parametrize("task", HURDLES)
def test_a_hurdle_pays_once_when_the_rearmost_foot_is_behind_it(task):
    env = ppo.make_task(task)
    first, second, third = env.unwrapped.hurdles[:3]
    obs, _ = env.reset(seed=0)
    assert obs[-1] == first - env.unwrapped.data.qpos[0]
    for x, paid, following in [
        (first - 0.5, 0, first),  # before
        (first, 0, first),  # on it
        (first + 0.1, 1, second),  # behind
        (first - 0.5, 0, second),  # back again
        (first + 0.1, 0, second),  # and over it again: never twice
        (third + 0.1, 2, env.unwrapped.hurdles[3]),  # two in one leap
    ]:
        obs, reward, info = place(env, x)
        assert reward == paid, x
        assert obs[-1] == following - env.unwrapped.data.qpos[0]
    last = env.unwrapped.hurdles[-1]
    obs, reward, info = place(env, last + 1.0)
    assert info["cleared"] == len(env.unwrapped.hurdles) == reward + 3
    assert obs[-1] == last - env.unwrapped.data.qpos[0]  # there is no next one
    env.reset(seed=0)
    assert place(env, first + 0.1)[1] == 1  # a new episode


@pytest.mark.parametrize("task, top", zip(HURDLES, [0.26, 0.11]))
def test_a_hurdle_is_hit(task, top):
    env = ppo.make_task(task)
    env.reset(seed=0)
    robot, (first, *_) = env.unwrapped, env.unwrapped.hurdles
    boxes = np.flatnonzero(robot.model.geom_type == mujoco.mjtGeom.mjGEOM_BOX)
    assert np.array_equal(robot.model.geom_pos[boxes, 0], robot.hurdles)
    assert robot.model.geom_pos[boxes, 2] + robot.model.geom_size[boxes, 2] == pytest.approx(top)
    qpos, qvel, touched, x = robot.init_qpos.copy(), 0 * robot.init_qvel, set(), []
    ahead = robot.data.geom_xpos[robot.foot_ids, 0].max() - robot.data.qpos[0]
    qpos[0], qvel[0] = first - ahead - 0.3, 3.0  # the front foot 0.3 m away, at 3 m/s
    qpos[1] += 0.03  # in the air, so that the floor does not stop it
    for ghosts in [False, True]:
        if ghosts:
            robot.model.geom_conaffinity[boxes] = 0
        env.reset(seed=0)
        robot.set_state(qpos, qvel)
        for _ in range(int(0.2 / robot.dt)):
            env.step(REST)
            touched |= {g for c in robot.data.contact.geom for g in c if not ghosts}
        x.append(robot.data.geom_xpos[robot.foot_ids, 0].max())
    assert boxes[0] in touched
    assert x[0] < first < x[1]  # it stood in the way


@pytest.mark.parametrize("task", FRICTIONS)
def test_the_friction_of_a_real_contact_follows_the_cycle(task):
    env = ppo.make_task(task)
    robot = env.unwrapped
    obs, _ = env.reset(seed=0)
    floor, frictions, travelled = robot.model.geom("floor").id, [], []
    standing = robot.init_qpos - 0.045 * np.eye(9)[1], 0 * robot.init_qvel  # feet on the floor
    for t in range(310):
        told = obs[-1]
        robot.set_state(*standing) if "Walker" in task else None  # who has fallen is on no foot
        before = robot.data.qpos[0]
        obs, reward, _, _, info = env.step(REST)
        travelled.append(reward - (robot.data.qpos[0] - before))
        for contact in robot.data.contact:
            if floor in contact.geom and set(robot.foot_ids) & set(contact.geom):
                frictions.append((t, contact.friction[0]))
                assert told == info["friction"] == contact.friction[0]
    found = {f: sorted({t // 100 for t, mu in frictions if mu == f}) for _, f in frictions}
    assert found == {0.5: [0, 3], 1.5: [1], 2.0: [2]}
    assert np.abs(travelled).max() < 1e-12  # the reward is in metres


# ----------------------------------------- Frozen skills ------------------------------------------
SKILL_SCRIPTS = [psd, psd_metra, metra, csd, diayn, dads]


@pytest.mark.parametrize("task", ["HalfCheetahHurdle-v0", "Walker2dHurdle-v0"])
@pytest.mark.parametrize("script", SKILL_SCRIPTS, ids=lambda s: s.SCRIPT)
def test_low_level_actions_are_the_skill_scripts_to_the_bit(script, task, tmp_path, monkeypatch):
    robot, n, T = ppo.TASKS[task][1], 3, 20
    flags = ["--normalize-obs", "--episode-length", str(T), "--action-scale", "0.5"]
    flags += ["--L-min", "5", "--L-max", "9"] if script in (psd, psd_metra) else []
    args, agent, progress = save_skills(script, tmp_path / "run", robot, *flags)
    skills = ppo.Skills(ppo.load_skills("run"), task, "cpu")
    choices = [0, 5, len(skills.names) - 1]
    if script is psd:
        periods = [int(name[4:]) for name in skills.names]
        assert len(periods) == 16 and (periods[0], periods[-1]) == (5, 40)
        L = torch.tensor([periods[c] for c in choices]).float()
        own = psd.embed_period(L, args.embed_dim)
    elif script is psd_metra:
        periods = [int(name.split()[-1]) for name in skills.names]
        assert len(periods) == 32 and periods[:16] == periods[16:]  # for z = +1, and for -1
        L = torch.tensor([periods[c] for c in choices]).float()
        z = torch.tensor([[1.0 if c < 16 else -1.0] for c in choices])
        own = torch.cat([psd.embed_period(L, args.embed_dim), z], dim=1)
    else:
        assert len(skills.names) == 16
        own = torch.eye(16)[choices]
    envs = [script.make_env(args) for _ in range(n)]
    episodes = script.rollout(envs, (9,), agent, own, progress, deterministic=True)
    acted, act = [], skills.act
    monkeypatch.setattr(skills, "act", lambda *inputs: acted.append(act(*inputs)) or acted[-1])
    envs = [ppo.SkillEnv(ppo.make_task(task), skills, 10) for _ in range(n)]
    seeds = np.random.SeedSequence((9,)).generate_state(n).tolist()
    for env, seed in zip(envs, seeds):
        env.reset(seed=seed)
    active = list(range(n))
    while active:  # for two decisions, the second without those that fell in the first
        results = ppo.step_together([envs[i] for i in active], [choices[i] for i in active])
        active = [i for i, r in zip(active, results) if not any(r[2:4]) and len(acted) < T]
    assert len(acted) == max(len(episode.actions) for episode in episodes)
    for t, actions in enumerate(acted):
        own = np.stack([e.actions[t] for e in episodes if t < len(e.actions)])
        assert np.array_equal(actions, np.float32(0.5) * own), t


def test_few_periods_are_all_to_choose_from(tmp_path):
    args, agent, progress = save_skills(psd, tmp_path / "a", "HalfCheetah-v4")
    progress["bounds"] = (8, 12, True, True)
    psd.save_checkpoint(tmp_path / "a", args, progress, agent, types.SimpleNamespace())
    names = ppo.Skills(ppo.load_skills("a"), "HalfCheetahHurdle-v0", "cpu").names
    assert names == [f"L = {L}" for L in [8, 9, 10, 11, 12]]


def test_a_decision_is_ten_steps_and_their_sum(walker):
    skills = ppo.Skills(ppo.load_skills(walker), FRICTIONS[1], "cpu")
    env = ppo.SkillEnv(ppo.make_task(FRICTIONS[1]), skills, 10)
    check_env(env, skip_render_check=True)
    start, total, steps = env.reset(seed=1)[1], 0.0, []
    start = env.unwrapped.data.qpos[0]
    ended = [False]
    while not any(ended):
        obs, reward, *ended, info = env.step(4)
        total, steps = total + reward, [*steps, info["steps"]]
    assert total == pytest.approx(env.unwrapped.data.qpos[0] - start, abs=1e-12)
    assert set(steps[:-1]) <= {10} and 1 <= steps[-1] <= 10
    assert ended == [True, False]  # the robot fell
    assert sum(steps) == env.unwrapped.num_steps


def test_skills_of_longer_steps_hold_their_actions(tmp_path, monkeypatch):
    """Trained with --frame-skip 10, a skill acts at every second step of a task with 5."""
    args, agent, _ = save_skills(psd, tmp_path / "a", "HalfCheetah-v4", "--frame-skip", "10")
    skills = ppo.Skills(ppo.load_skills("a"), HURDLES[0], "cpu")
    env = ppo.SkillEnv(ppo.make_task(HURDLES[0]), skills, 7)
    seen = []
    step = ppo.gym.Wrapper.step
    monkeypatch.setattr(env.env, "step", lambda a: seen.append(a) or step(env.env, a))
    env.reset(seed=1)
    env.step(3)
    assert len(seen) == 7  # in pairs; the last action is cut short by the end of the decision
    changes = [not np.array_equal(a, b) for a, b in zip(seen, seen[1:])]
    assert changes == [False, True, False, True, False, True]

    save_skills(psd, tmp_path / "b", "HalfCheetah-v4", "--frame-skip", "7")
    with pytest.raises(SystemExit, match="needs skills with a multiple of --frame-skip 5"):
        ppo.Skills(ppo.load_skills("b"), HURDLES[0], "cpu")


# ---------------------------------------------- PPO -----------------------------------------------
class Chain(gym.Env):
    """Choices as actions: `pay(t, state, choice)` gives reward and next state."""

    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))

    def __init__(self, pay, length):
        self.pay, self.length = pay, length

    def reset(self, seed=None, options=None):
        self.t, self.state = 0, 0
        return self.obs(), {}

    def obs(self):
        return np.array([self.t, self.state, 0.0])

    def step(self, action):
        reward, self.state = self.pay(self.t, self.state, int(action))
        self.t += 1
        return self.obs(), reward, self.t == self.length, False, {}


class Direct:
    """Skills whose action is their number."""

    names = [str(i) for i in range(16)]
    hold_steps = 1

    def see(self, env, obs):
        return obs[:-1]

    def act(self, obs, choices):
        return np.array(choices, np.float64)


def learn(pay, length, epochs, num_episodes=32, **changes):
    args = replace(ppo.Args(hidden_units=64, actor_lr=3e-3), **changes)
    torch.manual_seed(0)
    envs = [ppo.SkillEnv(Chain(pay, length), Direct(), 1) for _ in range(num_episodes)]
    agent = ppo.HighLevelAgent(args, 3, 16, "cpu")
    for epoch in range(epochs):
        played = ppo.collect(envs, (epoch,), agent.choose)
        batch = ppo.make_decisions(agent, played, args.gamma)
        for _ in range(10):
            ppo.update(agent, batch, args)
    return envs, args, agent, np.mean([sum(t.rewards) for t in played])


def test_ppo_learns_a_bandit_of_sixteen_arms():
    envs, args, agent, last = learn(lambda t, state, c: (0.1 * c if c != 11 else 3.0, 0), 1, 30)
    assert last > 2.5  # 0.8 by chance
    chosen = agent.choose(np.zeros((100, 3)))
    assert chosen.count(11) > 80


def test_ppo_learns_to_forgo_a_reward_for_a_later_one():
    """A first choice of 8 or more pays 0.3; another leads to where 8 or more pays 2."""

    def pay(t, state, choice):
        if t == 0:
            return (0.3, 0) if choice >= 8 else (0.0, 1)
        return 2.0 * (state == 1 and choice >= 8), 0

    assert learn(pay, 2, 25)[-1] > 1.6  # 0.65 by chance, 0.3 by greed
    assert learn(pay, 2, 25, gamma=0.0)[-1] < 0.6  # what lies ahead comes through the returns


def test_returns_and_loss_against_slow_numpy():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    args = ppo.Args(hidden_units=8)
    agent = ppo.HighLevelAgent(args, 4, 5, "cpu")
    played = []
    for n in (3, 6):
        obs, choices = rng.normal(size=(n, 4)), rng.integers(5, size=n)
        played.append(ppo.Trajectory(obs, choices, rng.normal(size=n).tolist(), 10 * n, 0.0))
    batch = ppo.make_decisions(agent, played, 0.9)
    slow = []
    for t in played:
        n = len(t.rewards)
        slow += [sum(0.9 ** (k - i) * t.rewards[k] for k in range(i, n)) for i in range(n)]
    assert len(set(np.round(slow, 9))) == 9
    slow = (np.array(slow) - np.mean(slow)) / np.std(slow)
    assert batch.returns.numpy() == pytest.approx(slow, abs=1e-5)
    values = agent.critic(batch.obs)[:, 0].detach().numpy()
    assert batch.advantages.numpy() == pytest.approx(slow - values, abs=1e-5)
    # An old policy from which the new one differs, beyond the clip on both sides
    shift = np.array([0.5, -0.5, 0.05, 0.4, -0.4, 0.0, 0.3, -0.3, 0.1])
    batch = batch._replace(log_pi=batch.log_pi + torch.tensor(shift).float())
    loss, metrics = ppo.ppo_loss(agent, batch, 0.2, 0.5, 0.01)
    policy, value, entropy, clipped = 0.0, 0.0, 0.0, 0
    for i in range(9):
        logits = agent.actor(batch.obs[i]).detach().double().numpy()
        p = np.exp(logits) / np.exp(logits).sum()
        ratio = p[batch.choices[i]] / np.exp(batch.log_pi[i].item())
        advantage = slow[i] - values[i]
        policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / 9
        value += (values[i] - slow[i]) ** 2 / 9
        entropy -= (p * np.log(p)).sum() / 9
        clipped += not 0.8 <= ratio <= 1.2
    assert loss.item() == pytest.approx(policy + 0.5 * value - 0.01 * entropy, abs=1e-5)
    for name, number in [("policy_loss", policy), ("value_loss", value), ("entropy", entropy)]:
        assert metrics[f"losses/{name}"].item() == pytest.approx(number, abs=1e-5)
    assert metrics["losses/clip_fraction"].item() == pytest.approx(clipped / 9) and clipped > 4


def test_equal_returns_teach_nothing_and_break_nothing():
    agent = ppo.HighLevelAgent(ppo.Args(hidden_units=8), 4, 5, "cpu")
    one = ppo.Trajectory(np.ones((1, 4)), np.array([2]), [0.0], 1, 0.0)
    batch = ppo.make_decisions(agent, [one], 0.99)
    assert batch.returns.tolist() == [0.0]
    metrics = ppo.update(agent, batch, ppo.Args())
    assert all(value.isfinite() for value in metrics.values())


def decisions(device):
    agent = ppo.HighLevelAgent(ppo.Args(hidden_units=8), 4, 5, device)
    zeros = torch.zeros(7, device=device)
    choices = torch.zeros(7, device=device, dtype=torch.long)
    obs = torch.zeros(7, 4, device=device)
    return agent, ppo.Decisions(obs, choices, zeros, zeros, zeros)


def test_an_update_runs_on_meta_with_every_tensor_there_and_never_asks_the_host():
    def strangers(agent, batch):
        with Devices() as devices:
            metrics = ppo.update(agent, batch, ppo.Args())
        assert {value.device.type for value in metrics.values()} == {"meta"}
        return [s for s in devices.strangers if s[1] != ()]  # but for Adam's step counters

    agent, batch = decisions("meta")
    assert strangers(agent, batch) == []
    with pytest.raises(RuntimeError, match="device"):  # the check bites
        strangers(agent, batch._replace(advantages=torch.zeros(7)))
    agent, batch = decisions("cpu")
    with HostCalls() as host:
        ppo.update(agent, batch, ppo.Args())
    assert host.calls == []


def test_stable_baselines3_trains_on_the_wrapped_task(cheetah):
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    skills = ppo.Skills(ppo.load_skills(cheetah), FRICTIONS[0], "cpu")
    env = ppo.SkillEnv(ppo.make_task(FRICTIONS[0]), skills, 10)
    peer = stable_baselines3.PPO("MlpPolicy", env, n_steps=1024, n_epochs=2, seed=0, device="cpu")
    before = {k: w.clone() for k, w in peer.policy.state_dict().items()}
    frozen = {k: w.clone() for k, w in skills.actor.state_dict().items()}
    peer.learn(2048)  # of ten low-level steps each
    after = peer.policy.state_dict()
    assert peer.num_timesteps == 2048
    assert any(not torch.equal(before[k], after[k]) for k in before)
    assert all(torch.equal(frozen[k], w) for k, w in skills.actor.state_dict().items())


# --------------------------------------------- Runs -----------------------------------------------
def run(*flags):
    """A run inside this process; returns what resume.pt holds."""
    ppo.main(list(flags))
    resumed = "--resume" in flags
    name = flags[flags.index("--resume" if resumed else "--run-name") + 1]
    name = name.removesuffix("/resume.pt")
    return torch.load(f"{'' if resumed else 'runs/'}{name}/resume.pt", weights_only=True)


def test_n_and_n_epochs_are_two_n_and_the_skills_stay_as_they_were(walker):
    flags = [*TINY, "--task", HURDLES[1], "--skills", walker]
    whole = run(*flags, "--run-name", "whole", "--total-epochs", "4")
    half = run(*flags, "--run-name", "half")
    assert "/agent/actor.0.weight" in differences(whole, half)
    shutil.rmtree("walker")  # a run has its skills with it
    both = run("--resume", "runs/half", "--total-epochs", "4")
    assert same(whole, both)
    other = torch.load("runs/whole/model.pt", weights_only=True)
    assert set(other["agent"]) == {k for k in whole["agent"] if k.startswith("actor")}
    first, second = (
        json.loads(open(f"runs/{n}/downstream.json").read()) for n in ["whole", "half"]
    )
    assert first == second
    again = run("--resume", "runs/whole", "--eval-episodes", "4")  # evaluates, and no more
    assert same(whole, again) and differences(whole["rng"], again["rng"]) == []
    assert json.loads(open("runs/whole/downstream.json").read())["eval_episodes"] == 4


def test_low_level_weights_are_the_same_bits_after_training(cheetah):
    before = torch.load("cheetah/model.pt", weights_only=True)
    made, real = [], ppo.Skills
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "Skills", lambda *inputs: made.append(real(*inputs)) or made[-1])
        after = run(*TINY, "--skills", cheetah, "--run-name", "a")
    actor = {k[6:]: w for k, w in before["agent"].items() if k.startswith("actor.")}
    assert len(actor) == 8
    assert differences(actor, after["skills"]["agent"]) == []
    assert differences(actor, dict(made[0].actor.state_dict())) == []
    assert differences(before, torch.load("cheetah/model.pt", weights_only=True)) == []


def test_a_signal_finishes_the_epoch_and_saves(walker):
    import subprocess
    import sys

    flags = [*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "stopped"]
    command = [sys.executable, str(REPO / "downstream_ppo.py"), *flags, "--total-epochs", "100000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, **pipes)
    while "1/100000" not in (bar := read_some(process)):
        assert process.poll() is None, bar
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "downstream_ppo.py --resume runs/stopped" in output
    stopped = torch.load("runs/stopped/resume.pt", weights_only=True)
    epochs = str(stopped["progress"]["epoch"])
    whole = run(*flags[:-1], "whole", "--total-epochs", epochs)
    assert same(whole, stopped)
    assert not os.path.exists("runs/stopped/downstream.json")


def test_once_training_is_saved_a_signal_ends_the_process_at_once(walker, monkeypatch):
    handlers, real = [], ppo.evaluate_policy

    def evaluate(*inputs):
        handlers.extend(signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, ppo.HANGUP))
        return real(*inputs)

    monkeypatch.setattr(ppo, "evaluate_policy", evaluate)
    signal.signal(ppo.HANGUP, signal.SIG_IGN)  # as nohup does
    run(*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "a")
    assert handlers == [signal.SIG_DFL, signal.SIG_DFL, signal.SIG_IGN]


def test_what_is_not_finite_stops_the_run_unsaved(walker):
    flags = [*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "a"]
    message = "Walker2dHurdle-v0, epoch [01]: .*; not saved, last good checkpoint: none"
    with pytest.raises(SystemExit, match=message):
        ppo.main([*flags, "--critic-lr", "1e18"])
    assert not os.path.exists("runs/a/resume.pt")


def test_controls_write_their_numbers_and_train_nothing(walker):
    flags = [*TINY, "--task", FRICTIONS[1], "--skills", walker]
    for policy in ["fixed", "random"]:
        ppo.main([*flags, "--policy", policy, "--run-name", policy])
        assert sorted(os.listdir(f"runs/{policy}")) == ["downstream.json", "lock"]
        result = json.loads(open(f"runs/{policy}/downstream.json").read())
        mean, std = np.mean(result["returns"]), np.std(result["returns"], ddof=1)
        assert result["mean"] == pytest.approx(mean) and len(result["returns"]) == 3
        assert result["interval"][1] - mean == pytest.approx(1.96 * std / np.sqrt(3))
        expected = {"task": FRICTIONS[1], "policy": policy, "seed": 1, "method": "metra"}
        expected |= {"ext_coef": 1.0, "episodes": 0, "eval_episodes": 3, "num_skills": 16}
        assert expected.items() <= result.items()
        used = [name for name, count in result["chosen"].items() if count]
        assert (used == [result["best_skill"]]) if policy == "fixed" else len(used) > 1


def test_episodes_of_the_evaluation_start_the_same_for_every_policy(walker, monkeypatch):
    """And for every number of episodes an epoch: EVAL_ENVS environments step together."""
    starts, real = [], ppo.collect

    def collect(envs, key, choose):
        played = real(envs, key, choose)
        starts[-1].extend(trajectory.obs[0] for trajectory in played)
        return played

    monkeypatch.setattr(ppo, "collect", collect)
    skills = ppo.Skills(ppo.load_skills(walker), HURDLES[1], "cpu")
    for policy, n in [("random", 1), ("learned", 2), ("learned", 3)]:
        args = ppo.Args(task=HURDLES[1], policy=policy, episodes_per_epoch=n, eval_episodes=5)
        envs = [ppo.make_skill_env(args, skills) for _ in range(n)]
        agent = ppo.HighLevelAgent(args, envs[0].observation_space.shape[0], 16, "cpu")
        starts.append([])
        ppo.evaluate_policy(envs, args, agent)
    assert len(starts[0]) == 5 and len(np.unique(starts[0], axis=0)) == 5
    assert np.array_equal(starts[0], starts[1]) and np.array_equal(starts[0], starts[2])


def test_the_best_skill_is_judged_on_other_episodes_than_it_was_chosen_on():
    """Arm 7 is the best; what it is said to earn comes from fresh episodes."""

    class Lucky(Chain):
        """An episode's luck comes with its seed."""

        def reset(self, seed=None, options=None):
            self.luck = np.random.default_rng(seed).normal()
            return super().reset()

    def make():
        env = Lucky(lambda t, state, choice: (env.luck + 3.0 * (choice == 7), 0), 1)
        return ppo.SkillEnv(env, Direct(), 1)

    envs = [make(), make()]
    args = ppo.Args(policy="fixed", eval_episodes=60, episodes_per_epoch=2)
    result, choose = ppo.evaluate_policy(envs, args, None)
    assert result["best_skill"] == "7" and choose(np.zeros((2, 3))) == [7, 7]
    assert result["trials"]["7"] != result["mean"]
    assert result["interval"][0] < 3.0 < result["interval"][1]
    assert len(result["trials"]) == 16 and result["chosen"]["7"] == 60


BAD_INPUT = {
    "": "--skills is missing: a run folder",
    "--skills nowhere": "nowhere is missing",
    "--skills text": "text is damaged or no checkpoint",
    "--skills walker": "HalfCheetahHurdle-v0 needs skills of HalfCheetah-v4, these are of Walker2d",
    "--skills v5": "needs skills of HalfCheetah-v4, these are of HalfCheetah-v5",
    "--skills continuous": "continuous skills: train with --num-skills 16",
    "--skills pixels": "is of psd_pixel.py: the skills of psd.py, psd_metra.py, diayn.py",
    "--skills runs/ppo": "is of downstream_ppo.py: the skills of psd.py",
    "--skills broken": "is damaged: its actor has weights that are not finite",
    "--skills elsewhere": "needs skills of HalfCheetah-v4, these are of spy:HalfCheetah-v4",
    "--skills other_size": "do not fit psd.py's actor",
    "--skills cheetah --task Ant-v4": "--task Ant-v4: choose one of HalfCheetahHurdle-v0, Walker2d",
    "--skills cheetah --policy best": "--policy best: choose one of learned, random, fixed",
    "--skills cheetah --gamma nan": "--gamma cannot be nan",
    "--skills cheetah --skill-steps 0": "--skill-steps cannot be 0",
    "--skills cheetah --eval-episodes 1": "take 2 or more",
    "--skills cheetah --eval-episodes 9999999": "--eval-episodes cannot be 9999999: at most",
    "--skills cheetah --gamma 1.5": "--gamma cannot be 1.5: at most 1",
    "--skills cheetah --hidden-units 10000000": "--hidden-units cannot be 10000000: at most",
    "--skills cheetah --hidden-layers 100000": "--hidden-layers cannot be 100000: at most",
    "--skills cheetah --num-threads 1000000": "--num-threads cannot be 1000000: at most",
    "--skills cheetah --episodes-per-epoch 100000000": "--episodes-per-epoch cannot be 100000000:",
    "--skills cheetah --seed 99999999999999999999": "--seed cannot be 99999999999999999999",
    "--skills cheetah --actor-lr inf": "--actor-lr cannot be inf",
    "--skills cheetah --run-name taken": "runs/taken exists: --resume it, or",
    "--skills cheetah --run-name judged": "runs/judged holds the result of another run: choose",
    "--skills cheetah --run-name ppo": "runs/ppo exists: --resume it, or",
    "--skills cheetah --run-name ../x": "--run-name '../x' leads out of runs/",
    "--skills cheetah --run-name /tmp/x": "--run-name '/tmp/x' leads out of runs/",
    "--resume runs/none": "runs/none/resume.pt is missing",
    "--resume cheetah": "cheetah/resume.pt was written by psd.py, not by downstream_ppo.py",
    "--resume cut": "cut/resume.pt is damaged or no checkpoint",
}


def test_bad_input_ends_in_one_line_and_writes_nothing(tmp_path, cheetah, walker, monkeypatch):
    (tmp_path / "text").write_text("not a checkpoint")
    (tmp_path / "runs/taken").mkdir(parents=True)
    (tmp_path / "runs/taken/model.pt").write_text("somebody's")
    (tmp_path / "runs/taken/lock").touch()
    (tmp_path / "runs/judged").mkdir()
    (tmp_path / "runs/judged/downstream.json").write_text("somebody's")
    (tmp_path / "runs/judged/lock").touch()
    save_skills(psd, tmp_path / "v5", "HalfCheetah-v5")
    save_skills(metra, tmp_path / "continuous", "HalfCheetah-v4", "--num-skills", "0")
    good = torch.load("cheetah/model.pt", weights_only=True)
    save_pixels(tmp_path / "pixels")
    run(*TINY, "--skills", cheetah, "--run-name", "ppo")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/resume.pt").write_bytes((tmp_path / "cheetah/resume.pt").read_bytes()[:999])
    bias = {"actor.net.0.bias": torch.full((16,), torch.nan)}
    torch.save({**good, "agent": good["agent"] | bias}, tmp_path / "broken")
    torch.save({**good, "args": good["args"] | {"hidden_units": 8}}, tmp_path / "other_size")
    (tmp_path / "spy.py").write_text("open('imported', 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    spy = {"env_id": "spy:HalfCheetah-v4"}
    torch.save({**good, "args": good["args"] | spy}, tmp_path / "elsewhere")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    for flags, message in BAD_INPUT.items():
        with pytest.raises(SystemExit) as error:
            ppo.main(flags.split())
        text = str(error.value.code)
        assert text.startswith("downstream_ppo.py: error: ") and "\n" not in text
        assert message in text
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def changed(checkpoint, part, **values):
    """A copy of a checkpoint with other values in one of its parts. None takes a value out."""
    removed = [name for name, value in values.items() if value is None]
    own = checkpoint[part] | values
    return {**checkpoint, part: {k: v for k, v in own.items() if k not in removed}}


NAN = torch.full((17,), torch.nan)
# What to do to a good checkpoint of psd.py, and what is said about the result
BAD_SKILLS = {
    "statistics of nan": (
        lambda good: changed(good, "progress", obs_mean=NAN),
        "is damaged: obs_mean is not finite",
    ),
    "a spread of nan": (
        lambda good: changed(good, "progress", obs_std=NAN),
        "is damaged: obs_std is not finite",
    ),
    "a spread of zero": (
        lambda good: changed(good, "progress", obs_std=torch.zeros(17)),
        "is damaged: obs_std is not positive",
    ),
    "no statistics": (
        lambda good: changed(good, "progress", obs_std=None),
        "is damaged: obs_std is missing or not a Tensor",
    ),
    "a spread of one number": (  # which NumPy would broadcast
        lambda good: changed(good, "progress", obs_std=torch.ones(1)),
        "the statistics are not those of 17 observations",
    ),
    "no bounds": (
        lambda good: changed(good, "progress", bounds=None),
        "these skills do not fit psd.py's actor (TypeError",
    ),
    "bounds the wrong way round": (
        lambda good: changed(good, "progress", bounds=(9, 5, True, True)),
        "L_min 9, L_max 5",
    ),
    "no progress": (
        lambda good: {k: v for k, v in good.items() if k != "progress"},
        "is damaged: progress is missing or not a dict",
    ),
    "no agent": (
        lambda good: {k: v for k, v in good.items() if k != "agent"},
        "is damaged: agent is missing or not a dict",
    ),
    "no actor": (
        lambda good: {**good, "agent": {}},
        "these skills do not fit psd.py's actor (RuntimeError",
    ),
    "weights that are no tensors": (
        lambda good: changed(good, "agent", **{"actor.net.0.bias": [0.0]}),
        "is damaged: its actor has weights that are not finite",
    ),
    "weights of another shape": (
        lambda good: changed(good, "agent", **{"actor.net.0.bias": torch.zeros(3)}),
        "these skills do not fit psd.py's actor (RuntimeError",
    ),
    "arguments in a list": (
        lambda good: {**good, "args": list(good["args"].items())},
        "is damaged: args is missing or not a dict",
    ),
    "no embed_dim": (
        lambda good: changed(good, "args", embed_dim=None),
        "these skills do not fit psd.py's actor (KeyError: 'embed_dim')",
    ),
    "no ext_coef": (  # which is needed after hours, for downstream.json
        lambda good: changed(good, "args", ext_coef=None),
        "is damaged: ext_coef is missing or not a float",
    ),
    "networks of a million layers": (
        lambda good: changed(good, "args", hidden_layers=1_000_000),
        "is damaged: hidden_layers is 1000000",
    ),
    "a width of text": (
        lambda good: changed(good, "args", hidden_units="16"),
        "is damaged: hidden_units is 16",
    ),
    "an action scale of nan": (
        lambda good: changed(good, "args", action_scale=float("nan")),
        "action_scale nan",
    ),
    "a list": (lambda good: ["script", good], "is damaged or no checkpoint (KeyError)"),
}


def error_of(*flags):
    """The one line in which a run ends that cannot start; nothing is left behind."""
    before = sorted(os.listdir("."))
    with pytest.raises(SystemExit) as error:
        ppo.main(list(flags))
    text = str(error.value.code)
    assert text.startswith("downstream_ppo.py: error: ") and "\n" not in text
    assert sorted(os.listdir(".")) == before
    return text


@pytest.mark.parametrize("kind", BAD_SKILLS)
def test_damaged_skills_are_refused_in_one_line(kind, cheetah):
    damage, message = BAD_SKILLS[kind]
    good = torch.load("cheetah/model.pt", weights_only=True)
    torch.save(damage(good), "cheetah/model.pt")
    assert message in error_of(*TINY, "--skills", cheetah)


def test_a_flipped_bit_is_found_by_its_checksum(cheetah):
    """torch.load reads it without a complaint, and another policy would act."""
    with open("cheetah/model.pt", "r+b") as file:
        weight = torch.load("cheetah/model.pt", weights_only=True)["agent"]["actor.net.0.weight"]
        content = file.read()
        place = content.index(weight.numpy().tobytes())
        file.seek(place)
        file.write(bytes([content[place] ^ 1]))
    other = torch.load("cheetah/model.pt", weights_only=True)["agent"]["actor.net.0.weight"]
    assert not torch.equal(weight, other)
    message = error_of(*TINY, "--skills", cheetah)
    assert "cheetah/model.pt is damaged or no checkpoint (BadZipFile)" in message


def test_skills_of_an_older_file_are_those_of_a_new_one(cheetah):
    """Older files call `progress` "state"; action_scale may be missing."""
    new = torch.load("cheetah/model.pt", weights_only=True)
    old = changed(new, "args", action_scale=None)
    old["state"] = old.pop("progress")
    torch.save(old, "old.pt")
    read, older = ppo.load_skills(cheetah), ppo.load_skills("old.pt")
    assert "state" not in read and "state" not in older
    read["args"].pop("action_scale")
    assert differences(read, older) == []
    assert len(ppo.Skills(older, HURDLES[0], "cpu").names) == 16


@pytest.mark.parametrize("name", ["HalfCheetah_psd_radius_s1", "HalfCheetah_metra_s1"])
def test_committed_skills_can_be_used(name):
    path = REPO / "results/table1/skills" / name
    skills = ppo.Skills(ppo.load_skills(path), HURDLES[0], "cpu")
    env = ppo.SkillEnv(ppo.make_task(HURDLES[0]), skills, 10)
    env.reset(seed=0)
    assert np.isfinite(env.step(3)[0]).all()


def test_skills_inside_a_checkpoint_to_resume_are_checked_as_well(walker):
    good = run(*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "a")
    more = ["--resume", "runs/a", "--total-epochs", "3"]
    progress = good["skills"]["progress"] | {"obs_mean": torch.full((18,), torch.nan)}
    for damaged, message in [
        (changed(good, "skills", progress=progress), "resume.pt is damaged: obs_mean is not fin"),
        (changed(good, "skills", args=[]), "resume.pt is damaged: args is missing or not a dict"),
        (changed(good, "skills", script="spy"), "resume.pt is of spy.py: the skills of psd.py, "),
        ({**good, "args": []}, "resume.pt is damaged: args is missing or not a dict"),
        ({**good, "optimizer": []}, "resume.pt is damaged: optimizer is missing or not a dict"),
        ({**good, "agent": {}}, "runs/a/resume.pt does not fit its arguments (Error"),
        (changed(good, "progress", epoch=None), "resume.pt is damaged: epoch is missing or not a"),
    ]:
        torch.save(damaged, "runs/a/resume.pt")
        assert message in error_of(*more)
    torch.save(good, "runs/a/resume.pt")
    assert run(*more)["progress"]["epoch"] == 3  # and the good one goes on


def test_a_run_folder_is_used_by_one_process_at_a_time(walker):
    flags = [*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "a"]
    run(*flags)
    with ppo.open_run_folder(ppo.Path("runs/a"), is_new=False):
        assert "runs/a is in use by another process" in error_of("--resume", "runs/a")
    assert run("--resume", "runs/a/resume.pt", "--total-epochs", "3")["progress"]["epoch"] == 3


def test_an_observation_that_is_nan_stops_the_run_unsaved(walker, monkeypatch):
    def task_state(task):
        return np.nan if task.num_steps else 0.0

    monkeypatch.setattr(ppo.FrictionTask, "task_state", task_state)
    message = "epoch 0: the task returned an observation that is not finite; not saved, .*: none"
    with pytest.raises(SystemExit, match=message):
        ppo.main([*TINY, "--task", FRICTIONS[1], "--skills", walker, "--run-name", "a"])
    assert not os.path.exists("runs/a/resume.pt")


def test_what_cannot_be_resumed_says_so(walker):
    checkpoint = run(*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "a")
    for flags, message in {
        "--task Walker2dFriction-v0": "task cannot change on --resume, it was Walker2dHurdle-v0",
        "--skills elsewhere": "skills cannot change on --resume, it was walker",
        "--policy random": "policy cannot change",
        "--episodes-per-epoch 3": "episodes_per_epoch cannot change",
        "--preset cpu": "preset cannot change on --resume, it was paper",
        "--run-name b": "--run-name cannot be given with --resume",
    }.items():
        with pytest.raises(SystemExit, match=message):
            ppo.main(["--resume", "runs/a", *flags.split()])
    torch.save({k: v for k, v in checkpoint.items() if k != "optimizer"}, "runs/a/resume.pt")
    with pytest.raises(SystemExit, match="is damaged: optimizer is missing or not a dict"):
        ppo.main(["--resume", "runs/a"])


def test_a_script_copied_out_alone_explains_itself(tmp_path):
    shutil.copy(REPO / "downstream_ppo.py", tmp_path / "mine.py")
    result = python("mine.py", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "--skill-steps" in result.stdout
    assert re.search(r"Walker2dFriction-v0 +Walker2d-v4 +500", result.stdout)
    assert "--preset cpu, on top of that: updates_per_epoch 10" in result.stdout
    assert "of psd.py, of psd_metra.py" in " ".join(result.stdout.split())


def test_defaults_are_the_papers_table_4():
    args = ppo.Args()
    assert (args.actor_lr, args.critic_lr, args.gamma, args.clip) == (3e-4, 1e-3, 0.99, 0.2)
    assert (args.skill_steps, args.episodes_per_epoch, args.updates_per_epoch) == (10, 4, 80)
    assert (args.hidden_layers, args.hidden_units) == (2, 256)
    assert args.total_epochs * args.episodes_per_epoch == 100_000
    assert (args.value_coef, args.entropy_coef) == (0.5, 0.01)  # of the code base
    assert ppo.parse_args(["--skills", "x"])[0] == replace(args, skills="x")
    assert ppo.parse_args("--skills x --preset paper".split())[0] == replace(args, skills="x")


def test_the_cpu_preset_is_ten_thousand_gentle_episodes_and_a_flag_wins():
    args, _ = ppo.parse_args("--skills x --preset cpu".split())
    gentle = {"updates_per_epoch": 10, "total_epochs": 2500}  # docs/downstream_ppo.md
    assert args == replace(ppo.Args(), skills="x", preset="cpu", **gentle)
    args, _ = ppo.parse_args("--updates-per-epoch 5 --skills x --preset cpu".split())
    assert (args.updates_per_epoch, args.total_epochs) == (5, 2500)


# --------------------------------------------- Video ----------------------------------------------
def test_rendering_that_fails_says_so_in_one_line_before_any_work(walker, monkeypatch):
    def render(*_):
        raise ImportError("no EGL\nhere")

    monkeypatch.setattr(ppo.Walker2dEnv, "render", render)
    with pytest.raises(SystemExit) as error:
        ppo.main([*TINY, "--task", HURDLES[1], "--skills", walker, "--video"])
    text = str(error.value.code)
    assert "--video: off-screen rendering with MUJOCO_GL=" in text and "\n" not in text
    assert not os.path.exists("runs")


def can_render():
    probe = """import gymnasium as gym; e = gym.make("Walker2d-v4", render_mode="rgb_array")
e.reset(); e.render()"""
    return python("-c", probe, cwd="/").returncode == 0


def test_video_shows_hurdles_friction_skill_and_reward(walker, monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))
    if not can_render():
        pytest.skip("EGL is missing (libegl1, libgl1-mesa-dri): nothing can be rendered")
    imageio = pytest.importorskip("imageio.v2")
    flags = [*TINY, "--task", FRICTIONS[1], "--skills", walker, "--policy", "random"]
    import cv2

    def write(image, text, *how):
        texts.append(text)
        return real(image, text, *how)

    texts, real = [], cv2.putText
    with monkeypatch.context() as patch:
        patch.setattr(cv2, "putText", write)
        ppo.main([*flags, "--video", "--run-name", "a"])
    frames = [frame for frame in imageio.get_reader("runs/a/episode.mp4")]
    assert len(frames) > 5 and frames[0].shape == (360, 480, 3)
    assert (frames[0][:32] > 200).mean() > 0.01  # letters
    assert len(texts) == len(frames)
    said = [re.fullmatch(r"(z = \d+)   reward (-?[\d.]+)   return (-?[\d.]+)", t) for t in texts]
    chosen = json.loads(open("runs/a/downstream.json").read())["chosen"]
    assert {match[1] for match in said} <= set(chosen)
    rewards, returns = np.array([(m[2], m[3]) for m in said], float).T
    assert rewards[0] == 0 and np.any(rewards != 0)
    assert np.abs(rewards.cumsum() - returns).max() < 0.005 * (len(said) + 1)  # as rounded

    env = ppo.make_task(HURDLES[0], render_mode="rgb_array", width=160, height=120)
    env.reset(seed=0)
    boxes = env.unwrapped.model.geom_type == mujoco.mjtGeom.mjGEOM_BOX
    env.unwrapped.model.geom_pos[boxes, 0] = 0.8  # into the picture
    env.step(REST)
    r, g, b = np.moveaxis(env.render().astype(int), -1, 0)
    assert ((r > 2 * g) & (r > 2 * b)).sum() > 50  # red

    env = ppo.make_task(FRICTIONS[0], render_mode="rgb_array", width=160, height=120)
    env.reset(seed=0)
    floors = []
    for t in range(201):
        env.step(REST)
        if t % 100 == 0:
            floors.append(env.render()[-40:].mean(axis=(0, 1)))
    floors.append(floors[0])
    assert all(np.abs(a - b).max() > 20 for a, b in zip(floors, floors[1:]))


# ---------------------------------------------- Docs ----------------------------------------------
def test_logged_keys_are_the_documented_ones(walker):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(*TINY, "--task", HURDLES[1], "--skills", walker, "--run-name", "a")
    logged = EventAccumulator("runs/a").Reload().Tags()["scalars"]
    page = (REPO / "docs/downstream_ppo.md").read_text()
    assert set(logged) == set(re.findall(r"`((?:charts|losses)/[\w/]+)`", page))


def test_documented_names_exist_and_commands_parse():
    page = REPO / "docs/downstream_ppo.md"
    table = page.read_text().split("## Paper → code")[1].split("##")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) >= 8
    for name in names:
        assert hasattr(ppo, name), name
    lines = commands(page, "downstream_ppo.py")
    assert len(lines) >= 4
    for line in lines:
        if "--resume" not in line:
            assert ppo.parse_args(shlex.split(line)[2:])[0].skills
    assert "downstream_ppo.py" in (REPO / "README.md").read_text()
