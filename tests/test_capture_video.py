"""--capture-video-every: moving pictures of the skills during training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import REPO, TINY
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_evaluate import egl_problem

import psd

CHEETAH = [*TINY, "--env-id", "HalfCheetah-v4", "--total-epochs", "3"]
METRA = """--env-id HalfCheetah-v4 --hidden-units 16 --phi-batch-size 32 --batch-size 16
    --buffer-size 700 --episodes-per-epoch 3 --updates-per-epoch 4 --episode-length 40
    --num-skills 4 --total-epochs 3""".split()
CASES = {"psd.py": CHEETAH, "baselines/metra.py": METRA}


def train(folder, script, *flags, **environ):
    command = [sys.executable, REPO / script, *flags]
    environ = os.environ | {"OMP_NUM_THREADS": "1"} | environ
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


def weights(run_dir):
    return torch.load(run_dir / "model.pt", weights_only=True)["agent"]


def pictures(run_dir):
    events = EventAccumulator(str(run_dir))
    events.Reload()
    if "videos/skills" not in events.Tags()["images"]:
        return []
    return events.Images("videos/skills")


@pytest.mark.parametrize("script", CASES)
def test_pictures_are_logged_and_change_no_bit(tmp_path, script):
    problem = egl_problem()
    if problem:
        pytest.skip(f"EGL is missing (libegl1, libgl1-mesa-dri): {problem[0]}")
    plain = train(tmp_path, script, *CASES[script], "--run-name", "plain")
    filmed = train(tmp_path, script, *CASES[script], "--run-name", "filmed",
                   "--capture-video-every", "2")  # fmt: skip
    assert plain.returncode == filmed.returncode == 0, filmed.stderr
    a, b = weights(tmp_path / "runs/plain"), weights(tmp_path / "runs/filmed")
    assert all(torch.equal(a[name], b[name]) for name in a)
    logged = pictures(tmp_path / "runs/filmed")
    assert [image.step for image in logged] == [2 * 3 * 40]  # after the second of three epochs
    assert logged[0].encoded_image_string.startswith(b"GIF89a")
    assert (logged[0].width, logged[0].height) == (600, 150)  # three skills side by side
    assert pictures(tmp_path / "runs/plain") == []


def test_a_script_without_evaluate_beside_it_trains_all_the_same(tmp_path):
    alone = tmp_path / "somewhere" / "else"
    alone.mkdir(parents=True)
    (alone / "psd.py").write_text((REPO / "psd.py").read_text())
    run = train(alone, alone / "psd.py", *CHEETAH, "--run-name", "a", "--capture-video-every", "1")
    assert run.returncode == 0
    assert run.stdout.count("--capture-video-every needs evaluate.py beside psd.py") == 3
    assert (alone / "runs/a/model.pt").exists()


def test_a_picture_that_fails_is_one_line_and_training_goes_on(tmp_path):
    run = train(tmp_path, "psd.py", *CHEETAH, "--run-name", "a", "--capture-video-every", "3",
                MUJOCO_GL="disabled")  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "no picture: evaluate.py: error: off-screen rendering" in run.stdout
    assert pictures(tmp_path / "runs/a") == []
    assert Path(tmp_path / "runs/a/model.pt").exists()


@pytest.mark.parametrize(
    "code, message",
    [("import os; os.kill(os.getpid(), 9)", "no picture: exit code -9"), (None, "no picture: ")],
)
def test_a_picture_that_dies_without_a_word_is_one_line_too(
    tmp_path, monkeypatch, capsys, code, message
):
    """Killed for its memory, say; or there is no process to be had."""
    (tmp_path / "evaluate.py").write_text(code or "")
    monkeypatch.setattr(psd, "__file__", str(tmp_path / "psd.py"))
    if code is None:
        monkeypatch.setattr(psd.sys, "executable", str(tmp_path / "nowhere"))
    psd.log_video(None, tmp_path, psd.Args(env_id="HalfCheetah-v4"), 0)
    printed = capsys.readouterr().out
    assert printed.startswith(message) and printed.count("\n") == 1


def test_gif_wants_a_file_that_can_be(tmp_path):
    command = [sys.executable, REPO / "evaluate.py", REPO / "results/halfcheetah", "--gif", "a.png"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode != 0 and "has to end in .gif" in run.stderr
    assert list(tmp_path.iterdir()) == []
