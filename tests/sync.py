"""The scripts share no code, so what they have in common is copied, and must not drift apart.

    python tests/sync.py                    list the blocks that differ from their reference
    python tests/sync.py Actor rollout      write the reference's text of these into the others

A block is a top-level function, class or assignment. Its reference is psd.py's or, where psd.py has
none, that of the first of SCRIPTS that has one. Scripts that are excepted from it for the same
reason have to agree with each other, and so have a reference of their own, again the first.
tests/test_drift.py is the judge.
"""

import ast
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
BASELINES = [f"baselines/{name}.py" for name in ["metra", "csd", "diayn", "dads"]]
SCRIPTS = ["psd.py", *BASELINES, "psd_pixel.py", "psd_metra.py", "downstream_ppo.py"]

# (script, block): why its text differs from the reference's. One reason, one text; a stale entry
# fails the test.
NO_PERIODS = "skills come from a fixed prior: no L to check, to adapt or to log by"
TABLE = "its own table of values by robot"
EXCEPTIONS = {
    (script, name): reason
    for name, reason in {
        "FIXED_ON_RESUME": "the number of skills shapes the networks, not d or D",
        "PROGRESS": "no bounds of L",
        "ROBOT_COLUMNS": TABLE,
        "CPU_PRESET_BY_ROBOT": TABLE,
        "peek": NO_PERIODS,
        "default_args": NO_PERIODS,
        "parse_args": NO_PERIODS,
        "check_args": NO_PERIODS,
        "episode_metrics": NO_PERIODS,
        "train": NO_PERIODS,
        "main": NO_PERIODS,
    }.items()
    for script in BASELINES
}
EXCEPTIONS |= {
    (script, name): f"{script} has its own {what}"
    for name, what in {
        "Agent": "models",
        "update": "losses",
        "intrinsic_reward": "reward",
        "CPU_PRESET": "measured command",
    }.items()
    for script in BASELINES
    if (script, name) != ("baselines/metra.py", "intrinsic_reward")  # the first to have one
}
MIXED, DISCRETE, POSITION = "2-D or 16 skills by robot", "16 skills", "phi sees the global position"
EXCEPTIONS |= {
    ("baselines/metra.py", "ROBOTS"): MIXED,
    ("baselines/csd.py", "ROBOTS"): DISCRETE,
    ("baselines/diayn.py", "ROBOTS"): DISCRETE,
    ("baselines/dads.py", "ROBOTS"): MIXED,
    ("baselines/metra.py", "make_env"): POSITION,
    ("baselines/csd.py", "make_env"): POSITION,
    ("baselines/metra.py", "MAY_BE_ZERO"): "its arguments: a constraint, and skills",
    ("baselines/csd.py", "MAY_BE_ZERO"): "its arguments: a constraint, and skills",
    ("baselines/diayn.py", "MAY_BE_ZERO"): "its arguments: one skill at least",
    ("baselines/dads.py", "MAY_BE_ZERO"): "its arguments: skills",
    ("baselines/metra.py", "AT_MOST"): "its arguments: no L, no embedding",
    ("baselines/csd.py", "AT_MOST"): "its arguments: no L, no embedding",
    ("baselines/diayn.py", "AT_MOST"): "its arguments: no L, no embedding",
    ("baselines/dads.py", "AT_MOST"): "its arguments: samples of the prior",
    ("baselines/diayn.py", "Args.num_skills"): "none is continuous, and 1 means SAC",
    ("baselines/diayn.py", "sample_skills"): "none is continuous",
    ("baselines/dads.py", "sample_skills"): "continuous ones are uniform over a square",
}
EXCEPTIONS |= {
    ("psd_pixel.py", name): reason
    for name, reason in {
        "ROBOTS": "Table 3 has another lambda for HalfCheetah",
        "CPU_PRESET": "the measured command from pixels",
        "CPU_PRESET_BY_ROBOT": "the measured command from pixels",
        "FIXED_ON_RESUME": "pixels are not normalised, and image and CNN shape what is stored",
        "PROGRESS": "pixels are not normalised",
        "make_env": "what is seen is rendered, and the state may be anything",
        "ReplayBuffer": "frames of uint8, of which it makes stacks and crops",
        "sample_triplets": "stacks of frames",
        "update": "the decoder of regularity guesses thumbnails",
        "Actor": "behind a CNN",
        "Critic": "behind a CNN",
        "Agent": "a CNN for phi, and one for actor and critic",
        "rollout": "observations are uint8 and not normalised",
        "train": "the environment has to render, and the shape of what it shows",
    }.items()
}
EXCEPTIONS |= {
    ("psd_metra.py", name): reason
    for name, reason in {
        "ROBOTS": "Table 5 has sizes by robot, of z and of the networks",
        "ROBOT_COLUMNS": "Table 5 has sizes by robot, of z and of the networks",
        "Args.psd_coef": "alpha_PSD of Eq. (10)",
        "CPU_PRESET": "the measured command with METRA",
        "CPU_PRESET_BY_ROBOT": "the measured command with METRA",
        "make_env": POSITION,
        "Agent": "phi_m beside phi_L, and who sees what",
        "update": "the losses and rewards of both encoders",
        "encode": "phi_L sees less than the buffer holds",
        "period_return": "the policy takes a z, too",
        "decode": "the decoder sees z as well",
        "check_args": "without any term of PSD it is METRA",
        "train": "each episode has a z, too",
    }.items()
}
EXCEPTIONS |= {
    ("downstream_ppo.py", name): reason
    for name, reason in {
        "FIXED_ON_RESUME": "another task or other skills would be another run",
        "MAY_BE_ZERO": "its arguments: PPO's",
        "AT_MOST": "its arguments: PPO's",
        "Args.total_epochs": "another length",
        "CPU_PRESET": "the measured command of PPO",
        "PARTS": "no replay buffer, and the frozen skills beside the agent",
        "PROGRESS": "epochs of PPO",
        "describe_presets": "there are no values by robot",
        "peek": "there are tasks and skills to check, and no values by robot",
        "default_args": "there are no values by robot",
        "parse_args": "there are tasks and skills to check, and no values by robot",
        "check_args": "there are tasks and skills to check, and no values by robot",
        "update": "PPO",
        "save_checkpoint": "no replay buffer, and the frozen skills beside the agent",
        "restore": "no replay buffer, and one optimiser",
        "train": "PPO over frozen skills, or a control, and then its evaluation",
        "main": NO_PERIODS,
    }.items()
}


def blocks(path):
    """Name -> (first line, last line, text) of each top-level function, class and assignment."""
    source = path.read_text()
    lines, found = source.splitlines(keepends=True), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        for name in names:
            text = "".join(lines[first - 1 : node.end_lineno])
            found[name] = (first, node.end_lineno, text)
    return found


def fields(path):
    """Name -> (type, help) of each field of Args; the help is the string below it."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            for field, below in zip(node.body, [*node.body[1:], None]):
                if isinstance(field, ast.AnnAssign):
                    is_help = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                    text = below.value.value if is_help else None
                    found[field.target.id] = (ast.unparse(field.annotation), text)
    return found


def read(folder):
    """Script -> its blocks and fields, name -> text, for all scripts that are there."""
    scripts = {}
    for script in SCRIPTS:
        if (folder / script).exists():
            own = {name: text for name, (_, _, text) in blocks(folder / script).items()}
            own |= {f"Args.{name}": text for name, text in fields(folder / script).items()}
            scripts[script] = {name: text for name, text in own.items() if name != "Args"}
    return scripts


def reference_of(script, name, scripts, exceptions):
    """The script whose text of a block is to be copied: the first with the same reason, or none."""
    reason = exceptions.get((script, name))
    return next(s for s in scripts if name in scripts[s] and exceptions.get((s, name)) == reason)


def drift(folder=REPO, exceptions=EXCEPTIONS):
    """One line for each block or field that differs from its reference, and for each exception
    that is stale."""
    scripts, found, needed = read(folder), [], set()
    for script, own in scripts.items():
        for name, text in own.items():
            reference = reference_of(script, name, scripts, exceptions)
            if text != scripts[reference][name]:
                kind = " in type or help" if name.startswith("Args.") else ""
                found.append(f"{script}: {name} differs{kind} from {reference}'s")
            plain = [s for s in scripts if name in scripts[s] and (s, name) not in exceptions]
            if plain and text != scripts[plain[0]][name]:
                needed.add((script, name))
    stale = [f"{s}: the exception for {n} is stale" for s, n in exceptions.keys() - needed]
    return sorted(found) + sorted(stale)


def copy_block(name, folder=REPO, exceptions=EXCEPTIONS):
    """Writes the reference's text of a block into every other script that has one of that name."""
    changed, scripts = [], read(folder)
    for script in (s for s in scripts if name in scripts[s]):
        text = scripts[reference_of(script, name, scripts, exceptions)][name]
        if scripts[script][name] != text:
            first, last, _ = blocks(folder / script)[name]
            lines = (folder / script).read_text().splitlines(keepends=True)
            lines[first - 1 : last] = [text]
            (folder / script).write_text("".join(lines))
            changed.append(script)
    return changed


if __name__ == "__main__":
    known = {
        name for script in SCRIPTS if (REPO / script).exists() for name in blocks(REPO / script)
    }
    unknown = [name for name in sys.argv[1:] if name not in known]
    if unknown:
        sys.exit(f"no script has {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    for block in sys.argv[1:]:
        print(f"{block}: written into {', '.join(copy_block(block)) or 'no script'}")
    print("\n".join(drift()) or "no drift")
