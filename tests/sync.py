"""The scripts share no code, so what they have in common is copied, and must not drift apart.

    python tests/sync.py                    list the blocks that differ from psd.py's
    python tests/sync.py Actor rollout      write psd.py's text of these into the other scripts

A block is a top-level function, class or assignment. tests/test_drift.py is the judge.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
SCRIPTS = ["psd.py", "psd_pixel.py", "psd_metra.py", "downstream_ppo.py"]
SCRIPTS += [f"baselines/{name}.py" for name in ["diayn", "dads", "csd", "metra"]]

# (script, block): why its text differs from psd.py's. A stale entry fails the test.
EXCEPTIONS = {}


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


def drift(folder=REPO, exceptions=EXCEPTIONS):
    """One line for each block or field that differs from psd.py's, and for each stale exception."""
    reference, reference_fields = blocks(folder / "psd.py"), fields(folder / "psd.py")
    found, used = [], set()
    for script in SCRIPTS[1:]:
        if not (folder / script).exists():
            continue
        own, own_fields = blocks(folder / script), fields(folder / script)
        for name in own.keys() & reference.keys() - {"Args"}:
            if own[name][2] != reference[name][2]:
                used.add((script, name))
                if (script, name) not in exceptions:
                    found.append(f"{script}: {name} differs from psd.py's")
        for name in own_fields.keys() & reference_fields.keys():
            if own_fields[name] != reference_fields[name]:
                used.add((script, f"Args.{name}"))
                if (script, f"Args.{name}") not in exceptions:
                    found.append(f"{script}: Args.{name} differs in type or help from psd.py's")
    stale = [f"{s}: the exception for {n} is stale" for s, n in exceptions.keys() - used]
    return sorted(found) + sorted(stale)


def copy_block(name, folder=REPO):
    """Writes psd.py's text of a block into every other script that has one of that name."""
    text = blocks(folder / "psd.py")[name][2]
    changed = []
    for script in SCRIPTS[1:]:
        path = folder / script
        own = blocks(path).get(name) if path.exists() else None
        if own and own[2] != text and (script, name) not in EXCEPTIONS:
            lines = path.read_text().splitlines(keepends=True)
            lines[own[0] - 1 : own[1]] = [text]
            path.write_text("".join(lines))
            changed.append(script)
    return changed


if __name__ == "__main__":
    known = blocks(REPO / "psd.py")
    unknown = [name for name in sys.argv[1:] if name not in known]
    if unknown:
        sys.exit(f"psd.py has no block {', '.join(unknown)}; it has {', '.join(known)}")
    for block in sys.argv[1:]:
        print(f"{block}: written into {', '.join(copy_block(block)) or 'no script'}")
    print("\n".join(drift()) or "no drift")
