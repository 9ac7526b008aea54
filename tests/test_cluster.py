"""Grids as jobs of submitit, with its local executor: preempted, queued again, resumed."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import psd
from benchmark import grid

pytest.importorskip("submitit")


def children_of(pid):
    """Process ids, from Linux's table of processes."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = status.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has just ended
            continue
        if int(after_name[1]) == pid:
            found.append(int(status.parent.name))
    return found


def wait_until(condition, seconds=120):
    start = time.time()
    while not condition():
        assert time.time() < start + seconds, "it takes too long"
        time.sleep(0.05)


def weights(run_dir):
    return torch.load(run_dir / "model.pt", weights_only=True)["agent"]


def run_and_preempt(flags, preempt_first):
    """Four runs as one array. The first is preempted; the second cannot be resumed, and fails."""
    folder = Path("runs/smoke")
    damaged = folder / "tiny_s2/resume.pt"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("no checkpoint")
    command = [sys.executable, grid.__file__, "smoke", "--slurm", "--wait", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        first_line = process.stdout.readline().decode()
        job_id = first_line.removeprefix("tiny_s1: job ").split(",")[0]
        log = folder / "tiny_s1.log"
        wait_until(lambda: log.exists() and " 3/30 " in log.read_text())
        preempt_first(job_id)
        shown = process.stdout.read().decode()
    assert process.returncode == 1 and shown.endswith("failed: tiny_s2\n")
    for name in ("tiny_s1", "tiny_s3", "tiny_s4"):
        assert f"{name}: done" in shown and (folder / name / "evaluation.json").exists()
    assert "tiny_s2: failed, see its logs" in shown and damaged.read_text() == "no checkpoint"
    assert "| tiny | 2 | " in shown and "; 3 seeds)" in shown  # the table of what has ended

    assert "to continue: python" in log.read_text().split("30/30")[0]  # it was stopped on the way
    command = grid.GRIDS["smoke"]["tiny_s1"]
    psd.main([*command.split()[1:], "--run-name", "whole"])
    whole, preempted = weights(Path("runs/whole")), weights(folder / "tiny_s1")
    assert all(torch.equal(whole[name], preempted[name]) for name in whole)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes as Linux lists them")
def test_a_preempted_run_is_queued_again_and_ends_with_the_same_bits(tmp_path, monkeypatch):
    """What Slurm does before it takes a machine away, done to submitit's local executor: a warning
    to every process of the job."""

    def preempt(job_id):
        processes = children_of(int(job_id))
        for process in processes:
            processes += children_of(process)
        assert len(processes) >= 3  # the job, the grid and the script
        for process in reversed(processes):
            os.kill(process, signal.SIGUSR2)

    monkeypatch.chdir(tmp_path)
    run_and_preempt(["--cluster", "local"], preempt)


@pytest.mark.slurm
def test_the_same_on_slurm(tmp_path, monkeypatch):
    """On a machine with Slurm, see one_node_slurm.sh. A job that is queued again waits there."""
    monkeypatch.chdir(tmp_path)
    send = ["scancel", "--signal=USR2"]
    flags = "--hours 0.5 --memory 1".split()
    run_and_preempt(flags, lambda job_id: subprocess.run([*send, job_id]))


def test_a_signal_lets_every_run_save(tmp_path, monkeypatch, capsys):
    """Two runs at a time, of four. A signal stops both; no other one starts."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/smoke")

    def stop_both():
        logs = [folder / "tiny_s1.log", folder / "tiny_s2.log"]
        wait_until(lambda: all(log.exists() and " 2/30 " in log.read_text() for log in logs))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    thread = threading.Thread(target=stop_both)
    thread.start()
    with pytest.raises(SystemExit) as error:
        grid.main("smoke --run --jobs 2".split())
    thread.join()
    assert error.value.code == 128 + signal.SIGTERM and not grid.CHILDREN and not grid.STOPPED
    shown = capsys.readouterr().out
    for name in ("tiny_s1", "tiny_s2"):
        assert f"{name}: stopped; the same command continues it" in shown
        assert 2 <= grid.epochs_done(folder / name) < 30
    assert not (folder / "tiny_s3").exists() and not (folder / "tiny_s4").exists()


@pytest.mark.parametrize(
    "flags, message",
    [
        ("smoke --slurm --run", "give one of them"),
        ("smoke --table --wait", "--wait is for --slurm"),
        ("smoke --slurm --hours 0", "cannot be: give more"),
        ("smoke --slurm --gpus -1", "cannot be: give more"),
        ("smoke --slurm --jobs 0", "--jobs 0 is no number of runs"),
    ],
)
def test_bad_flags_get_one_line(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message) as error:
        grid.main(flags.split())
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_without_slurm_or_submitit_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="is this a machine of the cluster"):
        grid.main("smoke --slurm".split())
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SystemExit, match="pip install submitit"):
        grid.main("smoke --slurm".split())


def test_a_slurm_job_asks_for_what_the_flags_say(tmp_path, monkeypatch):
    """One array; time, memory, partition and GPUs. A GPU also makes the run use it."""
    import submitit

    seen = {"commands": []}

    class Executor:
        def __init__(self, folder, cluster, slurm_max_num_timeout):
            seen.update(folder=str(folder), cluster=cluster, again=slurm_max_num_timeout)

        def update_parameters(self, **kwargs):
            seen.update(kwargs)

        def batch(self):
            return pytest.MonkeyPatch.context()  # any context does

        def submit(self, job, command):
            seen["commands"].append(command)
            paths = type("Paths", (), {"stdout": "out"})
            return type("SubmittedJob", (), {"job_id": "7_0", "paths": paths})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    grid.main("smoke --slurm --partition gpu --hours 1.5 --memory 8 --gpus 1 --jobs 3".split())
    assert (seen["cluster"], seen["slurm_partition"], seen["timeout_min"]) == ("slurm", "gpu", 90)
    assert (seen["mem_gb"], seen["gpus_per_node"], seen["cpus_per_task"]) == (8, 1, 1)
    assert seen["slurm_array_parallelism"] == 3 and seen["again"] >= 100
    assert seen["folder"] == "runs/smoke/jobs"
    ends = [command[2:] for command in seen["commands"]]
    assert ends[1] == ["smoke", "--only", "tiny_s2", "--run", "--cuda"] and len(ends) == 4
