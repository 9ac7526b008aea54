"""The baselines as programs: command line, resume to the same bits, logs, docs, and learning."""

import re
import shlex
import shutil
import signal

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import REPO
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_baselines import SCRIPTS, TINY, by_script
from test_cli import commands, python
from test_resume import differences, same

from baselines import csd, dads, diayn, metra


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(script, *flags):
    """A run inside this process; returns what resume.pt holds."""
    script.main(list(flags))
    resumed = "--resume" in flags
    name = flags[flags.index("--resume" if resumed else "--run-name") + 1]
    return torch.load(f"{'' if resumed else 'runs/'}{name}/resume.pt", weights_only=True)


# ------------------------------------------ Command line ------------------------------------------
@by_script
def test_a_script_copied_out_alone_explains_itself(script, tmp_path):
    shutil.copy(script.__file__, tmp_path / "mine.py")
    result = python("mine.py", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for flag in ["--env-id", "--num-skills", "--ext-coef", "--resume", "--no-normalize-obs"]:
        assert flag in result.stdout
    text = " ".join(result.stdout.split())
    assert "Walker2d episode_length 400, v_star 1.0, num_skills 16" in text
    assert "--preset cpu, for every robot: normalize_obs True, hidden_units 256, " in text
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.py"]


BAD_INPUT = {
    "--env-id Nothing-v0": "cannot make 'Nothing-v0': ",
    "--env-id CartPole-v1": "CartPole-v1 has actions Discrete(2)",
    "--num-skills -1": "--num-skills cannot be -1",
    "--batch-size 0": "--batch-size cannot be 0",
    "--batch-size 500001": "must hold a batch and an epoch's episodes: 500001 or more",
    "--sac-lr inf": "--sac-lr cannot be inf",
    "--env-id Pendulum-v1 --ext-coef 1": "Pendulum-v1 reports no x_velocity",
    "--env-id HalfCheetah-v4 --no-terminate": "HalfCheetah-v4 cannot switch its termination off",
    "--env-id Pendulum-v1 --run-name taken": "runs/taken exists: --resume it, or",
    "--env-id Pendulum-v1 --run-name ../x": "--run-name '../x' leads out of runs/",
    "--gamma 1.5": "--gamma cannot be 1.5: at most 1",
    "--hidden-units 10000000": "--hidden-units cannot be 10000000: at most",
    "--num-skills 1000000": "--num-skills cannot be 1000000: at most",
    "--resume runs/none": "runs/none/resume.pt is missing",
}
OWN_BAD_INPUT = {
    "metra": {"--lam 0": "--lam cannot be 0", "--phi-batch-size 600000": "600000 or more"},
    "csd": {"--lam -1": "--lam cannot be -1", "--reward-scale 0": "--reward-scale cannot be 0"},
    "diayn": {
        "--num-skills 0": "--num-skills cannot be 0",
        "--discriminator-batch-size 600000": "600000 or more",
    },
    "dads": {
        "--prior-samples 0": "--prior-samples cannot be 0",
        "--prior-samples 1000000": "--prior-samples cannot be 1000000: at most",
        "--dynamics-batch-size 600000": "600000 or more",
    },
}


@by_script
def test_bad_input_ends_in_one_line_and_writes_nothing(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script.observation_statistics, "__defaults__", (50,))  # enough to fail in
    (tmp_path / "runs/taken").mkdir(parents=True)
    (tmp_path / "runs/taken/model.pt").write_text("somebody's")
    for flags, message in (BAD_INPUT | OWN_BAD_INPUT[script.SCRIPT]).items():
        with pytest.raises(SystemExit) as error:
            script.main(flags.split())
        text = str(error.value.code)
        assert text.startswith(f"{script.SCRIPT}.py: error: ") and "\n" not in text
        assert message in text
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["model.pt", "runs", "taken"]
    assert (tmp_path / "runs/taken/model.pt").read_text() == "somebody's"


# --------------------------------------------- Resume ---------------------------------------------
@by_script
def test_n_and_n_epochs_are_two_n(script, tmp_path):
    """With the prior that the paper gives Ant (continuous, if the method has that)."""
    num_skills = script.ROBOTS["Ant"][2]
    flags = [*TINY, "--num-skills", str(num_skills), "--normalize-obs"]
    whole = run(script, *flags, "--run-name", "whole", "--total-epochs", "6")
    assert whole["buffer"]["head"] < 6 * 3 * 41  # the ring has wrapped
    half = run(script, *flags, "--run-name", "half", "--total-epochs", "3")
    assert not same(whole, half)
    both = run(script, "--resume", "runs/half", "--total-epochs", "6")
    assert same(whole, both)
    model = torch.load(tmp_path / "runs/half/model.pt", weights_only=True)
    for name in ("obs_mean", "obs_std"):
        assert torch.equal(model["progress"][name], whole["progress"][name])
    assert not torch.equal(model["progress"]["obs_std"], torch.ones(3))
    other = "metra" if script is not metra else "csd"
    refused = {
        "--total-epochs 9 --num-skills 5": f"num_skills cannot change .* it was {num_skills}",
        "--total-epochs 6": "has finished its 6 epochs: raise --total-epochs",
    }
    for flags, message in refused.items():
        with pytest.raises(SystemExit, match=message):
            script.main(["--resume", "runs/half", *flags.split()])
    no_mean = {k: v for k, v in both["progress"].items() if k != "obs_mean"}
    spoilt = {
        f"was written by {other}.py, not by {script.SCRIPT}.py": {"script": other},
        "is damaged: optimizers is missing or not a dict": {"optimizers": None},
        "is damaged: obs_mean is missing or not a Tensor": {"progress": no_mean},
    }
    for message, part in spoilt.items():
        torch.save({**both, **part}, tmp_path / "runs/half/resume.pt")
        with pytest.raises(SystemExit, match=message):
            script.main(["--resume", "runs/half", "--total-epochs", "9"])
    assert "/agent/actor.net.0.weight" in differences(whole, half)


@by_script
def test_what_is_not_finite_stops_the_run_unsaved(script, tmp_path):
    with pytest.raises(SystemExit, match="epoch [01]: .*; not saved, last good checkpoint: none"):
        script.main([*TINY, "--run-name", "a", "--sac-lr", "1e18"])
    assert not (tmp_path / "runs/a/resume.pt").exists()


# ------------------------------------------- Logs, docs -------------------------------------------
@by_script
def test_logged_keys_are_the_documented_ones_and_robots_train(script, tmp_path):
    flags = "--env-id Hopper-v4 --ext-coef 1 --total-epochs 2 --run-name a"
    script.main([*TINY, *flags.split()])
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    names = {p.name.split(".")[0] for p in (tmp_path / "runs/a").iterdir()}
    assert names == {"events", "lock", "model", "resume"}
    logged = EventAccumulator(str(tmp_path / "runs/a")).Reload().Tags()["scalars"]
    page = (REPO / f"docs/{script.SCRIPT}.md").read_text()
    documented = re.findall(r"`((?:charts|losses|metra|csd|diayn|dads)/[\w/]+)`", page)
    assert set(logged) == set(documented)


@by_script
def test_documented_functions_exist_and_commands_parse(script):
    page = (REPO / f"docs/{script.SCRIPT}.md").read_text()
    table = page.split("## Equation → function")[1].split("##")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) >= 5
    for name in names:
        assert callable(getattr(script, name)), name
    lines = commands(REPO / f"docs/{script.SCRIPT}.md", f"baselines/{script.SCRIPT}.py")
    assert any("Ant-v4 --cuda" in line for line in lines)
    for line in lines:
        if "--resume" not in line:
            assert script.parse_args(shlex.split(line)[2:])[0].env_id


# -------------------------------------------- Learning --------------------------------------------
class PointMass(gym.Env):
    """A point in the plane, or in a room, that moves by what it is told."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, reach=(0.1, 0.1), wall=np.inf):
        self.reach, self.wall = np.array(reach), wall

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.05, 0.05, 2)
        return self.position.astype(np.float32), {}

    def step(self, action):
        before = self.position
        self.position = np.clip(before + self.reach * action, -self.wall, self.wall)
        info = {"x_velocity": self.position[0] - before[0]}
        return self.position.astype(np.float32), 0.0, False, False, info


gym.register("TestPlane-v0", lambda **kwargs: PointMass())
gym.register("TestRoom-v0", lambda **kwargs: PointMass(wall=1.0))
gym.register("TestHardY-v0", lambda **kwargs: PointMass(reach=(0.1, 0.01)))  # y hardly obeys
SMALL = """--run-name learned --hidden-units 64 --episode-length 20 --batch-size 128 --sac-lr 1e-3
    --alpha-lr 1e-2 --gamma 0.9 --updates-per-epoch 32 --buffer-size 5000""".split()


def learn(script, flags):
    """The agent after a run, its arguments and its progress."""
    checkpoint = run(script, *SMALL, *flags.split())
    args = script.Args(**checkpoint["args"])
    agent = script.Agent(args, 2, PointMass.action_space, "cpu")
    agent.load_state_dict(checkpoint["agent"])
    return agent, args, checkpoint["progress"]


def roll_out(script, agent, args, progress, skills, deterministic=True):
    """The positions of one episode per skill, (skills, T + 1, 2), as the agent sees them."""
    envs = [script.make_env(args) for _ in skills]
    episodes = script.rollout(envs, (99,), agent, skills, progress, deterministic)
    return torch.tensor(np.array([episode.obs for episode in episodes]))


def test_phi_of_metra_becomes_the_position_and_skills_reach_all_sides():
    flags = "--env-id TestPlane-v0 --num-skills 0 --phi-lr 1e-3 --lam-lr 1e-3 --total-epochs 50"
    agent, args, progress = learn(metra, flags)
    angle = torch.arange(16) * 2 * torch.pi / 16
    directions = torch.stack([angle.cos(), angle.sin()], dim=1)
    obs = roll_out(metra, agent, args, progress, directions)
    phi = agent.phi(obs).detach().flatten(0, 1).numpy()
    x = obs.flatten(0, 1).numpy()
    x, phi = x - x.mean(axis=0), phi - phi.mean(axis=0)
    # Up to rotation, reflection and one scale: Procrustes
    u, s, vt = np.linalg.svd(x.T @ phi)
    error = ((phi - x @ (u @ vt) * s.sum() / (x**2).sum()) ** 2).sum()
    assert 1 - error / (phi**2).sum() >= 0.95
    # At most 2 m away in each direction
    ends = obs[:, -1] * progress["obs_std"] + progress["obs_mean"]
    assert ends.norm(dim=1).min() > 1.5
    corner = (ends > 0).long() @ torch.tensor([1, 2])
    assert set(corner.tolist()) == {0, 1, 2, 3}
    travelled = agent.phi(obs[:, -1]) - agent.phi(obs[:, 0])
    cosine = torch.cosine_similarity(travelled, directions)
    assert cosine.min() > 0.7  # each goes where its z points
    assert ((agent.phi(obs[:, 1:]) - agent.phi(obs[:, :-1])).norm(dim=-1) < 1.15).all()


def mean_reward(script, agent, args, obs, skills):
    rewards = [
        script.intrinsic_reward(agent, x[:-1], x[1:], z.expand(len(x) - 1, -1), args)
        for x, z in zip(obs, skills)
    ]
    return torch.stack(rewards).mean().item()


def test_diayn_tells_eight_skills_apart():
    flags = "--env-id TestRoom-v0 --num-skills 8 --discriminator-lr 1e-3 --total-epochs 50"
    agent, args, progress = learn(diayn, flags)
    obs = roll_out(diayn, agent, args, progress, torch.eye(8))
    guess = agent.discriminator(obs[:, 1:]).argmax(dim=-1)  # (8, T)
    assert (guess == torch.arange(8)[:, None]).float().mean() >= 0.8
    assert mean_reward(diayn, agent, args, obs, torch.eye(8)) >= 0.8 * np.log(8)


def test_dads_foresees_what_each_skill_does():
    """Two skills: with a std of 1, in units of the std over all skills, more of them overlap in two
    dimensions (docs/dads.md)."""
    flags = "--env-id TestRoom-v0 --num-skills 2 --dynamics-lr 1e-3 --total-epochs 50"
    agent, args, progress = learn(dads, flags)
    obs = roll_out(dads, agent, args, progress, torch.eye(2))
    assert mean_reward(dads, agent, args, obs, torch.eye(2)) >= 0.8 * np.log(2)


def test_csd_finds_what_is_hard_to_control_far_away():
    """A centimetre in y, where the point moves a tenth as fast, is longer than one in x."""
    flags = """--env-id TestHardY-v0 --num-skills 4 --phi-lr 1e-3 --distance-lr 1e-3
        --no-normalize-obs --total-epochs 30"""
    agent, args, progress = learn(csd, flags)
    obs = roll_out(csd, agent, args, progress, torch.eye(4)).flatten(0, 1)
    mean, log_std = csd.step_model(agent.distance(obs))
    x, y = (csd.csd_distance(mean + 0.01 * e, mean, log_std).mean() for e in torch.eye(2))
    assert y > 4 * x


def test_diayn_with_one_skill_is_sac_on_r_ext():
    """The point is paid for going right, and does."""
    flags = "--env-id TestPlane-v0 --num-skills 1 --ext-coef 1 --v-star 0.1 --total-epochs 12"
    agent, args, progress = learn(diayn, flags)
    obs = roll_out(diayn, agent, args, progress, torch.ones(4, 1))
    assert obs[:, -1, 0].min() > 1.6  # of 2, in 20 steps


def test_documents_are_about_these_scripts():
    readme = (REPO / "README.md").read_text()
    for name in SCRIPTS:
        assert f"baselines/{name}.py" in readme and f"docs/{name}.md" in readme
