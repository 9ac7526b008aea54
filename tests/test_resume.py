"""A run that was stopped, killed or cut in two is the run that was not."""

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from conftest import REPO, TINY

import psd

EVERY_EPOCH = ["--save-minutes", "1e-9"]
# every evaluation is good enough: the bounds move
MOVING = ["--adaptive-interval", "6", "--adaptive-alpha", "1e-30", "--adaptive-beta", "1e-31"]


def run(*flags, tmp_path):
    """A run inside this process; returns what resume.pt holds."""
    psd.main(list(flags))
    name = flags[flags.index("--resume" if "--resume" in flags else "--run-name") + 1]
    folder = tmp_path / (name if "--resume" in flags else f"runs/{name}")
    return torch.load(folder / "resume.pt", weights_only=True)


def differences(a, b, path=""):
    """Where two checkpoints differ, to the bit."""
    if isinstance(a, dict):
        keys = [f"{path}/{k}: only in one" for k in a.keys() ^ b.keys()]
        return keys + [
            d for k in a.keys() & b.keys() for d in differences(a[k], b[k], f"{path}/{k}")
        ]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} items"]
        return [d for i, (x, y) in enumerate(zip(a, b)) for d in differences(x, y, f"{path}/{i}")]
    equal = torch.equal(a, b) if torch.is_tensor(a) else a == b
    return [] if equal else [path]


def same(a, b):
    allowed = {"/args/run_name", "/args/resume", "/args/save_minutes", "/args/total_epochs"}
    return set(differences(a, b)) <= allowed


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "term",
    ["--normalize-obs", "--no-normalize-obs", "--regularity-coef 1 --turn-coef 1 --latent-dim 2"],
)
def test_n_and_n_epochs_are_two_n(tmp_path, term):
    flags = [*TINY, *MOVING, *term.split()]  # 8 epochs of 3 episodes of 40 steps: the ring wraps
    whole = run(*flags, "--run-name", "whole", "--total-epochs", "8", tmp_path=tmp_path)
    assert whole["progress"]["bounds"] != (5, 8, False, False)
    assert whole["buffer"]["head"] < 8 * 3 * 41
    half = run(*flags, "--run-name", "half", "--total-epochs", "4", tmp_path=tmp_path)
    assert not same(whole, half)
    both = run("--resume", "runs/half", "--total-epochs", "8", tmp_path=tmp_path)
    assert same(whole, both)


@pytest.fixture
def rates(monkeypatch):
    """The learning rates of every update, by optimiser."""
    seen = []
    update = psd.update

    def spy(agent, *rest):
        seen.append({name: o.param_groups[0]["lr"] for name, o in agent.optimizers.items()})
        return update(agent, *rest)

    monkeypatch.setattr(psd, "update", spy)
    return seen


ANNEAL = "--anneal-lr --phi-lr 4e-3 --sac-lr 2e-3 --alpha-lr 8e-3 --updates-per-epoch 1"
ANNEAL += " --turn-coef 1 --regularity-coef 1 --latent-dim 2 --final-entropy 3"


def test_annealed_rates_go_down_in_a_straight_line(tmp_path, rates):
    run(*TINY, *ANNEAL.split(), "--run-name", "a", "--total-epochs", "4", tmp_path=tmp_path)
    start = {"phi": 4e-3, "critic": 2e-3, "actor": 2e-3, "alpha": 8e-3, "decoder": 4e-3}
    assert [set(seen) for seen in rates] == [set(start)] * 4
    for name, rate in start.items():
        expected = [rate, 0.75 * rate, 0.5 * rate, 0.25 * rate]
        assert [seen[name] for seen in rates] == pytest.approx(expected)


def test_without_annealing_rates_stay(tmp_path, rates):
    run(*TINY, "--sac-lr", "0.002", "--run-name", "a", "--total-epochs", "3", tmp_path=tmp_path)
    assert {seen["actor"] for seen in rates} == {0.002}


@pytest.fixture
def entropies(monkeypatch):
    """The target entropy of every update that follows."""
    seen = []
    update = psd.update

    def spy(agent, *rest):
        seen.append(agent.target_entropy)
        return update(agent, *rest)

    monkeypatch.setattr(psd, "update", spy)
    return seen


def test_the_target_entropy_goes_down_in_a_straight_line(tmp_path, entropies):
    flags = [*TINY, "--env-id", "HalfCheetah-v4", "--updates-per-epoch", "1"]
    run(*flags, "--run-name", "a", "--final-entropy", "3", "--total-epochs", "4", tmp_path=tmp_path)
    assert entropies == [-6.0, -9.0, -12.0, -15.0]  # six joints
    entropies.clear()
    run("--resume", "runs/a", "--total-epochs", "8", tmp_path=tmp_path)
    assert entropies == [-12.0, -13.5, -15.0, -16.5]  # of the new, longer line
    entropies.clear()
    run(*flags, "--run-name", "b", "--total-epochs", "2", tmp_path=tmp_path)
    assert entropies == [-6.0, -6.0]


def test_an_annealed_run_that_is_stopped_resumes_to_the_same_bits(tmp_path, monkeypatch, rates):
    flags = [*TINY, *ANNEAL.split(), "--total-epochs", "6"]
    whole = run(*flags, "--run-name", "whole", tmp_path=tmp_path)
    collect = psd.rollout

    def stop_in_the_third_epoch(envs, key, *rest, **kwargs):
        if key[1] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(envs, key, *rest, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(psd, "rollout", stop_in_the_third_epoch)
        with pytest.raises(SystemExit):
            psd.main([*flags, "--run-name", "parts"])
    rates.clear()
    parts = run("--resume", "runs/parts", tmp_path=tmp_path)
    assert len(rates) == 3 and rates[0]["actor"] == pytest.approx(0.5 * 2e-3)
    assert same(whole, parts)


def test_a_seed_gives_a_run_and_another_seed_another(tmp_path):
    runs = [
        run(*TINY, "--run-name", f"r{i}", "--seed", seed, "--total-epochs", "2", tmp_path=tmp_path)
        for i, seed in enumerate(["3", "3", "4"])
    ]
    assert same(runs[0], runs[1])
    assert "/agent/actor.net.0.weight" in differences(runs[0], runs[2])
    assert "/buffer/obs" in differences(runs[0], runs[2])


def test_saving_more_often_changes_nothing(tmp_path):
    often = [*TINY, *EVERY_EPOCH, "--run-name", "often", "--total-epochs", "4"]
    seldom = [*TINY, "--run-name", "seldom", "--total-epochs", "4"]
    assert same(run(*often, tmp_path=tmp_path), run(*seldom, tmp_path=tmp_path))


def test_flags_on_the_line_win_over_saved_ones(tmp_path):
    run(*TINY, "--run-name", "a", "--total-epochs", "2", "--gamma", "0.9", tmp_path=tmp_path)
    path = tmp_path / "runs/a/resume.pt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["progress"]["bounds"] = (6, 12, True, True)  # as if they had moved
    torch.save(checkpoint, path)
    argv = "--resume runs/a --total-epochs 4 --sac-lr 0.5 --L-max 9".split()
    args, checkpoint = psd.parse_args(argv)
    assert (args.gamma, args.sac_lr, args.hidden_units) == (0.9, 0.5, 16)
    assert checkpoint["progress"]["bounds"] == (6, 9, True, True)
    _, same_bounds = psd.parse_args("--resume runs/a --total-epochs 4".split())
    assert same_bounds["progress"]["bounds"] == (6, 12, True, True)
    _, first_value = psd.parse_args("--resume runs/a --total-epochs 4 --L-min 5".split())
    assert first_value["progress"]["bounds"] == (
        5,
        12,
        True,
        True,
    )  # though 5 is what it began with
    with pytest.raises(SystemExit, match="L_min 13, L_max 12: need"):
        psd.parse_args("--resume runs/a --total-epochs 4 --L-min 13".split())
    env = psd.make_env(args)
    agent = psd.Agent(args, 3, env.action_space, "cpu")
    buffer = psd.ReplayBuffer(args.buffer_size, args.episode_length, 3, 1, 8, "cpu")
    psd.restore(checkpoint, agent, buffer)
    rates = [group["lr"] for x in agent.optimizers.values() for group in x.param_groups]
    assert rates == [1e-4, 0.5, 0.5, 1e-4]  # phi, critics, actor, temperature


def test_model_file_acts_like_the_agent(tmp_path):
    everything = run(*TINY, "--run-name", "a", "--total-epochs", "2", tmp_path=tmp_path)
    model = torch.load(tmp_path / "runs/a/model.pt", weights_only=True)
    args, _ = psd.parse_args(TINY)
    obs, skill = torch.randn(7, 3), torch.randn(7, args.embed_dim)
    actions = []
    for checkpoint in [everything, model]:
        agent = psd.Agent(args, 3, psd.make_env(args).action_space, "cpu")
        agent.load_state_dict(checkpoint["agent"], strict=False)
        actions += [agent.actor.act(obs, skill, deterministic=True), agent.phi(obs, skill)]
    assert torch.equal(actions[0], actions[2]) and torch.equal(actions[1], actions[3])
    assert {name.split(".")[0] for name in model["agent"]} == {"actor", "phi"}
    assert {k: model[k] for k in ["script", "args"]} == {
        k: everything[k] for k in ["script", "args"]
    }


def test_curves_of_a_resumed_run_stay_single(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(*TINY, *EVERY_EPOCH, "--run-name", "a", "--total-epochs", "3", tmp_path=tmp_path)
    early = (tmp_path / "runs/a/resume.pt").read_bytes()
    run("--resume", "runs/a", "--total-epochs", "5", tmp_path=tmp_path)
    (tmp_path / "runs/a/resume.pt").write_bytes(early)  # as if killed: epochs 4 and 5 come again
    run("--resume", "runs/a", "--total-epochs", "5", tmp_path=tmp_path)
    events = EventAccumulator(str(tmp_path / "runs/a")).Reload()
    assert [e.step for e in events.Scalars("charts/episodes")] == [120, 240, 360, 480, 600]
    assert [e.value for e in events.Scalars("charts/episodes")] == [3, 6, 9, 12, 15]


def start(*flags):
    command = [sys.executable, str(REPO / "psd.py"), *flags]
    # a signal that the tests' own parent ignores, as nohup does, would be ignored there, too
    listen = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, preexec_fn=listen, **pipes)


def read_some(process):
    return os.read(process.stdout.fileno(), 65536).decode(errors="replace")


def wait_for(path, process, seconds=60):
    deadline = time.time() + seconds
    while not path.exists():
        assert process.poll() is None and time.time() < deadline, process.communicate()[0]
        time.sleep(0.01)


def test_kill_9_at_random_moments_and_resume_gives_the_same_bits(tmp_path):
    flags = [*TINY, *MOVING, "--total-epochs", "60", "--updates-per-epoch", "16"]
    whole = run(*flags, "--run-name", "whole", tmp_path=tmp_path)
    checkpoint = tmp_path / "runs/killed/resume.pt"
    process = start(*flags, *EVERY_EPOCH, "--run-name", "killed")
    wait_for(checkpoint, process)
    seed, kills, hits = time.time_ns(), 0, 0
    print(f"moments of the kills: random.Random({seed})")
    rng = random.Random(seed)
    while kills < 4:
        time.sleep(rng.uniform(0, 0.7))
        hits += process.poll() is None
        process.kill()
        process.wait()
        kills += 1
        epoch = torch.load(checkpoint, weights_only=True)["progress"]["epoch"]  # never half a file
        if epoch >= 60:
            break
        written = checkpoint.stat().st_mtime_ns
        process = start("--resume", "runs/killed")
        while checkpoint.stat().st_mtime_ns == written and process.poll() is None:
            time.sleep(0.01)
    output, _ = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), output
    assert hits > 0
    assert same(whole, torch.load(checkpoint, weights_only=True))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_finishes_the_epoch_and_saves(tmp_path, number):
    flags = [*TINY, "--total-epochs", "100000", "--run-name", "stopped"]
    process = start(*flags)
    while "1/100000" not in (bar := read_some(process)):  # the bar of the first epoch
        assert process.poll() is None, bar
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "psd.py --resume runs/stopped" in output.split("to continue: python ")[1]
    stopped = torch.load(tmp_path / "runs/stopped/resume.pt", weights_only=True)
    epoch = stopped["progress"]["epoch"]
    assert stopped["progress"]["global_step"] == epoch * 120
    whole = run(*TINY, "--run-name", "whole", "--total-epochs", str(epoch), tmp_path=tmp_path)
    assert same(whole, stopped)


def test_a_kill_while_saving_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    before = run(*TINY, "--run-name", "a", "--total-epochs", "2", tmp_path=tmp_path)
    real_save = torch.save

    def dies_half_way(content, file):
        real_save({"half": 1}, file)
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", dies_half_way)
    with pytest.raises(KeyboardInterrupt):
        psd.main(["--resume", "runs/a", "--total-epochs", "4"])
    monkeypatch.undo()
    after = torch.load(tmp_path / "runs/a/resume.pt", weights_only=True)
    assert differences(before, after) == []


class Payload:
    def __reduce__(self):
        return (open, ("executed", "w"))


def other_file(kind, good):
    if kind == "cut short":
        return good[: len(good) // 2]
    if kind == "empty":
        return b""
    if kind == "text":
        return b"not a checkpoint"
    if kind == "a part of it":
        file = io.BytesIO()
        torch.save({"script": "psd"}, file)
        return file.getvalue()
    return pickle.dumps({"script": "psd", "args": Payload()})


@pytest.mark.parametrize("kind", ["cut short", "empty", "text", "a part of it", "pickle payload"])
def test_a_bad_checkpoint_is_refused_in_one_line(tmp_path, kind):
    run(*TINY, "--run-name", "a", "--total-epochs", "1", tmp_path=tmp_path)
    path = tmp_path / "runs/a/resume.pt"
    path.write_bytes(other_file(kind, path.read_bytes()))
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as error:
        psd.main(["--resume", "runs/a", "--total-epochs", "2"])
    message = str(error.value)
    assert "resume.pt is damaged" in message and "\n" not in message
    assert sorted(p.name for p in tmp_path.rglob("*")) == before  # the payload did not run


def test_a_payload_inside_a_torch_file_is_refused(tmp_path):
    (tmp_path / "runs/a").mkdir(parents=True)
    torch.save({"script": "psd", "args": Payload()}, tmp_path / "runs/a/resume.pt")
    with pytest.raises(SystemExit, match="damaged or no checkpoint"):
        psd.main(["--resume", "runs/a"])
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--resume runs/none", "runs/none/resume.pt is missing"),
        (
            "--resume runs/killed_early",
            "runs/killed_early/resume.pt is missing. Was the run stopped before",
        ),
        ("--resume runs/a --run-name b", "--run-name cannot be given with --resume"),
        ("--resume runs/a/resume.pt", "runs/a has finished its 1 epochs: raise --total-epochs"),
        ("--resume runs/a --preset cpu", "preset cannot change on --resume, it was paper"),
        ("--resume runs/a --episodes-per-epoch 2", "episodes_per_epoch cannot change"),
        ("--resume runs/a --total-epochs 2 --ext-coef 1", "Pendulum-v1 reports no x_velocity"),
        ("--resume runs/a --env-id Ant-v4", "env_id cannot change on --resume, it was Pendulum-v1"),
        ("--resume runs/a --hidden-units 8", "hidden_units cannot change"),
        ("--resume runs/a --normalize-obs", "normalize_obs cannot change"),
        (
            "--resume runs/a --total-epochs 2 --turn-coef 1 --regularity-coef 1",
            "--resume cannot switch regularity on or off",
        ),
        ("--resume runs/a", "has finished its 1 epochs: raise --total-epochs"),
        ("--resume runs/other", "was written by metra.py, not by psd.py"),
    ],
)
def test_what_cannot_be_resumed_says_so(tmp_path, flags, message):
    checkpoint = run(*TINY, "--run-name", "a", "--total-epochs", "1", tmp_path=tmp_path)
    (tmp_path / "runs/other").mkdir()
    (tmp_path / "runs/killed_early").mkdir()
    torch.save({**checkpoint, "script": "metra"}, tmp_path / "runs/other/resume.pt")
    with pytest.raises(SystemExit) as error:
        psd.main(flags.split())
    assert message in str(error.value) and "\n" not in str(error.value)
    after = torch.load(tmp_path / "runs/a/resume.pt", weights_only=True)
    assert differences(checkpoint, after) == []


def test_an_infinite_loss_stops_the_run_before_it_saves(tmp_path):
    run(*TINY, "--run-name", "a", "--total-epochs", "2", tmp_path=tmp_path)
    good = (tmp_path / "runs/a/resume.pt").read_bytes()
    with pytest.raises(SystemExit) as error:
        psd.main("--resume runs/a --total-epochs 4 --phi-lr 1e18".split())
    message = str(error.value)
    assert "epoch 2: " in message and "last good checkpoint: runs/a/resume.pt" in message
    assert any(term in message for term in ["losses/", "psd/"])
    assert (tmp_path / "runs/a/resume.pt").read_bytes() == good
    with pytest.raises(SystemExit, match="last good checkpoint: none"):
        psd.main([*TINY, "--run-name", "b", "--sac-lr", "1e18"])
