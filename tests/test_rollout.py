"""Episodes that step together are the episodes of each environment alone."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import psd


class Swinger:
    """A policy without a network: each row of a batch is treated alone, to the bit."""

    def __init__(self, action_space):
        self.scale = torch.as_tensor(action_space.high)
        self.batches = []

    def act(self, obs, skill, deterministic):
        self.batches.append(len(obs))
        rows = [
            torch.sin(3 * o.sum() + s.sum() + torch.arange(len(self.scale)))
            for o, s in zip(obs, skill)
        ]
        return torch.stack(rows) * self.scale


@pytest.mark.parametrize("env_id", ["Hopper-v4", "Walker2d-v5", "Ant-v4", "Pendulum-v1"])
def test_together_is_like_alone(env_id):
    args, _ = psd.parse_args(["--env-id", env_id, "--episode-length", "120", "--L-max", "20"])
    envs = [psd.make_env(args) for _ in range(5)]
    obs_dim = envs[0].observation_space.shape[0]
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(2, obs_dim)).astype(np.float32)
    std = np.abs(std) + 0.5
    progress = {"obs_mean": torch.tensor(mean), "obs_std": torch.tensor(std)}
    skill = torch.linspace(0, 2, 5)[:, None]
    agent = Swinger(envs[0].action_space)
    episodes = psd.rollout(envs, (3, 7), agent, skill, progress)
    seeds = np.random.SeedSequence((3, 7)).generate_state(5)
    for i, episode in enumerate(episodes):
        env, done, n = psd.make_env(args), False, 0
        obs = ((env.reset(seed=int(seeds[i]))[0] - mean) / std).astype(np.float32)
        while not done:
            np.testing.assert_array_equal(episode.obs[n], obs)
            action = Swinger(env.action_space).act(torch.tensor(obs[None]), skill[i : i + 1], False)
            np.testing.assert_array_equal(episode.actions[n], action[0])
            obs, _, terminated, truncated, info = env.step(action[0].numpy())
            obs = ((obs - mean) / std).astype(np.float32)
            assert episode.velocity[n] == np.float32(info.get("x_velocity", 0.0))
            done, n = terminated or truncated, n + 1
        np.testing.assert_array_equal(episode.obs[n], obs)
        assert len(episode.actions) == len(episode.velocity) == n == len(episode.obs) - 1
        assert episode.terminated == terminated
    lengths = [len(episode.actions) for episode in episodes]
    assert agent.batches == [sum(n > t for n in lengths) for t in range(max(lengths))]
    if env_id != "Pendulum-v1" and env_id != "Ant-v4":
        assert len(set(lengths)) > 1  # they fell at different times


def test_normalised_observations_have_mean_0_and_std_1_under_random_actions():
    args, _ = psd.parse_args(
        ["--env-id", "Pendulum-v1", "--normalize-obs", "--episode-length", "50"]
    )
    env = psd.make_env(args)
    statistics = psd.observation_statistics(env, args)
    env.action_space.seed(99)
    observations, obs = [], env.reset(seed=99)[0]
    for _ in range(10_000):
        observations.append((obs - statistics["obs_mean"].numpy()) / statistics["obs_std"].numpy())
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            obs, _ = env.reset()
    np.testing.assert_allclose(np.mean(observations, axis=0), 0, atol=0.2)
    np.testing.assert_allclose(np.std(observations, axis=0), 1, atol=0.1)


@pytest.mark.parametrize("env_id", ["Ant-v4", "Humanoid-v4"])
def test_weaker_motors_get_every_action_times_the_scale_and_1_is_the_robot_to_the_bit(env_id):
    flags = ["--env-id", env_id, "--no-terminate"]
    plain = gym.make(env_id, max_episode_steps=20, terminate_when_unhealthy=False)
    weak = psd.make_env(psd.parse_args([*flags, "--action-scale", "0.25"])[0])
    same = psd.make_env(psd.parse_args(flags)[0])
    assert weak.action_space == same.action_space == plain.action_space
    rng = np.random.default_rng(0)
    for env, scale in [(same, np.float32(1)), (weak, np.float32(0.25))]:
        env.reset(seed=5)
        plain.reset(seed=5)
        for _ in range(10):
            action = rng.uniform(plain.action_space.low, plain.action_space.high).astype(np.float32)
            np.testing.assert_array_equal(env.step(action)[0], plain.step(scale * action)[0])


def test_a_dimension_that_does_not_move_keeps_its_scale():
    args, _ = psd.parse_args("--env-id Humanoid-v4 --normalize-obs".split())
    statistics = psd.observation_statistics(psd.make_env(args), args, num_steps=300)
    still = statistics["obs_std"] == 1
    assert still.sum() > 50  # the world body has no inertia, velocity or force
    assert torch.isfinite(statistics["obs_std"]).all() and (statistics["obs_std"] > 0).all()
    args.normalize_obs = False
    statistics = psd.observation_statistics(psd.make_env(args), args)
    assert (statistics["obs_mean"] == 0).all() and (statistics["obs_std"] == 1).all()


def test_period_return_is_the_mean_sum_of_r_psd_and_leaves_the_rng_alone(tiny_args):
    tiny_args.adaptive_episodes = 3
    envs = [psd.make_env(tiny_args) for _ in range(4)]
    torch.manual_seed(0)
    agent = psd.Agent(tiny_args, 3, envs[0].action_space, "cpu")
    progress = {"epoch": 6, "obs_mean": torch.zeros(3), "obs_std": torch.ones(3)}
    before = torch.get_rng_state()
    R = psd.period_return(envs, agent, 7, progress, tiny_args)
    assert torch.equal(torch.get_rng_state(), before)
    assert psd.period_return(envs, agent, 7, progress, tiny_args) == R
    skill = psd.embed_period(torch.full((3,), 7.0), tiny_args.embed_dim)
    key = (tiny_args.seed, 6, 7)
    total = 0.0
    for episode in psd.rollout(envs[:3], key, agent, skill, progress, deterministic=True):
        with torch.no_grad():
            phi = agent.phi(torch.tensor(episode.obs), skill[:1].expand(len(episode.obs), -1))
        total += psd.psd_reward(phi[:-1], phi[1:], torch.tensor(7.0), tiny_args.kappa).sum().item()
    assert pytest.approx(total / 3) == R


def cheetah_at(height, pitch, flags=()):
    """A HalfCheetah with straight legs, its torso at a height above its rest and at a pitch."""
    args, _ = psd.parse_args(["--env-id", "HalfCheetah-v4", *flags])
    env = psd.make_env(args)
    env.reset(seed=0)
    position = np.zeros_like(env.unwrapped.data.qpos)
    position[1:3] = height, pitch
    env.unwrapped.set_state(position, np.zeros_like(env.unwrapped.data.qvel))
    return env


@pytest.mark.parametrize(
    "height, pitch, fallen",
    [
        (0.0, 0.0, False),
        (0.5, 0.7, False),
        (0.5, -0.7, False),
        (0.5, 0.9, True),  # in the air
        (0.5, -0.9, True),
        (0.0, np.pi, True),
        (-0.32, 0.79, True),  # on its head; neither low nor tilted enough
        (-0.66, 0.0, True),  # on its belly
        (-0.3, 0.0, False),  # crouching
        (-0.36, 0.0, True),  # too low, though only legs touch the floor
    ],
)
def test_a_fall_is_low_or_tilted_or_on_head_or_torso(height, pitch, fallen):
    assert psd.has_fallen(cheetah_at(height, pitch).unwrapped) == fallen


@pytest.mark.parametrize("flags", [[], ["--end-when-fallen"]])
@pytest.mark.parametrize("height, pitch", [(0.0, 0.0), (0.3, 0.9)])
def test_a_cheetah_that_falls_ends_its_episode(flags, height, pitch):
    """With motors at rest, a cheetah that is dropped nose first falls over; a level one stands."""
    env = cheetah_at(height, pitch, flags)
    ends = False
    for _ in range(100):
        _, _, terminated, truncated, _ = env.step(np.zeros(6, np.float32))
        assert terminated == (bool(flags) and psd.has_fallen(env.unwrapped)) and not truncated
        ends = ends or terminated
    assert ends == (bool(flags) and pitch > 0)


@pytest.mark.parametrize("env_id", ["Walker2d-v4", "Hopper-v5", "Ant-v4"])
def test_a_step_of_more_physics_is_the_same_action_held_for_longer(env_id):
    args, _ = psd.parse_args(["--env-id", env_id])
    usual = psd.make_env(args)
    usual.reset(seed=0)
    usual.action_space.seed(0)
    times = 3
    args.frame_skip = times * usual.unwrapped.frame_skip
    held = psd.make_env(args)
    held.reset(seed=0)
    assert held.unwrapped.dt == pytest.approx(times * usual.unwrapped.dt)
    for _ in range(5):
        action = usual.action_space.sample()
        velocities = [usual.step(action)[-1]["x_velocity"] for _ in range(times)]
        _, _, _, _, info = held.step(action)
        assert (held.unwrapped.data.qpos == usual.unwrapped.data.qpos).all()
        assert info["x_velocity"] == pytest.approx(np.mean(velocities))  # metres per second
