"""What is logged is what is documented; equations, links and tags lead somewhere."""

import re
import signal

import pytest
from conftest import REPO, TINY
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import psd

PAGES = sorted([*(REPO / "docs").glob("*.md"), *(REPO / "notebook").glob("*.md")])


def documented_keys(page):
    keys = re.findall(r"`((?:charts|losses|psd|eval)/[\w/]+)`", page.read_text())
    return {re.sub(r"/L\d+$", "/L", key) for key in keys}


@pytest.fixture(scope="module")
def logged_keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        psd.main(
            [
                *TINY,
                "--total-epochs",
                "4",
                "--adaptive-interval",
                "3",
                "--run-name",
                "a",
                *"--latent-dim 2 --turn-coef 1 --regularity-coef 1".split(),
            ]
        )
    for number, handler in handlers.items():
        signal.signal(number, handler)
    tags = EventAccumulator(str(folder / "runs/a")).Reload().Tags()["scalars"]
    return {re.sub(r"/L\d+$", "/L", tag) for tag in tags}


def test_logged_keys_are_the_documented_ones(logged_keys):
    documented = documented_keys(REPO / "docs/psd.md")
    by_period = {f"psd/{name}/L" for name in ["one_step", "L_step", "radius"]}  # "the same four"
    assert logged_keys == documented | by_period


def test_documented_equations_exist():
    page = (REPO / "docs/psd.md").read_text()
    table = page.split("## Equation → function")[1].split("##")[0]
    names = re.findall(r"`(\w+)`", table)
    assert len(names) >= 11
    for name in names:
        assert callable(getattr(psd, name)), name


def test_papers_gaps_are_tagged_where_they_are_decided():
    assert (REPO / "psd.py").read_text().count("NOTE(paper)") >= 5


def prose(page):
    """The lines of a page outside of code, tables, headings and pictures."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [
        line for line in text.splitlines() if not line.startswith(("|", "#", "![", "    ", "<"))
    ]


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(REPO)) for p in PAGES)])
def test_prose_is_wrapped(page):
    """At 100 columns, but for a link or a command that is longer than that."""
    wide = [line for line in prose(REPO / page) if len(line) > 100 and " " in line.strip("-* ")]
    assert wide == []


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(REPO)) for p in PAGES)])
def test_links_lead_somewhere(page):
    path = REPO / page
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def test_the_snippet_of_the_readme_runs(monkeypatch):
    """A policy in five lines: the robot moves as it is told."""
    (snippet,) = re.findall(r"```python\n(.*?)```", (REPO / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(REPO)
    names = {}
    exec(snippet, names)
    assert names["policy"].periods == list(range(5, 21))
    assert names["t"] == 199 and not names["terminated"]


def requirements(name):
    """The packages that a requirements file names itself, without those of other files."""
    lines = (REPO / f"requirements{name}.txt").read_text().splitlines()
    stripped = [line.split("#")[0].strip() for line in lines]
    return [line for line in stripped if line and not line.startswith("-r")]


def test_pyproject_asks_for_what_the_requirements_files_ask_for():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == requirements("")
    for extra, packages in project["optional-dependencies"].items():
        assert packages == requirements(f"-{extra}")
