"""Every number in the tables of results has a file behind it."""

import json
import re
import shutil

import pytest

from benchmark import tables

OTHER_FILES = [
    "table1.json",
    *(f"traps/paper_preset_s{seed}/evaluation.json" for seed in (1, 2, 3)),
    "psd_metra/ant_mutual/evaluation.json",
]


def test_the_tables_say_what_the_files_say():
    tables.main(["--check"])


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The pages and the files that the tables are made of, to be spoilt."""
    for page in set(tables.PAGES.values()):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copy(tables.REPO / page, tmp_path / page)
    for name in OTHER_FILES:
        (tmp_path / "results" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(tables.REPO / "results" / name, tmp_path / "results" / name)
    for folder in sum(tables.RESULTS.values(), []):
        (tmp_path / "results" / folder).mkdir(parents=True)
        for name in ("evaluation.json", "progress.csv"):
            source = tables.REPO / "results" / folder / name
            shutil.copy(source, tmp_path / "results" / folder / name)
    monkeypatch.setattr(tables, "REPO", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name, page", tables.PAGES.items())
def test_a_number_that_was_changed_by_hand_is_found_and_mended(copy, name, page):
    path = copy / page
    original = path.read_text()
    start = original.index(f"<!-- table {name}:")
    table = original[start : original.index("<!-- end", start)]
    last_row = table.strip().splitlines()[-1]
    number = re.findall(r"\b\d+\b", last_row)[-1]
    path.write_text(original.replace(last_row, last_row.replace(number, f"{number}9")))
    with pytest.raises(SystemExit, match=f"{page} does not say what results/ says"):
        tables.main(["--check"])
    assert f"{number}9" in path.read_text()
    tables.main([])
    assert path.read_text() == original


def test_a_result_that_changed_is_found(copy):
    path = copy / "results/ant/evaluation.json"
    result = json.loads(path.read_text())
    result["summary"]["trained_within_5_percent"] += 1
    path.write_text(json.dumps(result))
    with pytest.raises(SystemExit, match="README.md does not say"):
        tables.main(["--check"])
    result["epoch"] += 1
    path.write_text(json.dumps(result))
    with pytest.raises(SystemExit, match="ends at epoch .*, and not at the judged"):
        tables.main(["--check"])
    path.unlink()
    with pytest.raises(SystemExit, match="has no evaluation.json"):
        tables.main(["--check"])


def test_a_page_without_its_comments_is_refused(copy):
    page = copy / "README.md"
    page.write_text(page.read_text().replace("<!-- end of table -->", ""))
    with pytest.raises(SystemExit, match="README.md needs the comment "):
        tables.main(["--check"])


def test_ranges_and_periods_are_short():
    assert tables.range_text([3.0, 1.0, 2.0], "{:.0f}") == "1 to 3"
    assert tables.range_text([99.6, 100.0], "{:.0f}") == "100"
    assert tables.periods_text([6, 8, 10, 24]) == "6, 8, … 24"
