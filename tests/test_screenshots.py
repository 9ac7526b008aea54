"""benchmark/screenshots.py: the pictures of docs/play.md, from a real browser."""

import cv2
import imageio.v2 as imageio
import pytest
from conftest import REPO
from test_play import needs_chromium, same_signal_handlers  # noqa: F401

pytest.importorskip("playwright")
from benchmark import screenshots  # noqa: E402

CHEETAH = str(REPO / "results/halfcheetah")


@needs_chromium
def test_both_pictures_show_the_page(tmp_path):
    out = tmp_path / "page"
    screenshots.main([CHEETAH, "--out", str(out), "--periods", "6", "9", "--frames", "2"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.png", "page_slider.gif"]
    picture = cv2.imread(f"{out}.png")
    assert picture.shape == (590, 960, 3) and picture.std() > 5
    frames = list(imageio.get_reader(f"{out}_slider.gif"))
    assert len(frames) == 4 and frames[0].shape[:2] == (393, 640)


@pytest.mark.parametrize(
    "flags, message",
    [
        ("--periods 6 50", "--periods [50] are outside of the trained range"),
        ("--out nowhere/page", "a folder that does not exist"),
        ("--frames 0", "--frames 0"),
    ],
)
@needs_chromium
def test_bad_input_ends_in_one_line(flags, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        screenshots.main([CHEETAH, *flags.split()])
    assert str(caught.value).startswith("screenshots.py: error: ") and message in str(caught.value)
    assert list(tmp_path.iterdir()) == []
