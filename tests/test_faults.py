"""Faults: a full disk, two processes, damaged checkpoints, an environment that fails. Each ends in
one line, and nothing that was saved is lost."""

import io
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import REPO, TINY

import psd

HANGUP = getattr(signal, "SIGHUP", signal.SIGABRT)


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, HANGUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def error_of(*flags):
    """The one line that a run ends with."""
    with pytest.raises(SystemExit) as error:
        psd.main(list(flags))
    message = str(error.value.code)
    assert message.startswith("psd.py: error: ") and "\n" not in message
    return message


def train(name, epochs, *flags):
    psd.main([*TINY, "--run-name", name, "--total-epochs", str(epochs), *flags])


def start(*flags, **kwargs):
    command = [sys.executable, str(REPO / "psd.py"), *flags]
    return subprocess.Popen(command, text=True, **kwargs)


# ------------------------------------------- The disk --------------------------------------------
def test_a_full_disk_names_the_file_and_the_last_good_checkpoint(tmp_path, monkeypatch):
    train("a", 1)
    good = (tmp_path / "runs/a/resume.pt").read_bytes()

    def full(content, file):
        file.write(b"half a checkpoint")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    message = error_of("--resume", "runs/a", "--total-epochs", "2")
    assert "cannot write runs/a/resume.pt" in message and "No space left" in message
    assert message.endswith("last good checkpoint: runs/a/resume.pt")
    assert (tmp_path / "runs/a/resume.pt").read_bytes() == good
    assert list((tmp_path / "runs/a").glob("*.tmp")) == []


def test_a_file_that_grows_too_large(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    flags = [*TINY, "--run-name", "a", "--total-epochs", "2"]
    process = start(*flags, stderr=subprocess.PIPE, preexec_fn=limit)
    _, text = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cannot write runs/a/resume.pt" in text.splitlines()[-1]
    assert "Traceback" not in text and list((tmp_path / "runs/a").glob("*.tmp")) == []


@pytest.mark.parametrize(
    "name, reason", [("x" * 300, "File name too long"), ("file/x", "Not a dir")]
)
def test_a_folder_that_cannot_be_made(tmp_path, name, reason):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/file").write_text("")
    message = error_of(*TINY, "--run-name", name)
    assert "cannot write to runs/" in message and reason in message


def test_more_memory_than_there_is():
    message = error_of(*TINY, "--run-name", "a", "--buffer-size", "100000000000")
    assert "out of memory: 1,230.0 GB asked for" in message


# ------------------------------------------ Two processes ----------------------------------------
def test_a_second_process_is_kept_out_and_a_killed_one_keeps_nobody_out(tmp_path):
    train("a", 1)
    first = start("--resume", "runs/a", "--total-epochs", "100000", stderr=subprocess.PIPE)
    while "2/100000" not in os.read(first.stderr.fileno(), 65536).decode():
        assert first.poll() is None
    assert "runs/a is in use by another process" in error_of(
        "--resume", "runs/a", "--total-epochs", "9"
    )
    first.kill()
    first.wait()
    psd.main(["--resume", "runs/a", "--total-epochs", "2"])


def test_a_run_that_another_process_has_just_saved_is_not_set_back(tmp_path, monkeypatch):
    train("a", 1)
    lock = psd.open_run_folder

    def slow(*args, **kwargs):  # between reading and locking, the other process saves and ends
        os.utime(tmp_path / "runs/a/resume.pt", ns=(1, 1))
        return lock(*args, **kwargs)

    monkeypatch.setattr(psd, "open_run_folder", slow)
    assert "just been saved by another" in error_of("--resume", "runs/a", "--total-epochs", "2")


# --------------------------------------- Damaged checkpoints -------------------------------------
def drop(*path):
    """Removes a part of a checkpoint."""

    def damage(checkpoint):
        for name in path[:-1]:
            checkpoint = checkpoint[name]
        del checkpoint[path[-1]]

    return damage


def put(value, *path):
    def damage(checkpoint):
        for name in path[:-1]:
            checkpoint = checkpoint[name]
        checkpoint[path[-1]] = value

    return damage


DAMAGES = {
    "no epoch": drop("progress", "epoch"),
    "no bounds": drop("progress", "bounds"),
    "no mean": drop("progress", "obs_mean"),
    "nan mean": put(torch.full((3,), float("nan")), "progress", "obs_mean"),
    "args a list": put([1, 2], "args"),
    "no agent": drop("agent"),
    "agent without a weight": drop("agent", "phi.0.weight"),
    "weight of another shape": put(torch.zeros(2), "agent", "phi.0.weight"),
    "no buffer": drop("buffer"),
    "buffer without obs": drop("buffer", "obs"),
    "buffer of another shape": put(torch.zeros(5, 7), "buffer", "obs"),
    "no optimizers": drop("optimizers"),
    "no optimizer of phi": drop("optimizers", "phi"),
    "no rng": drop("rng"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_checkpoint_without_a_part_is_refused(tmp_path, damage):
    train("a", 1)
    path = tmp_path / "runs/a/resume.pt"
    checkpoint = torch.load(path, weights_only=True)
    damage(checkpoint)
    torch.save(checkpoint, path)
    before = path.read_bytes()
    message = error_of("--resume", "runs/a", "--total-epochs", "2")
    assert "resume.pt is damaged" in message or "resume.pt does not fit" in message
    assert path.read_bytes() == before


def test_flipped_bits_are_noticed(tmp_path):
    train("a", 1)
    path = tmp_path / "runs/a/resume.pt"
    good = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        tensors = [entry for entry in archive.infolist() if "/data/" in entry.filename]
        largest = max(tensors, key=lambda entry: entry.file_size)
    middle = largest.header_offset + 200 + largest.file_size // 2  # behind the header
    bad = bytearray(good)
    bad[middle] ^= 1
    path.write_bytes(bytes(bad))
    torch.load(path, weights_only=True)  # torch itself does not notice
    assert "resume.pt is damaged" in error_of("--resume", "runs/a", "--total-epochs", "2")


def test_no_module_is_imported_that_the_command_line_does_not_name(tmp_path):
    train("a", 1)
    path = tmp_path / "runs/a/resume.pt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["args"]["env_id"] = "hostile_module:Pendulum-v1"
    torch.save(checkpoint, path)
    (tmp_path / "hostile_module.py").write_text("open('executed', 'w')")
    process = start("--resume", "runs/a", "--total-epochs", "2", stderr=subprocess.PIPE)
    _, text = process.communicate(timeout=120)
    assert "imports the module 'hostile_module': if you trust it, add --env-id" in text
    assert not (tmp_path / "executed").exists()


# -------------------------------------- Stopping and starting ------------------------------------
def test_a_run_killed_before_its_first_save_can_be_started_again(tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "runs/a/note.txt").write_text("mine")
    train("a", 1)
    assert (tmp_path / "runs/a/resume.pt").exists()
    assert (tmp_path / "runs/a/note.txt").read_text() == "mine"


def test_resume_takes_the_file_and_the_printed_command_works(tmp_path, capsys):
    train("a b", 1)
    psd.main(["--resume", "runs/a b/resume.pt", "--total-epochs", "2"])
    command = capsys.readouterr().out.splitlines()[-1].split("to continue: ")[1]
    words = shlex.split(command)
    assert words[2:] == ["--resume", "runs/a b", "--total-epochs", "4"]
    psd.main(words[2:])


def test_a_closed_pipe_saves(tmp_path):
    read, write = os.pipe()
    process = start(
        *TINY, "--run-name", "a", "--total-epochs", "100000", stderr=write, stdout=write
    )
    os.close(write)
    text = ""
    while "2/100000" not in text:
        text = os.read(read, 65536).decode()
        assert process.poll() is None
    os.close(read)
    assert process.wait(timeout=60) == 128 + HANGUP
    assert torch.load(tmp_path / "runs/a/resume.pt", weights_only=True)["progress"]["epoch"] > 1


def test_nohup_is_respected(tmp_path):
    flags = [*TINY, "--run-name", "a", "--total-epochs", "100000"]
    command = ["nohup", sys.executable, str(REPO / "psd.py"), *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while b"1/100000" not in os.read(process.stderr.fileno(), 65536):
        assert process.poll() is None
    process.send_signal(signal.SIGHUP)
    os.read(process.stderr.fileno(), 65536)
    time.sleep(0.5)
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_one_stop_delivered_twice_waits_for_the_save_and_a_later_one_does_not():
    signal.signal(HANGUP, signal.SIG_DFL)  # the tests themselves may run under nohup
    received = psd.catch_signals()
    os.kill(os.getpid(), HANGUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [HANGUP, signal.SIGTERM]
    code = """if True:
        import os, psd, time
        psd.catch_signals()
        for _ in range(2):
            os.kill(os.getpid(), 15)
            time.sleep(1.1)"""
    process = subprocess.run([sys.executable, "-c", code], cwd=REPO)
    assert process.returncode == 128 + 15


# ----------------------------------------- Environments ------------------------------------------
class Robot(gym.Env):
    """Random observations; `fault` says what goes wrong at step 7."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gym.spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, fault=None, length=1000):
        self.fault = fault
        self.length = length

    def observe(self):
        return self.np_random.normal(size=3).astype(np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        if self.fault == "reset":
            raise RuntimeError("the robot is on fire")
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        obs = self.observe()
        if self.t == 7 and self.fault == "step":
            raise RuntimeError("the robot is on fire")
        if self.t == 7 and self.fault == "shape":
            obs = np.zeros(5, np.float32)
        if self.t == 7 and self.fault == "nan":
            obs[1] = np.nan
        return obs, 0.0, np.bool_(self.t >= self.length), np.bool_(False), {}


class DictRobot(Robot):
    observation_space = gym.spaces.Dict(
        {"arm": gym.spaces.Box(-np.inf, np.inf, (3,)), "leg": gym.spaces.Box(-1.0, 1.0, (2, 2))}
    )

    def observe(self):
        return {"arm": super().observe(), "leg": np.ones((2, 2), np.float32)}


for fault in ("reset", "step", "shape", "nan"):
    gym.register(f"Test_{fault}-v0", lambda fault=fault, **kwargs: Robot(fault))
gym.register("TestShort-v0", lambda **kwargs: Robot(length=1))
gym.register("TestNumpyBool-v0", lambda **kwargs: Robot(length=20))
gym.register("TestDict-v0", lambda **kwargs: DictRobot())


@pytest.mark.parametrize(
    "fault, reason",
    [
        ("reset", "RuntimeError: the robot is on fire"),
        ("step", "RuntimeError: the robot is on fire"),
        ("shape", "ValueError: "),
        ("nan", "the environment returned an observation that is not finite"),
    ],
)
def test_an_environment_that_fails_is_named(fault, reason, capsys):
    message = error_of(*TINY, "--env-id", f"Test_{fault}-v0", "--run-name", "a")
    assert f"Test_{fault}-v0, epoch 0: {reason}" in message
    assert message.endswith("not saved, last good checkpoint: none")
    assert ("Traceback" in capsys.readouterr().err) == (fault != "nan")  # the user's own is kept


def test_numpy_booleans_just_work(tmp_path):
    train("a", 2, "--env-id", "TestNumpyBool-v0")
    buffer = torch.load(tmp_path / "runs/a/resume.pt", weights_only=True)["buffer"]
    assert set(buffer["length"].tolist()) == {20}
    assert buffer["terminated"].sum() == 6  # one per episode


def test_dict_observations_are_flattened(tmp_path):
    train("a", 1, "--env-id", "TestDict-v0")
    assert torch.load(tmp_path / "runs/a/model.pt", weights_only=True)["progress"][
        "obs_mean"
    ].shape == (7,)


def test_episodes_that_are_too_short_for_phi_are_mentioned(capsys):
    train("a", 12, "--env-id", "TestShort-v0")
    assert (
        "phi is not trained: every episode has been shorter than its L" in capsys.readouterr().out
    )


# -------------------------------------------- Presets --------------------------------------------
def test_a_preset_gives_the_defaults_and_flags_win(tmp_path):
    args, _ = psd.parse_args("--env-id Ant-v5 --preset cpu --gamma 0.9 --L-max 20".split())
    assert (args.hidden_units, args.ext_coef, args.latent_dim) == (128, 2.0, 2)
    assert (args.gamma, args.L_min, args.L_max, args.episode_length) == (0.9, 5, 20, 200)
    args, _ = psd.parse_args("--env-id Swimmer-v4 --preset cpu".split())
    assert (args.hidden_units, args.L_min, args.L_max, args.ext_coef) == (128, 5, 20, 0.0)
    args, _ = psd.parse_args(["--env-id=Walker2d-v4"])
    assert (args.preset, args.hidden_units, args.lam_1, args.L_min) == ("paper", 1024, 10.0, 25)


def test_the_checkpoint_stores_the_resolved_arguments(tmp_path):
    flags = "--env-id Pendulum-v1 --preset cpu --updates-per-epoch 1 --total-epochs 1 --run-name a"
    psd.main(flags.split())
    saved = torch.load(tmp_path / "runs/a/model.pt", weights_only=True)["args"]
    assert (saved["preset"], saved["hidden_units"], saved["L_max"]) == ("cpu", 128, 18)
    may_be_none = ("resume", "wandb_entity", "frame_skip")  # None: Gymnasium's
    assert None not in [v for k, v in saved.items() if k not in may_be_none]


@pytest.mark.parametrize("env_id", ["HalfCheetah-v4", "Pendulum-v1"])
def test_the_cpu_preset_is_the_command_that_has_been_measured(env_id):
    folder = REPO / "results" / env_id.split("-")[0].lower()
    measured = torch.load(folder / "model.pt", weights_only=True)["args"]
    preset, _ = psd.parse_args(["--env-id", env_id, "--preset", "cpu"])
    names = set(vars(preset)) & set(measured)
    names -= {"preset", "seed", "run_name", "resume", "save_minutes"}
    assert {name: getattr(preset, name) for name in names} == {k: measured[k] for k in names}


def test_every_value_of_a_preset_is_an_argument():
    names = set(vars(psd.Args()))
    for values in [psd.CPU_PRESET, *psd.CPU_PRESET_BY_ROBOT.values()]:
        assert set(values) <= names
    assert set(psd.ROBOT_COLUMNS) - names == {"first_L"}
