"""Soft actor-critic on its own: densities, losses, targets, and a task with a known optimum."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import skill_of
from torch.utils._python_dispatch import TorchDispatchMode

import psd

CRITICS = ["critic", "target_critic"]


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (1.5, -1.0), (-2.0, 0.7)])
def test_log_probability_matches_the_numeric_density(mean, log_std):
    space = gym.spaces.Box(np.float32([-0.4]), np.float32([1.0]))
    actor = psd.Actor(1, 1, 4, space)
    actor.forward = lambda obs, skill: (
        torch.full((len(obs), 1), mean, dtype=torch.float64),
        torch.full((len(obs), 1), log_std, dtype=torch.float64),
    )
    torch.manual_seed(0)
    action, log_pi = actor.sample(torch.zeros(4000, 1), torch.zeros(4000, 0))
    assert ((action >= -0.4) & (action <= 1.0)).all()
    # The density of scale * tanh(u) + bias by its cumulative distribution, differentiated
    u = np.linspace(mean - 9 * np.exp(log_std), mean + 9 * np.exp(log_std), 400_001)
    pdf = np.exp(-0.5 * ((u - mean) / np.exp(log_std)) ** 2) / np.sqrt(2 * np.pi) / np.exp(log_std)
    cdf = np.cumsum(pdf) * (u[1] - u[0])
    a = 0.7 * np.tanh(u) + 0.3
    inner = action[:, 0].numpy()
    near = (inner > -0.35) & (inner < 0.95)  # where the grid is not squeezed together
    h = 1e-4
    density = (np.interp(inner + h, a, cdf) - np.interp(inner - h, a, cdf)) / (2 * h)
    np.testing.assert_allclose(log_pi.exp().numpy()[near], density[near], rtol=2e-3)


def test_log_probability_is_finite_far_out():
    actor = psd.Actor(1, 1, 4, gym.spaces.Box(-1.0, 1.0, (1,)))
    for mean in [-60.0, 60.0]:
        actor.forward = lambda obs, skill, m=mean: (
            torch.full((8, 1), m, requires_grad=True),
            torch.zeros(8, 1),
        )
        _, log_pi = actor.sample(torch.zeros(8, 1), torch.zeros(8, 0))
        assert torch.isfinite(log_pi).all()
        log_pi.sum().backward()
        # far out, log pi = log N - log 4 + 2|u|: the naive log(1 - tanh^2 + 1e-6) would be 90 lower
        assert (log_pi > 2 * 55 - 10).all()


def test_networks_are_those_of_the_papers_code_base():
    actor = psd.Actor(5, 2, 64, gym.spaces.Box(-1.0, 1.0, (2,)))
    for layer in list(actor.net)[::2]:
        bound = (6 / (layer.in_features + layer.out_features)) ** 0.5  # Xavier, uniform
        assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert (layer.bias == 0).all()
    last = list(actor.net)[-1]
    for value, log_std in [(-100.0, -20.0), (100.0, 2.0), (-10.0, -10.0)]:
        torch.nn.init.zeros_(last.weight)
        torch.nn.init.constant_(last.bias, value)
        mean, found = actor(torch.zeros(1, 3), torch.zeros(1, 2))
        assert (found == log_std).all() and (mean == value).all()


def test_deterministic_actions_draw_no_random_numbers(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args)
    obs, skill = buffer.obs[:4], torch.zeros(4, tiny_args.embed_dim)
    before = torch.get_rng_state()
    first = agent.actor.act(obs, skill, deterministic=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, agent.actor.act(obs, skill, deterministic=True))
    assert not torch.equal(first, agent.actor.act(obs, skill, deterministic=False))


def test_target_of_the_critic(tiny_args, make_agent_and_buffer):
    """Bootstraps at a truncated end and not at a terminated one; subtracts alpha log pi."""
    agent, buffer = make_agent_and_buffer(tiny_args)
    batch = buffer.sample(64)._replace(terminated=torch.arange(64) % 2 == 0)
    skill = batch.skill
    reward, alpha, gamma = torch.randn(64), torch.tensor(0.3), 0.9
    torch.manual_seed(1)
    loss, metrics = psd.critic_loss(agent, batch, reward, alpha, gamma)
    torch.manual_seed(1)
    with torch.no_grad():
        actions, log_pi = agent.actor.sample(batch.next_obs, skill)
        q1, q2 = agent.target_critic(batch.next_obs, skill, actions)
        target = reward.clone()
        for i in range(1, 64, 2):
            target[i] += gamma * (min(q1[i], q2[i]) - alpha * log_pi[i])
        q1, q2 = agent.critic(batch.obs, skill, batch.actions)
        expected = ((q1 - target) ** 2).mean() + ((q2 - target) ** 2).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(metrics["losses/reward"], reward.mean())


def test_temperature_moves_towards_the_target_entropy(tiny_args, make_agent_and_buffer):
    agent, _ = make_agent_and_buffer(tiny_args)
    for entropy, sign in [(agent.target_entropy - 1, -1.0), (agent.target_entropy + 1, 1.0)]:
        loss = psd.temperature_loss(agent, torch.tensor(entropy))
        (gradient,) = torch.autograd.grad(loss, agent.log_alpha)
        assert gradient.item() == pytest.approx(
            sign
        )  # a descent step raises alpha below the target


def test_update_changes_what_it_should(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args)
    tiny_args.tau = 0.25
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    metrics = psd.update(agent, buffer, tiny_args)
    after = agent.state_dict()
    unchanged = [k for k in before if torch.equal(before[k], after[k])]
    assert unchanged == ["actor.action_scale", "actor.action_bias"]
    for name, value in after.items():
        if name.startswith("target_critic."):  # a Polyak step of tau from the old towards the new
            new = after[name.removeprefix("target_")]
            torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * new)
    assert all(torch.isfinite(value) for value in metrics.values())
    assert all(p.requires_grad for p in agent.critic.parameters())


def test_phi_waits_for_an_episode_as_long_as_L(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args)
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    metrics = psd.update(agent, buffer, tiny_args, train_phi=False)
    after = agent.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if k.startswith("phi."))
    assert not torch.equal(before["actor.net.0.weight"], after["actor.net.0.weight"])
    assert "losses/phi_loss" not in metrics


def test_reward_comes_from_new_phi_and_r_ext(tiny_args, make_agent_and_buffer, monkeypatch):
    agent, buffer = make_agent_and_buffer(tiny_args)
    tiny_args.ext_coef, tiny_args.v_star = 2.0, 0.5
    seen = {}
    real_loss = psd.critic_loss

    def spy(agent, batch, reward, *rest):
        seen.update(batch=batch, reward=reward.clone(), phi=agent.phi.state_dict())
        return real_loss(agent, batch, reward, *rest)

    monkeypatch.setattr(psd, "critic_loss", spy)
    psd.update(agent, buffer, tiny_args)
    batch, L = seen["batch"], seen["batch"].period
    skill = psd.embed_period(L, tiny_args.embed_dim)
    with torch.no_grad():
        phi_next = agent.phi(batch.next_obs, skill)
        r_psd = psd.psd_reward(agent.phi(batch.obs, skill), phi_next, L, 10)
    expected = r_psd + 2.0 * (batch.velocity / 0.5).clamp(max=1)
    torch.testing.assert_close(seen["reward"], expected)


@pytest.mark.parametrize("seed", [1, 2])
def test_sac_finds_a_known_optimum(seed):
    """A point x in [-1, 1] moves by 0.3 a, and is paid 1 - (x' - g)^2; L stands for the goal g.

    The payment goes in as r_ext; kappa is so large that r_PSD is nothing. The best policy goes
    straight to the goal and stays. Ten steps, cut off, so ends bootstrap.
    """
    flags = """--hidden-units 64 --batch-size 128 --sac-lr 3e-3 --alpha-lr 3e-3 --gamma 0.9
        --tau 0.02 --ext-coef 1 --v-star 1 --kappa 1e9 --env-id Pendulum-v1"""
    args, _ = psd.parse_args(flags.split())
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    agent = psd.Agent(args, 1, gym.spaces.Box(-1.0, 1.0, (1,), np.float32), "cpu")
    buffer = psd.ReplayBuffer(4000, 10, 1, 1, args.embed_dim, "cpu")
    goals = {2.0: -0.6, 5.0: 0.0, 9.0: 0.7}  # by L

    def episode(L, deterministic):
        obs, actions, payment = [rng.uniform(-1, 1, 1).astype(np.float32)], [], []
        skill = psd.embed_period(torch.tensor([L]), args.embed_dim)
        for _ in range(10):
            x = torch.tensor(obs[-1])[None]
            actions.append(agent.actor.act(x, skill, deterministic)[0].numpy())
            obs.append(np.clip(obs[-1] + 0.3 * actions[-1], -1, 1))
            payment.append(1 - (obs[-1][0] - goals[L]) ** 2)
        return psd.Episode(np.array(obs), np.array(actions), np.float32(payment), False)

    for i in range(900):
        if i % 3 == 0:
            for L in goals:
                buffer.add(episode(L, deterministic=False), skill_of(L, args), L)
        psd.update(agent, buffer, args, train_phi=False)
    for L, goal in goals.items():
        ends = [episode(L, deterministic=True).obs[-1, 0] for _ in range(10)]
        assert np.abs(np.array(ends) - goal).max() < 0.1


class CountProducts(TorchDispatchMode):
    """Counts matrix products: those of forward passes (addmm) and of gradients (mm)."""

    def __init__(self):
        super().__init__()
        self.addmm = self.mm = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.addmm += func is torch.ops.aten.addmm.default
        self.mm += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def test_no_gradient_is_computed_in_vain(tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args)
    with CountProducts() as count:
        psd.update(agent, buffer, tiny_args)
    # three layers a network; gradients: weights of all three, inputs of all but the first
    forward = 3 + 3 + (3 + 6 + 6) + (3 + 6)  # phi, reward, critic step, actor step
    backward = 5 + 2 * 5 + (5 + 2 * 3)  # phi, both critics, actor and dQ/da of both critics
    assert (count.addmm, count.mm) == (forward, backward)


# ------------------------- layer normalisation in the critics -------------------------
def agent_with(layer_norm):
    flags = ["--env-id", "Pendulum-v1", "--hidden-units", "16"]
    if layer_norm:
        flags.append("--critic-layer-norm")
    args, _ = psd.parse_args(flags)
    torch.manual_seed(0)
    return psd.Agent(args, 3, gym.spaces.Box(-2.0, 2.0, (1,)), "cpu")


def test_layer_normalisation_is_in_the_critics_alone():
    agent = agent_with(layer_norm=True)
    normed = [name for name, module in agent.named_modules() if isinstance(module, nn.LayerNorm)]
    expected = [f"{critic}.{i}.{layer}" for i in (0, 1) for layer in (1, 4) for critic in CRITICS]
    assert sorted(normed) == sorted(expected)
    assert not any(isinstance(module, nn.LayerNorm) for module in agent_with(False).modules())


def test_layer_normalisation_leaves_the_first_weights_as_they_are():
    """So that a run with it and one without it start alike."""
    plain, normed = agent_with(False), agent_with(True)
    for name in ["actor", "phi"]:
        weights = zip(getattr(plain, name).parameters(), getattr(normed, name).parameters())
        assert all(torch.equal(a, b) for a, b in weights)
    linear = [layer for layer in plain.critic.modules() if isinstance(layer, nn.Linear)]
    same = [layer for layer in normed.critic.modules() if isinstance(layer, nn.Linear)]
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(linear, same))


def test_a_normalised_network_computes_what_it_says():
    """Linear, layer normalisation, ReLU, twice; then linear alone."""
    torch.manual_seed(0)
    net = psd.MLP(3, 2, 8, 1, layer_norm=True)
    x = torch.randn(5, 3)
    first, _, _, second, _, _, last = net
    h = x
    for linear in [first, second]:
        h = h @ linear.weight.T + linear.bias
        spread = h.var(dim=-1, keepdim=True, correction=0) + 1e-5
        h = ((h - h.mean(dim=-1, keepdim=True)) / spread.sqrt()).clamp(min=0)
    torch.testing.assert_close(net(x), h @ last.weight.T + last.bias)


def test_the_target_critics_follow_the_normalisation_too():
    """Gain and bias are learned, so that the Polyak step has to include them."""
    agent = agent_with(layer_norm=True)
    names = [name for name, _ in agent.target_critic.named_parameters()]
    assert names == [name for name, _ in agent.critic.named_parameters()]
    assert "0.1.weight" in names and "1.4.bias" in names
