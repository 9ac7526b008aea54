"""psd_pixel.py: what is seen, stored and cropped, who trains which CNN; learning from pixels.

python -m pytest -m slow tests/test_psd_pixel.py      # the learning, some minutes of one core
"""

import base64
import importlib.util
import io
import json
import re
import shlex
import shutil
import signal
import sys
from types import SimpleNamespace

import cv2
import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import REPO
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_cli import commands, python
from test_device import Devices, HostCalls
from test_evaluate import egl_problem, keys_of, run_main
from test_plot import SAMPLE, coloured, texts
from test_resume import MOVING, same

import evaluate
import plot
import psd
import psd_pixel


class Hand(gym.Env):
    """A hand on a dial that is told how fast to turn, 11 to 32 steps a turn, and has some inertia;
    left alone, 16. The state is angle and speed, the picture the hand in 36 x 36 pixels."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode=None, fall_at=None):
        self.render_mode, self.fall_at = render_mode, fall_at

    def state(self):
        return np.array([np.cos(self.angle), np.sin(self.angle), self.rate], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.angle, self.rate, self.t = self.np_random.uniform(0, 2 * np.pi), 0.5, 0
        return self.state(), {}

    def step(self, action):
        self.rate = 0.5 * self.rate + 0.5 * (0.5 + 0.25 * float(action[0]))
        self.angle += 2 * np.pi / 8 * self.rate
        self.t += 1
        return self.state(), 0.0, self.t == self.fall_at, False, {}

    def render(self, size=36):
        image, centre = np.full((size, size, 3), 40, np.uint8), np.array([size / 2 - 0.5] * 2)
        tip = centre + 0.4 * size * np.array([np.sin(self.angle), -np.cos(self.angle)])
        a, b = ((16 * point).round().astype(int).tolist() for point in (centre, tip))
        cv2.line(image, a, b, (230, 120, 60), 4, cv2.LINE_AA, 4)  # in sixteenths of a pixel
        cv2.circle(image, b, 64, (80, 200, 240), -1, cv2.LINE_AA, 4)
        return image


class Blind(Hand):
    """Says that it can be rendered, and shows nothing."""

    def render(self):
        return None


gym.register("TestHand-v0", Hand)
gym.register("TestFallingHand-v0", lambda **kwargs: Hand(fall_at=13, **kwargs))
gym.register("TestBlind-v0", Blind)
TINY = """--env-id TestHand-v0 --image-size 18 --crop-size 16 --num-filters 4 --feature-dim 8
    --hidden-units 16 --phi-batch-size 32 --batch-size 16 --buffer-size 700 --embed-dim 6
    --episodes-per-epoch 3 --updates-per-epoch 3 --episode-length 40 --L-min 5 --L-max 8""".split()


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def parse(*flags):
    return psd_pixel.parse_args([*TINY, *flags])[0]


def skills(args, n, first=5.0):
    """L from `first` up, (n,), and its embedding, (n, D)."""
    L = first + torch.arange(n) % 4
    return L, psd_pixel.embed_period(L, args.embed_dim)


def agent_and_buffer(args, device="cpu"):
    """An agent of random weights, and a few episodes of noise, of which every other fell."""
    torch.manual_seed(0)
    shape, space = (9, args.image_size, args.image_size), gym.spaces.Box(-2.0, 2.0, (2,))
    agent = psd_pixel.Agent(args, 9, space, device)
    sizes = (shape, args.crop_size, 2, args.embed_dim)
    buffer = psd_pixel.ReplayBuffer(args.buffer_size, args.episode_length, *sizes, device)
    rng = np.random.default_rng(0)
    period, skill = skills(args, 5)
    for i in range(5):
        n = args.episode_length - i
        obs = rng.integers(0, 256, (n + 1, *shape), np.uint8)
        actions, velocity = rng.normal(size=(n, 2)), rng.normal(size=n)
        actions, velocity = actions.astype(np.float32), velocity.astype(np.float32)
        buffer.add(psd_pixel.Episode(obs, actions, velocity, i % 2 > 0), skill[i], period[i])
    return agent, buffer


# -------------------------------------- Replay buffer and crops -----------------------------------
SIZE, CROP, T, CAPACITY = 8, 5, 12, 60  # a ring of 65 rows
histories = st.lists(
    st.tuples(st.integers(1, T), st.booleans(), st.integers(1, T)), min_size=1, max_size=25
)  # (length, terminated, L)


def slow_stacks(frames):
    """What the environment shows of frames (n + 1, 3, S, S): the last three, the first repeated."""
    return np.stack([np.concatenate([frames[max(t - k, 0)] for k in (2, 1, 0)])
                     for t in range(len(frames))])  # fmt: skip


def tagged_frames(number, length):
    """Red says which episode, green which time, blue where in the image it is."""
    frames = np.zeros((length + 1, 3, SIZE, SIZE), np.uint8)
    frames[:, 0] = number
    frames[:, 1] = np.arange(length + 1)[:, None, None]
    frames[:, 2] = np.arange(SIZE * SIZE).reshape(SIZE, SIZE)
    return frames


def fill(history):
    buffer = psd_pixel.ReplayBuffer(CAPACITY, T, (9, SIZE, SIZE), CROP, 2, 1, "cpu")
    frames = [tagged_frames(i, n) for i, (n, _, _) in enumerate(history)]
    for number, (length, terminated, L) in enumerate(history):
        actions = np.stack([np.full(length, number), np.arange(length)], axis=1, dtype=np.float32)
        episode = (slow_stacks(frames[number]), actions, actions.sum(axis=1), terminated)
        buffer.add(psd_pixel.Episode(*episode), torch.tensor([-float(L)]), L)
    return buffer, [slow_stacks(f) for f in frames]


def offset_of(stack):
    return divmod(int(stack[2, 0, 0]), SIZE)  # where its upper left corner was


def check(stack, expected):
    """A stack is the expected one (9, S, S), cropped somewhere, at one place for all its frames."""
    y, x = offset_of(stack)
    assert y <= SIZE - CROP and x <= SIZE - CROP
    np.testing.assert_array_equal(stack, expected[:, y : y + CROP, x : x + CROP])


@settings(max_examples=40, deadline=None)
@given(histories)
def test_stacks_of_a_batch_are_those_of_a_slow_version(history):
    """Within an episode whatever the ring has been through, with its first frame repeated."""
    buffer, expected = fill(history)
    batch = buffer.sample(60)
    assert batch.obs.shape == batch.next_obs.shape == (60, 9, CROP, CROP)
    for obs, action, next_obs, velocity, terminated, skill, period in zip(*batch):
        number, t = action.int().tolist()
        length, ended, L = history[number]
        check(obs, expected[number][t])
        check(next_obs, expected[number][t + 1])
        assert velocity == number + t and skill.tolist() == [-L] and period == L
        assert terminated.item() == (ended and t == length - 1)


@settings(max_examples=40, deadline=None)
@given(histories)
def test_stacks_of_a_triplet_are_those_of_a_slow_version(history):
    buffer, expected = fill(history)
    if not (buffer.length >= buffer.period).any():
        return
    obs, periods, skill = psd_pixel.sample_triplets(buffer, 60)
    assert obs.shape == (3, 60, 9, CROP, CROP)
    assert torch.equal(skill[:, 0], -periods)
    for s, s_next, s_L, period in zip(*obs, periods.int().tolist()):
        number, t = s[6, 0, 0].item(), s[7, 0, 0].item()  # of the newest frame
        assert period == history[number][2] and t + period <= history[number][0]
        check(s, expected[number][t])
        check(s_next, expected[number][t + 1])
        check(s_L, expected[number][t + period])


def test_at_the_start_of_an_episode_its_first_frame_repeats():
    buffer, expected = fill([(3, False, 1), (5, False, 1)])  # the second starts after the first
    stacks = buffer.stacks(torch.tensor([1, 1, 1]), torch.tensor([0, 1, 2]))
    assert stacks[:, [1, 4, 7], 0, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]
    assert (stacks[:, [0, 3, 6]] == 1).all()  # nothing of the episode before it


def test_every_offset_is_drawn_evenly_and_by_each_stack_alone():
    buffer, _ = fill([(T, False, 3)])
    obs, *_ = psd_pixel.sample_triplets(buffer, 6_000)
    corners = obs[:, :, 2, 0, 0].numpy()  # (3, B)
    choices = SIZE - CROP + 1
    places = corners // SIZE * choices + corners % SIZE
    counts = np.bincount(places.ravel(), minlength=choices**2)
    assert len(counts) == choices**2 == 16
    expected = places.size / choices**2
    assert ((counts - expected) ** 2 / expected).sum() < 45  # 15 degrees of freedom: p = 0.0001
    rows, columns = places // choices, places % choices
    assert abs(np.corrcoef(rows.ravel(), columns.ravel())[0, 1]) < 0.03
    for a, b in [(0, 1), (0, 2), (1, 2)]:  # s_t, s_t+1 and s_t+L draw for themselves
        assert (places[a] == places[b]).mean() == pytest.approx(1 / 16, abs=0.015)
    assert (obs[:, :, 2] == obs[:, :, 5]).all() and (obs[:, :, 2] == obs[:, :, 8]).all()
    batch = buffer.sample(6_000)
    same_place = (batch.obs[:, 2, 0, 0] == batch.next_obs[:, 2, 0, 0]).float().mean()
    assert same_place == pytest.approx(1 / 16, abs=0.015)


def test_the_papers_crops_have_7_by_7_offsets():
    args = psd_pixel.Args()
    sizes = ((9, args.image_size, args.image_size), args.crop_size, 1, 1)
    buffer = psd_pixel.ReplayBuffer(10, 10, *sizes, "cpu")
    buffer.obs[:, 0] = torch.arange(90, dtype=torch.uint8)[:, None]
    buffer.obs[:, 1] = torch.arange(90, dtype=torch.uint8)
    buffer.start, buffer.length = torch.zeros(1, dtype=torch.long), torch.tensor([10])
    stacks = buffer.stacks(torch.zeros(1500, dtype=torch.long), torch.full((1500,), 5))
    assert stacks.shape == (1500, 9, 84, 84)
    found = {(s[0, 0, 0].item(), s[1, 0, 0].item()) for s in stacks}
    assert found == {(y, x) for y in range(7) for x in range(7)}
    assert (stacks[:, 0, -1, 0] - stacks[:, 0, 0, 0] == 83).all()


def test_the_papers_buffer_takes_less_than_800_megabytes():
    args = psd_pixel.Args()
    sizes = ((9, args.image_size, args.image_size), args.crop_size, 8, args.embed_dim)
    buffer = psd_pixel.ReplayBuffer(args.buffer_size, 200, *sizes, "meta")
    obs = torch.zeros(201, 9, 90, 90, dtype=torch.uint8, device="meta")
    episode = psd_pixel.Episode(obs, torch.zeros(200, 8), torch.zeros(200), False)
    for _ in range(args.buffer_size // 200 + 3):
        buffer.add(episode, torch.zeros(128), 10)
    held = sum(x.nbytes for x in vars(buffer).values() if torch.is_tensor(x))
    num_transitions = sum(buffer.rows_per_episode) - len(buffer.rows_per_episode)
    assert num_transitions == args.buffer_size == 30_000
    assert 0.72e9 < held < 0.8e9


# ------------------------------------------- Environment ------------------------------------------
@pytest.fixture(scope="module")
def egl():
    """For tests that render a robot: Debian packages that pip cannot install."""
    problem = egl_problem()
    if problem:
        pytest.skip(f"EGL is missing (libegl1, libgl1-mesa-dri): {problem[0]}")


def cheetahs(n, *flags):
    flags = ["--env-id", "HalfCheetah-v4", "--image-size", "48", "--crop-size", "44", *flags]
    args, _ = psd_pixel.parse_args(flags)
    return args, [psd_pixel.make_env(args) for _ in range(n)]


class Swinger:
    """An agent that moves each robot in its own way."""

    def act(self, obs, skill, deterministic):
        assert obs.dtype == torch.uint8
        self.t = getattr(self, "t", -1) + 1
        return torch.sin(0.5 * self.t + skill[:, :1] * torch.arange(1, 7))


@pytest.mark.usefixtures("egl")
def test_frames_of_eight_robots_are_their_own(tmp_path):
    """Each has its own OpenGL context: what it shows is what it shows when it is alone."""
    args, envs = cheetahs(8, "--episode-length", "12", "--L-min", "5", "--L-max", "6")
    assert envs[0].observation_space.shape == (9, 48, 48)
    skill = torch.arange(8.0)[:, None]
    episodes = psd_pixel.rollout(envs, (3,), Swinger(), skill, {})
    last = [episode.obs[-1] for episode in episodes]
    for i in range(8):
        frames = episodes[i].obs
        np.testing.assert_array_equal(frames, slow_stacks(frames[:, -3:]))
        assert all((last[i] != last[j]).mean() > 0.01 for j in range(i))
        assert all((frames[t, -3:] != frames[t + 1, -3:]).mean() > 0.005 for t in range(12))
    seeds = np.random.SeedSequence((3,)).generate_state(8).tolist()
    for env in envs:
        env.close()
    for i in (0, 3):
        env = psd_pixel.make_env(args)
        np.testing.assert_array_equal(env.reset(seed=seeds[i])[0], episodes[i].obs[0])
        for t, action in enumerate(episodes[i].actions):
            np.testing.assert_array_equal(env.step(action)[0], episodes[i].obs[t + 1])
        env.close()
    assert list(tmp_path.iterdir()) == []  # no MUJOCO_LOG.TXT


@pytest.mark.usefixtures("egl")
def test_another_robot_of_another_size_does_not_get_into_the_picture():
    """Gymnasium leaves the OpenGL context of the last robot that was made as the current one."""
    _, (env,) = cheetahs(1)
    expected = env.reset(seed=0)[0][-3:].transpose(1, 2, 0)
    flags = "--env-id Ant-v4 --image-size 24 --crop-size 20".split()
    other = psd_pixel.make_env(psd_pixel.parse_args(flags)[0])
    other.reset(seed=0)
    np.testing.assert_array_equal(env.render(), expected)
    env.close()
    other.close()


def robot_pixels(frame):
    """Where a frame (3, S, S) is orange or pink: floor and sky are grey and green."""
    red, green, _ = frame.astype(int)
    return red > green + 15


@pytest.mark.usefixtures("egl")
def test_the_camera_follows_the_robot_and_the_picture_the_state():
    _, (env,) = cheetahs(1, "--image-size", "90")
    robot = env.unwrapped
    seen = []
    for x, knee in [(0.0, 0.0), (40.0, 0.0), (0.0, 0.7)]:
        env.reset(seed=0)
        qpos = robot.init_qpos.copy()
        qpos[0], qpos[4] = x, knee
        robot.set_state(qpos, 0 * robot.init_qvel)
        seen.append(robot_pixels(env.render().transpose(2, 0, 1)))
    here, there, bent = seen
    assert here.sum() > 50
    assert (here != there).sum() < 0.1 * here.sum()  # 40 m away, and as much in view
    assert (here != bent).sum() > 0.1 * here.sum()
    env.close()


@pytest.mark.usefixtures("egl")
def test_the_picture_is_that_of_the_state_now():
    """mj_step leaves the bodies where its last substep began: the legs would be late."""
    _, (env, other) = cheetahs(2, "--image-size", "90")
    env.reset(seed=0)
    env.action_space.seed(0)
    for _ in range(4):
        obs = env.step(env.action_space.sample())[0]
    late = env.unwrapped.data.xpos.copy()
    other.reset(seed=1)
    robot = other.unwrapped
    robot.set_state(env.unwrapped.data.qpos, env.unwrapped.data.qvel)
    assert np.abs(late - robot.data.xpos).max() > 1e-3
    np.testing.assert_array_equal(obs[-3:], other.render().transpose(2, 0, 1))
    env.close()
    other.close()


@pytest.mark.usefixtures("egl")
@pytest.mark.parametrize("env_id", ["HalfCheetah-v4", "Ant-v5", "Hopper-v4"])
def test_rendering_changes_neither_physics_nor_random_numbers(env_id):
    flags = ["--env-id", env_id, "--episode-length", "60", "--L-min", "5", "--L-max", "6"]
    flags += ["--action-scale", "0.5"]
    plain = psd.make_env(psd.parse_args(flags)[0])
    env = psd_pixel.make_env(psd_pixel.parse_args([*flags, "--image-size", "84"])[0])
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    plain.action_space.seed(1)
    for seed in (5, 6):
        state, _ = plain.reset(seed=seed)
        obs, info = env.reset(seed=seed)
        assert obs.shape == (9, 84, 84) and obs.dtype == np.uint8
        for _ in range(60):
            np.testing.assert_array_equal(info["state"], state)
            action = plain.action_space.sample()
            state, _, terminated, truncated, _ = plain.step(action)
            obs, _, *ends, info = env.step(action)
            assert ends == [terminated, truncated]
            if terminated or truncated:
                break
        np.testing.assert_array_equal(info["state"], state)
        generators = [e.unwrapped.np_random.bit_generator.state for e in (plain, env)]
        assert generators[0] == generators[1]
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    env.close()


@pytest.mark.usefixtures("egl")
def test_an_environment_without_tracking_camera_shows_its_default_view():
    args, _ = psd_pixel.parse_args("--env-id InvertedPendulum-v4 --image-size 84".split())
    env = psd_pixel.make_env(args)
    first = env.reset(seed=0)[0]
    assert env.renderer.camera_id == -1
    for _ in range(20):
        obs = env.step(env.action_space.high)[0]
    assert first.std() > 10 and (obs[-3:] != first[-3:]).mean() > 0.005
    env.close()


def test_pictures_of_another_size_are_resized():
    env = psd_pixel.make_env(parse())
    obs, info = env.reset(seed=0)
    picture = env.unwrapped.render()  # 36 x 36
    assert obs.shape == (9, 18, 18) and info["state"].tolist() == env.unwrapped.state().tolist()
    expected = picture.reshape(18, 2, 18, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    assert np.abs(obs[-3:] - expected).max() <= 1
    np.testing.assert_array_equal(obs[:3], obs[6:])
    after = env.step(np.ones(1, np.float32))[0]
    np.testing.assert_array_equal(after[:6], obs[3:])
    assert (after[6:] != obs[6:]).any()


@pytest.mark.usefixtures("egl")
def test_a_smaller_image_of_a_robot_is_the_papers_scaled_down():
    """Rendered at its own size, a leg thinner than a pixel would flicker."""
    _, (whole,) = cheetahs(1, "--image-size", "90")
    _, (small,) = cheetahs(1, "--image-size", "30", "--crop-size", "30")
    frames = [env.reset(seed=3)[0][-3:] for env in (whole, small)]
    assert frames[0].shape == (3, 90, 90) and frames[1].shape == (3, 30, 30)
    expected = frames[0].reshape(3, 30, 3, 30, 3).mean(axis=(2, 4))
    assert np.abs(frames[1] - expected).max() <= 1
    _, (large,) = cheetahs(1, "--image-size", "120")
    large.reset(seed=3)
    assert large.renderer.width == large.renderer.height == 120  # never blown up
    for env in (whole, small, large):
        env.close()


@pytest.mark.usefixtures("egl")
def test_a_plain_floor_has_no_tiles_and_the_robot_on_it_is_the_same():
    frames, states = [], []
    for flags in ([], ["--plain-floor"]):
        _, (env,) = cheetahs(1, "--image-size", "90", *flags)
        env.reset(seed=3)
        obs, _, _, _, info = env.step(np.ones(6))
        frames.append(obs[-3:].astype(int))
        states.append(info["state"])
        env.close()
    assert np.array_equal(*states)
    tiles, plain = (frame[:, 80:86].std(axis=(1, 2)).max() for frame in frames)  # below the feet
    assert tiles > 30 and plain < 3
    r, g, _ = frames[0]
    robot = r > g + 40  # brown and pink, as nothing else here
    assert robot.sum() > 100
    assert np.abs(frames[0] - frames[1])[:, robot].mean() < 2
    assert np.array_equal(frames[0][:, :30], frames[1][:, :30])  # the sky


# -------------------------------------------- Networks --------------------------------------------
def test_the_cnn_is_curls():
    cnn = psd_pixel.CNN(9, psd_pixel.Args())
    layers = [m for m in [*cnn.convolutions, *cnn.head] if hasattr(m, "weight")]
    assert [type(m).__name__ for m in layers] == ["Conv2d"] * 4 + ["Linear", "LayerNorm"]
    assert [m.stride for m in layers[:4]] == [(2, 2), (1, 1), (1, 1), (1, 1)]
    assert [tuple(m.weight.shape) for m in layers[:4]] == [(32, 9, 3, 3)] + [(32, 32, 3, 3)] * 3
    assert layers[4].weight.shape == (50, 32 * 35 * 35)
    obs = torch.randint(256, (2, 3, 9, 84, 84), dtype=torch.uint8)
    features = cnn(obs)
    assert features.shape == (2, 3, 50)
    torch.testing.assert_close(features[1, 2], cnn(obs[1, 2][None])[0])
    for m in layers[:4]:
        m.register_forward_hook(lambda _, x, y: shown.append((x[0].min(), x[0].max())))
    shown = []
    cnn(torch.full((1, 9, 84, 84), 255, dtype=torch.uint8))
    assert shown[0] == (0.5, 0.5)  # from -0.5 to 0.5


def test_to_act_and_to_encode_the_central_crop_is_taken():
    args = parse("--image-size", "20", "--crop-size", "16")
    agent, _ = agent_and_buffer(args)
    whole = torch.randint(256, (4, 9, 20, 20), dtype=torch.uint8)
    skill, centre = skills(args, 4)[1], whole[..., 2:18, 2:18]
    torch.testing.assert_close(agent.phi(whole, skill), agent.phi(centre, skill))
    action = agent.act(whole, skill, True)
    torch.testing.assert_close(action, agent.act(centre, skill, True))
    rim = whole.clone()
    rim[..., 2:18, 2:18] = 0
    black = agent.act(torch.zeros_like(whole), skill, True)
    torch.testing.assert_close(agent.act(rim, skill, True), black)
    episode = SimpleNamespace(obs=whole.numpy())
    latents = psd_pixel.encode(agent, episode, skill[0])
    torch.testing.assert_close(latents, agent.phi(centre, skill[:1].expand(4, -1)).detach())


def test_the_actors_loss_does_not_reach_the_convolutions(monkeypatch):
    """Whatever the actor's loss is, an update leaves the same ones behind; the critic trains them.
    The linear layer and LayerNorm that read them are the actor's own."""
    args, real, after = parse(), psd_pixel.actor_loss, []
    for factor in (1.0, -100.0):
        agent, buffer = agent_and_buffer(args)
        before = {k: v.clone() for k, v in agent.state_dict().items()}

        def scaled(*inputs, factor=factor):
            loss, entropy, metrics = real(*inputs)
            return factor * loss, entropy, metrics

        monkeypatch.setattr(psd_pixel, "actor_loss", scaled)
        psd_pixel.update(agent, buffer, args)
        after.append({k: v.clone() for k, v in agent.state_dict().items()})
    names = [k for k in before if ".cnn." in k]
    assert len(names) == 4 * 12  # of phi, critic, target and actor: the critic's convolutions again
    own = [k for k in names if k.startswith("actor.cnn.head.")]
    assert len(own) == 4
    for name in names:
        assert torch.equal(after[0][name], after[1][name]) == (name not in own), name
        assert not torch.equal(before[name], after[0][name]), name
    assert not torch.equal(after[0]["actor.net.0.weight"], after[1]["actor.net.0.weight"])
    assert agent.actor.cnn.convolutions is agent.critic.cnn.convolutions
    assert agent.actor.cnn.head is not agent.critic.cnn.head
    cnns = [agent.phi.cnn, agent.critic.cnn, agent.target_critic.cnn]
    assert len({id(cnn.convolutions) for cnn in cnns}) == 3
    batch = buffer.sample(4)
    agent.zero_grad()
    mean, _ = agent.actor(batch.obs, batch.skill)
    mean.sum().backward()
    assert all(p.grad is None for p in agent.actor.cnn.convolutions.parameters())
    assert all(p.grad is not None for p in agent.actor.cnn.head.parameters())
    agent.critic(batch.obs, batch.skill, batch.actions)[0].sum().backward()
    assert all(p.grad is not None for p in agent.critic.cnn.parameters())


def test_a_step_of_the_convolutions_goes_against_their_gradient():
    """Fused Adam reads parameters and gradients in the order of memory. A gradient that lies there
    in another order than its parameter, as autograd.grad returns it for images in channels_last,
    would be applied to the wrong weights, and without an error on a CPU."""
    args = parse("--batch-size", "64", "--phi-batch-size", "64")
    agent, buffer = agent_and_buffer(args)
    before = {name: p.detach().clone() for name, p in agent.named_parameters()}
    psd_pixel.update(agent, buffer, args)
    for name, p in agent.named_parameters():
        if name.startswith(("phi.", "critic.")):
            assert p.grad.stride() == p.stride(), name
            large = p.grad.abs() > 1e-6  # the first step of Adam is the learning rate, or less
            step = (p.detach() - before[name])[large]
            expected = -1e-4 * p.grad[large].sign()
            torch.testing.assert_close(step, expected, rtol=0.1, atol=1e-6)


@pytest.mark.parametrize("frozen, moved", [("phi", "critic"), ("critic", "phi")])
def test_each_cnn_is_trained_by_its_own_loss(frozen, moved):
    args = parse()
    agent, buffer = agent_and_buffer(args)
    agent.optimizers[frozen].param_groups[0]["lr"] = 0.0
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    psd_pixel.update(agent, buffer, args)
    after = agent.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith(f"{frozen}."))
    for layer in [f"convolutions.{i}" for i in (0, 2, 4, 6)] + ["head.0"]:
        name = f"{moved}.cnn.{layer}.weight"
        assert not torch.equal(before[name], after[name])


def test_the_target_has_its_own_cnn_and_follows_slowly():
    args = parse("--tau", "0.25")
    agent, buffer = agent_and_buffer(args)
    first, source = (critic.cnn.convolutions[0] for critic in (agent.target_critic, agent.critic))
    before = first.weight.clone()
    psd_pixel.update(agent, buffer, args)
    expected = before + 0.25 * (source.weight - before)
    torch.testing.assert_close(first.weight, expected.detach())


def test_rewards_are_of_the_crops_that_the_critic_sees(monkeypatch):
    args = parse("--ext-coef", "2", "--kappa", "0.1")
    agent, buffer = agent_and_buffer(args)
    seen, real = {}, psd_pixel.critic_loss

    def spy(agent, batch, reward, *rest):
        seen.update(batch=batch, reward=reward.clone())
        return real(agent, batch, reward, *rest)

    monkeypatch.setattr(psd_pixel, "critic_loss", spy)
    psd_pixel.update(agent, buffer, args)
    batch = seen["batch"]
    L = batch.period
    with torch.no_grad():
        phi_s = agent.phi(batch.obs, batch.skill)
        phi_next = agent.phi(batch.next_obs, batch.skill)
    delta = (phi_next - phi_s).norm(dim=-1) - L * torch.sin(torch.pi / (2 * L))
    expected = torch.exp(-0.1 * delta**2)
    expected += 2 * (batch.velocity / args.v_star).clamp(max=1)
    torch.testing.assert_close(seen["reward"], expected)
    assert batch.obs.shape[-1] == args.crop_size and batch.obs.dtype == torch.uint8


TERMS = ("--latent-dim", "2", "--turn-coef", "1.5", "--regularity-coef", "2")


def test_our_terms_are_those_of_psd_with_thumbnails_for_states(monkeypatch):
    args = parse(*TERMS, "--psd-coef", "0.5", "--kappa", "1", "--ext-coef", "2", "--ext-in-turn")
    agent, buffer = agent_and_buffer(args)
    seen, real = {}, psd_pixel.critic_loss

    def spy(agent, batch, reward, *rest):
        seen.update(batch=batch, reward=reward.clone())
        return real(agent, batch, reward, *rest)

    monkeypatch.setattr(psd_pixel, "critic_loss", spy)
    metrics = psd_pixel.update(agent, buffer, args)
    batch, L = seen["batch"], seen["batch"].period
    with torch.no_grad():
        phi_s = agent.phi(batch.obs, batch.skill)
        phi_next = agent.phi(batch.next_obs, batch.skill)
        decoded = agent.decoder(2 * phi_next / L[:, None], batch.skill)
    regular = psd.regularity(decoded, psd_pixel.thumbnail(batch.next_obs), L)
    r_ext = 2 * (batch.velocity / args.v_star).clamp(max=1)
    r_psd = psd.psd_reward(phi_s, phi_next, L, 1.0)
    expected = psd.turn(phi_s, phi_next, L) * (1.5 + 0.5 * r_psd + 2 * regular) * (1 + r_ext)
    torch.testing.assert_close(seen["reward"], expected)
    assert {"psd/turn", "psd/regularity", "losses/decoder_loss"} <= metrics.keys()


def test_a_thumbnail_is_the_mean_of_each_tile():
    obs = torch.randint(0, 256, (5, 9, 32, 32), dtype=torch.uint8)
    small = psd_pixel.thumbnail(obs).reshape(5, 9, 8, 8)
    by_hand = obs.numpy().reshape(5, 9, 8, 4, 8, 4).mean(axis=(3, 5)) / 255
    np.testing.assert_allclose(small, by_hand, atol=1e-6)


@pytest.mark.parametrize("flags", [(), (*TERMS, "--ext-coef", "1")])
def test_an_update_changes_what_it_should_and_stays_on_its_device(flags):
    args = parse(*flags)
    agent, buffer = agent_and_buffer(args)
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    with HostCalls() as host:
        metrics = psd_pixel.update(agent, buffer, args)
    assert host.calls == [] and all(torch.isfinite(value) for value in metrics.values())
    after = agent.state_dict()
    unchanged = {k for k in before if torch.equal(before[k], after[k])}
    assert unchanged <= {"actor.action_scale", "actor.action_bias"}
    agent, buffer = agent_and_buffer(args, device="meta")
    with Devices() as devices:
        metrics = psd_pixel.update(agent, buffer, args)
    assert {value.device.type for value in metrics.values()} == {"meta"}
    assert [stranger for stranger in devices.strangers if stranger[1] != ()] == []


# ------------------------------------------ As a program ------------------------------------------
def run(*flags):
    """A run inside this process; returns what resume.pt holds."""
    psd_pixel.main(list(flags))
    resumed = "--resume" in flags
    name = flags[flags.index("--resume" if resumed else "--run-name") + 1]
    return torch.load(f"{'' if resumed else 'runs/'}{name}/resume.pt", weights_only=True)


def test_n_and_n_epochs_are_two_n():
    flags = [*TINY, *MOVING]  # 8 epochs of 3 episodes of 40 steps: the ring wraps
    whole = run(*flags, "--run-name", "whole", "--total-epochs", "8")
    assert whole["progress"]["bounds"] != (5, 8, False, False)
    assert set(whole["progress"]) == {"epoch", "global_step", "bounds"}
    assert whole["buffer"]["head"] < 8 * 3 * 41 and whole["buffer"]["obs"].dtype == torch.uint8
    half = run(*flags, "--run-name", "half", "--total-epochs", "4")
    assert not same(whole, half)
    assert same(whole, run("--resume", "runs/half", "--total-epochs", "8"))
    model = torch.load("runs/half/model.pt", weights_only=True)["agent"]
    assert {".".join(name.split(".")[:2]) for name in model} == {
        "actor.cnn", "actor.net", "actor.action_scale", "actor.action_bias", "phi.cnn", "phi.net",
    }  # fmt: skip
    for flag in ["--image-size 20", "--crop-size 15", "--frame-stack 2", "--num-filters 5"]:
        with pytest.raises(SystemExit, match=r"(size|stack|filters) cannot change on --resume"):
            psd_pixel.main(["--resume", "runs/half", "--total-epochs", "9", *flag.split()])


@pytest.mark.usefixtures("egl")
def test_a_robot_resumes_to_the_bit_and_leaves_no_other_file(tmp_path):
    flags = """--env-id HalfCheetah-v4 --image-size 20 --crop-size 18 --num-filters 4
        --hidden-units 16 --phi-batch-size 16 --batch-size 16 --buffer-size 400 --episode-length 30
        --episodes-per-epoch 2 --updates-per-epoch 2 --ext-coef 1 --L-min 5 --L-max 8""".split()
    whole = run(*flags, "--run-name", "whole", "--total-epochs", "2")
    run(*flags, "--run-name", "half", "--total-epochs", "1")
    assert same(whole, run("--resume", "runs/half", "--total-epochs", "2"))
    assert whole["buffer"]["obs"][:60].float().std() > 20  # pictures, not black
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    names = {p.name.split(".")[0] for p in (tmp_path / "runs/whole").iterdir()}
    assert names == {"events", "lock", "model", "resume"}


def test_a_fall_ends_an_episode():
    checkpoint = run(*TINY, "--env-id", "TestFallingHand-v0", "--run-name", "a",
                     "--total-epochs", "1")  # fmt: skip
    assert checkpoint["buffer"]["rows_per_episode"] == [14, 14, 14]
    assert checkpoint["buffer"]["terminated"].nonzero().flatten().tolist() == [12, 26, 40]


def test_an_evaluation_of_the_bounds_leaves_the_training_as_it_was():
    args = parse()
    envs = [psd_pixel.make_env(args) for _ in range(5)]
    agent = psd_pixel.Agent(args, 9, envs[0].action_space, "cpu")
    before = torch.get_rng_state()
    first = psd_pixel.period_return(envs, agent, 6, {"epoch": 3}, args)
    assert torch.equal(before, torch.get_rng_state())
    assert psd_pixel.period_return(envs, agent, 6, {"epoch": 3}, args) == first


def test_defaults_are_the_papers_table_3():
    args = psd_pixel.Args()
    assert (args.buffer_size, args.phi_batch_size, args.batch_size) == (30_000, 512, 256)
    assert (args.embed_dim, args.frame_stack) == (128, 3)
    assert (args.image_size, args.crop_size) == (90, 84)
    assert args.phi_lr == args.sac_lr == args.alpha_lr == 1e-4 and args.hidden_units == 1024
    for env_id, lam, d in [("Ant-v4", 5, 6), ("HalfCheetah-v5", 3, 3), ("Walker2d-v4", 10, 3)]:
        args, _ = psd_pixel.parse_args(["--env-id", env_id])
        assert (args.lam_1, args.lam_2, args.latent_dim) == (lam, lam, d)
    own, other = vars(psd_pixel.Args()), vars(psd.Args())  # all else is Table 2's
    differ = {k for k in own if k in other and own[k] != other[k]}
    assert differ == {"env_id", "buffer_size", "phi_batch_size", "embed_dim"}
    assert set(other) - set(own) == {"normalize_obs"}


def test_the_cpu_preset_is_that_of_psd():
    """But for pixels, smaller batches, and fewer L."""
    own, _ = psd_pixel.parse_args("--env-id HalfCheetah-v4 --preset cpu".split())
    other, _ = psd.parse_args("--env-id HalfCheetah-v4 --preset cpu".split())
    differ = {k for k, v in vars(own).items() if k in vars(other) and v != getattr(other, k)}
    assert differ == {
        *("lam_1", "lam_2", "embed_dim"),  # Table 3
        *("phi_batch_size", "batch_size", "episodes_per_epoch"),
        *("L_min", "L_max", "num_periods"),
    }
    args, _ = psd_pixel.parse_args("--env-id Ant-v4 --preset cpu --num-filters 16".split())
    assert (args.num_filters, args.action_scale, args.image_size, args.lam_1) == (16, 1, 32, 5)


def test_weights_in_results_still_load():
    model = torch.load(REPO / "results/pixel/model.pt", weights_only=True)
    args, _ = psd_pixel.parse_args("--env-id HalfCheetah-v4 --preset cpu".split())
    args.regularity_coef, args.critic_layer_norm = 0.0, False  # which this run did not have yet
    for key, value in model["args"].items():
        setattr(args, key, value)
    agent = psd_pixel.Agent(args, 9, gym.spaces.Box(-1.0, 1.0, (6,)), "cpu")
    missing, unexpected = agent.load_state_dict(model["agent"], strict=False)
    assert unexpected == []
    assert {key.split(".")[0] for key in missing} == {"critic", "target_critic", "log_alpha"}


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--env-id Nothing-v0", "cannot make 'Nothing-v0': "),
        ("--env-id CartPole-v1", "CartPole-v1 has actions Discrete(2)"),
        ("--env-id TestBlind-v0", "TestBlind-v0 cannot be rendered ("),
        ("--crop-size 14", "--crop-size 14 is not from 15 to --image-size 90"),
        ("--image-size 80", "--crop-size 84 is not from 15 to --image-size 80"),
        ("--frame-stack 0", "--frame-stack cannot be 0"),
        ("--image-size 1025", "--image-size cannot be 1025: at most 1024"),
        ("--num-filters -1", "--num-filters cannot be -1"),
        ("--feature-dim 0", "--feature-dim cannot be 0"),
        ("--buffer-size 1500", "--buffer-size must hold a batch and an epoch's episodes: 1600"),
        ("--L-min 12 --L-max 10", "L_min 12, L_max 10: need 5 <= L_min <= L_max <= 100"),
        ("--env-id TestHand-v0 --ext-coef 1", "TestHand-v0 reports no x_velocity"),
        ("--env-id TestHand-v0 --run-name taken", "runs/taken exists: --resume it, or"),
        ("--resume runs/other", "was written by psd.py, not by psd_pixel.py"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(flags, message, tmp_path):
    (tmp_path / "runs/taken").mkdir(parents=True)
    (tmp_path / "runs/taken/model.pt").touch()
    (tmp_path / "runs/other").mkdir()
    content = dict.fromkeys("script args progress agent buffer optimizers rng".split())
    torch.save(content | {"script": "psd"}, "runs/other/resume.pt")
    before = sorted(tmp_path.rglob("*"))
    small = [] if "-size" in flags else ["--image-size", "18", "--crop-size", "16"]
    with pytest.raises(SystemExit) as error:
        psd_pixel.main([*flags.split(), *(small if "--resume" not in flags else [])])
    text = str(error.value.code)
    assert text.startswith("psd_pixel.py: error: ") and message in text and "\n" not in text
    assert sorted(tmp_path.rglob("*")) == before


WITHOUT_EGL = """
import ctypes, sys
load = ctypes.CDLL.__init__
def refuse(self, name, *args, **kwargs):
    if "EGL" in str(name):
        raise OSError(f"{name}: cannot open shared object file")
    load(self, name, *args, **kwargs)
ctypes.CDLL.__init__ = refuse
sys.path.insert(0, sys.argv[1])
import psd_pixel
psd_pixel.main(["--env-id", "HalfCheetah-v4"])
"""


def test_without_egl_the_packages_are_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)  # set by another test, or by the user
    result = python("-c", WITHOUT_EGL, str(REPO), cwd=tmp_path)
    (line,) = result.stderr.strip().splitlines()
    assert result.returncode != 0
    assert line.startswith("psd_pixel.py: error: HalfCheetah-v4 cannot be rendered (MUJOCO_GL=egl")
    assert "libegl1 and libgl1-mesa-dri" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "missing, env_id, words",
    [
        ("cv2", "TestHand-v0", ["cv2", "libgl1 and libglib2.0-0", "opencv-python-headless"]),
        ("pygame", "Pendulum-v1", ["pygame", "pip install"]),
    ],
)
def test_what_is_missing_is_named_in_one_line(missing, env_id, words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    with pytest.raises(SystemExit) as error:
        psd_pixel.main([*TINY, "--env-id", env_id])
    text = str(error.value.code)
    assert text.startswith(f"psd_pixel.py: error: {env_id} cannot be rendered") and "\n" not in text
    assert all(word in text for word in words), text
    assert list(tmp_path.iterdir()) == []


def test_copied_out_alone_it_explains_itself(tmp_path):
    shutil.copy(REPO / "psd_pixel.py", tmp_path / "mine.py")
    result = python("mine.py", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for flag in ["--image-size", "--crop-size", "--frame-stack", "--num-filters", "--feature-dim"]:
        assert flag in result.stdout
    assert "--normalize-obs" not in result.stdout
    text = " ".join(result.stdout.split())  # the tables of the presets
    assert "HalfCheetah episode_length 200, lam_1 3.0, lam_2 3.0, latent_dim 3" in text
    assert "image_size 32, crop_size 32, plain_floor True" in text


def test_logged_keys_are_the_documented_ones(tmp_path):
    flags = "--adaptive-interval 3 --total-epochs 3 --run-name a"
    run(*TINY, *TERMS, *flags.split())
    logged = EventAccumulator(str(tmp_path / "runs/a")).Reload().Tags()["scalars"]
    logged = {re.sub(r"/L\d+$", "/L", key) for key in logged}
    page = (REPO / "docs/psd_pixel.md").read_text()
    documented = re.findall(r"`((?:charts|losses|psd|eval)/[\w/]+)`", page)
    documented = {re.sub(r"/L\d+$", "/L", key) for key in documented}
    assert logged == documented | {f"psd/{name}/L" for name in ["one_step", "L_step", "radius"]}


def test_documented_functions_exist_and_commands_parse():
    page = REPO / "docs/psd_pixel.md"
    table = page.read_text().split("## Equation → function")[1].split("##")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) >= 11
    for name in names:
        assert callable(getattr(psd_pixel, name)), name
    lines = commands(page, "psd_pixel.py")
    assert any("--preset cpu" in line for line in lines)
    for line in lines:
        if "--resume" not in line:
            assert psd_pixel.parse_args(shlex.split(line)[2:])[0].env_id
    source = (REPO / "psd_pixel.py").read_text()
    found = re.findall(r'^def (\w+)\(.*\):\n    """Eq\. \((\d+)\)', source, re.MULTILINE)
    assert {number for _, number in found} == {"4", "5", "6", "7", "8"}
    assert all(name in psd_pixel.__doc__ for name, _ in found)


# ------------------------------------ evaluate.py and plot.py -------------------------------------
@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run folder as psd_pixel.py saves it, without the training, and the judge's JSON of it."""
    folder = tmp_path_factory.mktemp("judged") / "run"
    folder.mkdir()
    args = parse()
    torch.manual_seed(3)
    agent = psd_pixel.Agent(args, 9, Hand.action_space, "cpu")
    progress = {"epoch": 7, "global_step": 560, "bounds": (5, 8, False, False)}
    psd_pixel.save_checkpoint(folder, args, progress, agent, SimpleNamespace(rows=torch.zeros(1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psd.observation_statistics, "__defaults__", (300,))
        evaluate.main([str(folder), "--episodes", "2", "--periods", "5", "8"])
    return folder


def test_the_judge_measures_the_state_and_not_the_pixels(judged, monkeypatch):
    result = json.loads((judged / "evaluation.json").read_text())
    assert [row["L"] for row in result["skills"]] == [5, 8]
    shown = [int(d["name"].split()[-1]) for d in result["dimensions"]]  # "observation 0", ...
    assert sorted(shown) == [0, 1, 2]
    documented = (REPO / "docs" / "evaluation_json.md").read_text()
    assert [f for f in sorted(keys_of(result)) if f"`{f}`" not in documented] == []
    policy = evaluate.load(judged / "model.pt")
    args, agent = policy.args, policy.run.agent
    assert policy.script is psd_pixel
    for row in result["skills"]:  # the same episode, by hand, and its state from the simulator
        L, T = row["L"], args.episode_length
        skill = psd_pixel.embed_period(torch.full((2,), float(L)), args.embed_dim)
        seeds = np.random.SeedSequence((evaluate.STREAM, 0, L)).generate_state(2).tolist()
        env = psd_pixel.make_env(args, max_steps=evaluate.record_length(T, L))
        obs, states = env.reset(seed=seeds[row["episode"]])[0], [env.unwrapped.state()]
        for _ in range(evaluate.record_length(T, L)):
            action = agent.act(torch.as_tensor(obs[None]), skill[:1], True)[0].numpy()
            obs = env.step(action)[0]
            states.append(env.unwrapped.state())
        found, expected = np.array(row["states"]).T, np.array(states)[: T + 1, shown]
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)
        period, _ = evaluate.state_period(np.array(states)[T // 4 :])
        assert row["periods"][row["episode"]] == pytest.approx(period, rel=1e-2)
    frame = base64.b64decode(result["switch"]["frame"])
    image = cv2.imdecode(np.frombuffer(frame, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    assert image.shape == (16, 16, 3) and image.std() > 10
    assert abs(np.median(image) - 40) <= 2  # the dial
    assert (image[..., 0] > image[..., 2] + 50).any() and (image[..., 2] > image[..., 0] + 50).any()
    # blue and orange are not swapped: the tip is blue, and the hand orange up to the centre
    assert image[7:9, 7:9, 0].mean() > image[7:9, 7:9, 2].mean()


def test_the_judge_takes_random_actions_too(judged, capsys, monkeypatch):
    monkeypatch.setattr(psd.observation_statistics, "__defaults__", (300,))
    text = run_main(capsys, judged, "--episodes", 1, "--random-actions")
    assert "of 16 have a period" in text


def test_videos_show_what_the_agent_sees(judged, capsys, monkeypatch):
    imageio = pytest.importorskip("imageio.v2")
    monkeypatch.setattr(psd.observation_statistics, "__defaults__", (300,))
    out = judged / "filmed.json"
    run_main(capsys, judged, "--episodes", 1, "--periods", 6, "--video", "--out", out)
    (row,) = json.loads(out.read_text())["skills"]
    frames = [frame for frame in imageio.get_reader(judged / row["video"])]
    assert len(frames) == 41 and frames[0].shape == (360, 360, 3)


def test_figure_7_shows_picture_spectra_and_bars(judged, tmp_path):
    with plt.rc_context(plot.STYLE):
        figure = plot.fig7([plot.read_run(judged)])
        figure.savefig(tmp_path / "figure.png", dpi=100)
        figure.set_dpi(100)
        pixels = plt.imread(tmp_path / "figure.png")[..., :3]
        for ax in figure.axes[:3]:
            box = ax.get_window_extent()
            inside = pixels[len(pixels) - int(box.y1) : len(pixels) - int(box.y0)]
            assert coloured(inside[:, int(box.x0) : int(box.x1)]) > 10
        left, middle, right = figure.axes[:3]
        result = json.loads((judged / "evaluation.json").read_text())
        frame = plt.imread(io.BytesIO(base64.b64decode(result["switch"]["frame"])))
        np.testing.assert_allclose(left.images[0].get_array(), frame)
        assert len(middle.lines) >= len(result["skills"]) > 1
        for line, row in zip(middle.lines, result["skills"]):
            np.testing.assert_allclose(line.get_ydata(), row["spectrum"])
        bars = [(d["frequency"], d["amplitude"]) for row in result["skills"]
                for d in row["dominant"][:3]]  # fmt: skip
        assert len(bars) >= len(result["skills"])
        drawn = [(b.get_x() + b.get_width() / 2, b.get_height()) for b in right.patches]
        np.testing.assert_allclose(sorted(drawn), sorted(bars), rtol=1e-6)
        shown = texts(figure)
        plt.close(figure)
    for label in ["TestHand-v0\nPSD from pixels", "newest of 3 frames", "frequency [1/step]",
                  "three strongest", "period variable L"]:  # fmt: skip
        assert label in shown
    plot.main(["report", str(judged), "--out", str(tmp_path / "a.html")])
    assert "Figure 7" in (tmp_path / "a.html").read_text()
    with pytest.raises(SystemExit, match="fig7 is about psd_pixel.py"):
        plot.main(["fig7", str(SAMPLE), "--out", str(tmp_path / "b.png")])


# -------------------------------------------- Learning --------------------------------------------
LEARNING = """--env-id TestHand-v0 --run-name hand --total-epochs 90 --image-size 18 --crop-size 17
    --num-filters 8 --feature-dim 32 --hidden-units 64 --embed-dim 8 --latent-dim 2
    --phi-batch-size 128 --batch-size 128 --episodes-per-epoch 4 --episode-length 60
    --updates-per-epoch 32 --buffer-size 10000 --L-min 6 --L-max 10 --num-periods 2
    --no-adaptive-sampling --lam-1 3 --lam-2 3 --gamma 0.9
    --phi-lr 1e-3 --sac-lr 1e-3 --alpha-lr 5e-3""".split()


@pytest.mark.slow
def test_a_hand_seen_in_pixels_turns_with_the_period_it_is_told(tmp_path):
    """From nothing, and from pictures of 18 x 18 alone; the period is that of the true state. An
    untrained policy turns in about 16 steps, which is neither 12 nor 20."""
    run(*LEARNING)
    slower = "--phi-lr 2e-4 --sac-lr 2e-4 --total-epochs 120"  # else the step length keeps swinging
    run("--resume", "runs/hand", *slower.split())
    evaluate.main(["runs/hand", "--periods", "6", "10"])
    rows = json.loads((tmp_path / "runs/hand/evaluation.json").read_text())["skills"]
    errors = {row["L"]: (row["one_step"]["error"], row["L_step"]["error"]) for row in rows}
    assert all(max(both) <= 0.1 for both in errors.values()), errors
    periods = {row["L"]: row["period_error"] for row in rows}
    assert any(e is not None and abs(e) <= 0.1 for e in periods.values()), periods


# -------------------------------------------- Probes ----------------------------------------------
def probe(*flags):
    spec = importlib.util.spec_from_file_location("pixels", REPO / "benchmark/pixels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pixels"] = module  # dataclass looks it up
    spec.loader.exec_module(module)
    module.main([*flags, "--episodes", "3", "--test-episodes", "3", "--steps", "60"])


@pytest.mark.usefixtures("egl")
def test_probes_of_the_state_and_of_the_circle_measure_what_they_say(capsys):
    explained = {}
    for name in ("exact", "state"):
        probe(name, "--plain-floor")
        early, late = re.findall(
            r"positions (-?[\d.]+), of vel\w+ (-?[\d.]+)", capsys.readouterr().out
        )
        explained[name] = [float(x) for x in late]
        assert float(early[0]) < float(late[0])
    assert explained["exact"][0] > 0.8  # the positions are among what it is given
    assert all(x > y for x, y in zip(explained["exact"], explained["state"]))
    probe("circle", "--plain-floor", "--periods", "6", "12")
    rows = re.findall(r"L = (\d+): r_psd .* L_step ([\d.]+), radius", capsys.readouterr().out)
    assert [int(L) for L, _ in rows] == [6, 12, 6, 12]
    (a, b, c, d) = (float(distance) for _, distance in rows)
    assert a < c < 1.2 and b < d < 1.2
    with pytest.raises(SystemExit, match="there is no probe 'cube': choose state, exact or circle"):
        probe("cube")
