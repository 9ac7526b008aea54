"""benchmark/grid.py: every command of every grid is one that its script takes; runs and table."""

import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import REPO, TINY

import psd


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


grid = load(REPO / "benchmark/grid.py")


@pytest.mark.parametrize("name", grid.GRIDS)
def test_every_command_parses_and_no_two_are_equal(name):
    commands = grid.GRIDS[name]
    assert len(set(commands.values())) == len(commands) > 1
    one_seed = {re.sub(r"--seed \d+|_s\d+", "", c): c for c in commands.values()}
    for command in one_seed.values():
        command, *more = command.split(grid.THEN)
        script, *flags = command.split()
        flags += " ".join(more).split()  # of later stages, which win
        if "what_if" in script:  # psd.py, but for one function
            script, flags = "psd.py", flags[1:]
        module = importlib.import_module(script[:-3].replace("/", "."))  # not twice: it registers
        args, _ = module.parse_args(flags)
        assert args.total_epochs < 10_000 or "--policy" in flags  # a study has a budget


def test_table_1_takes_its_skills_from_the_other_grid():
    """All that go forward, on the robot of the task; baselines with 16 discrete skills."""
    skills, runs = grid.GRIDS["table1_skills"], grid.GRIDS["table1"]
    assert len(skills) == 2 * 7 and len(runs) == 4 * (6 * 4 + 1) * 3
    assert all("--ext-coef 1" in command for command in skills.values())
    for name, command in skills.items():
        script = command.split()[0]
        if "sac" not in name:
            assert ("--num-skills 16" in command) == script.startswith("baselines/")
    for command in runs.values():
        task, folder = re.search(
            r"--task (\w+)-v0 --skills runs/table1_skills/(\w+)", command
        ).groups()
        robot = folder.split("_")[0]
        assert task.startswith(robot) and f"--env-id {robot}-v4" in skills[folder]


def test_table_1_is_the_mean_over_seeds_with_an_interval_over_seeds(tmp_path, capsys, monkeypatch):
    budget = {"episodes": 40, "eval_episodes": 5, "skill_seed": 4, "skill_epochs": 7}
    budget["ext_coef"] = 1.0
    names = [f"HalfCheetahHurdle_psd_radius_learned_s{seed}" for seed in (1, 2, 3)]
    names += [
        "HalfCheetahHurdle_psd_radius_gentle_s1",
        "HalfCheetahHurdle_sac_fixed_s1",
        "Walker2dHurdle_csd_learned_s1",
    ]  # the last is missing
    for name, mean in zip(names[:5], [1.0, 2.0, 6.0, 5.0, 4.0]):
        (tmp_path / name).mkdir()
        content = {"task": "HalfCheetahHurdle-v0", "policy": "learned", "mean": mean}
        content |= {"seed": int(name[-1]), **budget}
        (tmp_path / name / "downstream.json").write_text(json.dumps(content))
    psd, gentle, sac = grid.table1(names, tmp_path)["cells"]
    assert (gentle["method"], gentle["policy"], gentle["mean"]) == ("psd_radius", "gentle", 5.0)
    assert (psd["method"], psd["policy"], psd["seeds"]) == ("psd_radius", "learned", [1, 2, 3])
    # Each of 1, 1, 1 and 6, 6, 6 is drawn with 1/27 = 3.7 %, more than the 2.5 % of a tail
    assert psd["mean"] == 3.0 and psd["interval"] == pytest.approx([1, 6])
    assert budget.items() <= psd.items() and psd["means"] == [1.0, 2.0, 6.0]
    assert (sac["method"], sac["mean"], sac["interval"]) == ("sac", 4.0, None)
    monkeypatch.setattr(sys, "argv", ["grid.py", "table1", "--table", "--read", str(tmp_path)])
    sys.argv += ["--only", "HalfCheetahHurdle", "--out", str(tmp_path / "table1.json")]
    grid.main()
    assert json.loads((tmp_path / "table1.json").read_text()) == {"cells": [psd, gentle, sac]}
    shown = capsys.readouterr().out
    assert "3.0 (1.0 to 6.0; 3)" in shown
    grid.main(["table1", "--table", "--read", str(tmp_path / "table1.json")])
    assert capsys.readouterr().out == shown  # from the stored numbers, too


def test_the_stored_table_1_is_that_of_the_stored_runs(capsys):
    stored = json.loads((REPO / "results/table1.json").read_text())
    assert stored == grid.table1(grid.GRIDS["table1"], REPO / "results/table1")
    grid.main(["table1", "--table", "--read", str(REPO / "results/table1.json")])
    assert "| HalfCheetahHurdle | paper | 0.6 ± 0.5 |" in capsys.readouterr().out


def cell(task, policy, method, mean, interval, seeds):
    numbers = {"mean": mean, "interval": interval, "seeds": seeds}
    budget = {"episodes": 10_000 if policy == "learned" else 0, "skill_epochs": 600}
    budget["skill_seed"] = 7
    return {"task": task, "policy": policy, "method": method, **numbers, **budget}


def test_table_1_has_our_cells_beside_the_papers_and_empty_ones_elsewhere(tmp_path, capsys):
    cells = [
        cell("HalfCheetahHurdle-v0", "learned", "psd", 2.04, [1.2, 2.9], [1, 2, 3]),
        cell("HalfCheetahHurdle-v0", "fixed", "sac", 1.0, None, [1]),
        cell("Walker2dFriction-v0", "random", "metra", -3.25, [-4.0, -2.0], [1, 2]),
    ]
    (tmp_path / "table1.json").write_text(json.dumps({"cells": cells}))
    source, out = str(tmp_path / "table1.json"), str(tmp_path / "table1.md")
    grid.main(["table1", "--table", "--read", source, "--out", out])
    shown = capsys.readouterr().out
    assert shown == (tmp_path / "table1.md").read_text()
    lines = [line[2:-2].split(" | ") for line in shown.splitlines() if line.startswith("|")]
    head, _, *rows = lines
    assert len(rows) == 20 and {len(row) for row in rows} == {len(head)} == {9}
    table, task = {}, None
    for row in rows:
        task = row[0] or task
        table |= {(task, row[1], method): text for method, text in zip(head[2:], row[2:])}
    assert table["HalfCheetahHurdle", "paper", "PSD"] == "3.8 ± 2.0"
    assert table["Walker2dFriction", "paper", "DADS"] == "1.6 ± 0.1"
    ours = {key: text.strip() for key, text in table.items() if key[1] != "paper"}
    assert {key: text for key, text in ours.items() if text} == {
        ("HalfCheetahHurdle", "ours, PPO", "PSD"): "2.0 (1.2 to 2.9; 3)",
        ("HalfCheetahHurdle", "ours, best single skill", "SAC, r_ext alone"): "1.0 (1)",
        ("Walker2dFriction", "ours, random skills", "METRA"): "-3.2 (-4.0 to -2.0; 2)",
    }
    assert "PPO: 10,000 episodes (paper: 100,000)." in shown
    assert "Skills: 600 epochs, trained with seed 7: one set per method" in shown


def test_the_papers_table_1_is_the_papers():
    """Each of its 20 cells, column by column as the paper prints its methods."""
    hurdles = ("HalfCheetahHurdle-v0", "Walker2dHurdle-v0")
    tasks = (*hurdles, "HalfCheetahFriction-v0", "Walker2dFriction-v0")
    columns = {
        "DIAYN": ("0.6 ± 0.5", "2.6 ± 0.5", "13.2 ± 3.4", "4.6 ± 1.2"),
        "DADS": ("0.9 ± 0.3", "1.9 ± 0.3", "12.4 ± 2.9", "1.6 ± 0.1"),
        "CSD": ("0.8 ± 0.6", "4.1 ± 1.3", "12.5 ± 3.8", "5.3 ± 0.3"),
        "METRA": ("1.9 ± 0.8", "3.1 ± 0.5", "30.1 ± 13.1", "5.2 ± 1.6"),
        "PSD": ("3.8 ± 2.0", "5.4 ± 1.4", "43.4 ± 19.1", "8.7 ± 1.7"),
    }
    assert list(columns) == list(grid.METHODS.values())[:5]
    rows = zip(*columns.values())
    assert grid.PAPER_TABLE_1 == {task: ", ".join(row) for task, row in zip(tasks, rows)}


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "is missing: python benchmark/grid.py table1 --table --out"),
        ("not JSON", "is damaged, or not of benchmark/grid.py table1"),
        ('{"cells": [{"task": "Ant-v4"}]}', "is damaged, or not of"),
        (json.dumps({"cells": [cell("Ant-v4", "learned", "psd", 1, None, [1])]}), "KeyError"),
    ],
)
def test_a_bad_table_1_is_refused_in_one_line(content, message, tmp_path):
    if content is not None:
        (tmp_path / "table1.json").write_text(content)
    with pytest.raises(SystemExit) as error:
        grid.main(["table1", "--table", "--read", str(tmp_path / "table1.json")])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_downstream_run_is_complete_with_its_json(tmp_path, monkeypatch):
    """It judges itself; one that was stopped while it trained or after that goes on."""
    called = []
    monkeypatch.setattr(grid, "call", lambda flags, log: called.append(flags))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) / "runs/table1/a"
    command = "downstream_ppo.py --skills x --total-epochs 5 --seed 1"
    for done, files, expected in [
        (0, [], [*command.split(), "--run-name", "table1/a"]),
        (3, ["resume.pt"], ["downstream_ppo.py", "--resume", str(folder), "--total-epochs", "5"]),
        (5, ["resume.pt"], ["downstream_ppo.py", "--resume", str(folder), "--total-epochs", "5"]),
        (5, ["resume.pt", "downstream.json"], None),
    ]:
        folder.mkdir(parents=True, exist_ok=True)
        [(folder / name).touch() for name in files]
        called.clear()
        monkeypatch.setattr(grid, "epochs_done", lambda run_dir, done=done: done)
        grid.run_and_judge("a", command, folder)
        assert called == ([expected] if expected else [])
    changed = "benchmark/what_if.py gate --total-epochs 9 --seed 1"  # goes on with its change
    monkeypatch.setattr(grid, "epochs_done", lambda run_dir: 5)
    (folder / "model.pt").touch()
    called.clear()
    grid.run_and_judge("a", changed, folder)
    resumed = ["benchmark/what_if.py", "gate", "--resume", str(folder), "--total-epochs", "9"]
    assert called == [resumed, ["evaluate.py", str(folder)]]
    # Stages: the second is a run that goes on with other flags, from wherever the first one is
    staged = f"psd.py --seed 1 --total-epochs 4{grid.THEN}--ext-coef 1 --total-epochs 9"
    go_on = ["psd.py", "--resume", str(folder), "--total-epochs", "4"]
    forward = [*go_on[:3], "--ext-coef", "1", "--total-epochs", "9"]
    for done, expected in [(3, [go_on, forward]), (4, [forward]), (8, [forward]), (9, [])]:
        monkeypatch.setattr(grid, "epochs_done", lambda run_dir, done=done: done)
        called.clear()
        grid.run_and_judge("a", staged, folder)
        assert called == [*expected, ["evaluate.py", str(folder)]]
    monkeypatch.setattr(grid, "epochs_done", lambda run_dir: 0)
    called.clear()
    control = "downstream_ppo.py --skills x --policy fixed --seed 1"
    grid.run_and_judge("b", control, folder.parent / "b")
    assert called == [[*control.split(), "--run-name", "table1/b"]]


def test_one_run_that_fails_does_not_stop_the_others(tmp_path, capsys, monkeypatch):
    def call(flags, log):
        called.append(flags)
        if "runs/table1_skills/HalfCheetah_psd_s1" in flags:  # not trained
            raise subprocess.CalledProcessError(1, flags)

    called = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "call", call)
    monkeypatch.setattr(sys, "argv", "grid.py table1 --only HalfCheetahHurdle --run".split())
    with pytest.raises(SystemExit, match="failed: HalfCheetahHurdle_psd_learned_s1, ") as error:
        grid.main()
    names = [name for name in grid.GRIDS["table1"] if "HalfCheetahHurdle" in name]
    failed = [n for n in names if "Hurdle_psd_" in n and "radius" not in n]
    assert len(called) == len(names) and len(failed) == 12
    assert str(error.value) == f"failed: {', '.join(failed)}"
    assert f"{failed[0]}: failed, the end of runs/table1/" in capsys.readouterr().out


def test_runs_once_resumes_and_judges(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path.relative_to(tmp_path) / "runs/tiny"
    command = " ".join(["psd.py", *TINY, "--no-adaptive-sampling", "--seed 1 --total-epochs "])
    (folder / "a_s1").mkdir(parents=True)  # left by a run that was killed before it saved
    grid.run_and_judge("a_s1", command + "1", folder / "a_s1")
    assert grid.epochs_done(folder / "a_s1") == 1
    evaluation = folder / "a_s1/evaluation.json"
    first, first_weights = evaluation.stat().st_mtime, torch.load(folder / "a_s1/model.pt")
    grid.run_and_judge("a_s1", command + "1", folder / "a_s1")  # nothing to do
    assert evaluation.stat().st_mtime == first
    grid.run_and_judge("a_s1", command + "2", folder / "a_s1")  # goes on
    assert grid.epochs_done(folder / "a_s1") == 2 and evaluation.stat().st_mtime > first
    assert first_weights["args"]["total_epochs"] == 1


def test_table_counts_true_skills_over_seeds(tmp_path):
    for seed, periods in [(1, [10.2, 25.0, None]), (2, [10.8, 20.9, 39.9])]:
        skills = [
            {"L": L, "period": period, "r_psd": 0.5, "radius": 1.0, "trained": True}
            for L, period in zip([5, 10, 20], periods)
        ]
        skills.append({"L": 7, "period": 14.0, "r_psd": 1.0, "radius": 1.0, "trained": False})
        (tmp_path / f"both_s{seed}").mkdir()
        (tmp_path / f"both_s{seed}/evaluation.json").write_text(json.dumps({"skills": skills}))
    rows = grid.true_skills(["both_s1", "both_s2", "missing_s1"], tmp_path)
    assert set(rows) == {"both"} and set(rows["both"]) == {1, 2}
    rows["third"] = {3: rows["both"][2]}
    lines = grid.true_skills_text(rows).splitlines()
    assert lines[0] == "| variant | L | true, by seed | mean | more than both | r_PSD | radius |"
    assert lines[2] == "| both | 3 | 1, 2 | 1.5 (1.0 to 2.0; 2 seeds) |  | 0.50 | 1.00 |"
    # Above 1, and equal to 2: 3/4
    assert lines[3].startswith("| third | 3 | 2 | 2.0 (1 seed) | 0.75 (0.50 to 1.00) |")


@pytest.mark.parametrize("name", ["table1", "lambda"])
def test_an_empty_table_does_not_replace_a_full_one(tmp_path, monkeypatch, name):
    (tmp_path / "out.json").write_text("kept")
    line = f"grid.py {name} --table --read {tmp_path} --out {tmp_path / 'out.json'}"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(SystemExit, match="has nothing to table"):
        grid.main()
    assert (tmp_path / "out.json").read_text() == "kept"


@pytest.fixture
def what_if(monkeypatch):
    """benchmark/what_if.py; what it replaces in psd.py is put back."""
    for name in ("update", "period_return", "psd_reward", "radius_bonus"):
        monkeypatch.setattr(psd, name, getattr(psd, name))
    monkeypatch.setattr(psd.ReplayBuffer, "rows", psd.ReplayBuffer.rows)
    return load(REPO / "benchmark/what_if.py")


def weights(module):
    return [p.detach().clone() for p in module.parameters()]


def equal(old, new):
    return all(torch.equal(a, b) for a, b in zip(old, new, strict=True))


def test_what_if_phi_is_ahead(what_if, tiny_args, make_agent_and_buffer, monkeypatch):
    """More updates of phi before one of all; or of phi alone, as long as the warm-up lasts."""
    update, first = psd.update, {}
    for change in (what_if.more_phi, what_if.warm_up):
        monkeypatch.setattr(psd, "update", update)
        monkeypatch.setattr(what_if, "WARM_UP", 1)  # epochs, of 4 updates
        agent, buffer = make_agent_and_buffer(tiny_args)
        first[change] = weights(agent.actor), weights(agent.phi)
        change()
        for expected in [4, 8, 12, 16, 20] if change is what_if.more_phi else [1, 2, 3, 4, 5]:
            psd.update(agent, buffer, tiny_args)
            steps = agent.optimizers["phi"].state[agent.phi[0].weight]["step"]
            assert steps == expected
            waits = change is what_if.warm_up and expected <= 4
            assert equal(first[change][0], weights(agent.actor)) == waits
            assert not equal(first[change][1], weights(agent.phi))


def test_what_if_phi_s_own_step_is_that_of_an_update(what_if, tiny_args, make_agent_and_buffer):
    agent, buffer = make_agent_and_buffer(tiny_args)
    torch.manual_seed(1)
    metrics = psd.update(agent, buffer, tiny_args)
    other, buffer = make_agent_and_buffer(tiny_args)
    torch.manual_seed(1)
    own = what_if.phi_step(other, buffer, tiny_args)
    assert equal(weights(agent.phi), weights(other.phi))
    assert all(metrics[name] == value for name, value in own.items()) and len(own) == 4


def test_what_if_the_gate_looks_at_the_radius(what_if, tiny_args):
    """A circle of a third of the size, and one that is too large, under the same r_PSD."""
    envs = [psd.make_env(tiny_args) for _ in range(tiny_args.adaptive_episodes)]
    agent = psd.Agent(tiny_args, 3, envs[0].action_space, "cpu")
    progress = {"epoch": 3, "obs_mean": torch.zeros(3), "obs_std": torch.ones(3)}
    plain, (L, T) = psd.period_return(envs, agent, 7, progress, tiny_args), (7, 40)
    what_if.gate()

    def circle(radius):
        angle = torch.arange(T + 1) * 2 * np.pi / (2 * L)
        return lambda *_: radius * L / 2 * torch.stack([angle.cos(), angle.sin()], dim=1)

    for radius in (1 / 3, 1.0, 1.5):
        psd_encode, psd.encode = psd.encode, circle(radius)
        side = radius * L * np.sin(np.pi / (2 * L)) - L * np.sin(np.pi / (2 * L))
        R = psd.period_return(envs, agent, L, progress, tiny_args)
        psd.encode = psd_encode
        expected = T * np.exp(-tiny_args.kappa * side**2) * min(radius, 1)
        assert R == pytest.approx(expected, rel=1e-4)
    assert plain > psd.period_return(envs, agent, L, progress, tiny_args) > 0


@pytest.mark.parametrize(
    "change, at_origin, at_rest",
    [("come_back", 1, 1), ("come_back_factor", 0, 1), ("come_back_step", 1, 0)],
)
@pytest.mark.parametrize("turns, back", [(1, 1.0), (5 / 6, 0.5), (0.5, 0.0)])
def test_what_if_coming_back_is_paid(what_if, change, at_origin, at_rest, turns, back):
    """A state that turns once in 2L steps; one that is 60 degrees away then, a mean square of half
    of what two states drawn at random have; and one that is opposite. Steps before 2L are paid the
    mean of the others. The forms differ in whether it is paid at the origin of the latents, and
    where the latents do not move."""
    L, T = 5, 60  # whole turns of each, so that both dimensions have a variance of 1/2
    what_if.CHANGES[change]()
    angle = 2 * np.pi * turns * np.arange(T + 1) / (2 * L)
    obs = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    zeros = np.zeros((T, 1), np.float32)
    buffer = psd.ReplayBuffer(200, T, 2, 1, 1, "cpu")
    buffer.add(psd.Episode(obs, zeros, zeros[:, 0], False), torch.zeros(1), L)
    batch = buffer.sample(4096)
    phi = torch.tensor([L / 2, 0.0]).expand(4096, 2)
    L, side = batch.period, torch.tensor([0.0, L * np.sin(np.pi / (2 * L))])

    def bonus(z, z_next):
        psd.psd_reward(z, z_next, L, kappa=10)  # which psd.update asks for first
        return psd.radius_bonus(z_next, L)

    for paid, expected in [
        (bonus(phi - side, phi), 1 + back),
        (bonus(0 * phi - side, 0 * phi), at_origin * back),
        (bonus(phi, phi), 1 + at_rest * back),
    ]:
        assert paid == pytest.approx(np.full(4096, expected), abs=0.05)


def test_what_if_coming_back_is_that_of_the_batch(
    what_if, tiny_args, make_agent_and_buffer, monkeypatch
):
    """In psd.update r_PSD, the radius and the states that come back are those of one batch."""
    agent, buffer = make_agent_and_buffer(tiny_args)
    tiny_args.radius_coef, tiny_args.ext_coef, tiny_args.kappa = 1.0, 0.0, 0.1
    psd_reward, radius_bonus, critic_loss, seen = (
        psd.psd_reward,
        psd.radius_bonus,
        psd.critic_loss,
        {},
    )
    what_if.come_back_step()

    def look(agent, batch, reward, alpha, gamma):
        seen.update(batch=batch, reward=reward.clone())
        return critic_loss(agent, batch, reward, alpha, gamma)

    monkeypatch.setattr(psd, "critic_loss", look)
    psd.update(agent, buffer, tiny_args, train_phi=False)
    batch, L, skill = seen["batch"], seen["batch"].period, seen["batch"].skill
    phi_s, phi_next = (agent.phi(obs, skill).detach() for obs in (batch.obs, batch.next_obs))
    r_psd, radius = psd_reward(phi_s, phi_next, L, tiny_args.kappa), radius_bonus(phi_next, L)
    # where s' is stored: which episode, and when in it
    row = (buffer.obs[None] == batch.next_obs[:, None]).all(dim=-1).float().argmax(dim=1)
    episode = torch.searchsorted(buffer.start, row, right=True) - 1
    known = row - buffer.start[episode] >= 2 * L.long()
    then = buffer.obs[(row - 2 * L.long()).clamp(min=0)]
    apart = ((batch.next_obs - then) ** 2 / (2 * batch.next_obs.var(dim=0))).mean(dim=-1)
    back = (1 - apart).clamp(min=0)
    back = torch.where(known, back, back[known].mean())
    assert 0 < known.sum() < len(L) and back[known].std() > 0.01
    assert seen["reward"].numpy() == pytest.approx((r_psd * (1 + back) + radius).numpy(), abs=1e-4)


@pytest.mark.parametrize("only, names", [("radius_s1", 1), ("radius", 6), ("nothing", 0)])
def test_only_takes_one_run_or_those_that_contain_it(monkeypatch, capsys, only, names):
    monkeypatch.setattr("sys.argv", ["grid.py", "adaptive", "--only", only])
    if names:
        grid.main()
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == names and all(only in line for line in lines)
    else:
        with pytest.raises(SystemExit, match="adaptive has no run"):
            grid.main()


def test_printed_stages_go_on_with_the_same_script(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["grid.py", "wound", "--only", "come_back_kappa_50_s3"])
    grid.main()
    first, second = capsys.readouterr().out.splitlines()
    start = "python benchmark/what_if.py come_back --"
    assert first.startswith(f"{start}env-id Pendulum-v1")
    assert second.startswith(f"{start}resume runs/wound/come_back_kappa_50_s3 --kappa 50")


def test_what_if_says_how_to_go_on_with_the_change(tmp_path):
    script = [sys.executable, str(REPO / "benchmark/what_if.py"), "come_back"]
    flags = [*TINY, "--radius-coef", "1", "--total-epochs", "1", "--run-name", "a"]
    run = subprocess.run([*script, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip().endswith("what_if.py come_back --resume runs/a --total-epochs 2")
