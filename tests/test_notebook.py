"""The notebook of the class runs from its first cell to its last, and its assertions hold."""

import time

import pytest
from conftest import REPO

NOTEBOOK = REPO / "docs/psd_in_90_minutes.ipynb"


def test_the_notebook_runs():
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = {"metadata": {"path": str(NOTEBOOK.parent)}}
    start = time.time()
    nbclient.NotebookClient(notebook, timeout=300, resources=folder).execute()
    assert time.time() - start < 300
    text = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])
    )
    assert "radius 4.000" in text and "wound  regularity 0.00" in text


def test_the_committed_notebook_has_its_pictures_and_no_error():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 7
    assert NOTEBOOK.stat().st_size < 1_000_000
    assert str(REPO) not in NOTEBOOK.read_text()


def test_every_question_has_an_answer():
    questions = NOTEBOOK.read_text().count("**Question ")
    page = (REPO / "docs/teaching.md").read_text()
    answers = page.split("## Answers")[1].split("## Further")[0]
    assert questions == 9
    assert [line[:2] for line in answers.splitlines() if line[:1].isdigit()] == [
        f"{number}." for number in range(1, questions + 1)
    ]
