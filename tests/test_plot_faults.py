"""plot.py under bad input: one line, a non-zero exit, nothing lost, and nothing let into a page."""

import copy
import errno
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.figure
import pytest
from conftest import REPO

import plot

SAMPLE = json.loads((REPO / "tests/sample/evaluation.json").read_text())


def write_run(folder, result):
    folder.mkdir(exist_ok=True)
    (folder / "evaluation.json").write_text(json.dumps(result))
    return folder


def sample(num_skills=4):
    """The sample with the trained skills alone, which is drawn faster."""
    result = copy.deepcopy(SAMPLE)
    result["skills"] = [row for row in result["skills"] if row["trained"]][:num_skills]
    return result


def error_of(*argv):
    with pytest.raises(SystemExit) as error:
        plot.main([str(argument) for argument in argv])
    message = str(error.value)
    assert message.startswith("plot.py: error: ") and "\n" not in message
    assert error.value.code not in (0, None)
    return message


# ------------------------------------------- A full disk ------------------------------------------
@pytest.fixture
def full_disk(monkeypatch):
    """Every picture and page ends after its first bytes."""

    def some_bytes(path):
        with open(path, "wb") as file:
            file.write(b"the first bytes")
        raise OSError(errno.ENOSPC, "No space left on device")

    figure = matplotlib.figure.Figure
    monkeypatch.setattr(figure, "savefig", lambda self, path, **kwargs: some_bytes(path))
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: some_bytes(self))
    monkeypatch.setattr(Path, "write_text", lambda self, data: some_bytes(self))


@pytest.mark.parametrize("before", [b"the old figure", None])
def test_a_full_disk_leaves_the_old_figure_and_no_other_file(tmp_path, full_disk, before):
    run = tmp_path / "run"
    run.mkdir()
    with open(run / "evaluation.json", "w") as file:
        json.dump(sample(), file)
    out = tmp_path / "fig10.png"
    if before:
        with open(out, "wb") as file:
            file.write(before)
    files = sorted(tmp_path.rglob("*"))
    message = error_of("fig10", run, "--out", out)
    assert "No space left on device" in message and "fig10.png" in message
    assert sorted(tmp_path.rglob("*")) == files
    if before:
        assert out.read_bytes() == before


def test_a_full_disk_leaves_the_old_page(tmp_path, monkeypatch, full_disk):
    run = tmp_path / "run"
    run.mkdir()
    with open(run / "evaluation.json", "w") as file:
        json.dump(sample(), file)
    with open(run / "report.html", "wb") as file:
        file.write(b"the old page")
    monkeypatch.setattr(plot, "report", lambda run: "a page")
    files = sorted(tmp_path.rglob("*"))
    assert "No space left on device" in error_of("report", run)
    assert (run / "report.html").read_bytes() == b"the old page"
    assert sorted(tmp_path.rglob("*")) == files


def test_a_file_is_written_as_a_whole(tmp_path):
    """Not before it is complete; through a link; and a device is not replaced."""
    old = tmp_path / "old.txt"
    old.write_text("old")
    link = tmp_path / "link.txt"
    link.symlink_to(old)

    def write(path):
        assert old.read_text() == "old"
        path.write_text("new")

    plot.write_whole(link, write)
    assert old.read_text() == "new" and link.is_symlink()
    plot.write_whole("/dev/null", lambda path: path.write_text("new"))
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "old.txt"]


# ------------------------------------------- A bad JSON -------------------------------------------
def without(key):
    def change(result):
        del result["skills"][1][key]

    return change


def with_value(value, *keys):
    """A change: `value` at the place `keys`."""

    def change(result):
        place = result
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


BAD = {
    "no skills": (with_value([], "skills"), "'skills' is empty"),
    "no list of skills": (with_value({}, "skills"), "'skills' of the file is a dict"),
    "a skill that is a number": (with_value(3, "skills", 0), "not a JSON object"),
    "no latents": (without("latents"), "has no 'latents'"),
    "empty latents": (with_value([], "skills", 1, "latents"), "'latents'"),
    "latents that are unknown": (with_value([[None, 1.0]], "skills", 1, "latents"), "'latents'"),
    "ragged latents": (with_value([[1.0], [1.0, 2.0]], "skills", 1, "latents"), "'latents'"),
    "latents of two kinds": (with_value([[1.0]], "skills", 1, "latents"), "different dimensions"),
    "unknown verdict": (with_value("perhaps", "skills", 1, "verdict"), "verdict 'perhaps'"),
    "no verdict": (without("verdict"), "has no 'verdict'"),
    "an L of 0": (with_value(0, "skills", 1, "L"), "L is 0"),
    "an L in letters": (with_value("6", "skills", 1, "L"), "'L' of a skill is a str"),
    "no spectrum": (without("spectrum"), "has no 'spectrum'"),
    "no states": (without("states"), "has no 'states'"),
    "no distances": (without("one_step"), "has no 'one_step'"),
    "no dimensions": (with_value([], "dimensions"), "'dimensions' is empty"),
    "no segments": (with_value([], "switch", "segments"), "'segments'"),
    "a segment too long": (with_value(10**6, "switch", "segments", 0, "stop"), "outside"),
    "no bounds": (with_value([], "bounds"), "'bounds'"),
    "infinite period": (with_value(float("inf"), "skills", 1, "period"), "Infinity"),
    "no arguments": (with_value(None, "args"), "'args'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_json_ends_in_one_line_that_says_what_to_do(name, tmp_path):
    change, expected = BAD[name]
    result = sample()
    change(result)
    run = write_run(tmp_path / "run", result)
    files = sorted(tmp_path.rglob("*"))
    for figure in ("fig1", "fig3", "fig5", "fig10", "demo", "periods", "report"):
        message = error_of(figure, run)
        assert expected in message and "evaluate.py" in message
        assert "evaluation.json is damaged, or not of evaluate.py" in message
    assert sorted(tmp_path.rglob("*")) == files


def test_every_stored_json_passes_the_checks():
    """No check is stricter than evaluate.py."""
    files = sorted((REPO / "results").rglob("*.json"))
    count = 0
    for file in files:
        content = json.loads(file.read_text())
        if "skills" in content and "switch" in content:
            plot.read_run(file)
            count += 1
    assert count > 20


def test_paths_of_different_kinds_are_refused(tmp_path):
    """Of psd_metra.py: one skill with x and y, one with x alone."""
    result = sample(num_skills=2)
    for row, path in zip(result["skills"], [[[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0]]]):
        row |= {"z": [1.0, 0.0], "path": path}
    result["summary"]["travel"] = {"distance": 1.0, "direction_error": 2.0}
    run = write_run(tmp_path / "run", result)
    assert "'path' have different dimensions" in error_of("fig8", run)


def test_text_of_the_json_is_no_formula(tmp_path):
    result = sample(num_skills=2)
    result["env_id"] = "a$\\bad$ \ud800"
    result["dimensions"][0]["name"] = "$\\worse{$"
    run = write_run(tmp_path / "run", result)
    for figure in ("fig3", "fig10", "demo", "periods"):
        plot.main([figure, str(run), "--out", str(tmp_path / "a.png")])


# --------------------------------------------- --out ----------------------------------------------
@pytest.mark.parametrize("name", ["a_folder", "a_folder.png"])
def test_a_folder_as_out_is_refused_before_any_work(name, tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", sample())
    folder = tmp_path / name
    folder.mkdir()
    (folder / "kept.txt").write_text("kept")

    def work(*args, **kwargs):
        raise AssertionError("nothing should be read")

    monkeypatch.setattr(plot, "read_run", work)
    assert "is a folder" in error_of("fig5", run, "--out", folder)
    assert [path.name for path in folder.iterdir()] == ["kept.txt"]


def test_a_folder_where_the_figure_goes_is_refused(tmp_path):
    run = write_run(tmp_path / "run", sample())
    (run / "fig5.png").mkdir()
    assert "is a folder" in error_of("fig5", run)


def test_the_command_itself_ends_in_one_line(tmp_path):
    """No traceback, and a non-zero exit code."""
    run = write_run(tmp_path / "run", {**sample(), "skills": []})
    command = [sys.executable, str(REPO / "plot.py"), "fig5", str(run)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(r"plot\.py: error: [^\n]+\n", done.stderr)


# --------------------------------------------- Report ---------------------------------------------
class Page(HTMLParser):
    """All tags and attributes of a page."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.attributes = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b onclick=x>"


def evil_strings(value):
    """The same JSON with markup behind each of its texts and names."""
    if isinstance(value, dict):
        return {key: evil_strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [evil_strings(inner) for inner in value]
    if isinstance(value, str):
        return value + EVIL
    return value


def report_of(run):
    plot.main(["report", str(run)])
    text = (run / "report.html").read_text()
    page = Page()
    page.feed(text)
    return text, page


def test_a_report_of_hostile_json_runs_nothing(tmp_path):
    result = evil_strings(sample(num_skills=2))
    for row in result["skills"]:
        row["verdict"] = "FALSE: " + EVIL
    result["script"] = "psd"  # its name chooses nothing that is shown
    result["args"][EVIL] = EVIL
    result["versions"][EVIL] = EVIL
    text, page = report_of(write_run(tmp_path / "run", result))
    assert "<script" not in text and "alert(1)" in text
    assert "script" not in page.tags and "b" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    pictures = [value for name, value in page.attributes if name == "src"]
    assert len(pictures) == 7 and all(url.startswith("data:image/svg+xml;") for url in pictures)


def test_a_report_of_hostile_numbers_is_refused(tmp_path):
    """Where a number belongs, markup does not get as far as the page."""
    places = [("epoch",), ("T",), ("episodes",), ("summary", "skills"), ("skills", 0, "agree")]
    places += [("bounds", 0), ("skills", 0, "period"), ("summary", "state_period", "distinct")]
    for keys in places:
        result = sample(num_skills=2)
        with_value(EVIL, *keys)(result)
        error_of("report", write_run(tmp_path / "run", result))
    assert not (tmp_path / "run/report.html").exists()


def test_a_report_takes_videos_from_the_run_folder_only(tmp_path):
    run = tmp_path / "run"
    (run / "videos").mkdir(parents=True)
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"a secret")
    (run / "videos/own.mp4").write_bytes(b"its own")
    (run / "videos/link.mp4").symlink_to(secret)
    names = ["../secret.mp4", str(secret), "videos/link.mp4", "videos/own.mp4"]
    result = sample()
    for row, name in zip(result["skills"], names, strict=True):
        row["video"] = name
    text, page = report_of(write_run(run, result))
    videos = [value for _, value in page.attributes if (value or "").startswith("data:video")]
    assert videos == [plot.data_url(b"its own", "video/mp4")]
    assert plot.data_url(b"a secret", "video/mp4") not in text
    assert text.count("its file lies outside the run folder") == 3


@pytest.mark.parametrize("name", ["a\0b.mp4", 3, "x" * 5000, "videos"])
def test_a_video_that_is_no_file_does_no_harm(name, tmp_path):
    run = tmp_path / "run"
    (run / "videos").mkdir(parents=True)
    result = sample(num_skills=2)
    result["skills"][0]["video"] = name
    write_run(run, result)
    if isinstance(name, str) and "\0" not in name:
        _, page = report_of(run)
        assert "video" not in page.tags
    else:
        assert "'video'" in error_of("report", run)


def test_a_frame_that_is_no_picture_is_refused(tmp_path):
    for frame in ("not base64", "bm90IGEgcGljdHVyZQ==", 3):
        result = sample(num_skills=2)
        result["switch"]["frame"] = frame
        assert "is no PNG" in error_of("fig7", write_run(tmp_path / "run", result))
