"""period.py: the period of known signals, none where there is none, and the command line."""

import ast
import subprocess
import sys

import numpy as np
import pytest
from conftest import REPO

import period as tool
from period import MIN_PEAK, return_error, spectrum, state_period


# ----------------------------------------- Known signals ------------------------------------------
def angles(n, period, D, rng):
    return 2 * np.pi * np.arange(n)[:, None] / period + rng.uniform(0, 2 * np.pi, D)  # (n, D)


SIGNALS = {
    "sine": lambda a, rng: np.sin(a),
    "noise": lambda a, rng: np.sin(a) + 0.3 * rng.normal(size=a.shape),
    "drift": lambda a, rng: np.sin(a) + 3 * np.linspace(0, 1, len(a))[:, None],
    "curved drift": lambda a, rng: np.sin(a) + 2 * np.linspace(0, 1, len(a))[:, None] ** 2,
    "harmonics": lambda a, rng: np.sin(a) + 0.7 * np.sin(2 * a + 1) + 0.5 * np.sin(3 * a + 2),
    "strong harmonic": lambda a, rng: np.sin(a) + 1.5 * np.sin(3 * a + 1),
    "square wave": lambda a, rng: np.sign(np.sin(a)),
    "pulses": lambda a, rng: np.exp(8 * (np.cos(a) - 1)),
    "units": lambda a, rng: np.sin(a) * 10.0 ** rng.uniform(-1, 1, a.shape[1]) + 100,
    "a still dimension": lambda a, rng: np.hstack([np.sin(a), np.full((len(a), 3), 0.7)]),
}


@pytest.mark.parametrize("D", [1, 5])
@pytest.mark.parametrize("period", [2.4, 10 / 3, 4.5, 6, 12, 17.3, 40])
@pytest.mark.parametrize("signal", SIGNALS)
def test_period_of_known_signals(signal, period, D):
    if period <= 6 and signal in ("harmonics", "strong harmonic", "square wave", "pulses"):
        return  # its harmonics are faster than two steps, and so are not what they seem
    for seed in range(5):
        rng = np.random.default_rng(seed)
        found, peak = state_period(SIGNALS[signal](angles(200, period, D, rng), rng))
        assert found == pytest.approx(period, rel=0.02)
        assert MIN_PEAK <= peak <= 1 + 1e-9


def test_slow_wandering_does_not_shorten_the_period():
    """A slope under the peak of an autocorrelation would move it: ten cycles on a random walk."""
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        walk = rng.normal(size=(400, 10)).cumsum(axis=0)
        wave = np.sin(angles(400, 40, 10, rng)) + 0.3 * np.sin(3 * angles(400, 40, 10, rng))
        found, _ = state_period(wave / wave.std(axis=0) + 0.7 * walk / walk.std(axis=0))
        errors.append(found / 40 - 1)
    assert abs(np.mean(errors)) < 0.005 and np.abs(errors).max() < 0.02


def smooth(n, D, rng, width):
    kernel = np.hanning(2 * width + 1)
    noise = rng.normal(size=(n + 2 * width, D))
    return np.stack([np.convolve(x, kernel, "valid") for x in noise.T], axis=1)


def chirp(n, first, last, rng):
    phase = np.cumsum(2 * np.pi / np.linspace(first, last, n))
    return np.sin(phase[:, None] + rng.uniform(0, 2 * np.pi, 3))


T = np.arange(240)[:, None]
NO_PERIOD = {
    "constant": lambda rng: np.full((240, 3), 0.7),
    "rounding": lambda rng: np.float32(0.7) * (1 + 1e-7 * rng.normal(size=(240, 3))),
    "white noise": lambda rng: rng.normal(size=(240, 3)),
    "smooth noise": lambda rng: smooth(240, 3, rng, 5),
    "slow noise": lambda rng: smooth(240, 3, rng, 15),
    "random walk": lambda rng: rng.normal(size=(240, 3)).cumsum(axis=0),
    "noise on a drift": lambda rng: 0.05 * T**1.5 + rng.normal(size=(240, 3)),
    "noise on a slow sine": lambda rng: np.sin(T / 80) + 0.1 * rng.normal(size=(240, 3)),
    "chirp 20 to 26": lambda rng: chirp(240, 20, 26, rng),
    "chirp 15 to 30": lambda rng: chirp(240, 15, 30, rng),
    "chirp 40 to 10": lambda rng: chirp(240, 40, 10, rng),
    "dying oscillation": lambda rng: np.exp(-T / 60) * np.sin(angles(240, 20, 3, rng)),
    "a burst, then rest": lambda rng: (T < 120) * np.sin(angles(240, 20, 3, rng)),
    "two and a half cycles": lambda rng: np.sin(angles(240, 96, 3, rng)),
    "one cycle": lambda rng: np.sin(angles(240, 240, 3, rng)),
    "half a cycle": lambda rng: np.sin(angles(240, 480, 3, rng)),
    "change of period": lambda rng: np.where(
        T < 120, np.sin(angles(240, 14, 3, rng)), np.sin(angles(240, 22, 3, rng))
    ),
    "not a number": lambda rng: np.where(T == 100, np.nan, np.sin(angles(240, 20, 3, rng))),
    "too short": lambda rng: np.sin(angles(8, 2, 3, rng)),
    "empty": lambda rng: np.zeros((0, 3)),
}


@pytest.mark.parametrize("signal", NO_PERIOD)
def test_no_period_where_there_is_none(signal):
    for seed in range(20):
        assert state_period(NO_PERIOD[signal](np.random.default_rng(seed)))[0] is None


def test_noise_seldom_makes_a_multiple_of_the_period_win():
    found = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x = np.sin(angles(200, 12, 1, rng)) + 0.5 * rng.normal(size=(200, 1))
        found.append(state_period(x)[0])
    found = np.array([p for p in found if p])
    assert len(found) > 50 and (found > 18).mean() < 0.05


def test_three_cycles_are_needed_and_enough():
    rng = np.random.default_rng(0)
    assert state_period(np.sin(angles(124, 40, 3, rng)))[0] == pytest.approx(40, rel=0.02)
    assert state_period(np.sin(angles(116, 40, 3, rng)))[0] is None
    assert state_period(np.sin(angles(200, 40, 3, rng)), max_lag=30)[0] is None


def test_a_long_period_out_of_sight_is_not_taken_for_its_harmonic():
    a = angles(240, 96, 3, np.random.default_rng(0))  # 2.5 cycles: none, though 48 has 5
    assert state_period(np.sin(2 * a) + 0.4 * np.sin(a))[0] is None


def test_dimensions_at_twice_the_frequency_do_not_hide_the_period():
    a = angles(200, 30, 1, np.random.default_rng(0))  # as cos of the angle of a pendulum
    assert state_period(np.hstack([np.cos(2 * a), np.cos(a)]))[0] == pytest.approx(30, rel=0.02)


def test_spectrum_finds_the_frequencies_in_order_of_amplitude():
    t = np.arange(300)
    strong, weak = 2.0 * np.sin(2 * np.pi * t / 25), 0.7 * np.sin(2 * np.pi * t / 9)
    states = np.stack([strong + weak + 5, np.zeros(300)], axis=1)
    amplitude, peaks = spectrum(states)
    assert len(peaks) == 2  # and none of the window's side lobes
    assert [f for f, _ in peaks] == pytest.approx([1 / 25, 1 / 9], rel=0.01)
    assert [a for _, a in peaks] == pytest.approx([2.0, 0.7], rel=0.02)
    assert amplitude.max() == pytest.approx(2.0, rel=0.02)
    many = sum(np.sin(2 * np.pi * t / p) / i for i, p in enumerate((50, 20, 11, 7, 4), 1))
    assert [1 / f for f, _ in spectrum(many[:, None])[1]] == pytest.approx(
        [50, 20, 11, 7], rel=0.02
    )
    assert spectrum(np.zeros((50, 2)))[1] == [] and spectrum(np.zeros((2, 2)))[1] == []


def test_spectrum_takes_the_first_principal_component():
    t, direction = np.arange(300)[:, None], np.array([[0.6, 0.8]])
    states = 3 * np.sin(2 * np.pi * t / 20) * direction
    states += 0.5 * np.sin(2 * np.pi * t / 7) * direction[:, ::-1] * [[1, -1]]
    ((frequency, amplitude),) = spectrum(states)[1]  # the other direction is not seen
    assert 1 / frequency == pytest.approx(20, rel=0.01) and amplitude == pytest.approx(3, rel=0.02)


def test_return_error():
    rng = np.random.default_rng(0)
    circle = np.sin(angles(400, 20, 4, rng))
    assert return_error(circle, 20) == pytest.approx(0, abs=1e-6)
    assert return_error(circle, 10) == pytest.approx(np.sqrt(2), rel=0.01)
    assert return_error(rng.normal(size=(2000, 4)), 20) == pytest.approx(1, abs=0.05)
    assert return_error(np.ones((100, 2)), 20) is None and return_error(circle[:30], 20) is None


# ------------------------------------------ Command line ------------------------------------------
def wave(n=240, period=24.0):
    """Two dimensions of one motion, the second at an eighth of the amplitude."""
    t = np.arange(n)[:, None]
    return np.sin(2 * np.pi * t / period + [0.0, 1.0]) * [1.0, 0.125]


def run_main(capsys, *argv):
    tool.main([str(word) for word in argv])
    return capsys.readouterr().out.splitlines()


def error_of(*argv):
    with pytest.raises(SystemExit) as error:
        tool.main([str(word) for word in argv])
    message = str(error.value)
    assert message.startswith("period.py: error: ") and "\n" not in message
    return message


def test_it_needs_numpy_and_the_standard_library_only():
    tree = ast.parse((REPO / "period.py").read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert "numpy" in imported and imported - {"numpy"} <= sys.stdlib_module_names


def test_the_command_prints_period_peak_and_frequencies(tmp_path, capsys):
    file = tmp_path / "trajectory.npy"
    np.save(file, wave())
    lines = run_main(capsys, file)
    expected, peak = state_period(wave())
    assert lines[0].split() == ["period", f"{expected:.2f}", "steps"]
    assert lines[1].split() == ["peak", f"{peak:.2f}"]
    assert float(lines[2].split()[1]) == pytest.approx(1 / 24, rel=0.02) and "per step" in lines[2]
    assert not any("Hz" in line or line.endswith(" s") for line in lines)


def test_seconds_and_hertz(tmp_path, capsys):
    file = tmp_path / "trajectory.npy"
    np.save(file, wave().astype(np.float32))
    lines = run_main(capsys, file, "--dt", 0.008)
    assert float(lines[0].split()[3]) == pytest.approx(24 * 0.008, rel=0.01)
    assert lines[0].endswith(" s")
    words = lines[2].split()
    assert float(words[words.index("Hz") - 1]) == pytest.approx(1 / (24 * 0.008), rel=0.02)


def test_skip_leaves_the_start_out(tmp_path, capsys):
    file = tmp_path / "trajectory.npy"
    start = np.exp(np.linspace(6, 0, 200))[:, None] * [1.0, -1.0]
    np.save(file, np.concatenate([start, wave()]))
    assert run_main(capsys, file)[0].split() == ["period", "none"]
    assert run_main(capsys, file, "--skip", 200)[0].startswith("period     24.0")


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.csv"])
@pytest.mark.parametrize("one_dimension", [False, True])
def test_files_that_it_reads(name, one_dimension, tmp_path, capsys):
    states = wave()[:, 0] if one_dimension else wave()
    file = tmp_path / name
    if name == "a.npy":
        np.save(file, states)
    elif name == "a.npz":
        np.savez(file, states=states)
    else:
        np.savetxt(file, states, delimiter=",")
    assert run_main(capsys, file)[0].startswith("period     24.0")


def test_what_rests_has_neither_period_nor_frequency(tmp_path, capsys):
    file = tmp_path / "rest.npy"
    np.save(file, np.ones((50, 3), int))
    lines = run_main(capsys, file)
    assert [line.split()[:2] for line in lines] == [
        ["period", "none"],
        ["peak", "0.00"],
        ["frequency", "none"],
    ]


def test_bad_input_ends_in_one_line(tmp_path):
    file = tmp_path / "a.npy"

    def saved(array, **kwargs):
        np.save(file, array, **kwargs)
        return file

    assert "missing" in error_of(tmp_path / "nowhere.npy")
    assert "missing" in error_of(tmp_path)
    assert "shape (5, 4, 3)" in error_of(saved(np.zeros((5, 4, 3))))
    assert "shape ()" in error_of(saved(np.array(3.0)))
    assert "shape (50, 0)" in error_of(saved(np.zeros((50, 0))))
    assert "not finite" in error_of(saved(np.where(wave() > 0.9, np.nan, wave())))
    assert "not finite" in error_of(saved(np.full(50, np.inf)))
    assert "8 steps" in error_of(saved(np.zeros((8, 3))))
    assert "8 steps" in error_of(saved(np.zeros((108, 3))), "--skip", 100)
    assert "0 steps" in error_of(saved(np.zeros(0)))
    assert "real numbers" in error_of(saved(wave() * 1j))
    assert "real numbers" in error_of(saved(np.array(["a"] * 20)))
    assert "no .npy" in error_of(saved(np.array([{}] * 20), allow_pickle=True))
    saved(wave())
    file.write_bytes(file.read_bytes()[:200])
    assert "no .npy" in error_of(file)
    file.write_text("hello")
    assert "no .npy" in error_of(file)
    several = tmp_path / "several.npz"
    np.savez(several, a=wave(), b=wave())
    assert "2 arrays" in error_of(several)
    table = tmp_path / "a.csv"
    table.write_text("x,y\n1,2\n")
    assert "no .npy, .npz or .csv file of numbers" in error_of(table)
    saved(wave())
    assert "--skip -1" in error_of(file, "--skip", -1)
    for dt in ("0", "-0.1", "nan", "inf"):
        assert "--dt" in error_of(file, f"--dt={dt}")
    assert "--dt" in error_of(file, "--dt", "fast")
    assert "--unheard" in error_of(file, "--unheard")


def test_the_exit_code_tells(tmp_path):
    command = [sys.executable, str(REPO / "period.py"), "nowhere.npy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and done.stdout == ""
    assert done.stderr.startswith("period.py: error: ") and done.stderr.count("\n") == 1
