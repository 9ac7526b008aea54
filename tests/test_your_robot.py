"""docs/your_robot.md as a reader uses it: its module, its commands, its ONNX call."""

import json
import re
import shlex
import sys

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from conftest import REPO
from gymnasium.envs.mujoco import MujocoEnv

import evaluate
import psd

PAGE = (REPO / "docs/your_robot.md").read_text()
MODULE, ONNX_CALL = re.findall(r"```python\n(.*?)```", PAGE, re.S)
SMALL = """--hidden-units 16 --phi-batch-size 32 --batch-size 16 --updates-per-epoch 2
    --total-epochs 1""".split()


@pytest.fixture
def my_robot(tmp_path, monkeypatch):
    """A folder with the page's module, which can be imported while the test runs."""
    (tmp_path / "my_robot.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("my_robot", None)
    gym.registry.pop("MyRobot-v0", None)


def commands(script):
    """The page's commands for a script, as lists of arguments."""
    code = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.S)).replace("\\\n", " ")
    return [shlex.split(line)[2:] for line in code.splitlines() if f"python {script}" in line]


def test_the_page_from_the_module_to_the_robot(my_robot):
    pytest.importorskip("onnxruntime")
    train, widen = commands("psd.py")
    _, export = commands("evaluate.py")
    psd.main([*train, *SMALL, "--action-scale", "0.3"])
    psd.main([*widen[:-2], "--total-epochs", "2"])
    policy = evaluate.load("runs/myrobot", env_id="my_robot:MyRobot-v0")
    assert policy.args.L_max == 24 and policy.args.episode_length == 200
    evaluate.main(export)

    env = policy.make_env()
    obs, _ = env.reset(seed=0)
    assert obs.shape == (26,)
    assert evaluate.num_global(env) == 0  # the judge cuts nothing off
    assert evaluate.dimensions(env)[0] == ("observation 0", "1")  # nor knows any order
    scope = {"obs": obs}
    exec(ONNX_CALL, scope)
    expected = 0.3 * policy.act(obs, 12)  # --action-scale is a part of `make_env`, and of ONNX
    assert np.abs(expected).max() > 1e-3
    assert np.allclose(scope["action"], expected, atol=1e-5)


def test_the_page_s_robot_does_not_observe_its_heading(my_robot):
    env = gym.make("my_robot:MyRobot-v0")
    env.reset(seed=1)
    robot = env.unwrapped
    rng = np.random.default_rng(1)
    qpos = robot.data.qpos + 0.1 * rng.normal(size=15)
    qpos[3:7] /= np.linalg.norm(qpos[3:7])
    qvel = rng.normal(size=14)
    robot.set_state(qpos, qvel)
    before = robot._get_obs()
    assert robot.observation_space.contains(before)

    half = 0.6  # turn and move the whole robot: position, orientation, and velocity of the torso
    turn = np.array([np.cos(half), 0.0, 0.0, np.sin(half)])
    turned = qpos.copy()
    turned[:2] += 3.0
    mujoco.mju_mulQuat(turned[3:7], turn, qpos[3:7])
    velocity = qvel.copy()
    mujoco.mju_rotVecQuat(velocity[:3], qvel[:3], turn)
    robot.set_state(turned, velocity)
    assert np.allclose(robot._get_obs(), before, atol=1e-9)

    turned[3:7] = qpos[3:7]
    robot.set_state(turned + 0.1 * np.eye(15)[4], velocity)  # rolling is observed
    assert not np.allclose(robot._get_obs(), before, atol=1e-3)


def test_a_wrapper_that_cuts_position_off_is_believed():
    """The judge would cut two more numbers off otherwise, and name the others wrongly."""

    class Cut(gym.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (27,), np.float64)

        def observation(self, obs):
            return obs[2:]

    full = gym.make("Ant-v4", exclude_current_positions_from_observation=False)
    assert evaluate.num_global(full) == 2
    assert evaluate.num_global(Cut(full)) == 0
    assert evaluate.dimensions(full)[0] == ("root z", "m")
    assert evaluate.dimensions(Cut(full))[0] == ("observation 0", "1")


def test_a_checkpoint_alone_imports_no_module(my_robot):
    train, _ = commands("psd.py")
    psd.main([*train, *SMALL])
    sys.modules.pop("my_robot")
    with pytest.raises(SystemExit, match="env-id"):
        evaluate.main(["runs/myrobot"])
    assert "my_robot" not in sys.modules


class Hinge(MujocoEnv):
    """A robot of somebody's own: it takes no size and no camera, and observes in its own order."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}

    def __init__(self, render_mode=None):
        space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        model = str(REPO / "tests/hinge.xml")
        super().__init__(model, 4, space, render_mode=render_mode, width=160, height=120)

    def _get_obs(self):
        angle = self.data.qpos[0]
        return np.array([self.data.qvel[0], np.cos(angle), np.sin(angle)])

    def step(self, action):
        self.do_simulation(action, self.frame_skip)
        return self._get_obs(), 0.0, False, False, {}

    def reset_model(self):
        self.set_state(self.init_qpos + self.np_random.uniform(-1, 1, 1), self.init_qvel)
        return self._get_obs()


@pytest.fixture
def hinge_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gym.register("Hinge-v0", entry_point=Hinge)
    yield psd.main(
        ["--env-id", "Hinge-v0", *SMALL, "--episode-length", "40", "--run-name", "hinge"]
    )
    gym.registry.pop("Hinge-v0")


def test_a_robot_that_takes_no_camera_is_filmed_with_its_own(hinge_run):
    try:
        evaluate.main(["runs/hinge", "--periods", "10", "--episodes", "1", "--video"])
    except SystemExit as error:
        if "off-screen rendering" in str(error):
            pytest.skip(f"this machine cannot render: {error}")
        raise
    imageio = pytest.importorskip("imageio.v2")
    result = json.loads(open("runs/hinge/evaluation.json").read())
    reader = imageio.get_reader("runs/hinge/" + result["skills"][0]["video"])
    assert reader.get_meta_data()["size"] == (480, 360)  # 160 x 120, enlarged
    # Its observation has an order of its own: no names of joints
    names = [dimension["name"] for dimension in result["dimensions"]]
    assert names and all(name.startswith("observation") for name in names)
