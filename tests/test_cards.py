"""Model cards say what the files beside them say."""

import json
import shutil

import pytest

import psd
from benchmark import cards


def test_the_committed_cards_are_those_of_their_files():
    assert len(cards.folders()) > 10
    cards.main(["--check"])


def test_the_command_of_a_card_gives_the_arguments_of_the_run():
    """Every psd.py run in results/: parse what the card says, compare with what was saved."""
    checked = 0
    for folder in cards.folders():
        evaluation = json.loads((folder / "evaluation.json").read_text())
        if evaluation["script"] != "psd":
            continue
        words = cards.command(evaluation).split()
        assert words[:2] == ["python", "psd.py"]
        args, _ = psd.parse_args(words[2:])
        for name, value in evaluation["args"].items():
            if name in vars(args) and name not in cards.NOT_IN_COMMAND:
                assert getattr(args, name) == value, (folder, name)
        checked += 1
    assert checked > 5


@pytest.fixture
def copy(tmp_path, monkeypatch):
    folder = tmp_path / "results/pendulum"
    shutil.copytree(cards.REPO / "results/pendulum", folder)
    monkeypatch.setattr(cards, "REPO", tmp_path)
    return folder


def test_a_card_that_was_changed_is_found_and_written_anew(copy):
    path = copy / "README.md"
    original = path.read_text()
    path.write_text(original.replace("9 of 9", "8 of 9"))
    with pytest.raises(SystemExit, match="results/pendulum/README.md is not what the files"):
        cards.main(["--check"])
    assert "8 of 9" in path.read_text()
    cards.main([])
    assert path.read_text() == original


def test_other_weights_or_words_make_another_card(copy):
    (copy / "looks.txt").write_text("It swings.\n")
    cards.main([])
    assert "## What it looks like\n\nIt swings.\n" in (copy / "README.md").read_text()
    (copy / "model.pt").write_bytes(b"other weights")
    with pytest.raises(SystemExit, match="run cards.py"):
        cards.main(["--check"])
