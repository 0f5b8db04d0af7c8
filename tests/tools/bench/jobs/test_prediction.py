"""The benchmark of predictions: what it makes of measured epochs."""

from bench.harness.figures import Run
from bench.harness.rounds import run_trial
from bench.jobs.prediction import MEASURED, PREDICTED, Pair, trials
from dieselfs_tools.observe.prediction import COMPUTING, NETWORK, READING, Epoch


def test_the_ratio_is_of_what_was_predicted_and_measured_in_the_same_round() -> None:
    rounds = [(1.0, 2.0), (4.0, 4.0), (9.0, 3.0)]  # predicted, measured
    pairs = [
        Pair(
            title, 10, 1_000, Epoch({READING: predicted, NETWORK: 0.5, COMPUTING: 0.0}, 1e6, 0), Run(measured)
        )
        for predicted, measured in rounds
        for title in ("one", "other")
    ]
    found = list(trials(pairs))
    assert [trial.title for trial in found] == ["one", "other"]
    for trial in found:
        figures, left_out = run_trial(trial)
        measured, predicted = figures
        assert not left_out and (measured.side.name, predicted.side.name) == (MEASURED, PREDICTED)
        assert (predicted.durations_s, measured.durations_s) == ([1, 4, 9], [2, 4, 3])
        assert measured.ratio == 1, "the median of 0.5, 1 and 3"
        assert predicted.seen["network s"] == 0.5 and predicted.seen["server MB"] == 1
