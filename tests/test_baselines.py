"""The baselines' own equations, against plain NumPy, and how the four are put together."""

import re

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import REPO, make_episode
from sync import BASELINES
from test_device import Devices, HostCalls

from baselines import csd, dads, diayn, metra

SCRIPTS = {"metra": metra, "csd": csd, "diayn": diayn, "dads": dads}
TINY = """--env-id Pendulum-v1 --hidden-units 16 --batch-size 16 --buffer-size 700
    --episodes-per-epoch 3 --updates-per-epoch 4 --episode-length 40""".split()
VARIANTS = [("metra", 4), ("metra", 0), ("csd", 4), ("diayn", 4), ("dads", 4), ("dads", 0)]
by_script = pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
by_variant = pytest.mark.parametrize("name, num_skills", VARIANTS)


def parse(script, *flags):
    return script.parse_args([*TINY, *flags])[0]


def agent_and_buffer(script, args, device="cpu"):
    """An agent of random weights, and a buffer with a few episodes, some of which end in a fall."""
    torch.manual_seed(0)
    agent = script.Agent(args, 3, gym.spaces.Box(-2.0, 2.0, (2,), np.float32), device)
    buffer = script.ReplayBuffer(700, 40, 3, 2, agent.skill_dim, device)
    rng, skills = np.random.default_rng(0), script.sample_skills(5, args, "cpu")
    for i, skill in enumerate(skills):
        episode = make_episode(rng, 40 - i, action_dim=2, terminated=i % 2 > 0)
        buffer.add(episode, skill, period=0.0)
    return agent, buffer


def test_all_baselines_are_tested():
    assert sorted(BASELINES) == sorted(f"baselines/{name}.py" for name in SCRIPTS)


# ------------------------------------------- Equations --------------------------------------------
def numeric_gradient(function, x, h=1e-6):
    """Central differences of function(x), an array like x."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        high, low = x.copy(), x.copy()
        high[index] += h
        low[index] -= h
        gradient[index] = (function(high) - function(low)) / (2 * h)
    return gradient


def with_gradient(function, x):
    """The value at x (an array) of a loss of tensors, and its gradient."""
    x = torch.tensor(x, requires_grad=True)
    value = function(x)
    value.backward()
    return value.item(), x.grad.numpy()


def test_zero_centred_skills_by_hand():
    centred = [[1, -1 / 3, -1 / 3, -1 / 3], [-1 / 3, -1 / 3, 1, -1 / 3]]
    for script in (metra, csd):
        torch.testing.assert_close(script.direction(torch.eye(4)[[0, 2]], 4), torch.tensor(centred))
        z = torch.tensor([[0.6, -0.8]])
        assert script.direction(z, 0) is z
        assert script.direction(torch.ones(1, 1), 1).item() == 0  # one skill: nowhere to go


@pytest.mark.parametrize("scale", [0.1, 0.5, 2.0])  # the constraint holds, in part, not at all
def test_metra_loss_and_its_gradient(scale):
    rng = np.random.default_rng(1)
    points, z = scale * rng.standard_normal((2, 6, 3)), rng.standard_normal((6, 3))

    def slow(points):  # Eq. (11), a sample and a dimension at a time
        total = 0.0
        for s, s_next, direction in zip(*points, z):
            step = [b - a for a, b in zip(s, s_next)]
            total += sum(d * c for d, c in zip(step, direction))
            total += 30.0 * min(1e-3, 1 - sum(d**2 for d in step))
        return -total / len(z)

    def fast(points):
        return metra.metra_loss(*points, torch.tensor(z), 30.0, 1e-3)[0]

    value, gradient = with_gradient(fast, points)
    assert value == pytest.approx(slow(points))
    np.testing.assert_allclose(gradient, numeric_gradient(slow, points), atol=1e-6)
    _, metrics = metra.metra_loss(*torch.tensor(points), torch.tensor(z), 30.0, 1e-3)
    slack = 1 - ((points[1] - points[0]) ** 2).sum(-1)
    assert metrics["metra/slack"].item() == pytest.approx(slack.mean())
    assert metrics["metra/constraint"].item() == pytest.approx(np.minimum(slack, 1e-3).mean())
    reward = metra.metra_reward(*torch.tensor(points), torch.tensor(z))
    np.testing.assert_allclose(reward, ((points[1] - points[0]) * z).sum(-1))


def test_lambda_falls_where_the_constraint_holds_and_grows_where_it_is_broken():
    """Eq. (12) with log lambda for lambda: its gradient is the constraint, whatever lambda is."""
    for script in (metra, csd):
        for constraint in (1e-3, -2.0):
            log_lam = torch.tensor(3.0, requires_grad=True)
            script.dual_loss(log_lam, torch.tensor(constraint)).backward()
            assert log_lam.grad.item() == pytest.approx(constraint)  # a step goes against it


def test_csd_distance_by_hand():
    delta, mean = torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    log_std = torch.tensor([[2.0, 0.5]]).log()  # 1/sigma: 0.5 and 2, geometric mean 1
    expected = (0.25 * 2**2 + 4 * 1**2) / 2
    assert csd.csd_distance(delta, mean, log_std).item() == pytest.approx(expected)
    scaled = csd.csd_distance(delta, mean, log_std + 5).item()  # only their ratios count
    assert scaled == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_csd_loss_and_its_gradient(scale):
    rng = np.random.default_rng(2)
    points, z = scale * rng.standard_normal((2, 6, 3)), rng.standard_normal((6, 3))
    delta, mean, log_std = rng.standard_normal((3, 6, 5))
    distance = csd.csd_distance(*map(torch.tensor, (delta, mean, log_std)))

    def slow(points):
        total = 0.0
        for i in range(6):
            inverse = [1 / np.exp(s) for s in log_std[i]]
            geometric = np.prod(inverse) ** (1 / 5)
            d = np.mean([((delta - mean)[i, j] * inverse[j] / geometric) ** 2 for j in range(5)])
            assert distance[i].item() == pytest.approx(d)
            step = points[1, i] - points[0, i]
            total += step @ z[i] + 3000.0 * min(1e-6, d - np.mean(step**2))
        return -total / 6

    def fast(points):
        return csd.csd_loss(*points, torch.tensor(z), distance, 3000.0, 1e-6)[0]

    value, gradient = with_gradient(fast, points)
    assert value == pytest.approx(slow(points))
    np.testing.assert_allclose(gradient, numeric_gradient(slow, points), rtol=1e-5, atol=1e-4)


def test_distance_loss_is_the_likelihood_of_a_gaussian():
    rng = np.random.default_rng(3)
    delta, *model = rng.standard_normal((3, 6, 5))

    def slow(model):
        mean, log_std = model
        density = np.exp(-0.5 * ((delta - mean) / np.exp(log_std)) ** 2) / np.exp(log_std)
        return -np.log(density).sum(axis=1).mean()

    value, gradient = with_gradient(
        lambda model: csd.distance_loss(torch.tensor(delta), *model)[0], np.array(model)
    )
    assert value == pytest.approx(slow(np.array(model)))
    np.testing.assert_allclose(gradient, numeric_gradient(slow, np.array(model)), atol=1e-6)


def test_the_std_of_csd_stays_in_range():
    mean, log_std = csd.step_model(torch.tensor([[1.0, 2.0, -100.0, 100.0]]))
    assert mean.tolist() == [[1, 2]] and log_std.tolist() == [[-14, 14]]


def test_diayn_loss_gradient_and_reward():
    rng = np.random.default_rng(4)
    logits, index = rng.standard_normal((6, 4)), rng.integers(0, 4, 6)
    skill = torch.tensor(np.eye(4)[index])

    def slow(logits):
        return np.mean([np.log(np.exp(x).sum()) - x[i] for x, i in zip(logits, index)])

    value, gradient = with_gradient(
        lambda logits: diayn.discriminator_loss(logits, skill)[0], logits
    )
    assert value == pytest.approx(slow(logits))
    np.testing.assert_allclose(gradient, numeric_gradient(slow, logits), atol=1e-8)
    q = np.exp(logits)[np.arange(6), index] / np.exp(logits).sum(axis=1)
    reward = diayn.diayn_reward(torch.tensor(logits), skill)
    np.testing.assert_allclose(reward, np.log(q) - np.log(1 / 4))
    _, metrics = diayn.discriminator_loss(torch.tensor(logits), skill)
    hits = np.mean(logits.argmax(axis=1) == index)
    assert metrics["diayn/accuracy"].item() == pytest.approx(hits)
    certain = 1000 * skill
    assert diayn.diayn_reward(certain, skill).tolist() == pytest.approx([np.log(4)] * 6)


def slow_log_q(parameters, obs, next_obs, skill, statistics=None):
    """DADS: log q(s' | s, z) but for a constant, a transition at a time; of batch statistics, or of
    those given: mean and variance of s, and of s' - s."""
    p, delta = dict(parameters), next_obs - obs
    mean, var, step_mean, step_var = statistics or (
        *(obs.mean(axis=0), obs.var(axis=0)),
        *(delta.mean(axis=0), delta.var(axis=0)),
    )
    found = []
    for s, d, z in zip(obs, delta, skill):
        x = (s - mean) / np.sqrt(var + 1e-5) * p["obs_norm.weight"] + p["obs_norm.bias"]
        x = np.concatenate([x, z])
        x = np.maximum(p["net.0.weight"] @ x + p["net.0.bias"], 0)
        x = p["net.2.weight"] @ x + p["net.2.bias"]
        target = (d - step_mean) / np.sqrt(step_var + 1e-5)
        found.append(-0.5 * sum((a - b) ** 2 for a, b in zip(target, x)))
    return np.array(found)


@pytest.fixture
def dynamics():
    torch.manual_seed(0)
    model = dads.Dynamics(2, 3, hidden_layers=1, hidden_units=4).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)  # biases and scales too
    rng = np.random.default_rng(5)
    data = (
        rng.standard_normal((7, 2)),
        rng.standard_normal((7, 2)),
        np.eye(3)[[0, 1, 2, 0, 1, 2, 0]],
    )
    return model, data


def test_dads_loss_and_its_gradient_with_a_fall_left_out(dynamics):
    model, data = dynamics
    terminated = np.array([False] * 5 + [True, False])
    tensors = [torch.tensor(x) for x in data]
    (log_q,) = model.train().log_prob(*tensors[:2], tensors[2][None])
    loss, _ = dads.dynamics_loss(log_q, torch.tensor(terminated))
    loss.backward()
    named = {name: p.detach().numpy() for name, p in model.named_parameters()}
    assert "step_norm.weight" not in named and "obs_norm.weight" in named

    def slow(**changed):
        return -slow_log_q({**named, **changed}, *data)[~terminated].mean()

    assert loss.item() == pytest.approx(slow())
    for name, parameter in model.named_parameters():
        numeric = numeric_gradient(lambda x, name=name: slow(**{name: x}), named[name])
        np.testing.assert_allclose(parameter.grad, numeric, atol=1e-7)
    nothing, _ = dads.dynamics_loss(log_q, torch.ones(7, dtype=torch.bool))
    assert nothing.item() == 0  # and not nan


def test_dads_reward_is_the_mutual_information_and_exact_for_discrete_skills(dynamics):
    model, (obs, next_obs, skill) = dynamics
    tensors = [torch.tensor(x) for x in (obs, next_obs, skill)]
    model.train().log_prob(*tensors[:2], tensors[2][None])  # moves the running statistics
    norms = [(n.running_mean, n.running_var) for n in (model.obs_norm, model.step_norm)]
    statistics = [x.numpy() for pair in norms for x in pair]
    args, _ = dads.parse_args([*TINY, "--num-skills", "3"])
    skills = dads.candidate_skills(tensors[2], args)
    assert sorted(map(tuple, skills[:, 0].tolist())) == sorted(map(tuple, np.eye(3).tolist()))
    assert torch.equal(skills[0], tensors[2])
    agent = type("Agent", (), {"dynamics": model})
    reward = dads.intrinsic_reward(agent, *tensors, args)
    named = {name: p.detach().numpy() for name, p in model.named_parameters()}
    q = np.exp([slow_log_q(named, obs, next_obs, np.eye(3)[[i] * 7], statistics) for i in range(3)])
    own = q[skill.argmax(axis=1), np.arange(7)]
    np.testing.assert_allclose(reward, np.log(own) - np.log(q.mean(axis=0)), rtol=1e-6)


def test_dads_reward_has_the_bounds_and_the_clip_of_its_formula():
    log_q = torch.tensor([[0.0, 0.0, -900.0], [-900.0, 0.0, 0.0], [-900.0, 0.0, 0.0]])
    expected = [np.log(3), 0.0, np.log(3) - np.log1p(2 * np.exp(50))]
    np.testing.assert_allclose(dads.dads_reward(log_q), expected, rtol=1e-5, atol=1e-6)


def test_a_continuous_prior_is_sampled_anew_for_each_transition():
    args, _ = dads.parse_args([*TINY, "--num-skills", "0", "--prior-samples", "50"])
    skill = dads.sample_skills(6, args, "cpu")
    skills = dads.candidate_skills(skill, args)
    assert skills.shape == (51, 6, 2) and torch.equal(skills[0], skill)
    assert len(skills[1:].flatten(0, 1).unique(dim=0)) == 300


# --------------------------------------------- Skills ---------------------------------------------
@pytest.mark.parametrize(
    "name, ant, cheetah", [("metra", 0, 16), ("csd", 16, 16), ("diayn", 16, 16), ("dads", 0, 16)]
)
def test_the_papers_values_by_robot(name, ant, cheetah):
    script = SCRIPTS[name]
    robots = {"Ant-v4": (200, 0.5, ant), "Humanoid-v5": (400, 1.0, ant)}
    robots |= {"HalfCheetah-v4": (200, 0.5, cheetah), "Hopper-v4": (400, 1.0, cheetah)}
    robots |= {"Walker2d-v5": (400, 1.0, cheetah), "Pendulum-v1": (200, 0.5, cheetah)}
    for env_id, expected in robots.items():
        args, _ = script.parse_args(["--env-id", env_id])
        assert (args.episode_length, args.v_star, args.num_skills) == expected
        assert args.normalize_obs is (name in ("metra", "csd"))
    args, _ = script.parse_args("--env-id Ant-v4 --num-skills 16".split())
    assert args.num_skills == 16
    args = script.Args()
    assert args.sac_lr == args.alpha_lr == 1e-4 and args.batch_size == 256
    assert (args.hidden_units, args.gamma, args.tau, args.ext_coef) == (1024, 0.99, 0.005, 0.0)
    if name in ("metra", "csd"):
        constants = {"metra": (30.0, 1e-3), "csd": (3000.0, 1e-6)}
        assert (args.lam, args.epsilon, args.lam_lr) == (*constants[name], 1e-4)


MEASURED = {  # what the runs of Figure 3 (benchmark/grid.py) set beside the defaults
    "metra": {"phi_lr": 1e-3, "lam_lr": 1e-3},
    "csd": {"phi_lr": 1e-3, "lam_lr": 1e-3, "distance_lr": 1e-3},
    "diayn": {"discriminator_lr": 1e-3},
    "dads": {"dynamics_lr": 1e-3},
}


@by_script
def test_the_cpu_preset_is_what_was_measured(script):
    args, _ = script.parse_args("--env-id HalfCheetah-v4 --preset cpu".split())
    path = REPO / f"results/fig3/{script.SCRIPT}/model.pt"
    saved = torch.load(path, weights_only=True)["args"]
    for name, value in saved.items():
        if name not in ("seed", "run_name", "resume"):
            assert getattr(args, name) == value, name
    paper, _ = script.parse_args(["--env-id", "HalfCheetah-v4"])
    changed = {k: v for k, v in vars(args).items() if v != getattr(paper, k)}
    expected = {"preset": "cpu", "hidden_units": 256, "sac_lr": 3e-4, "alpha_lr": 6e-4}
    expected |= {"total_epochs": 600, **MEASURED[script.SCRIPT]}
    if script in (diayn, dads):
        expected["normalize_obs"] = True
    assert changed == expected
    args, _ = script.parse_args("--preset cpu --sac-lr 0.5 --env-id Ant-v4".split())
    assert (args.sac_lr, args.hidden_units, args.total_epochs) == (0.5, 256, 600)
    assert args.num_skills == script.ROBOTS["Ant"][2]


@by_script
def test_weights_of_published_checkpoints_fit(script):
    path = REPO / f"results/fig3/{script.SCRIPT}/model.pt"
    saved = torch.load(path, weights_only=True)
    args, _ = script.parse_args("--env-id HalfCheetah-v4 --preset cpu".split())
    env = script.make_env(args)
    agent = script.Agent(args, env.observation_space.shape[0], env.action_space, "cpu")
    missing, unexpected = agent.load_state_dict(saved["agent"], strict=False)
    assert unexpected == []
    assert [name for name in missing if name.startswith(("actor", "phi"))] == []
    env.close()


@by_script
def test_who_sees_the_global_position(script):
    extra = {"HalfCheetah-v4": 1, "Walker2d-v5": 1, "Ant-v4": 2, "Ant-v5": 2, "Humanoid-v4": 2}
    default = {"HalfCheetah-v4": 17, "Walker2d-v5": 17, "Ant-v4": 27, "Ant-v5": 27}
    default["Humanoid-v4"] = 376
    for env_id, count in extra.items():
        args, _ = script.parse_args(["--env-id", env_id])
        env = script.make_env(args)
        expected = default[env_id] + (count if script in (metra, csd) else 0)
        assert env.observation_space.shape == (expected,)
        env.close()


@by_variant
def test_skills_of_the_prior(name, num_skills):
    script = SCRIPTS[name]
    torch.manual_seed(0)
    skills = script.sample_skills(4000, parse(script, "--num-skills", str(num_skills)), "cpu")
    if num_skills:
        assert skills.unique(dim=0).flip(0).tolist() == torch.eye(4).tolist()
        assert ((skills.mean(dim=0) - 0.25).abs() < 0.03).all()
    elif script is metra:
        torch.testing.assert_close(skills.norm(dim=1), torch.ones(4000))
        angle = torch.atan2(*skills.T)
        assert (torch.histc(angle, 8, -np.pi, np.pi) - 500).abs().max() < 100
    else:
        assert skills.shape == (4000, 2) and skills.abs().max() <= 1
        assert (torch.histc(skills, 8, -1, 1) - 1000).abs().max() < 150


@by_script
def test_the_policy_gets_the_raw_skill_and_the_reward_its_own_form(script, monkeypatch):
    """What goes into actor, critics and buffer is one-hot; the reward is that of the new model."""
    args = parse(script, "--num-skills", "4", "--ext-coef", "2")
    args.v_star = 0.5
    agent, buffer = agent_and_buffer(script, args)
    assert set(buffer.skill.flatten().tolist()) == {0.0, 1.0}
    seen, real_loss = {}, script.critic_loss

    def spy(agent, batch, reward, *rest):
        seen.update(batch=batch, reward=reward.clone())
        return real_loss(agent, batch, reward, *rest)

    monkeypatch.setattr(script, "critic_loss", spy)
    script.update(agent, buffer, args)
    batch = seen["batch"]
    assert set(batch.skill.flatten().tolist()) == {0.0, 1.0}
    intrinsic = script.intrinsic_reward(agent, batch.obs, batch.next_obs, batch.skill, args)
    assert intrinsic.std() > 0
    expected = intrinsic + 2 * (batch.velocity / 0.5).clamp(max=1)
    torch.testing.assert_close(seen["reward"], expected)
    if script in (metra, csd):
        with torch.no_grad():
            step = agent.phi(batch.next_obs) - agent.phi(batch.obs)
        z = (batch.skill - 1 / 4) * 4 / 3
        scale = 10 if script is csd else 1
        torch.testing.assert_close(intrinsic, scale * (step * z).sum(dim=1))


def test_diayn_with_one_skill_is_paid_r_ext_to_the_bit(monkeypatch):
    args = parse(diayn, "--num-skills", "1", "--ext-coef", "1")
    agent, buffer = agent_and_buffer(diayn, args)
    rewards, real_loss = [], diayn.critic_loss

    def spy(agent, batch, reward, *rest):
        rewards.append((reward.clone(), diayn.external_reward(batch.velocity, args.v_star)))
        return real_loss(agent, batch, reward, *rest)

    monkeypatch.setattr(diayn, "critic_loss", spy)
    for _ in range(3):
        diayn.update(agent, buffer, args)
    assert all(torch.equal(reward, r_ext) for reward, r_ext in rewards)
    for script in (metra, csd, dads):  # the others have nothing to tell apart either
        args = parse(script, "--num-skills", "1")
        agent, buffer = agent_and_buffer(script, args)
        batch = buffer.sample(8)
        reward = script.intrinsic_reward(agent, batch.obs, batch.next_obs, batch.skill, args)
        assert (reward == 0).all()


# ------------------------------------------- The update -------------------------------------------
@by_variant
def test_an_update_changes_what_it_should(name, num_skills):
    script = SCRIPTS[name]
    args = parse(script, "--num-skills", str(num_skills))
    agent, buffer = agent_and_buffer(script, args)
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    metrics = script.update(agent, buffer, args)
    after = agent.state_dict()
    unchanged = {k for k in before if torch.equal(before[k], after[k])}
    unchanged -= {"phi.4.bias"}  # its gradient is nothing but rounding: phi counts in differences
    assert unchanged == {"actor.action_scale", "actor.action_bias"}
    assert all(torch.isfinite(value) for value in metrics.values())


@by_script
def test_each_parameter_has_one_optimiser_with_its_own_rate(script):
    rates = {"critic": 2e-4, "actor": 2e-4, "alpha": 3e-4}
    own = {
        "metra": {"phi": 4e-4, "lam": 5e-4},
        "csd": {"phi": 4e-4, "lam": 5e-4, "distance": 6e-4},
        "diayn": {"discriminator": 4e-4},
        "dads": {"dynamics": 4e-4},
    }[script.SCRIPT]
    flags = ["--sac-lr", "2e-4", "--alpha-lr", "3e-4"]
    for name, rate in own.items():
        flags += [f"--{name}-lr", str(rate)]
    agent, _ = agent_and_buffer(script, parse(script, *flags))
    found = {name: x.param_groups[0]["lr"] for name, x in agent.optimizers.items()}
    assert found == rates | own
    stepped = [p for x in agent.optimizers.values() for p in x.param_groups[0]["params"]]
    trained = [p for p in agent.parameters() if p.requires_grad]
    assert sorted(map(id, stepped)) == sorted(map(id, trained))


def test_phi_of_csd_does_not_train_the_distance_nor_the_distance_phi():
    args = parse(csd, "--num-skills", "4")
    for frozen, moved in [("phi", "distance"), ("distance", "phi")]:
        agent, buffer = agent_and_buffer(csd, args)
        (group,) = agent.optimizers[frozen].param_groups
        group["lr"] = 0.0  # so that only the other's step could change it
        before = {k: v.clone() for k, v in agent.state_dict().items()}
        csd.update(agent, buffer, args)
        after = agent.state_dict()
        assert all(torch.equal(before[k], after[k]) for k in before if k.startswith(f"{frozen}."))
        assert not torch.equal(before[f"{moved}.0.weight"], after[f"{moved}.0.weight"])


@by_variant
def test_an_update_stays_on_its_device_and_never_asks_the_host(name, num_skills):
    script = SCRIPTS[name]
    args = parse(script, "--num-skills", str(num_skills))
    agent, buffer = agent_and_buffer(script, args, device="meta")
    with Devices() as devices:
        metrics = script.update(agent, buffer, args)
    assert {value.device.type for value in metrics.values()} == {"meta"}
    assert [stranger for stranger in devices.strangers if stranger[1] != ()] == []
    agent, buffer = agent_and_buffer(script, args)  # on the CPU a call to the host would go through
    with HostCalls() as host:
        script.update(agent, buffer, args)
    assert host.calls == []


def test_dads_predicts_with_running_statistics_and_learns_with_the_batchs():
    args = parse(dads, "--num-skills", "4")
    agent, buffer = agent_and_buffer(dads, args)
    dads.update(agent, buffer, args)
    assert not agent.dynamics.training  # left so by the reward
    batch = buffer.sample(8)
    whole = dads.intrinsic_reward(agent, batch.obs, batch.next_obs, batch.skill, args)
    half = [x[:4] for x in (batch.obs, batch.next_obs, batch.skill)]
    torch.testing.assert_close(dads.intrinsic_reward(agent, *half, args), whole[:4])


@by_script
def test_every_numbered_equation_is_a_function_of_the_index(script):
    source = (REPO / f"baselines/{script.SCRIPT}.py").read_text()
    numbers = {"metra": {"9", "11", "12"}, "csd": {"3", "12"}, "diayn": {"1", "2"}, "dads": set()}
    found = re.findall(r'^def (\w+)\(.*\):\n    """Eq\. \((\d+)\)', source, re.MULTILINE)
    assert {number for _, number in found} == numbers[script.SCRIPT]
    for name, _ in found:
        assert name in script.__doc__
    command = f"python baselines/{script.SCRIPT}.py --env-id"
    assert f"{command} Ant-v4 --cuda " in script.__doc__
    assert f"{command} HalfCheetah-v4 --preset cpu " in script.__doc__
