"""Statistics of runs that differ in their seed. The seed is the unit everywhere: skills of one run
share a network, and are not independent.

Scores are {task: one score per seed}; a list stands for a single task. The interquartile mean, the
stratified bootstrap and the probability of improvement are those of Agarwal et al., "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021.
"""

import numpy as np

NUM_RESAMPLES = 10_000
LEVEL = 0.95


def by_task(scores):
    """{task: array of one score per seed}."""
    if not isinstance(scores, dict):
        scores = {"": scores}
    arrays = {task: np.asarray(values, dtype=float) for task, values in scores.items()}
    for task, values in arrays.items():
        if values.ndim != 1 or len(values) == 0 or not np.isfinite(values).all():
            raise ValueError(f"{task or 'the task'} needs one finite score per seed, not {values}")
    if not arrays:
        raise ValueError("there are no scores")
    return arrays


def mean(values):
    """Over the last axis."""
    return np.mean(values, axis=-1)


def interquartile_mean(values):
    """Over the last axis: the mean without the lowest and the highest quarter, rounded down."""
    count = np.shape(values)[-1]
    cut = count // 4
    return np.sort(values, axis=-1)[..., cut : count - cut].mean(axis=-1)


def resample(arrays, rng):
    """{task: (NUM_RESAMPLES, seeds)}: the seeds of each task, drawn anew with replacement."""
    drawn = {}
    for task, values in arrays.items():
        choice = rng.integers(len(values), size=(NUM_RESAMPLES, len(values)))
        drawn[task] = values[choice]
    return drawn


def percentile_interval(estimates):
    """The middle LEVEL of the estimates from resampled seeds."""
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(estimates, [tail, 100 - tail])
    return [float(low), float(high)]


def summary(scores, statistic=mean):
    """A statistic of the scores of all tasks together, its interval, and the seeds per task.

    The interval is None if every task has a single seed: nothing is known of the spread then. With
    few seeds the bootstrap is too narrow, so the number of seeds belongs beside it."""
    arrays = by_task(scores)
    seeds = [len(values) for values in arrays.values()]
    value = float(statistic(np.concatenate(list(arrays.values()))))
    interval = None
    if max(seeds) > 1:
        drawn = resample(arrays, np.random.default_rng(0))  # the same scores, the same interval
        together = np.concatenate(list(drawn.values()), axis=1)
        interval = percentile_interval(statistic(together))
    return {"value": value, "interval": interval, "seeds": seeds}


def share_above(x, y):
    """Over the last axes: how often a score of x is above one of y; a tie counts half."""
    x = np.asarray(x)[..., :, None]
    y = np.asarray(y)[..., None, :]
    return ((x > y) + 0.5 * (x == y)).mean(axis=(-2, -1))


def probability_of_improvement(scores, others):
    """The probability that a seed scores more than a seed of the others on the same task, averaged
    over tasks; with its interval, and the seeds per task of both."""
    x = by_task(scores)
    y = by_task(others)
    if x.keys() != y.keys():
        raise ValueError(f"the tasks differ: {sorted(x)} and {sorted(y)}")
    value = float(np.mean([share_above(x[task], y[task]) for task in x]))
    seeds = [(len(x[task]), len(y[task])) for task in x]
    interval = None
    if max(max(pair) for pair in seeds) > 1:
        rng = np.random.default_rng(0)
        drawn_x = resample(x, rng)
        drawn_y = resample(y, rng)
        estimates = np.mean([share_above(drawn_x[task], drawn_y[task]) for task in x], axis=0)
        interval = percentile_interval(estimates)
    return {"value": value, "interval": interval, "seeds": seeds}


def text_of(found, form="{:.2f}"):
    """value (low to high; n seeds), where n of several tasks may differ."""
    counts = sorted({str(count) for count in found["seeds"]})
    seeds = " or ".join(counts)
    noun = "seed" if seeds == "1" else "seeds"
    value = form.format(found["value"])
    if found["interval"] is None:
        return f"{value} ({seeds} {noun})"
    low, high = (form.format(bound) for bound in found["interval"])
    return f"{value} ({low} to {high}; {seeds} {noun})"
