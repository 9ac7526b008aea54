"""evaluate.load: a checkpoint as a policy, which acts as the script's own rollout does."""

import fractions

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import REPO
from test_evaluate import egl_problem

import evaluate
from period import state_period

NUM_STEPS = 40
RESULTS = REPO / "results"


class Raw(gym.Wrapper):
    """Keeps the observations as the environment returns them."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.seen = [obs]
        return obs, info

    def step(self, action):
        obs, *rest = self.env.step(action)
        self.seen.append(obs)
        return obs, *rest


def raw_rollout(policy, skill, num_envs=1):
    """Raw observations and actions of the script's own rollout, one list entry per episode."""
    run, script = policy.run, policy.script
    envs = [Raw(script.make_env(policy.args, max_steps=NUM_STEPS)) for _ in range(num_envs)]
    skills = skill.expand(num_envs, -1)
    episodes = script.rollout(envs, (1, 2), run.agent, skills, run.progress, deterministic=True)
    return [(np.array(env.seen), episode.actions) for env, episode in zip(envs, episodes)]


def check_actions(policy, skill, act):
    """`act` of raw observations, one by one and as a batch, is what the rollout did."""
    ((seen, actions),) = raw_rollout(policy, skill)
    space = policy.make_env().action_space
    for t, action in enumerate(actions):
        chosen = act(seen[t])
        assert isinstance(chosen, np.ndarray) and space.contains(chosen)
        assert np.array_equal(chosen, action)
    batch = act(seen[:-1])
    assert batch.shape == actions.shape
    np.testing.assert_allclose(batch, actions, atol=1e-5)


def skip_without_egl():
    problem = egl_problem()
    if problem:
        pytest.skip(f"EGL is missing (libegl1, libgl1-mesa-dri): {problem[0]}")


@pytest.fixture(scope="module")
def cheetah():
    return evaluate.load(RESULTS / "halfcheetah")


@pytest.mark.parametrize("name, L", [("halfcheetah", 12), ("pendulum", 14), ("ant", 7.5)])
def test_psd_acts_as_in_its_rollout(name, L):
    policy = evaluate.load(RESULTS / name)
    script = policy.script
    assert script.__name__ == "psd" and policy.skills is None
    skill = script.embed_period(torch.tensor(float(L)), policy.args.embed_dim)
    check_actions(policy, skill, lambda obs: policy.act(obs, L))
    check_actions(policy, skill, lambda obs: policy.act(obs, L=np.float64(L)))


def test_psd_metra_acts_as_in_its_rollout():
    policy = evaluate.load(RESULTS / "psd_metra/ant_mutual")
    script = policy.script
    assert script.__name__ == "psd_metra" and policy.periods == [8, 12, 16, 20, 24]
    assert policy.skills.shape == (8, 2)
    embedding = script.embed_period(torch.tensor(12.0), policy.args.embed_dim)
    for z in (policy.skills[3], [0.6, 0.8], torch.tensor([0.0, -1.0])):
        skill = torch.cat([embedding, torch.as_tensor(z, dtype=torch.float32)])
        check_actions(policy, skill, lambda obs, z=z: policy.act(obs, 12, z))


@pytest.mark.parametrize("name", ["metra", "csd", "dads", "diayn", "sac"])
def test_a_baseline_acts_as_in_its_rollout(name):
    policy = evaluate.load(RESULTS / "fig3" / name)
    count = policy.args.num_skills
    assert policy.periods is None and policy.skills.tolist() == np.eye(count).tolist()
    last = torch.eye(count)[-1]
    check_actions(policy, last, lambda obs: policy.act(obs, count - 1))
    check_actions(policy, last, lambda obs: policy.act(obs, skill=last.tolist()))


def test_pixels_act_as_in_their_rollout():
    skip_without_egl()
    policy = evaluate.load(RESULTS / "pixel" / "model.pt")
    script = policy.script
    assert script.__name__ == "psd_pixel" and policy.periods == [6, 7, 8, 9]
    skill = script.embed_period(torch.tensor(8.0), policy.args.embed_dim)
    check_actions(policy, skill, lambda obs: policy.act(obs, 8))
    frames = policy.make_env().reset(seed=0)[0]
    assert frames.shape == (9, 32, 32) and frames.dtype == np.uint8
    with pytest.raises(ValueError, match="uint8"):
        policy.act(frames / 255, 8)
    with pytest.raises(ValueError, match="shape"):
        policy.act(frames[..., :31], 8)


def test_the_five_lines_of_the_docstring(monkeypatch, cheetah):
    lines = evaluate.__doc__.split("import evaluate\n")[1].split("\n\n")[0]
    lines = "\n".join(["import evaluate", *(line.strip() for line in lines.splitlines())])
    assert len(lines.splitlines()) == 5
    monkeypatch.chdir(REPO)
    names = {}
    exec(lines, names)
    assert names["obs"].shape == (17,) and names["t"] == 199
    env = cheetah.make_env()  # the same by hand ends in the same state
    obs, _ = env.reset(seed=0)
    for _ in range(200):
        obs, *_ = env.step(cheetah.act(obs, 12))
    assert np.array_equal(obs, names["obs"])


def test_the_state_has_the_period_that_the_policy_is_told(cheetah):
    env = cheetah.make_env(max_steps=400)
    obs, _ = env.reset(seed=0)
    states = []
    for _ in range(400):
        obs, *_ = env.step(cheetah.act(obs, L=12))
        states.append(obs)
    period, _ = state_period(np.array(states)[100:])
    assert period == pytest.approx(24, rel=0.05)


def test_what_a_policy_knows(cheetah):
    assert cheetah.periods == list(range(5, 21))
    assert cheetah.args.env_id == "HalfCheetah-v4" and cheetah.script.__name__ == "psd"
    assert cheetah.make_env().spec.max_episode_steps == 200
    assert cheetah.make_env(max_steps=7).spec.max_episode_steps == 7
    assert cheetah.make_env(render_mode="rgb_array").render_mode == "rgb_array"


def test_random_actions_on_request(cheetah):
    obs = np.zeros(17)
    assert np.array_equal(cheetah.act(obs, 12), cheetah.act(obs, 12))
    torch.manual_seed(0)
    first = cheetah.act(obs, 12, deterministic=False)
    second = cheetah.act(obs, 12, deterministic=False)
    torch.manual_seed(0)
    assert np.array_equal(first, cheetah.act(obs, 12, deterministic=False))
    assert not np.array_equal(first, second)


def test_loading_leaves_random_numbers_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    evaluate.load(RESULTS / "pendulum")
    assert torch.equal(before, torch.get_rng_state())


def test_any_positive_L_will_do(cheetah):
    for L in (1, 3.7, 500, np.int64(12), np.float32(12.5), fractions.Fraction(25, 2)):
        assert np.isfinite(cheetah.act(np.zeros(17), L)).all()


@pytest.mark.parametrize("L", [0, -3, -0.5, np.nan, np.inf, "12", None, [12], True, 3 + 1j])
def test_an_L_that_is_none_is_named(cheetah, L):
    with pytest.raises(ValueError, match="^L is .*: a positive, finite number is needed$"):
        cheetah.act(np.zeros(17), L)


@pytest.mark.parametrize(
    "obs", [np.zeros(16), np.zeros(18), np.zeros((2, 16)), np.zeros((1, 2, 17)), 0.0, [], None]
)
def test_observations_of_the_wrong_shape_are_named(cheetah, obs):
    with pytest.raises(ValueError, match=r"^obs has the shape .*\(17,\)") as error:
        cheetah.act(obs, 12)
    assert "\n" not in str(error.value)


def test_observations_that_are_no_numbers_are_named(cheetah):
    for obs in (["a"] * 17, [None] * 17, [[1.0] * 17, [1.0] * 16], np.zeros(17) * 1j):
        with pytest.raises(ValueError, match="^obs "):
            cheetah.act(obs, 12)


def test_skills_that_do_not_exist_are_named():
    policy = evaluate.load(RESULTS / "fig3/metra")
    obs = np.zeros(18)
    for skill in (16, -1, [1.0, 0.0], "a", None, np.full(16, np.nan), np.eye(16)):
        with pytest.raises(ValueError, match="^skill is "):
            policy.act(obs, skill)
    policy = evaluate.load(RESULTS / "psd_metra/ant_mutual")
    for z in (1, [1.0], [1.0, 0.0, 0.0], ["a", "b"], [np.nan, 1.0]):
        with pytest.raises(ValueError, match="^z is "):
            policy.act(np.zeros(29), 12, z)


def test_every_checkpoint_in_results_loads():
    paths = sorted(RESULTS.rglob("model.pt"))
    assert len(paths) > 15
    for path in paths:
        policy = evaluate.load(path)
        assert policy.periods or len(policy.skills) > 0


def test_what_cannot_be_loaded_ends_in_one_line(tmp_path):
    for path in (tmp_path, str(tmp_path / "nowhere"), RESULTS / "README.md"):
        with pytest.raises(SystemExit, match="^evaluate.py: error: [^\n]*$"):
            evaluate.load(path)
