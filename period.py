"""The period of a trajectory: does a (time, dimension) array repeat, and after how many steps?

    python period.py trajectory.npy                 # the period in steps, and the spectrum
    python period.py trajectory.npy --dt 0.008      # also in seconds and Hz; a step takes 8 ms
    python period.py trajectory.npy --skip 100      # without the first 100 steps, a transient

`state_period` finds the period by autocorrelation and answers None where there is none.
`spectrum` lists the strongest frequencies of anything that moves. This file needs NumPy alone
and can be copied as it is. docs/period.md describes the method and its limits.
"""

import argparse
from pathlib import Path

import numpy as np

# What counts as a period; see state_period
WITHIN = 0.9  # the first peak this high, relative to the highest, is the period
MIN_CYCLES = 3  # in the record
MIN_PEAK = 0.5  # share of the variance that comes back after one period, and after two
MIN_PROMINENCE = 0.4  # of a peak above the valleys beside it: noise on a drift has none
MIN_ENERGY = 0.1  # of the calmest third against the liveliest: no dying oscillation
MAX_CHANGE = 0.05  # of the period in each half of the record: no chirp
PER_STEP = 8  # lags per step: at whole lags, 10/3 steps would first return after ten
MIN_STEPS = 4 * MIN_CYCLES  # a shorter record has no period


# ---------------------------------- Autocorrelation -----------------------------------
def autocorrelation(x, max_lag, per_step=1):
    """The autocorrelation of x (n, D), summed over dimensions: 1 where x repeats exactly.

    Lags run from 0 to max_lag, `per_step` of them per step. At lag k the value is
    2 sum x_t x_t+k / sum (x_t^2 + x_t+k^2), over the n - k pairs there are. It is unbiased
    like a division by n - k, but never above 1, so that few pairs at a long lag cannot
    make the highest peak. Between whole lags it is interpolated by its Fourier series."""
    n = len(x)
    transform = np.fft.rfft(x, 2 * n, axis=0)  # (n + 1, D)
    power = (np.abs(transform) ** 2).sum(axis=1)
    if per_step > 1:
        power[-1] /= 2  # the highest frequency, which the longer series has twice
    lag = np.arange(max_lag * per_step + 1) / per_step
    products = np.fft.irfft(power, 2 * n * per_step)[: len(lag)] * per_step
    energy_per_row = (x**2).sum(axis=1)
    energy = np.concatenate([[0.0], np.cumsum(energy_per_row)])  # of the first i rows
    rows = np.arange(n + 1)
    energy_of_x_t = np.interp(n - lag, rows, energy)
    energy_before_x_t_k = np.interp(lag, rows, energy)
    pairs = energy_of_x_t + energy[n] - energy_before_x_t_k
    return 2 * products / np.where(pairs > 0, pairs, 1.0)


def prominence(r, k):
    """By how much r[k] stands above the higher of the valleys that part it from higher ground."""
    higher = np.flatnonzero(r > r[k])
    left = higher[higher < k]
    right = higher[higher > k]
    low = left[-1] if len(left) > 0 else 0
    high = right[0] if len(right) > 0 else len(r)
    left_valley = r[low : k + 1].min()
    right_valley = r[k:high].min()
    return r[k] - max(left_valley, right_valley)


def refine(r, k):
    """The top of the parabola through r about its peak k, an eighth of k to each side."""
    half = max(1, k // 8)
    first = max(k - half, 0)
    last = min(k + half, len(r) - 1)
    lags = np.arange(first, last + 1)
    a, b, _ = np.polyfit(lags - k, r[lags], 2)
    if a >= 0:  # no top
        return float(k)
    return float(k + np.clip(-b / (2 * a), -half, half))


def standardize(states, detrend=True):
    """Unit variance in each dimension that moves, linear drift removed; (n, at most D)."""
    states = np.asarray(states, np.float64)
    x = states - states.mean(axis=0)
    if detrend:
        t = np.linspace(-1.0, 1.0, len(states))[:, None]  # (n, 1)
        x -= t * (t * x).sum(axis=0) / (t**2).sum()
    std = x.std(axis=0)
    # Below these it is rounding, or a motion too small to be seen
    visible = std > 1e-3 * std.max(initial=0.0)
    beyond_rounding = std > 1e-5 * np.abs(states).max(axis=0)
    moves = visible & beyond_rounding
    return x[:, moves] / std[moves]


# ------------------------------------- The period -------------------------------------
def find_peaks(r, n):
    """The lags, in eighths of a step, of the peaks of r that stand out; r is of n steps."""
    # Peaks count up to n/2, though a period has to be n/3 or less: else the harmonic of a
    # longer period, whose own peak is out of sight, would be the highest
    first = 2 * PER_STEP - PER_STEP // 4
    k = np.arange(first, n // 2 * PER_STEP)
    rises = r[k] > r[k - 1]
    falls = r[k] >= r[k + 1]
    k = k[rises & falls & (r[k] > 0)]
    return np.array([i for i in k if prominence(r, i) >= MIN_PROMINENCE], dtype=int)


def changes(x, top, period):
    """Does a half of x (n, D) have another period? `top` is the peak of the whole record."""
    low = top - round(0.3 * top)
    high = top + round(0.3 * top)
    for half in np.array_split(x, 2):
        r = autocorrelation(half - half.mean(axis=0), 2 * len(half) // 3, PER_STEP)
        own_top = low + np.argmax(r[low : high + 1])
        own_period = refine(r, own_top) / PER_STEP
        if abs(own_period - period) > MAX_CHANGE * period:
            return True
    return False


def state_period(states, max_lag=None):
    """The period of states (n, D) in steps, or None, and the height of its peak.

    The period is the smallest lag at which the autocorrelation has a peak within 90 % of
    its highest, refined by a parabola. It is None below three cycles, or if unclear, or
    above `max_lag`. Leave out global position and the transient at the start beforehand."""
    n = len(states)
    if n < MIN_STEPS or not np.isfinite(states).all():
        return None, 0.0
    x = standardize(states)
    if x.shape[1] == 0:
        return None, 0.0
    r = autocorrelation(x, 2 * n // 3, PER_STEP)
    peaks = find_peaks(r, n)
    if len(peaks) == 0:
        return None, 0.0
    highest = r[peaks].max()
    # Noise, the part that does not repeat, moves peaks by about (1 - highest) / sqrt(n):
    # without an allowance a multiple of the period would win by chance
    allowance = 2 * (1 - highest) / np.sqrt(n)
    top = peaks[r[peaks] >= WITHIN * highest - allowance][0]
    peak = min(float(r[top]), 1.0)
    period = refine(r, top) / PER_STEP
    if MIN_CYCLES * max(period, top / PER_STEP) > n:
        return None, peak
    if period > (max_lag or n):
        return None, peak
    near = max(PER_STEP, top // 8)
    again = r[2 * top - near : 2 * top + near + 1].max()  # chance seldom strikes twice
    if min(peak, again) < MIN_PEAK:
        return None, peak
    energy = [third.var(axis=0).sum() for third in np.array_split(x, 3)]
    if min(energy) < MIN_ENERGY * max(energy):
        return None, peak
    halves_are_long_enough = n >= 2 * MIN_CYCLES * period
    if halves_are_long_enough and changes(x, top, period):
        return None, peak
    return period, peak


# ------------------------------- Beside the period ------------------------------------
def spectrum(states, count=4, size=4096):
    """The paper's measure (Section 4, Figure 3), of states that have been normalised.

    First principal component of this trajectory, Hann window, zero padding, FFT. Returns
    the amplitudes at size/2 + 1 frequencies from 0 to 1/2 per step, and the `count`
    strongest peaks as (frequency, amplitude), strongest first."""
    x = np.asarray(states, np.float64)
    n = len(x)
    if n < 4:
        return np.zeros(size // 2 + 1), []
    x = x - x.mean(axis=0)
    _, _, directions = np.linalg.svd(x, full_matrices=False)
    component = x @ directions[0]  # (n,)
    window = np.hanning(n + 1)[:-1]
    size = max(size, 1 << (n - 1).bit_length())
    transform = np.fft.rfft(component * window, size)
    amplitude = 2 * np.abs(transform) / window.sum()
    i = np.arange(1, len(amplitude) - 1)
    rises = amplitude[i] > amplitude[i - 1]
    falls = amplitude[i] >= amplitude[i + 1]
    tops = i[rises & falls]
    no_drift = tops >= size / n  # a cycle or more in the record
    no_side_lobe = amplitude[tops] > 0.03 * amplitude.max() + 1e-9  # of the window
    tops = tops[no_drift & no_side_lobe]
    strongest_first = np.argsort(-amplitude[tops], kind="stable")
    tops = tops[strongest_first][:count]
    peaks = [(float(k / size), float(amplitude[k])) for k in tops]
    return amplitude, peaks


def return_error(states, lag):
    """||s_t+lag - s_t|| over the distance of two states drawn at random, both root mean square.

    0 if the state returns, 1 if it might be anywhere, more if it is opposite; None if the
    record is shorter than two lags, or nothing moves."""
    if len(states) < 2 * lag:
        return None
    x = standardize(states, detrend=False)
    num_moving = x.shape[1]
    if num_moving == 0:
        return None
    squared_distance = ((x[lag:] - x[:-lag]) ** 2).sum(axis=1)  # (n - lag,)
    return float(np.sqrt(squared_distance.mean() / (2 * num_moving)))


# ------------------------------------ Command line ------------------------------------
def fail(message):
    """Ends in one line, with a non-zero exit."""
    raise SystemExit(f"period.py: error: {' '.join(str(message).split())}")


def read_array(path):
    """The array of a .npy, .npz (of one array) or .csv file; pickled objects are refused."""
    if not path.is_file():
        fail(f"{path} is missing, or no file")
    try:
        if path.suffix == ".csv":
            return np.loadtxt(path, delimiter=",")
        content = np.load(path, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        names = content.files
        if len(names) == 1:
            return content[names[0]]
    except Exception as error:  # of many types
        fail(f"{path} is no .npy, .npz or .csv file of numbers ({error})")
    fail(f"{path} holds {len(names)} arrays: save the trajectory alone")


def read_trajectory(path, skip=0):
    """The states of a file, (n, D) and finite, without the first `skip` steps."""
    array = read_array(path)
    if array.dtype.kind not in "biuf":
        fail(f"{path} holds {array.dtype}: real numbers are needed")
    if array.ndim not in (1, 2):
        fail(f"{path} has the shape {array.shape}: (time,) or (time, dimension) is needed")
    states = array.astype(np.float64)
    if states.ndim == 1:
        states = states[:, None]  # (n, 1)
    if states.shape[1] == 0:
        fail(f"{path} has the shape {array.shape}: there is no dimension")
    states = states[skip:]
    if len(states) < MIN_STEPS:
        fail(f"{path} has {len(states)} steps after --skip {skip}: {MIN_STEPS} are needed")
    if not np.isfinite(states).all():
        fail(f"{path} holds values that are not finite")
    return states


def describe(states, dt=None):
    """The lines to print: period, height of the peak, and the dominant frequencies."""
    period, peak = state_period(states)
    in_steps = "none"
    if period is not None:
        in_steps = f"{period:.2f} steps"
        if dt is not None:
            in_steps += f"  {period * dt:.4g} s"
    lines = [f"period     {in_steps}", f"peak       {peak:.2f}"]
    x = standardize(states)
    peaks = spectrum(x)[1] if x.shape[1] > 0 else []
    if len(peaks) == 0:
        lines.append("frequency  none")
    for frequency, amplitude in peaks:
        line = f"frequency  {frequency:.4f} per step"
        if dt is not None:
            line += f"  {frequency / dt:.4g} Hz"
        lines.append(f"{line}  amplitude {amplitude:.2f}")
    return lines


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="period.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.error = fail  # one line, without the usage
    file_help = "a .npy, .npz or .csv file of an array (time, dimension) or (time,)"
    parser.add_argument("trajectory", type=Path, help=file_help)
    parser.add_argument("--dt", type=float, help="seconds per step: also print seconds and Hz")
    parser.add_argument("--skip", type=int, default=0, help="steps to leave out at the start")
    options = parser.parse_args(argv)
    if options.dt is not None and not 0 < options.dt < np.inf:
        fail(f"--dt {options.dt} is not a positive number of seconds")
    if options.skip < 0:
        fail(f"--skip {options.skip} is negative")
    states = read_trajectory(options.trajectory, options.skip)
    for line in describe(states, options.dt):
        print(line)


if __name__ == "__main__":
    main()
