"""The replay buffer against a plain list of episodes, over lengths, wrap-around and L."""

import numpy as np
import pytest
import torch
from conftest import make_episode
from hypothesis import given, settings
from hypothesis import strategies as st

import psd

CAPACITY, T = 60, 12
episodes = st.lists(
    st.tuples(st.integers(1, T), st.booleans(), st.integers(1, T)), min_size=1, max_size=25
)  # (length, terminated, L)


def tagged_episode(number, length, terminated):
    """Observations say which episode and time they are of; so do actions and velocities."""
    t = np.arange(length + 1, dtype=np.float32)
    tags = np.stack([np.full_like(t, number), t], axis=1)  # (n + 1, 2)
    return psd.Episode(tags, tags[:-1] + 0.5, tags[:-1].sum(axis=1), terminated)


def fill(history):
    buffer = psd.ReplayBuffer(CAPACITY, T, obs_dim=2, action_dim=2, skill_dim=1, device="cpu")
    for number, (length, terminated, L) in enumerate(history):
        buffer.add(tagged_episode(number, length, terminated), torch.tensor([10.0 * L]), L)
    return buffer


def survivors(history):
    """The newest episodes that fit: the reference is a list, not a ring."""
    num_rows, kept = CAPACITY + CAPACITY // T, []
    for number in reversed(range(len(history))):
        if sum(history[i][0] + 1 for i in [*kept, number]) > num_rows:
            break
        kept.append(number)
    return kept[::-1]


@settings(max_examples=150, deadline=None)
@given(episodes)
def test_what_is_stored_is_the_newest_that_fits(history):
    buffer, kept = fill(history), survivors(history)
    assert buffer.length.tolist() == [history[i][0] for i in kept]
    assert buffer.rows_per_episode == [history[i][0] + 1 for i in kept]
    assert buffer.period.tolist() == [history[i][2] for i in kept]
    assert buffer.skill[:, 0].tolist() == [10 * history[i][2] for i in kept]
    for place, number in enumerate(kept):
        length, terminated, _ = history[number]
        rows = buffer.rows(torch.tensor(place), torch.arange(length + 1))
        expected = tagged_episode(number, length, terminated)
        np.testing.assert_array_equal(buffer.obs[rows], expected.obs)
        np.testing.assert_array_equal(buffer.actions[rows[:-1]], expected.actions)
        np.testing.assert_array_equal(buffer.velocity[rows[:-1]], expected.velocity)
        ends = [False] * (length - 1) + [terminated]
        assert buffer.terminated[rows[:-1]].tolist() == ends


@settings(max_examples=100, deadline=None)
@given(episodes)
def test_samples_are_transitions_of_one_episode(history):
    buffer, kept = fill(history), survivors(history)
    batch = buffer.sample(200)
    for obs, action, next_obs, velocity, terminated, skill, period in zip(*batch):
        number, t = int(obs[0]), int(obs[1])
        length, ended, L = history[number]
        assert number in kept and t < length
        assert next_obs.tolist() == [number, t + 1]
        assert action.tolist() == [number + 0.5, t + 0.5] and velocity == number + t
        assert terminated.item() == (ended and t == length - 1)  # truncation is no termination
        assert skill.tolist() == [10 * L] and period == L


@settings(max_examples=100, deadline=None)
@given(episodes)
def test_triplets_never_cross_an_episode(history):
    buffer, kept = fill(history), survivors(history)
    eligible = [i for i in kept if history[i][0] >= history[i][2]]
    if not eligible:
        assert not (buffer.length >= buffer.period).any()
        return
    obs, L, skill = psd.sample_triplets(buffer, 200)
    assert skill[:, 0].tolist() == (10 * L).tolist()
    for s, s_next, s_L, period in zip(*obs, L):
        number, t = s.tolist()
        assert number in eligible and period == history[int(number)][2]
        assert s_next.tolist() == [number, t + 1]
        assert s_L.tolist() == [number, t + period]
        assert t + period <= history[int(number)][0]


def test_transitions_are_drawn_uniformly():
    buffer = fill([(1, False, 1), (12, False, 1), (5, True, 1)])
    draws, counts = 36_000, np.zeros((3, T))
    for episode, t in buffer.sample(draws).obs.int().tolist():
        counts[episode, t] += 1
    expected = np.zeros((3, T))
    for i, n in enumerate([1, 12, 5]):
        expected[i, :n] = draws / 18
    assert (counts[expected == 0] == 0).all()
    deviation = (counts - expected)[expected > 0] / np.sqrt(draws / 18)
    assert (deviation**2).sum() < 45  # chi-square with 17 degrees of freedom: p = 0.0003


def test_triplets_take_every_start_of_every_eligible_episode_evenly():
    buffer = fill(
        [(4, False, 5), (5, False, 5), (12, False, 9)]
    )  # the first is too short for its L
    obs, *_ = psd.sample_triplets(buffer, 24_000)
    starts, counts = np.unique(obs[0].numpy(), axis=0, return_counts=True)
    assert starts.tolist() == [[1, 0], [2, 0], [2, 1], [2, 2], [2, 3]]  # t + L = n is the last
    expected = np.array([12_000, 3_000, 3_000, 3_000, 3_000])  # an episode first, then t
    assert (((counts - expected) ** 2) / expected).sum() < 20


def test_capacity_is_reached_with_whole_episodes_and_not_exceeded():
    buffer = fill([(T, False, 3)] * 9)
    assert sum(buffer.length.tolist()) == CAPACITY  # five episodes of twelve


def test_memory_is_one_copy():
    obs_dim, action_dim, capacity = 27, 8, 500_000  # Ant
    buffer = psd.ReplayBuffer(capacity, 200, obs_dim, action_dim, 9, "meta")
    episode = make_episode(np.random.default_rng(0), 200, obs_dim, action_dim)
    for _ in range(capacity // 200 + 3):
        buffer.add(episode, torch.zeros(9), 7)
    assert sum(buffer.rows_per_episode) - len(buffer.rows_per_episode) == capacity
    held = sum(x.nbytes for x in vars(buffer).values() if torch.is_tensor(x))
    assert held <= 1.1 * capacity * (4 * obs_dim + 4 * action_dim + 4 + 1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_everything_lies_on_the_device(device):
    buffer = psd.ReplayBuffer(CAPACITY, T, 3, 1, 1, device)
    buffer.add(make_episode(np.random.default_rng(0), 7), torch.tensor([3.0]), 3)
    tensors = [*(x for x in vars(buffer).values() if torch.is_tensor(x)), *buffer.sample(4)]
    assert {x.device.type for x in [*tensors, *psd.sample_triplets(buffer, 4)]} == {device}
