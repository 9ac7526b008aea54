"""python evaluate.py RUN --onnx: one network that acts as torch's policy does."""

import sys

import numpy as np
import pytest
from conftest import REPO, TINY

import evaluate
import psd
import psd_metra

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def exported(tmp_path, monkeypatch):
    """A factory: trains a tiny run, exports it, and returns the policy and the ONNX session."""
    monkeypatch.chdir(tmp_path)

    def export(script, *flags):
        script.main([*flags, "--total-epochs", "1", "--run-name", "a"])
        evaluate.main(["runs/a", "--onnx"])
        path = tmp_path / "runs/a/policy.onnx"
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return evaluate.load("runs/a"), session

    return export


def observations(policy, count):
    env = policy.make_env()
    env.reset(seed=0)
    env.action_space.seed(0)
    steps = [env.step(env.action_space.sample())[0] for _ in range(count)]
    return np.array(steps, dtype=np.float32)


def test_the_export_acts_as_load_does_for_any_batch_and_any_L(exported):
    policy, session = exported(psd, *TINY, "--normalize-obs")
    obs = observations(policy, 9)
    assert [entry.name for entry in session.get_inputs()] == ["obs", "L"]
    for L in (5, 8, 6.5, 30):  # trained, between, and far outside
        (action,) = session.run(None, {"obs": obs, "L": np.full(9, L, np.float32)})
        assert np.allclose(action, policy.act(obs, L), atol=1e-5)
    (action,) = session.run(None, {"obs": obs[:1], "L": np.full(1, 5, np.float32)})
    assert np.allclose(action[0], policy.act(obs[0], 5), atol=1e-5)


def test_every_row_may_have_its_own_L(exported):
    policy, session = exported(psd, *TINY)
    obs = np.repeat(observations(policy, 1), 2, axis=0)
    (action,) = session.run(None, {"obs": obs, "L": np.array([5, 8], np.float32)})
    assert np.allclose(action, [policy.act(obs[0], 5), policy.act(obs[0], 8)], atol=1e-5)
    assert not np.allclose(action[0], action[1])


def test_with_metra_z_is_an_input_too(exported):
    policy, session = exported(psd_metra, *TINY, "--position-dim", "0")
    obs = observations(policy, 3)
    z = policy.skills[1].astype(np.float32)
    inputs = {"obs": obs, "L": np.full(3, 7, np.float32), "z": np.tile(z, (3, 1))}
    (action,) = session.run(None, inputs)
    assert np.allclose(action, policy.act(obs, 7, z), atol=1e-5)


def test_the_policy_of_the_readme_runs_a_cheetah(tmp_path):
    """The committed weights, exported elsewhere, walk the same 50 steps."""
    source = REPO / "results/halfcheetah/model.pt"
    (tmp_path / "model.pt").write_bytes(source.read_bytes())
    evaluate.main([str(tmp_path), "--onnx"])
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    policy = evaluate.load(source.parent)
    env, other = policy.make_env(), policy.make_env()
    obs, _ = env.reset(seed=0)
    same, _ = other.reset(seed=0)
    for _ in range(50):
        obs = env.step(policy.act(obs, 16))[0]
        inputs = {"obs": same[None].astype(np.float32), "L": np.array([16], np.float32)}
        same = other.step(session.run(None, inputs)[0][0])[0]
    assert np.allclose(obs, same, atol=1e-2)


def test_an_export_that_differs_is_not_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    psd.main([*TINY, "--total-epochs", "1", "--run-name", "a"])

    class Wrong(onnxruntime.InferenceSession):
        def run(self, *inputs):
            return [action + 1 for action in super().run(*inputs)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(SystemExit, match="differs from torch's by 1.0e.00: nothing is written"):
        evaluate.main(["runs/a", "--onnx"])
    assert not list(tmp_path.glob("runs/a/*.onnx"))


def test_without_onnx_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SystemExit, match="--onnx needs onnxruntime: pip install onnx "):
        evaluate.main([str(REPO / "results/halfcheetah"), "--onnx"])
