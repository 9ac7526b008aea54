"""tests/same_bits.py: an old and a new file that say the same are the same, and one bit is seen."""

import copy

import pytest
import same_bits
import torch
from conftest import REPO

ENCODER = {"psd": "phi", "psd_metra": "phi_m", "metra": "phi"}  # whose optimiser had log_lam


def moments(n):
    return {"step": torch.tensor(4.0), "exp_avg": torch.randn(n), "exp_avg_sq": torch.rand(n)}


def old_file(script):
    """A resume.pt of the old format, with made-up values."""
    torch.manual_seed(0)
    optimizers = {ENCODER[script]: {}, "critic": {}, "actor": {}}
    for name in optimizers:
        optimizers[name] = {i: moments(3) for i in range(4)}
    optimizers["actor"][4] = moments(1)
    agent = {"actor.net.0.weight": torch.randn(3, 2), "log_alpha": torch.randn(())}
    if script != "psd":
        agent["log_lam"] = torch.randn(())
        optimizers[ENCODER[script]][4] = moments(1)
    buffer = {
        "obs": torch.randn(9, 3),
        "actions": torch.randn(9, 2),
        "velocity": torch.randn(9),
        "terminated": torch.tensor([False] * 8 + [True]),
        "start": torch.tensor([0, 4]),
        "length": torch.tensor([3, 4]),
        "skill": torch.tensor([[7.0, 0.1, 0.2], [8.0, 0.3, 0.4]]),
        "lengths": [3, 4],
        "head": 0,
    }
    bounds = {} if script == "metra" else {"bounds": (5, 8, False, True)}
    state = {"epoch": 3, "global_step": 7, "obs_mean": torch.randn(3), **bounds}
    return {
        "script": script,
        "args": {"gamma": 0.9},
        "state": state,
        "agent": agent,
        "buffer": buffer,
        "optimizers": optimizers,
        "rng": [torch.get_rng_state()],
    }


def new_file(script):
    """The same values in the new format."""
    new = old_file(script)
    new["progress"] = new.pop("state")
    new["args"] = {"discount": 0.9}
    buffer = new["buffer"]
    del buffer["lengths"]
    if script == "metra":
        buffer["period"] = torch.zeros(2)
    else:
        buffer["period"] = buffer["skill"][:, 0].clone()
        buffer["skill"] = buffer["skill"][:, 1:].clone()
    new["optimizers"]["alpha"] = {0: new["optimizers"]["actor"].pop(4)}
    if script != "psd":
        new["optimizers"]["lam"] = {0: new["optimizers"][ENCODER[script]].pop(4)}
    return new


def differences(old, new):
    return same_bits.differences(same_bits.canonical(old), same_bits.canonical(new))


@pytest.mark.parametrize("script", ENCODER)
def test_old_and_new_files_of_the_same_values_are_the_same(script):
    files = [old_file(script), new_file(script)]
    before = copy.deepcopy(files)
    for a in files:
        for b in files:
            assert differences(a, b) == []
    values = [same_bits.flat(file) for file in files + before]
    assert same_bits.differences(values[0], values[2]) == []  # and stay as they are
    assert same_bits.differences(values[1], values[3]) == []
    scalars = {"psd": {"alpha"}, "psd_metra": {"alpha", "lam"}, "metra": {"alpha", "lam"}}
    names = {name.split("/")[1] for name in same_bits.canonical(files[0]) if "exp_avg" in name}
    assert names == {ENCODER[script], "critic", "actor"} | scalars[script]


def flip(value):
    """The same tensor or integer but for its last bit."""
    if torch.is_tensor(value):
        data = bytearray(value.numpy().tobytes())
        data[-value.element_size()] ^= 1
        return torch.frombuffer(data, dtype=value.dtype).reshape(value.shape)
    return type(value)(value ^ 1)


def change(content, path):
    """Flips a bit of the value at a path through dicts and tuples."""
    key, *rest = path
    if isinstance(content, tuple | list):
        parts = list(content)
        parts[key] = change(parts[key], rest) if rest else flip(parts[key])
        return type(content)(parts)
    return content | {key: change(content[key], rest) if rest else flip(content[key])}


CHANGES = {  # a path inside an old file: the name that has to be reported
    ("state", "epoch"): "progress/epoch",
    ("state", "global_step"): "progress/global_step",
    ("state", "bounds", 1): "progress/bounds/1",
    ("state", "bounds", 2): "progress/bounds/2",
    ("state", "obs_mean"): "progress/obs_mean",
    ("agent", "actor.net.0.weight"): "agent/actor.net.0.weight",
    ("agent", "log_lam"): "agent/log_lam",
    ("optimizers", "critic", 3, "exp_avg_sq"): "optimizers/critic/3/exp_avg_sq",
    ("optimizers", "actor", 3, "exp_avg"): "optimizers/actor/3/exp_avg",
    ("optimizers", "actor", 4, "exp_avg"): "optimizers/alpha/0/exp_avg",
    ("optimizers", "phi_m", 3, "step"): "optimizers/phi_m/3/step",
    ("optimizers", "phi_m", 4, "exp_avg_sq"): "optimizers/lam/0/exp_avg_sq",
    ("rng", 0): "rng/0",
    ("buffer", "skill"): "buffer/skill",
}
NAMES = "obs actions velocity terminated start length head".split()
CHANGES |= {("buffer", name): f"buffer/{name}" for name in NAMES}


@pytest.mark.parametrize("path", CHANGES, ids=CHANGES.values())
def test_one_bit_is_seen(path):
    old = old_file("psd_metra")
    changed = change(old, path)
    assert differences(changed, new_file("psd_metra")) == [CHANGES[path]]
    assert differences(old, changed) == [CHANGES[path]]


def test_one_bit_of_L_or_of_a_new_file_is_seen():
    for path in [("buffer", "period"), ("buffer", "skill"), ("optimizers", "lam", 0, "exp_avg")]:
        changed = change(new_file("psd_metra"), path)
        name = "/".join(map(str, path))
        assert differences(old_file("psd_metra"), changed) == [name]
    old = old_file("psd")
    old["buffer"]["skill"][1, 0] = 9.0
    assert differences(old, new_file("psd")) == ["buffer/period"]
    baseline = new_file("metra")
    baseline["buffer"]["period"][1] = 9.0
    assert differences(old_file("metra"), baseline) == ["buffer/period"]


def test_what_equality_would_miss_is_seen_and_nan_is_itself():
    nan = float("nan")
    for a, b in [(0.0, -0.0), (torch.zeros(2), -torch.zeros(2)), (1, True), (1, 1.0)]:
        assert same_bits.bits(a) != same_bits.bits(b)
    assert same_bits.bits(torch.zeros(2)) != same_bits.bits(torch.zeros(1, 2))
    assert same_bits.bits(torch.zeros(2)) != same_bits.bits(torch.zeros(1, dtype=torch.double))
    assert same_bits.bits(torch.tensor([nan])) == same_bits.bits(torch.tensor([nan]))
    old, new = old_file("psd"), new_file("psd")
    assert differences(old | {"script": "psd_pixel"}, new) == ["script"]
    del new["rng"], new["buffer"]["velocity"]
    new["more"] = 1
    assert differences(old, new) == ["buffer/velocity", "rng/0", "more"]


def test_a_mean_that_is_zero_has_no_sign_but_an_observation_has_one():
    old, new = old_file("psd"), new_file("psd")
    old["state"]["obs_mean"], new["progress"]["obs_mean"] = -torch.zeros(3), torch.zeros(3)
    assert differences(old, new) == []
    old["buffer"]["velocity"], new["buffer"]["velocity"] = -torch.zeros(9), torch.zeros(9)
    assert differences(old, new) == ["buffer/velocity"]


def test_frozen_skills_inside_a_downstream_file():
    torch.manual_seed(0)
    state, actor = {"epoch": 1, "bounds": (5, 8, True, True)}, {"net.0.weight": torch.randn(3)}
    skills = {"script": "psd", "args": {"k": 1}, "state": state, "agent": actor}
    head = {"script": "downstream_ppo", "args": {}, "agent": {"actor.0.bias": torch.randn(2)}}
    head["optimizer"] = {0: moments(2)}
    old = {**head, "state": {"epoch": 3}, "skills": skills, "rng": torch.get_rng_state()}
    frozen = {"script": "psd", "args": {}, "progress": state, "agent": actor}
    new = {**head, "progress": {"epoch": 3}, "skills": frozen, "rng": [torch.get_rng_state()]}
    assert differences(old, new) == []
    for path, name in {
        ("skills", "agent", "net.0.weight"): "skills/agent/net.0.weight",
        ("skills", "state", "bounds", 0): "skills/progress/bounds/0",
        ("optimizer", 0, "exp_avg"): "optimizer/0/exp_avg",
        ("rng",): "rng/0",
    }.items():
        assert differences(change(old, path), new) == [name]


def test_cases_are_many_and_have_all_their_settings():
    cases = dict(same_bits.case_names())
    for script in ["psd", "psd_metra", "psd_pixel", "metra", "csd", "diayn", "dads"]:
        assert {f"{script}/{case}" for case in ["plain", "resume", "ext", "falls"]} <= set(cases)
    for script, flags in cases.values():
        assert (REPO / script).exists()
        assert {"--seed", "--gamma", "--hidden-units"} <= set(flags)


DOCTORED = """
exact_reward = psd_reward


def psd_reward(*inputs):
    return torch.nextafter(exact_reward(*inputs), torch.tensor(2.0))
"""


def test_a_reward_that_is_one_bit_too_large_is_found_out(tmp_path):
    """Four real runs: psd.py, its copy, one that is doctored, and one that fails."""
    text = (REPO / "psd.py").read_text()
    head, tail = text.split('if __name__ == "__main__":')
    texts = {"old": text, "new": text, "broken": "raise SystemExit('broken')"}
    texts["doctored"] = f'{head}{DOCTORED}\n\nif __name__ == "__main__":{tail}'
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "psd.py").write_text(text)

    def run(name):  # the working tree's psd.py knows the flags by their new names
        folder = tmp_path / f"{name}_run"
        return same_bits.run_case(tmp_path / name, "psd/moving", folder, None, same_bits.RENAMED)

    with pytest.raises(RuntimeError, match="psd.py in broken failed: broken"):
        run("broken")
    values = {name: run(name) for name in ["old", "new", "doctored"]}
    assert len(values["old"]) > 100 and values["old"]["progress/bounds/1"] == 12  # it was 10
    assert same_bits.differences(values["old"], values["new"]) == []
    found = same_bits.differences(values["old"], values["doctored"])
    assert any(name.startswith("optimizers/critic/") for name in found)


def test_one_case_that_differs_is_enough_to_fail(monkeypatch, capsys):
    values = {"psd/plain": {"a": 1}, "psd/moving": {"a": 2}}

    def run_case(tree, name, *_):
        return {"a": 1} if tree.name == "old" else values[name]

    monkeypatch.setattr(same_bits, "check_out", lambda *_: None)
    monkeypatch.setattr(same_bits, "run_case", run_case)
    for names, code in [(["psd/plain"], 0), (["psd/plain", "psd/moving"], 1)]:
        with pytest.raises(SystemExit) as end:
            same_bits.main(["REV", "--only", *names])
        assert end.value.code == code
    output = capsys.readouterr().out
    assert "psd/plain: same (1 values)\n" in output and "psd/moving: 1 differ: a\n" in output
    with pytest.raises(SystemExit) as end:
        same_bits.main(["REV", "--only", "psd", "nothing"])
    assert end.value.code == 2
    assert "--only nothing: choose from psd/plain" in capsys.readouterr().err
