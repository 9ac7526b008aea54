"""The command line: help, README commands, the robots' table, and bad input in one line."""

import re
import shlex
import shutil
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
import tyro
from conftest import REPO, TINY

import evaluate
import plot
import psd

sys.path.insert(0, str(REPO / "benchmark"))
import speed  # noqa: E402


def python(*command, cwd):
    command = [sys.executable, *command]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_a_script_copied_out_alone_explains_itself(tmp_path):
    shutil.copy(REPO / "psd.py", tmp_path / "my_psd.py")
    result = python("my_psd.py", "--help", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for flag in ["--env-id", "--cuda", "--L-min", "--no-adaptive-sampling", "--resume", "--lam-2"]:
        assert flag in result.stdout
    for row in [
        "Walker2d episode_length 400, lam_1 10.0, lam_2 10.0, latent_dim 3, v_star 1.0, first_L 25",
        "any other episode_length 200, lam_1 5.0,",
        "Ant frame_skip 3, gamma 0.97, ext_coef 2.0,",
    ]:
        assert row in " ".join(result.stdout.split())
    assert list(tmp_path.iterdir()) == [tmp_path / "my_psd.py"]


def commands(path, script="psd.py"):
    """Every line of a code block that runs a script, line ends joined, comments cut off."""
    blocks = re.findall(r"```\w*\n(.*?)```", path.read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines = [line.split(" #")[0].strip() for line in lines]
    return [line for line in lines if line.startswith(f"python {script}")]


PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]


@pytest.mark.parametrize("line", sorted({line for page in PAGES for line in commands(page)}))
def test_documented_commands_parse(line, monkeypatch):
    progress = {"epoch": 0, "bounds": (10, 10, False, False)}
    monkeypatch.setattr(psd, "load_checkpoint", lambda path: {"args": {}, "progress": progress})
    monkeypatch.setattr(psd, "FIXED_ON_RESUME", [])
    if "--help" in line:
        with pytest.raises(SystemExit, match="0"):
            psd.parse_args(["--help"])
        return
    if "--resume" in line:
        line += " --L-min 10 --L-max 10 --episode-length 200 --lam-1 5 --lam-2 5"
    args, _ = psd.parse_args(shlex.split(line)[2:])
    assert args.env_id


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_of_the_tools_parse(page):
    for line in commands(page, "evaluate.py"):
        if "--help" not in line:
            assert tyro.cli(evaluate.Args, args=shlex.split(line)[2:]).run
    for line in commands(page, "plot.py"):
        assert shlex.split(line)[2] in [*plot.FIGURES, "report", "table1", "--help"], line
    for line in commands(page, "benchmark/speed.py"):
        assert set(tyro.cli(speed.Args, args=shlex.split(line)[2:]).only) <= set(speed.PARTS)


def test_readme_and_docs_have_commands():
    assert commands(REPO / "README.md", "evaluate.py") and commands(REPO / "README.md", "plot.py")
    assert commands(REPO / "README.md") and commands(REPO / "docs/psd.md")


@pytest.mark.parametrize("version", ["v4", "v5"])
@pytest.mark.parametrize(
    "robot, T, lam, d, v_star, L, obs_dim",
    [
        ("Ant", 200, 5, 6, 0.5, 10, {27}),
        ("HalfCheetah", 200, 5, 3, 0.5, 10, {17}),
        ("Humanoid", 400, 10, 6, 1.0, 25, {376, 348}),
        ("Hopper", 400, 10, 3, 1.0, 25, {11}),
        ("Walker2d", 400, 10, 3, 1.0, 25, {17}),
    ],
)
def test_the_papers_values_by_robot(version, robot, T, lam, d, v_star, L, obs_dim):
    args, _ = psd.parse_args(["--env-id", f"{robot}-{version}"])
    assert (args.episode_length, args.lam_1, args.lam_2) == (T, lam, lam)
    assert (args.latent_dim, args.v_star, args.L_min, args.L_max) == (d, v_star, L, L)
    env = psd.make_env(args)
    assert env.observation_space.shape[0] in obs_dim
    assert env.spec.max_episode_steps == T


def test_defaults_are_the_papers_table_2():
    args = psd.Args()
    assert args.phi_lr == args.sac_lr == args.alpha_lr == 1e-4
    assert (args.gamma, args.tau, args.buffer_size) == (0.99, pytest.approx(1 - 0.995), 500_000)
    assert (args.episodes_per_epoch, args.updates_per_epoch) == (8, 64)
    assert (args.phi_batch_size, args.batch_size) == (1024, 256)
    assert (args.embed_dim, args.kappa, args.epsilon, args.k) == (8, 10, 1e-5, 0.5)
    assert (args.hidden_layers, args.hidden_units, args.num_periods) == (2, 1024, 4)
    assert (args.adaptive_step, args.adaptive_interval, args.adaptive_episodes) == (1, 2000, 5)
    assert (args.adaptive_alpha, args.adaptive_beta, args.ext_coef) == (0.9, 0.4, 0.0)
    assert args.total_epochs * args.episodes_per_epoch == 320_000  # the authors' Figure 9


def test_a_flag_wins_over_the_robots_value():
    argv = "--env-id Humanoid-v5 --lam-2 2 --latent-dim 4 --L-max 30".split()
    args, _ = psd.parse_args(argv)
    assert (args.lam_1, args.lam_2, args.latent_dim) == (10, 2, 4)
    assert (args.L_min, args.L_max) == (25, 30)
    args, _ = psd.parse_args("--env-id Ant-v4 --L-min 15".split())  # above the robot's first L
    assert (args.L_min, args.L_max) == (15, 15)


class Images(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))


class Unbounded(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))


class NoActions(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space = gym.spaces.Box(-1.0, 1.0, (0,))


class Doubles(gym.Env):
    """Actions of float64, and an observation that may be nan."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
    nan_at = None

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        obs = self.np_random.normal(size=3).astype(np.float32)
        return np.float32(obs * np.nan) if self.t == self.nan_at else obs, 0.0, False, False, {}


class Integers(Doubles):
    action_space = gym.spaces.Box(0, 3, (2,), np.int64)


gym.register("TestNoActions-v0", lambda **kwargs: NoActions())
gym.register("TestDoubles-v0", lambda **kwargs: Doubles())
gym.register("TestIntegers-v0", lambda **kwargs: Integers())
gym.register("TestImages-v0", lambda **kwargs: Images())
gym.register("TestUnbounded-v0", lambda **kwargs: Unbounded())


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--env-id Nothing-v0", "cannot make 'Nothing-v0': "),
        ("--env-id Ant-v2", "cannot make 'Ant-v2': "),
        ("--env-id no_such_module:Thing-v0", "cannot make 'no_such_module:Thing-v0': "),
        ("--env-id CartPole-v1", "CartPole-v1 has actions Discrete(2)"),
        ("--env-id TestImages-v0", "TestImages-v0 has observations Box(0, 255, (8, 8, 3)"),
        ("--env-id TestUnbounded-v0", "psd.py needs bounded floats"),
        ("--env-id Ant-v4 --end-when-fallen", "--end-when-fallen is for HalfCheetah, not Ant-v4"),
        ("--env-id Pendulum-v1 --frame-skip 2", "--frame-skip is for MuJoCo robots"),
        ("--env-id Hopper-v4 --frame-skip 0", "--frame-skip cannot be 0"),
        ("--turn-coef 1 --latent-dim 3", "turn needs --latent-dim 2, not 3"),
        ("--adaptive-gate turn --latent-dim 3", "turn needs --latent-dim 2, not 3"),
        ("--regularity-coef 1 --latent-dim 2", "set --turn-coef, or leave turn out"),
        ("--ext-in-turn --ext-coef 1 --latent-dim 2", "set --turn-coef, or leave turn out"),
        (
            "--turn-coef 1 --regularity-coef 1 --latent-dim 2 --batch-size 1",
            "--regularity-coef needs batches of 2 or more",
        ),
        ("--psd-coef 0", "every coefficient of the reward is 0"),
        (
            "--env-id HalfCheetah-v4 --no-terminate",
            "HalfCheetah-v4 cannot switch its termination off",
        ),
        ("--env-id Pendulum-v1 --no-terminate", "Pendulum-v1 cannot switch its termination off"),
        ("--L-min 12 --L-max 10", "L_min 12, L_max 10: need 5 <= L_min <= L_max <= 100"),
        ("--L-min 0", "--L-min cannot be 0"),
        ("--L-min -3", "--L-min cannot be -3"),
        ("--L-min 4", "need 5 <= L_min"),
        ("--L-max 101", "<= L_max <= 100"),
        ("--no-adaptive-sampling --L-max 201", "<= L_max <= 200"),
        ("--batch-size 0", "--batch-size cannot be 0"),
        ("--phi-batch-size -5", "--phi-batch-size cannot be -5"),
        (
            "--batch-size 500001",
            "--buffer-size must hold a batch and an epoch's episodes: 500001 or more",
        ),
        (
            "--buffer-size 1024",
            "--buffer-size must hold a batch and an epoch's episodes: 1600 or more",
        ),
        ("--seed -1", "--seed cannot be -1"),
        ("--seed 99999999999999999999", "--seed cannot be 99999999999999999999"),
        ("--sac-lr inf", "--sac-lr cannot be inf"),
        ("--env-id TestIntegers-v0", "TestIntegers-v0 has actions Box(0, 3, (2,), int64)"),
        ("--sac-lr 0", "--sac-lr cannot be 0"),
        ("--kappa nan", "--kappa cannot be nan"),
        ("--env-id Pendulum-v1 --ext-coef 1", "Pendulum-v1 reports no x_velocity"),
        ("--env-id Pendulum-v1 --run-name taken", "runs/taken exists: --resume it, or"),
        ("--num-periods 1", "--num-periods is 2 or more; for a single L set --L-min and --L-max"),
        ("--adaptive-beta 0.9", "--adaptive-alpha has to be above --adaptive-beta"),
        ("--gamma 1.5", "--gamma cannot be 1.5: at most 1"),
        ("--tau 2", "--tau cannot be 2.0: at most 1"),
        ("--hidden-units 10000000", "--hidden-units cannot be 10000000: at most"),
        ("--hidden-layers 100000", "--hidden-layers cannot be 100000: at most"),
        ("--num-threads 1000000", "--num-threads cannot be 1000000: at most"),
        ("--num-periods 1000000000", "--num-periods cannot be 1000000000: at most"),
        ("--adaptive-episodes 100000000", "--adaptive-episodes cannot be 100000000: at most"),
        ("--episodes-per-epoch 100000000", "--episodes-per-epoch cannot be 100000000: at most"),
        ("--env-id Pendulum-v1 --run-name ../x", "--run-name '../x' leads out of runs/"),
        ("--env-id Pendulum-v1 --run-name /tmp/x", "--run-name '/tmp/x' leads out of runs/"),
        ("--env-id TestNoActions-v0", "TestNoActions-v0 has no actions"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/taken").mkdir(parents=True)
    (tmp_path / "runs/taken/model.pt").write_text("somebody's")
    with pytest.raises(SystemExit) as error:
        psd.main(flags.split())
    text = str(error.value.code)
    assert text.startswith("psd.py: error: ") and message in text and "\n" not in text
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["model.pt", "runs", "taken"]
    assert (tmp_path / "runs/taken/model.pt").read_text() == "somebody's"


def test_bad_input_on_the_real_command_line(tmp_path):
    for flags in [["--env-id", "Nothing-v0"], ["--L-min", "x"], ["--no-such-flag"]]:
        result = python(str(REPO / "psd.py"), *flags, cwd=tmp_path)
        assert result.returncode != 0
        assert "Traceback" not in result.stderr and result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_cuda_without_cuda_says_so_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(psd.torch.cuda, "is_available", lambda: False)
    psd.main([*TINY, "--cuda", "--total-epochs", "1", "--run-name", "a"])
    assert "there is no CUDA device, training on the CPU\n" in capsys.readouterr().err
    assert (tmp_path / "runs/a/model.pt").exists()


@pytest.mark.parametrize(
    "env_id", ["Ant-v5", "HalfCheetah-v4", "Humanoid-v4", "Hopper-v5", "Walker2d-v4", "Swimmer-v4"]
)
def test_robots_train(env_id, tmp_path, monkeypatch):
    """An epoch of everything, falls included, leaves no file but those of the run."""
    monkeypatch.chdir(tmp_path)
    flags = """--hidden-units 16 --phi-batch-size 32 --batch-size 16 --buffer-size 4000
        --episodes-per-epoch 3 --updates-per-epoch 4 --episode-length 60 --L-min 5 --L-max 30
        --total-epochs 2 --adaptive-interval 3 --ext-coef 1 --run-name a"""
    psd.main(["--env-id", env_id, *flags.split()])
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]
    names = {p.name.split(".")[0] for p in (tmp_path / "runs/a").iterdir()}
    assert names == {"events", "lock", "model", "resume"}


def test_actions_of_float64_train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    psd.main([*TINY, "--env-id", "TestDoubles-v0", "--total-epochs", "2", "--run-name", "a"])
    assert (tmp_path / "runs/a/model.pt").exists()


def test_an_observation_that_is_nan_stops_the_run_unsaved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Doubles, "nan_at", 40)  # the last one: an update may well miss it
    flags = ["--env-id", "TestDoubles-v0", "--updates-per-epoch", "1", "--run-name", "a"]
    message = "TestDoubles-v0, epoch 0: .* observation that is not finite; not saved, last .*: none"
    with pytest.raises(SystemExit, match=message):
        psd.main([*TINY, *flags])
    assert not (tmp_path / "runs/a/resume.pt").exists()


def test_none_on_the_line_is_the_robots_value():
    flags = "--env-id Walker2d-v4 --L-min None --episode-length None --lam-1 None --v-star None"
    args, _ = psd.parse_args(flags.split())
    assert (args.L_min, args.episode_length, args.lam_1, args.v_star) == (25, 400, 10, 1.0)


def test_no_terminate_keeps_a_falling_robot_going():
    args, _ = psd.parse_args("--env-id Walker2d-v4 --no-terminate --episode-length 80".split())
    envs = [psd.make_env(args) for _ in range(2)]
    agent = psd.Agent(args, 17, envs[0].action_space, "cpu")
    progress = {"obs_mean": psd.torch.zeros(17), "obs_std": psd.torch.ones(17)}
    skill = psd.torch.zeros(2, args.embed_dim)
    episodes = psd.rollout(envs, (1,), agent, skill, progress)
    assert [len(e.actions) for e in episodes] == [80, 80]
    assert not any(e.terminated for e in episodes)
