"""psd_metra.py: who sees what, both rewards at once, and skills with a direction and a period."""

import dataclasses
import json
import re
import shlex
import shutil
import signal
from types import SimpleNamespace

import gymnasium as gym
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from conftest import REPO, make_episode
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_cli import commands, python
from test_device import Devices, HostCalls
from test_evaluate import keys_of, run_main
from test_plot import SAMPLE, coloured, texts
from test_resume import MOVING, same

import evaluate
import plot
import psd
import psd_metra

TINY = """--env-id Pendulum-v1 --hidden-units 16 --phi-batch-size 32 --batch-size 16
    --buffer-size 700 --episodes-per-epoch 3 --updates-per-epoch 4 --episode-length 40
    --L-min 5 --L-max 8""".split()
P, D, Z = 2, 6, 2  # in most of these tests: position, Embed(L), z
ACTIONS = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def parse(*flags):
    return psd_metra.parse_args([*TINY, "--position-dim", str(P), *flags])[0]


def agent_and_buffer(args, device="cpu"):
    """An agent of random weights, 5 observations of which P are position, and a few episodes."""
    torch.manual_seed(0)
    agent = psd_metra.Agent(args, 5, ACTIONS, device)
    buffer = psd_metra.ReplayBuffer(700, 40, 5, 2, D + args.skill_dim, device)
    rng = np.random.default_rng(0)
    L = torch.tensor([5.0, 6.0, 7.0, 8.0, 5.0])
    z = psd_metra.sample_directions(5, args.skill_dim)
    skill = torch.cat([psd_metra.embed_period(L, D), z], dim=1)
    for i in range(5):
        episode = make_episode(rng, 40 - i, obs_dim=5, action_dim=2, terminated=i % 2 > 0)
        buffer.add(episode, skill[i], L[i])
    return agent, buffer


# ----------------------------------------- Who sees what ------------------------------------------
def depends(function, *inputs):
    """On which columns of its inputs a function depends, by its gradient: one set per input."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    gradients = torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
    return [
        set() if g is None else set(g.abs().sum(dim=0).nonzero().flatten().tolist())
        for g in gradients
    ]


POSITION, REST = set(range(P)), set(range(P, 5))
EMBEDDED, DIRECTION = set(range(D)), set(range(D, D + Z))


@pytest.mark.parametrize("mutual", [True, False])
def test_each_encoder_sees_the_others_variable_and_phi_m_alone_the_position(mutual):
    args = parse("--mutual-conditioning" if mutual else "--no-mutual-conditioning")
    agent, _ = agent_and_buffer(args)
    obs, skill = torch.randn(50, 5), torch.randn(50, D + Z)
    seen = depends(lambda *x: psd_metra.encode_period(agent, *x), obs, skill)
    assert seen == [REST, EMBEDDED | (DIRECTION if mutual else set())]
    seen = depends(lambda *x: psd_metra.encode_direction(agent, *x), obs, skill)
    assert seen == [POSITION | REST, EMBEDDED if mutual else set()]
    episode = psd_metra.Episode(obs.numpy(), None, None, None)
    with torch.no_grad():
        phi = psd_metra.encode_period(agent, obs, skill[:1].expand(50, -1))
    assert torch.equal(psd_metra.encode(agent, episode, skill[0]), phi)


@pytest.mark.parametrize("mutual", [True, False])
def test_the_policy_sees_both_variables_but_not_the_position(mutual, monkeypatch):
    """In rollouts, which call Agent.act, and in the losses, which get a batch without it."""
    args = parse("--mutual-conditioning" if mutual else "--no-mutual-conditioning")
    agent, buffer = agent_and_buffer(args)
    obs, skill = torch.randn(50, 5), torch.randn(50, D + Z)
    first = agent.act(obs, skill, True)
    for i in range(5):
        moved = agent.act(obs + torch.eye(5)[i], skill, True)
        assert torch.equal(first, moved) is (i in POSITION)
    for i in range(D + Z):
        assert not torch.equal(first, agent.act(obs, skill + torch.eye(D + Z)[i], True))

    drawn, used = [], []
    real_sample, real_critic, real_actor = (
        buffer.sample,
        psd_metra.critic_loss,
        psd_metra.actor_loss,
    )

    def sample(batch_size):
        drawn.append(real_sample(batch_size))
        return drawn[-1]

    def critic_loss(agent, batch, *rest):
        used.append(batch)
        return real_critic(agent, batch, *rest)

    def actor_loss(agent, batch, *rest):
        used.append(batch)
        return real_actor(agent, batch, *rest)

    monkeypatch.setattr(buffer, "sample", sample)
    monkeypatch.setattr(psd_metra, "critic_loss", critic_loss)
    monkeypatch.setattr(psd_metra, "actor_loss", actor_loss)
    psd_metra.update(agent, buffer, args)
    assert len(drawn) == len(used) == 2
    for batch in used:
        assert torch.equal(batch.obs, drawn[1].obs[:, P:])
        assert torch.equal(batch.next_obs, drawn[1].next_obs[:, P:])
        for name in ["actions", "velocity", "terminated", "skill", "period"]:
            assert torch.equal(getattr(batch, name), getattr(drawn[1], name))


def test_directions_are_unit_vectors_all_round():
    torch.manual_seed(0)
    z = psd_metra.sample_directions(20_000, 2)
    torch.testing.assert_close(z.norm(dim=1), torch.ones(20_000))
    counts = torch.histc(torch.atan2(z[:, 1], z[:, 0]), bins=8, min=-torch.pi, max=torch.pi)
    assert (counts - 2_500).abs().max() < 250
    ends = psd_metra.sample_directions(1_000, 1)
    assert ends.unique().tolist() == [-1.0, 1.0] and abs(ends.mean()) < 0.15


def test_robots_begin_with_their_position():
    """What is called position is it: teleported, the robot sees nothing else change."""
    for env_id, p, rest in [("Ant-v4", 2, 27), ("Walker2d-v5", 1, 17), ("HalfCheetah-v4", 1, 17)]:
        args, _ = psd_metra.parse_args(["--env-id", env_id])
        env = psd_metra.make_env(args).unwrapped
        assert args.position_dim == p and env.observation_space.shape == (p + rest,)
        env.reset(seed=0)
        before = env._get_obs()
        env.data.qpos[:p] += 100.0
        assert np.flatnonzero(env._get_obs() != before).tolist() == list(range(p))
        assert evaluate.num_global(env) == evaluate.num_global(env, args) == p


def test_the_papers_values_by_robot():
    values = {"Ant-v4": (2, 2, 512, 5, 6), "Walker2d-v4": (1, 1, 1024, 10, 3)}  # Table 5
    values |= {"Humanoid-v5": (2, 2, 1024, 10, 6), "Hopper-v4": (1, 1, 1024, 10, 3)}
    values |= {"HalfCheetah-v5": (1, 1, 1024, 5, 3), "Pendulum-v1": (2, 0, 1024, 5, 3)}
    for env_id, expected in values.items():
        args, _ = psd_metra.parse_args(["--env-id", env_id])
        found = (args.skill_dim, args.position_dim, args.hidden_units, args.lam_1, args.latent_dim)
        assert found == expected and args.lam_1 == args.lam_2
    assert (args.embed_dim, args.psd_coef, args.lam_m, args.epsilon_m) == (6, 1, 30, 1e-3)
    assert (args.phi_batch_size, args.batch_size, args.epsilon, args.k) == (1024, 256, 1e-5, 0.5)
    assert args.phi_lr == args.sac_lr == args.alpha_lr == 1e-4
    args, _ = psd_metra.parse_args("--env-id Ant-v4 --hidden-units 64 --skill-dim 3".split())
    assert (args.hidden_units, args.skill_dim, args.position_dim) == (64, 3, 2)


def test_the_cpu_preset_is_that_of_psd():
    """But for what is METRA's, the range of L, and r_ext: z says where to go."""
    own, _ = psd_metra.parse_args("--env-id Ant-v4 --preset cpu".split())
    other, _ = psd.parse_args("--env-id Ant-v4 --preset cpu".split())
    differ = {k for k, v in vars(own).items() if k in vars(other) and v != getattr(other, k)}
    own_values = {"num_periods", "embed_dim", "updates_per_epoch", "total_epochs"}
    assert differ == {"ext_coef", "ext_in_turn", *own_values}
    args, _ = psd_metra.parse_args("--env-id Walker2d-v4 --preset cpu --gamma 0.98".split())
    assert (args.gamma, args.action_scale, args.hidden_units, args.skill_dim) == (0.98, 1, 128, 1)


@pytest.mark.parametrize("name, mutual", [("ant_mutual", True), ("ant_independent", False)])
def test_weights_in_results_still_load(name, mutual):
    model = torch.load(REPO / "results/psd_metra" / name / "model.pt", weights_only=True)
    args, _ = psd_metra.parse_args("--env-id Ant-v4 --preset cpu".split())
    args.regularity_coef, args.critic_layer_norm = 0.0, False  # which these runs did not have yet
    for key, value in model["args"].items():
        setattr(args, key, value)
    assert args.mutual_conditioning is mutual
    env = psd_metra.make_env(args)
    agent = psd_metra.Agent(args, env.observation_space.shape[0], env.action_space, "cpu")
    missing, unexpected = agent.load_state_dict(model["agent"], strict=False)
    assert unexpected == []
    own = {"critic", "target_critic", "log_lam", "log_alpha"}
    assert {key.split(".")[0] for key in missing} == own


# ------------------------------------------- The update -------------------------------------------
def slow_mlp(network, x):
    weights = [(m.weight.detach().double().numpy(), m.bias.detach().double().numpy())
               for m in network if hasattr(m, "weight")]  # fmt: skip
    for i, (w, b) in enumerate(weights):
        x = w @ x + b
        x = np.maximum(x, 0) if i < len(weights) - 1 else x
    return x


def test_reward_is_that_of_numpy(monkeypatch):
    flags = "--psd-coef 0.7 --ext-coef 2 --kappa 3"
    args = parse(*flags.split())
    agent, buffer = agent_and_buffer(args)
    seen, real_loss, real_sample = {}, psd_metra.critic_loss, buffer.sample

    def sample(batch_size):
        seen["batch"] = real_sample(batch_size)  # the last one is that of SAC
        return seen["batch"]

    def spy(agent, batch, reward, *rest):
        seen["reward"] = reward.clone()
        return real_loss(agent, batch, reward, *rest)

    monkeypatch.setattr(buffer, "sample", sample)
    monkeypatch.setattr(psd_metra, "critic_loss", spy)
    psd_metra.update(agent, buffer, args)  # rewards are those of the encoders after their steps
    batch = seen["batch"]
    parts = np.zeros((len(seen["reward"]), 3))
    for i in range(len(parts)):
        s, s_next = batch.obs[i].double().numpy(), batch.next_obs[i].double().numpy()
        skill, v = batch.skill[i].double().numpy(), batch.velocity[i].item()
        L, embedded, z = batch.period[i].item(), skill[:D], skill[D:]
        phi = [slow_mlp(agent.phi, np.concatenate([x[P:], embedded, z])) for x in (s, s_next)]
        phi_m = [slow_mlp(agent.phi_m, np.concatenate([x, embedded])) for x in (s, s_next)]
        delta = np.linalg.norm(phi[1] - phi[0]) - L * np.sin(np.pi / (2 * L))
        parts[i, 0] = sum((b - a) * c for a, b, c in zip(*phi_m, z))
        parts[i, 1] = 0.7 * np.exp(-3 * delta**2)
        parts[i, 2] = 2 * min(1, v / args.v_star)
    assert (parts.std(axis=0) > 1e-3).all()  # each of them would be missed
    np.testing.assert_allclose(seen["reward"], parts.sum(axis=1), rtol=1e-4, atol=1e-5)


TERMS = ("--latent-dim", "2", "--turn-coef", "1.5", "--regularity-coef", "2")


@pytest.mark.parametrize("mutual", [True, False])
def test_our_terms_are_those_of_psd(mutual, monkeypatch):
    """turn and regularity of phi_L; the decoder sees z if phi_L does, and never the position."""
    flags = ["--psd-coef", "0.5", "--ext-coef", "2", "--ext-in-turn"]
    args = parse(*TERMS, *flags, *([] if mutual else ["--no-mutual-conditioning"]))
    agent, buffer = agent_and_buffer(args)
    assert agent.decoder[-1].out_features == buffer.obs.shape[1] - P
    seen, real_loss, real_sample = {}, psd_metra.critic_loss, buffer.sample

    def sample(batch_size):
        seen["batch"] = real_sample(batch_size)
        return seen["batch"]

    def spy(agent, batch, reward, *rest):
        seen["reward"] = reward.clone()
        return real_loss(agent, batch, reward, *rest)

    monkeypatch.setattr(buffer, "sample", sample)
    monkeypatch.setattr(psd_metra, "critic_loss", spy)
    metrics = psd_metra.update(agent, buffer, args)
    batch = seen["batch"]
    L, z = batch.period, batch.skill[:, D:]
    condition = batch.skill if mutual else batch.skill[:, :D]
    with torch.no_grad():
        phi_s = agent.phi(batch.obs[:, P:], condition)
        phi_next = agent.phi(batch.next_obs[:, P:], condition)
        decoded = agent.decoder(2 * phi_next / L[:, None], condition)
        seen_by_phi_m = batch.skill[:, :D] if mutual else batch.skill[:, :0]
        phi_m_s = agent.phi_m(batch.obs, seen_by_phi_m)
        phi_m_next = agent.phi_m(batch.next_obs, seen_by_phi_m)
    regular = psd.regularity(decoded, batch.next_obs[:, P:], L)
    r_psd = psd.psd_reward(phi_s, phi_next, L, args.kappa)
    rhythm = psd.turn(phi_s, phi_next, L) * (1.5 + 0.5 * r_psd + 2 * regular)
    r_ext = 2 * (batch.velocity / args.v_star).clamp(max=1)
    expected = ((phi_m_next - phi_m_s) * z).sum(dim=1) + rhythm * (1 + r_ext)
    torch.testing.assert_close(seen["reward"], expected)
    assert rhythm.std() > 0.01 and {"psd/turn", "psd/regularity"} <= metrics.keys()


@pytest.mark.parametrize(
    "flags", [(), ("--skill-dim", "1"), ("--no-mutual-conditioning",), (*TERMS, "--ext-coef", "1")]
)
def test_an_update_changes_what_it_should_and_stays_on_its_device(flags):
    args = parse(*flags)
    agent, buffer = agent_and_buffer(args)
    before = {k: v.clone() for k, v in agent.state_dict().items()}
    with HostCalls() as host:
        metrics = psd_metra.update(agent, buffer, args)
    assert host.calls == [] and all(torch.isfinite(value) for value in metrics.values())
    after = agent.state_dict()
    unchanged = {k for k in before if torch.equal(before[k], after[k])}
    # phi_m counts in differences: the gradient of its last bias is nothing but rounding
    assert unchanged - {"phi_m.4.bias"} == {"actor.action_scale", "actor.action_bias"}
    agent, buffer = agent_and_buffer(args, device="meta")
    with Devices() as devices:
        metrics = psd_metra.update(agent, buffer, args)
    assert {value.device.type for value in metrics.values()} == {"meta"}
    assert [stranger for stranger in devices.strangers if stranger[1] != ()] == []


def test_each_encoder_has_its_own_loss():
    """What an optimiser has is changed by its own step alone."""
    args = parse()
    owned = {"phi": "phi.0.weight", "phi_m": "phi_m.0.weight", "lam": "log_lam"}
    for frozen in owned:
        agent, buffer = agent_and_buffer(args)
        agent.optimizers[frozen].param_groups[0]["lr"] = 0.0
        before = {k: v.clone() for k, v in agent.state_dict().items()}
        psd_metra.update(agent, buffer, args)
        after = agent.state_dict()
        for owner, name in owned.items():
            assert torch.equal(before[name], after[name]) is (owner == frozen)
        assert all(torch.equal(before[k], after[k]) for k in before if k.startswith(f"{frozen}."))


def test_losses_are_those_of_psd_and_of_metra():
    args = parse()
    agent, buffer = agent_and_buffer(args)
    metrics = psd_metra.update(agent, buffer, args)
    assert metrics["metra/lambda"].item() == pytest.approx(30)
    loss = -metrics["metra/objective"] - 30 * metrics["metra/constraint"]
    assert metrics["losses/phi_m_loss"].item() == pytest.approx(loss.item(), abs=1e-5)
    assert metrics["losses/phi_loss"].item() != pytest.approx(loss.item(), abs=1e-3)
    assert "losses/phi_loss" not in psd_metra.update(agent, buffer, args, train_phi=False)


# ------------------------------------------ As a program ------------------------------------------
def run(*flags):
    """A run inside this process; returns what resume.pt holds."""
    psd_metra.main(list(flags))
    resumed = "--resume" in flags
    name = flags[flags.index("--resume" if resumed else "--run-name") + 1]
    return torch.load(f"{'' if resumed else 'runs/'}{name}/resume.pt", weights_only=True)


@pytest.mark.parametrize("extra", [["--normalize-obs"], ["--skill-dim", "1"]])
def test_n_and_n_epochs_are_two_n(extra):
    flags = [*TINY, *MOVING, "--position-dim", "1", *extra]
    whole = run(*flags, "--run-name", "whole", "--total-epochs", "8")
    assert whole["progress"]["bounds"] != (
        5,
        8,
        False,
        False,
    )  # evaluated, with directions of its own
    assert whole["buffer"]["head"] < 8 * 3 * 41
    z = whole["buffer"]["skill"][:, D:]
    L = whole["buffer"]["period"]
    assert torch.equal(whole["buffer"]["skill"][:, :D], psd_metra.embed_period(L, D))
    torch.testing.assert_close(z.norm(dim=1), torch.ones(len(z)))
    assert len(z.unique(dim=0)) == (2 if extra[-1] == "1" else len(z))
    half = run(*flags, "--run-name", "half", "--total-epochs", "4")
    assert not same(whole, half)
    assert same(whole, run("--resume", "runs/half", "--total-epochs", "8"))
    model = torch.load("runs/half/model.pt", weights_only=True)["agent"]
    assert {name.split(".")[0] for name in model} == {"actor", "phi", "phi_m"}
    for flag in ["--skill-dim 3", "--position-dim 0", "--no-mutual-conditioning", "--lam-m 7"]:
        with pytest.raises(SystemExit, match=r"_(dim|conditioning|m) cannot change on --resume"):
            psd_metra.main(["--resume", "runs/half", "--total-epochs", "9", *flag.split()])


def test_an_evaluation_of_the_bounds_leaves_the_training_as_it_was():
    args = parse("--position-dim", "0")
    envs = [psd_metra.make_env(args) for _ in range(5)]
    agent = psd_metra.Agent(args, 3, envs[0].action_space, "cpu")
    progress = {"epoch": 3, "obs_mean": torch.zeros(3), "obs_std": torch.ones(3)}
    before = torch.get_rng_state()
    first = psd_metra.period_return(envs, agent, 6, progress, args)
    assert torch.equal(before, torch.get_rng_state())
    torch.randn(3)
    assert psd_metra.period_return(envs, agent, 6, progress, args) == first


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--env-id Nothing-v0", "cannot make 'Nothing-v0': "),
        ("--skill-dim 0", "--skill-dim cannot be 0"),
        ("--skill-dim 1025", "--skill-dim cannot be 1025: at most 1024"),
        ("--position-dim -1", "--position-dim cannot be -1"),
        ("--env-id Pendulum-v1 --position-dim 3", "--position-dim 3 leaves nothing of 3 obs"),
        ("--lam-m 0", "--lam-m cannot be 0"),
        ("--psd-coef nan", "--psd-coef cannot be nan"),
        ("--L-min 12 --L-max 10", "L_min 12, L_max 10: need 5 <= L_min <= L_max <= 100"),
        ("--env-id Pendulum-v1 --run-name taken", "runs/taken exists: --resume it, or"),
        ("--resume runs/other", "was written by psd.py, not by psd_metra.py"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(flags, message, tmp_path):
    (tmp_path / "runs/taken").mkdir(parents=True)
    (tmp_path / "runs/taken/model.pt").touch()
    (tmp_path / "runs/other").mkdir()
    content = dict.fromkeys("script args progress agent buffer optimizers rng".split())
    torch.save(content | {"script": "psd"}, "runs/other/resume.pt")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as error:
        psd_metra.main(flags.split())
    text = str(error.value.code)
    assert text.startswith("psd_metra.py: error: ") and message in text and "\n" not in text
    assert sorted(tmp_path.rglob("*")) == before


def test_copied_out_alone_it_explains_itself(tmp_path):
    shutil.copy(REPO / "psd_metra.py", tmp_path / "mine.py")
    result = python("mine.py", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for flag in ["--no-mutual-conditioning", "--psd-coef", "--lam-m", "--position-dim"]:
        assert flag in result.stdout
    for name in ["skill_dim", "position_dim", "hidden_units", "turn_coef 1.0"]:
        assert name in result.stdout  # the tables of the presets


def test_logged_keys_are_the_documented_ones_and_robots_train(tmp_path):
    flags = "--env-id Walker2d-v4 --adaptive-interval 3 --total-epochs 3 --run-name a"
    psd_metra.main([*TINY, *TERMS, *flags.split()])
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    logged = EventAccumulator(str(tmp_path / "runs/a")).Reload().Tags()["scalars"]
    logged = {re.sub(r"/L\d+$", "/L", key) for key in logged}
    page = (REPO / "docs/psd_metra.md").read_text()
    documented = re.findall(r"`((?:charts|losses|metra|psd|eval)/[\w/]+)`", page)
    documented = {re.sub(r"/L\d+$", "/L", key) for key in documented}
    assert logged == documented | {f"psd/{name}/L" for name in ["one_step", "L_step", "radius"]}


def test_documented_functions_exist_and_commands_parse():
    page = REPO / "docs/psd_metra.md"
    table = page.read_text().split("## Equation → function")[1].split("##")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) >= 12
    for name in names:
        assert callable(getattr(psd_metra, name)), name
    lines = commands(page, "psd_metra.py")
    assert any("--no-mutual-conditioning" in line for line in lines)
    for line in lines:
        if "--resume" not in line:
            assert psd_metra.parse_args(shlex.split(line)[2:])[0].env_id
    source = (REPO / "psd_metra.py").read_text()
    found = re.findall(r'^def (\w+)\(.*\):\n    """Eq\. \((\d+)\)', source, re.MULTILINE)
    assert {number for _, number in found} == {"4", "5", "6", "7", "8", "9", "11", "12"}
    assert all(name in psd_metra.__doc__ for name, _ in found)


# ------------------------------------ evaluate.py and plot.py -------------------------------------
def make_run(folder, env_id, **changes):
    """A run folder as psd_metra.py saves it, without the training."""
    flags = ["--env-id", env_id, "--episode-length", "40", "--hidden-units", "16"]
    args = dataclasses.replace(psd_metra.parse_args(flags)[0], L_min=5, L_max=8, **changes)
    env = psd_metra.make_env(args)
    torch.manual_seed(3)
    agent = psd_metra.Agent(args, env.observation_space.shape[0], env.action_space, "cpu")
    progress = {"epoch": 7, "global_step": 560, "bounds": (5, 8, False, False)}
    progress |= psd_metra.observation_statistics(env, args)
    folder.mkdir(parents=True)
    psd_metra.save_checkpoint(folder, args, progress, agent, SimpleNamespace(rows=torch.zeros(1)))
    return folder


@pytest.fixture(scope="module", autouse=True)
def few_random_steps():
    """Statistics of 300 random actions instead of 10,000: enough here, and faster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psd_metra.observation_statistics, "__defaults__", (300,))
        yield


@pytest.mark.parametrize("env_id, turns", [("Ant-v4", 8), ("HalfCheetah-v4", 2)])
def test_the_judge_takes_a_grid_of_z_and_L(env_id, turns, tmp_path, capsys, monkeypatch):
    run = make_run(tmp_path / "run", env_id, normalize_obs=True)
    script, seen, real = evaluate.import_script("psd_metra"), [], psd_metra.rollout
    assert script is psd_metra

    def spy(envs, key, agent, skill, progress, deterministic):
        seen.append((skill, real(envs, key, agent, skill, progress, deterministic)))
        return seen[-1][1]

    monkeypatch.setattr(psd_metra, "rollout", spy)
    text = run_main(capsys, run, "--episodes", 2, "--periods", 5, 8)
    first = (run / "evaluation.json").read_bytes()
    result = json.loads(first)
    rows, p = result["skills"], 2 if turns == 8 else 1
    assert [row["L"] for row in rows] == [5] * turns + [8] * turns and len(seen) == 2 * turns + 1
    z = np.array([row["z"] for row in rows])
    assert z.shape == (2 * turns, p) and np.allclose(np.linalg.norm(z, axis=1), 1, atol=1e-3)
    assert len({tuple(v) for v in z[:turns].tolist()}) == turns and (z[:turns] == z[turns:]).all()
    progress = torch.load(run / "model.pt", weights_only=True)["progress"]
    mean, std = progress["obs_mean"].numpy()[:p], progress["obs_std"].numpy()[:p]
    for row, (skill, episodes) in zip(rows, seen):
        expected = psd_metra.embed_period(torch.tensor(float(row["L"])), D)
        assert skill.shape == (2, D + p) and torch.equal(skill[0, :D], expected)
        assert skill[1, D:].tolist() == pytest.approx(row["z"], abs=1e-3)
        ways = [(e.obs[:41, :p] * std + mean)[[0, -1]] for e in episodes]  # in metres, T steps
        ways = np.array([b - a for a, b in ways])
        assert row["displacement"] == pytest.approx(ways.mean(axis=0), rel=1e-2, abs=1e-4)
        assert row["distance"] == pytest.approx(np.linalg.norm(ways, axis=1).mean(), rel=1e-2)
        path = np.array(row["path"])
        assert path.shape[0] == p and (path[:, 0] == 0).all()
        assert path[:, -1] == pytest.approx(ways[row["episode"]], rel=1e-2, abs=1e-4)
    for L in (5, 8):
        own = [row for row in rows if row["L"] == L]
        errors = evaluate.direction_errors([r["displacement"] for r in own], [r["z"] for r in own])
        assert [r["direction_error"] for r in own] == pytest.approx(errors, rel=1e-2, abs=0.1)
    travel = result["summary"]["travel"]
    assert travel["direction_error"] == max(row["direction_error"] for row in rows)
    assert travel["distance"] == pytest.approx(np.mean([row["distance"] for row in rows]), rel=1e-2)
    assert len(seen[-1][0]) == 1 and len(result["switch"]["segments"]) >= 1
    assert "distance" in text and text.count(" deg") >= 2 * turns
    documented = (REPO / "docs" / "evaluation_json.md").read_text()
    assert [f for f in sorted(keys_of(result)) if f"`{f}`" not in documented] == []
    if turns == 2:  # the same seed, the same file
        run_main(capsys, run, "--episodes", 2, "--periods", 5, 8)
        assert (run / "evaluation.json").read_bytes() == first


def test_without_a_position_there_is_no_direction_and_the_trained_L_are_taken(tmp_path, capsys):
    run = make_run(tmp_path / "run", "Pendulum-v1")
    run_main(capsys, run, "--episodes", 1)
    result = json.loads((run / "evaluation.json").read_text())
    assert [row["L"] for row in result["skills"][::8]] == [5, 6, 7, 8]
    assert {row["distance"] for row in result["skills"]} == {None}
    assert result["summary"]["travel"] == {
        "distance": None,
        "direction_error": None,
        "common": None,
    }
    with pytest.raises(SystemExit, match="fig8 is about z and L .* or no position"):
        plot.main(["fig8", str(run)])
    plot.main(["fig10", str(run), "--out", str(tmp_path / "a.png")])  # of the first z


def test_direction_errors_by_hand():
    angle = np.arange(8) * np.pi / 4
    z = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    turn = np.array([[np.cos(1.0), -np.sin(1.0)], [np.sin(1.0), np.cos(1.0)]])
    for change in (turn, turn @ np.diag([1, -1])):  # rotated, and mirrored
        ways = z @ change.T * np.arange(1, 9)[:, None]
        assert evaluate.direction_errors(ways, z) == pytest.approx([0] * 8, abs=1e-4)
        ways[3] = [[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]] @ ways[3]
        errors = evaluate.direction_errors(ways, z)  # one of eight is off by 28.6 degrees
        assert np.argmax(errors) == 3 and 22 < errors[3] < 28.7 and errors[0] < 6
    same_way = np.tile([[1.0, 0.0]], (8, 1))  # a policy that does not look at z
    assert max(evaluate.direction_errors(same_way, z)) > 90
    assert evaluate.direction_errors([[-2.0], [3.0]], [[1.0], [-1.0]]) == pytest.approx([0, 0])
    assert evaluate.direction_errors([[2.0], [3.0]], [[1.0], [-1.0]]) in ([0, 180], [180, 0])
    assert evaluate.direction_errors([[0.0, 0.0], [1.0, 0.0]], [[0, 1.0], [1.0, 0]])[0] is None


@pytest.fixture(scope="module")
def grid_runs(tmp_path_factory):
    """The committed sample as if it were a grid, in the plane and on a line; four L, three z."""
    folders = []
    for p in (2, 1):
        result = json.loads(SAMPLE.read_text())
        trained, rows = [row for row in result["skills"] if row["trained"]], []
        for i, z in enumerate([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]):
            for row in trained:
                path = [[row["L"] * c * t / 100 for t in range(101)] for c in z[:p]]
                rows.append({**row, "z": z[:p], "path": path, "distance": 3.0 + i})
        travel = {"distance": 4.0, "direction_error": 12.0, "common": 20.0}
        result = {**result, "skills": rows, "summary": {**result["summary"], "travel": travel}}
        result |= {"script": "psd_metra", "args": {**result["args"], "mutual_conditioning": p > 1}}
        folders.append(tmp_path_factory.mktemp("grid"))
        (folders[-1] / "evaluation.json").write_text(json.dumps(result))
    return folders


def test_figure_8_shows_paths_and_spectra_coloured_by_L(grid_runs, tmp_path):
    with plt.rc_context(plot.STYLE):
        figure = plot.fig8([plot.read_run(run) for run in grid_runs])
        figure.savefig(tmp_path / "figure.png", dpi=100)
        figure.set_dpi(100)
        pixels = plt.imread(tmp_path / "figure.png")[..., :3]
        for ax in figure.axes:
            box = ax.get_window_extent()
            inside = pixels[len(pixels) - int(box.y1) : len(pixels) - int(box.y0)]
            assert coloured(inside[:, int(box.x0) : int(box.x1)]) > 10
        plane, _, line, spectra = figure.axes
        rows = json.loads((grid_runs[1] / "evaluation.json").read_text())["skills"]
        shades = plot.colours(rows)
        ends = {tuple(np.ravel(dot.get_data())): dot.get_color() for dot in plane.lines[1::2]}
        assert len(plane.lines) == 2 * len(rows)
        for L in {row["L"] for row in rows}:
            for end in [(L, 0), (0, L), (-L, 0)]:
                assert ends[end] == shades[L]
        assert np.allclose(line.lines[0].get_xdata(), np.arange(101))  # x over time
        assert np.allclose(line.lines[0].get_ydata(), rows[0]["path"][0])
        assert np.allclose(spectra.lines[0].get_ydata(), rows[0]["spectrum"])
        shown = texts(figure)
        plt.close(figure)
    labels = ["x [m]", "y [m]", "frequency [1/step]", "L = 18: period", "12° off z", "4.0 m"]
    for label in [*labels, "PSD + METRA\n", "PSD + METRA + independent encoders"]:
        assert label in shown


def test_other_figures_of_a_grid_show_its_first_z(grid_runs, tmp_path):
    run = plot.one_direction(plot.read_run(grid_runs[0]))
    assert [row["z"] for row in run.result["skills"]] == [[1.0, 0.0]] * len(run.result["skills"])
    assert len({row["L"] for row in run.result["skills"]}) == len(run.result["skills"])
    for name in ["fig1", "fig6", "demo"]:
        plot.main([name, str(grid_runs[0]), "--out", str(tmp_path / f"{name}.png")])
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    plot.main(["report", str(grid_runs[0]), "--out", str(tmp_path / "a.html")])
    page = (tmp_path / "a.html").read_text()
    assert "Figure 8" in page and page.count("z +0.00 +1.00") == len(run.result["skills"])
    with pytest.raises(SystemExit, match="fig8 is about z and L of psd_metra.py"):
        plot.main(["fig8", str(SAMPLE), "--out", str(tmp_path / "b.png")])


# -------------------------------------------- Learning --------------------------------------------
class Bobbing(gym.Env):
    """A point mass that drifts in the plane while it bobs up and down: it is told where to go, and
    how fast to bob, eleven steps a cycle or slower. It sees position, phase and rate."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def observe(self):
        local = [np.cos(self.phase), np.sin(self.phase), self.rate]
        return np.array([*self.position, *local], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.05, 0.05, 2)
        self.phase, self.rate = self.np_random.uniform(0, 2 * np.pi), 0.0
        return self.observe(), {}

    def step(self, action):
        self.rate = (1 + action[2]) / 2
        self.phase += 2 * np.pi / 11 * self.rate
        self.position = self.position + 0.1 * action[:2]
        return self.observe(), 0.0, False, False, {}


gym.register("TestBobbing-v0", lambda **kwargs: Bobbing())
BOBBING = """--env-id TestBobbing-v0 --run-name learned --total-epochs 120 --position-dim 2
    --L-min 6 --L-max 12 --num-periods 3 --no-adaptive-sampling --episode-length 60 --latent-dim 2
    --lam-2 2 --hidden-units 64 --phi-batch-size 128 --batch-size 128 --gamma 0.9
    --phi-lr 1e-3 --sac-lr 1e-3 --alpha-lr 1e-2 --updates-per-epoch 32 --buffer-size 20000"""


def test_direction_follows_z_and_period_follows_L():
    """Over a grid of both. Which way phi_m's axes lie is free, but the same for all L here."""
    checkpoint = run(*BOBBING.split())
    args, progress = psd_metra.Args(**checkpoint["args"]), checkpoint["progress"]
    agent = psd_metra.Agent(args, 5, Bobbing.action_space, "cpu")
    agent.load_state_dict(checkpoint["agent"])
    z, ways, periods = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]]), [], {}
    for L in (6, 9, 12):
        embedded = psd_metra.embed_period(torch.full((4,), float(L)), args.embed_dim)
        envs = [psd_metra.make_env(args, max_steps=200) for _ in z]
        skill = torch.cat([embedded, z], dim=1)
        episodes = psd_metra.rollout(envs, (99,), agent, skill, progress, deterministic=True)
        ways += [episode.obs[60, :2] - episode.obs[0, :2] for episode in episodes]
        periods[L] = [evaluate.state_period(episode.obs[50:, 2:])[0] for episode in episodes]
    print(periods, evaluate.direction_errors(ways, z.repeat(3, 1)))
    assert np.linalg.norm(ways, axis=1).min() > 4.0  # of 6 to 8.5, by direction
    assert max(evaluate.direction_errors(ways, z.repeat(3, 1))) <= 30
    for L, found in periods.items():
        assert None not in found and found == pytest.approx([2 * L] * 4, rel=0.15)
