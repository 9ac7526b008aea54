"""--track: Weights & Biases, offline."""

import sys
from pathlib import Path

import pytest
import torch
from conftest import TINY

import psd

RUN = [*TINY, "--total-epochs", "2"]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Nothing leaves the machine, and nothing is written outside the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    wandb = pytest.importorskip("wandb")
    yield wandb
    wandb.finish()


def weights(run_dir):
    return torch.load(run_dir / "model.pt", weights_only=True)["agent"]


def test_a_tracked_run_has_the_same_bits_and_resumes_its_page(offline):
    psd.main([*RUN, "--run-name", "plain"])
    psd.main([*RUN, "--run-name", "tracked", "--track", "--wandb-project-name", "mine"])
    plain, tracked = weights(Path("runs/plain")), weights(Path("runs/tracked"))
    assert all(torch.equal(plain[name], tracked[name]) for name in plain)
    assert offline.run.project == "mine" and offline.run.name == "tracked"
    assert offline.run.config["hidden_units"] == 16
    first = offline.run.id
    assert Path("runs/tracked/wandb_id").read_text() == first
    offline.finish()
    psd.main(["--resume", "runs/tracked", "--total-epochs", "3"])  # --track is remembered
    assert offline.run.id == first
    logs = list(Path("runs/tracked/wandb").glob("offline-run-*"))
    assert len(logs) == 2
    assert not Path("runs/plain/wandb").exists() and not Path("wandb").exists()


def test_without_wandb_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit, match="--track needs Weights & Biases: pip install wandb"):
        psd.main([*RUN, "--run-name", "a", "--track"])


def test_without_an_account_one_line_says_what_to_do(offline, monkeypatch):
    def init(**kwargs):
        raise offline.errors.UsageError("api_key not configured")

    monkeypatch.setattr(offline, "init", init)
    with pytest.raises(SystemExit, match=r"does not start \(api_key not configured\): wandb login"):
        psd.main([*RUN, "--run-name", "a", "--track"])
