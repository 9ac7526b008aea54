"""The scripts share no code, so what they have in common is copied, and must not drift apart.

    python tests/sync.py                    list the blocks that differ from their reference
    python tests/sync.py Actor rollout      write the reference's text of these into the others

A block is a top-level function, class or assignment. Its reference is psd.py's or, where psd.py has
none, that of the first of SCRIPTS that has one; for the baselines' own version of a block of psd.py
it is METRA's. tests/test_drift.py is the judge.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
BASELINES = [f"baselines/{name}.py" for name in ["metra", "csd", "diayn", "dads"]]
SCRIPTS = ["psd.py", *BASELINES, "psd_pixel.py", "psd_metra.py", "downstream_ppo.py"]

# block: why the baselines, which agree on it, cannot have psd.py's
BASELINE_BLOCKS = {
    "ROBOTS": "skills instead of periods, and no lambda or d by robot",
    "MAY_BE_ZERO": "their own arguments",
    "FIXED_ON_RESUME": "the number of skills shapes the networks, not d or D",
    "parse_args": "no bounds of L to check",
    "Agent": "their own models",
    "update": "their own losses",
    "main": "skills are drawn from a fixed prior, and there is no L to log by",
}

# (script, block): why its text differs from the reference's. A stale entry fails the test.
EXCEPTIONS = {
    ("baselines/metra.py", "make_env"): "phi sees the global position",
    ("baselines/metra.py", "Args.epsilon"): "psd.py's names Eq. (7)",
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
    """Name -> (type, help) of each field of Args; the help is the comment behind it."""
    source = path.read_text()
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            return {
                field.target.id: (ast.unparse(field.annotation), comments.get(field.end_lineno))
                for field in node.body
                if isinstance(field, ast.AnnAssign)
            }
    return {}


def read(folder):
    """Script -> its blocks and fields, name -> text, for all scripts that are there."""
    scripts = {}
    for script in SCRIPTS:
        if (folder / script).exists():
            own = {name: text for name, (_, _, text) in blocks(folder / script).items()}
            own |= {f"Args.{name}": text for name, text in fields(folder / script).items()}
            scripts[script] = {name: text for name, text in own.items() if name != "Args"}
    return scripts


def reference_of(script, name, scripts):
    """The script whose text of a block is to be copied."""
    skip_psd = script in BASELINES and name in BASELINE_BLOCKS
    return next(s for s in scripts if name in scripts[s] and not (s == "psd.py" and skip_psd))


def drift(folder=REPO, exceptions=EXCEPTIONS):
    """One line for each block or field that differs from its reference, and for each exception
    that is stale."""
    scripts, found, used = read(folder), [], set()
    for script, own in scripts.items():
        for name, text in own.items():
            reference = reference_of(script, name, scripts)
            if text != scripts[reference][name]:
                used.add((script, name))
                if (script, name) not in exceptions:
                    kind = " in type or help" if name.startswith("Args.") else ""
                    found.append(f"{script}: {name} differs{kind} from {reference}'s")
    stale = [f"{s}: the exception for {n} is stale" for s, n in exceptions.keys() - used]
    for name in BASELINE_BLOCKS:
        for own in (scripts[s] for s in BASELINES if s in scripts):
            if own.get(name) == scripts["psd.py"][name]:
                stale.append(f"baselines: {name} is psd.py's after all")
    return sorted(found) + sorted(stale)


def copy_block(name, folder=REPO):
    """Writes the reference's text of a block into every other script that has one of that name."""
    changed, scripts = [], read(folder)
    for script in scripts:
        if name not in scripts[script] or (script, name) in EXCEPTIONS:
            continue
        text = scripts[reference_of(script, name, scripts)][name]
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
