"""Statistics over seeds, by hand."""

import numpy as np
import pytest

from benchmark import seeds


def test_interquartile_mean_drops_a_quarter_on_each_side():
    assert seeds.interquartile_mean([0, 100, 1, 3]) == 2  # 1 and 3 stay
    assert seeds.interquartile_mean([5, 1, 9]) == 5  # a quarter of three is nobody
    assert seeds.interquartile_mean(np.arange(10)) == 4.5  # 2 to 7
    assert seeds.interquartile_mean([-50, 2, 3, 4, 5, 6, 7, 90]) == 4.5  # 3 to 6
    two_rows = seeds.interquartile_mean([[0, 1, 3, 100], [4, 4, 4, 4]])
    assert two_rows.tolist() == [2, 4]


def test_the_interval_of_two_seeds_is_exact():
    """Two seeds, 0 and 1, drawn twice: mean 0, 1/2, 1 with 1/4, 1/2, 1/4. So 95 % are all of it."""
    found = seeds.summary([0.0, 1.0])
    assert found == {"value": 0.5, "interval": [0.0, 1.0], "seeds": [2]}


def test_the_interval_is_that_of_a_normal_distribution_for_many_seeds():
    scores = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    found = seeds.summary(scores)
    half = 1.96 * scores.std() / np.sqrt(400)
    low, high = found["interval"]
    assert found["value"] == pytest.approx(scores.mean())
    assert low == pytest.approx(scores.mean() - half, abs=0.02)
    assert high == pytest.approx(scores.mean() + half, abs=0.02)


def test_seeds_are_drawn_within_their_task():
    """Two tasks at 0 and at 10, each with equal seeds: drawn together, the mean would vary."""
    found = seeds.summary({"easy": [10, 10, 10], "hard": [0, 0]})
    assert found == {"value": 6.0, "interval": [6.0, 6.0], "seeds": [3, 2]}
    with_spread = seeds.summary({"easy": [9, 11], "hard": [0, 0]})
    assert with_spread["interval"] == [4.5, 5.5]


def test_a_single_seed_has_no_interval():
    found = seeds.summary([7])
    assert found == {"value": 7.0, "interval": None, "seeds": [1]}
    assert seeds.text_of(found) == "7.00 (1 seed)"


def test_the_same_scores_give_the_same_interval():
    scores = {"a": [1, 5, 2, 8], "b": [3, 3, 9]}
    assert seeds.summary(scores) == seeds.summary(scores)
    other = seeds.summary(scores, seeds.interquartile_mean)
    assert other["value"] == pytest.approx(np.mean([2, 3, 3, 5, 8]))  # of 1 2 3 3 5 8 9


def test_probability_of_improvement_by_hand():
    """Mann and Whitney: of the 3 x 2 pairs, (2, 1), (4, 1), (4, 3) are above, (1, 1) is a tie."""
    found = seeds.probability_of_improvement([1, 2, 4], [1, 3])
    assert found["value"] == pytest.approx(3.5 / 6) and found["seeds"] == [(3, 2)]
    low, high = found["interval"]
    assert 0 <= low < 3.5 / 6 < high <= 1
    reverse = seeds.probability_of_improvement([1, 3], [1, 2, 4])
    assert reverse["value"] == pytest.approx(2.5 / 6)
    tasks = {"a": [1, 2, 4], "b": [0]}, {"a": [1, 3], "b": [0]}
    assert seeds.probability_of_improvement(*tasks)["value"] == pytest.approx((3.5 / 6 + 0.5) / 2)
    certain = seeds.probability_of_improvement([2, 3], [0, 1])
    assert (certain["value"], certain["interval"]) == (1.0, [1.0, 1.0])
    assert seeds.probability_of_improvement([1], [0])["interval"] is None


@pytest.mark.parametrize("scores", [[], {}, [1.0, np.nan], {"a": [1.0], "b": []}, [[1.0, 2.0]]])
def test_scores_that_are_no_scores_are_refused(scores):
    with pytest.raises(ValueError):
        seeds.summary(scores)


def test_tasks_have_to_be_the_same():
    with pytest.raises(ValueError, match="tasks differ"):
        seeds.probability_of_improvement({"a": [1]}, {"b": [1]})


def test_text_names_the_number_of_seeds():
    assert seeds.text_of(seeds.summary([0.0, 1.0]), "{:.1f}") == "0.5 (0.0 to 1.0; 2 seeds)"
    two_tasks = seeds.summary({"easy": [10, 10, 10], "hard": [0, 0]})
    assert seeds.text_of(two_tasks, "{:.0f}") == "6 (6 to 6; 2 or 3 seeds)"


def midranks(values):
    """1 for the smallest; equal values share the mean of their ranks."""
    values = np.asarray(values, float)
    return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])


def test_published_formulas_give_the_same():
    """Agarwal et al. (2021): the IQM is the 25 % trimmed mean of all runs of all tasks, and the
    probability of improvement is the Mann-Whitney U, by ranks, over N K, averaged over tasks."""
    rng = np.random.default_rng(3)
    x = {f"task {i}": rng.integers(0, 12, size=n).astype(float) for i, n in enumerate([5, 3, 8])}
    y = {f"task {i}": rng.integers(0, 12, size=n).astype(float) for i, n in enumerate([4, 6, 8])}
    pooled = np.sort(np.concatenate(list(x.values())))
    cut = int(0.25 * len(pooled))
    trimmed = pooled[cut:-cut].sum() / (len(pooled) - 2 * cut)
    assert seeds.summary(x, seeds.interquartile_mean)["value"] == pytest.approx(trimmed)
    chances = []
    for task in x:
        N, K = len(x[task]), len(y[task])
        ranks = midranks(np.concatenate([x[task], y[task]]))
        U = ranks[:N].sum() - N * (N + 1) / 2
        chances.append(U / (N * K))
    found = seeds.probability_of_improvement(x, y)
    assert found["value"] == pytest.approx(np.mean(chances))
