"""benchmark/film.py: the picture shows what was rolled out, and bad input ends in one line."""

import numpy as np
import pytest
import torch
from conftest import REPO

from benchmark import film

CHEETAH = str(REPO / "results" / "halfcheetah")


def clip(L, num_steps, dt=0.05):
    """A state of period 2L, and frames whose grey value is the step."""
    angle = np.pi / L * np.arange(num_steps + 1)
    frames = [np.full((60, 120, 3), min(t, 255), np.uint8) for t in range(num_steps + 1)]
    return film.Clip(L, frames, np.stack([np.cos(angle), np.sin(angle)], axis=1), 1.0, dt)


def options(**changes):
    return film.Args(runs=("x",), seconds=2.0, skip=1.0, **changes)


def test_frames_are_in_real_time_after_the_start():
    frames, step = film.pictures([([clip(5, 60), clip(8, 60)], 0, "joint")], options())
    assert step == 0.05 and len(frames) == 40
    assert frames[0].shape == (film.HEADER + 60 + film.STRIP, 240, 3)
    shown = [int(frame[film.HEADER + 30, 60, 0]) for frame in frames]
    assert shown == list(range(20, 60))  # one second is left out


def test_a_faster_robot_skips_frames_and_keeps_time():
    frames, step = film.pictures([([clip(30, 375, dt=0.008)], 0, "joint")], options())
    assert step == 0.04 and len(frames) == 50
    shown = [int(frame[film.HEADER + 30, 60, 0]) for frame in frames]
    assert shown[:3] == [125, 130, 135]


def test_a_fallen_robot_stands_still():
    frames, _ = film.pictures([([clip(5, 30)], 0, "joint")], options())
    assert int(frames[-1][film.HEADER + 30, 60, 0]) == 30


def test_the_strip_has_a_line_every_2L_steps_and_the_curve_comes_back():
    picture = clip(5, 60)
    strip = film.strip(241, picture, picture.states[:, 0], 60, 0, 60, "")
    lines = np.flatnonzero((strip[0] == film.GRID).all(axis=1))
    assert lines.tolist() == [0, 40, 80, 120, 160, 200, 240]
    blue = (strip[:, :, 0] < 100) & (strip[:, :, 2] > 100)  # the curve
    height = [np.flatnonzero(blue[:, x]).mean() for x in (60, 100, 140, 180)]  # half a cycle on
    assert np.ptp(height) < 2 and height[0] > film.STRIP / 2


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--out skills.mp4", "has to end in .gif"),
        ("--out none/skills.gif", "in a folder that exists"),
        ("--seconds nan", "--seconds nan is not from 0 to 60"),
        ("--seconds 0", "--seconds 0 is no picture"),
        ("--width 5", "--width 5 is not from 100 to 1000"),
    ],
)
def test_bad_input_ends_in_one_line(flags, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=expected) as error:
        film.main([CHEETAH, *flags.split()])
    assert str(error.value).startswith("film.py: error: ") and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_baseline_has_no_L_to_show(tmp_path):
    with pytest.raises(SystemExit, match="is not of psd.py"):
        film.main([str(REPO / "results/fig3/metra"), "--out", str(tmp_path / "a.gif")])


def test_a_real_run_is_filmed(tmp_path):
    pytest.importorskip("OpenGL", reason="off-screen rendering needs PyOpenGL")
    run = film.evaluate.open_run(CHEETAH)
    try:
        film.evaluate.check_rendering(run)
    except SystemExit as error:
        pytest.skip(f"no off-screen rendering here: {error}")
    out = tmp_path / "a.gif"
    film.main([CHEETAH, *f"--periods 6 12 --seconds 0.5 --skip 0.5 --out {out}".split()])
    frames = film.imageio.mimread(out)
    assert len(frames) == 10 and frames[0].shape[1] == 480
    robot = [frame[film.HEADER : -film.STRIP].astype(int) for frame in frames]
    assert all(np.abs(a - b).max() > 50 for a, b in zip(robot, robot[1:]))  # it moves
    assert torch.get_num_threads() == 1
