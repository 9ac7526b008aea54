"""Copies are the policy and must not drift: see tests/sync.py, which also repairs them."""

import ast
import re

import pytest
from conftest import REPO
from sync import BASELINES, EXCEPTIONS, SCRIPTS, copy_block, drift, fields

PRESENT = [script for script in SCRIPTS if (REPO / script).exists()]
# downstream_ppo.py discovers no skills: PPO, which has no replay buffer, learns to choose them
OWN_BANNERS = {
    "downstream_ppo.py": [
        "Arguments",
        "Tasks",
        "Frozen skills",
        "Networks",
        "Proximal policy optimisation",
        "Environment and rollouts",
        "Evaluation",
        "Checking arguments, saving and resuming",
        "Main",
    ]
}


def test_no_drift():
    assert drift() == []
    assert all(EXCEPTIONS.values()), "an exception needs its reason"


@pytest.fixture
def doctored(tmp_path):
    """A folder with psd.py, and a copy of it under another script's name, to be tampered with."""

    def make(old, new):
        source = (REPO / "psd.py").read_text()
        assert old in source
        (tmp_path / "psd.py").write_text(source)
        (tmp_path / "psd_metra.py").write_text(source.replace(old, new, 1))
        return tmp_path

    return make


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("torch.exp(-kappa * delta**2)", "torch.exp(-kappa * delta)", "psd_reward differs"),
        ("log_std.clamp(-20, 2)", "log_std.clamp(-5, 2)", "Actor differs"),
        ('"Ant": (200, 5.0', '"Ant": (300, 5.0', "ROBOTS differs"),
        ("gamma: float = 0.99", "gamma: int = 0.99", "Args.gamma differs"),
        ('"""discount factor"""', '"""the discount"""', "Args.gamma differs"),
        ("@torch.no_grad()\ndef encode", "def encode", "encode differs"),
    ],
)
def test_a_doctored_copy_is_caught(doctored, old, new, complaint):
    folder = doctored(old, new)
    (line,) = drift(folder, exceptions={})
    assert line.startswith("psd_metra.py: ") and complaint in line


@pytest.mark.parametrize(
    "old, new, complaint",
    [
        ("or N(0, I) over its norm", "or N(0, I)", "sample_skills differs from baselines/metra"),
        ("learning rate of log lambda", "of it", "Args.lam_lr differs in type or help from"),
        ('range(progress["epoch"]', "range(0", "train differs from baselines/metra.py's"),
        ("as_tensor(scale", "as_tensor(1 * scale", "Actor differs from psd.py's"),
    ],
)
def test_siblings_are_compared_with_each_other(tmp_path, old, new, complaint):
    """In blocks that psd.py has not, and in those that all have for one reason not from psd.py."""
    source = (REPO / "baselines/metra.py").read_text()
    assert source.count(old) == 1
    (tmp_path / "baselines").mkdir()
    (tmp_path / "psd.py").write_text((REPO / "psd.py").read_text())
    (tmp_path / "baselines/metra.py").write_text(source)
    (tmp_path / "baselines/csd.py").write_text(source)
    reasons = {n: reason for (s, n), reason in EXCEPTIONS.items() if s == "baselines/metra.py"}
    known = {(script, n): r for script in BASELINES[:2] for n, r in reasons.items()}
    assert drift(tmp_path, known) == []
    (tmp_path / "baselines/csd.py").write_text(source.replace(old, new))
    (line,) = drift(tmp_path, known)
    assert line.startswith(f"baselines/csd.py: {complaint}")
    name = complaint.split()[0]
    if not name.startswith("Args."):
        assert copy_block(name, tmp_path, known) == ["baselines/csd.py"]
        assert drift(tmp_path, known) == []


def test_an_honest_copy_passes_and_its_defaults_are_free(doctored):
    assert drift(doctored("gamma: float = 0.99", "gamma: float = 0.9"), exceptions={}) == []


def test_an_exception_is_honoured_and_a_stale_one_is_not(doctored):
    folder = doctored("torch.exp(-kappa * delta**2)", "torch.exp(-kappa * delta)")
    reason = {("psd_metra.py", "psd_reward"): "for the test"}
    assert drift(folder, exceptions=reason) == []
    stale = {**reason, ("psd_metra.py", "Actor"): "it was different once"}
    assert drift(folder, stale) == ["psd_metra.py: the exception for Actor is stale"]


def test_copy_block_repairs(doctored):
    folder = doctored("torch.exp(-kappa * delta**2)", "torch.exp(-kappa * delta)  # oops\n")
    assert copy_block("psd_reward", folder) == ["psd_metra.py"]
    assert drift(folder, exceptions={}) == []
    assert (folder / "psd_metra.py").read_text().count("def psd_reward") == 1


@pytest.mark.parametrize("script", PRESENT)
def test_scripts_stand_alone_and_have_the_same_banners(script):
    source = (REPO / script).read_text()
    modules = {path.stem for path in REPO.glob("*.py")} | {"baselines", "tests"}
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in getattr(node, "names", []) if hasattr(alias, "name")]
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not {name.split(".")[0] for name in names} & modules
    banners = re.findall(r"^# -{5,} (.+?) -{5,}$", source, re.MULTILINE)
    reference = re.findall(r"^# -{5,} (.+?) -{5,}$", (REPO / "psd.py").read_text(), re.MULTILINE)
    if script in BASELINES:
        reference.remove("Ours, off by default")  # terms of PSD
    assert banners == OWN_BANNERS.get(script, reference)


@pytest.mark.parametrize("script", PRESENT)
def test_every_argument_has_a_help_text(script):
    assert fields(REPO / script)
    for name, (_, text) in fields(REPO / script).items():
        assert text, name
