from dataclasses import replace

import pytest

from bench.harness.figures import FULL, QUICK, Figure, Run, Side, Trial, figures


def side(name: str = "ours", amount: float = 100, size_bytes: int = 0) -> Side:
    return Side(name, lambda: Run(1.0), amount, "files", size_bytes)


def runs(*durations_s: float) -> list[Run]:
    return [Run(duration_s) for duration_s in durations_s]


def test_rates_follow_from_the_median_run() -> None:
    figure = Figure(side(amount=100, size_bytes=4000), runs(9.0, 1.0, 2.0))
    assert (figure.duration_s, figure.rate, figure.byte_rate) == (2.0, 50.0, 2000.0)


def test_the_ratio_is_taken_round_by_round_so_that_a_drift_does_not_count() -> None:
    # The machine becomes ten times as slow, with both: always twice as fast as the base, but in no pair of medians.
    figure = Figure(side(), runs(1.0, 5.0, 10.0), Figure(side("base"), runs(2.0, 10.0, 20.0)))
    assert figure.ratio == 2.0
    one_bad_round = Figure(side(), runs(1.0, 1.0, 50.0), Figure(side("base"), runs(2.0, 2.0, 2.0)))
    assert one_bad_round.ratio == 2.0


def test_the_ratio_is_one_of_rates_where_the_amounts_differ() -> None:
    figure = Figure(side(amount=10), runs(1.0), Figure(side("base", amount=100), runs(1.0)))
    assert figure.ratio == pytest.approx(0.1)


def test_no_ratio_without_a_base() -> None:
    assert Figure(side(), runs(1.0)).ratio is None


def test_parts_are_medians_of_their_own() -> None:
    measured = [Run(1.0, {"own": 0.1, "server": 3.0}), Run(1.0, {"own": 0.2, "server": 2.0})]
    assert Figure(side(), measured).parts == pytest.approx({"own": 0.15, "server": 2.5})


def test_what_was_seen_is_the_median_of_the_runs_that_saw_it() -> None:
    measured = [Run(1.0, seen={"stall ms": 1}), Run(1.0, seen={"stall ms": 3}), Run(1.0)]
    assert Figure(side(), measured).seen == {"stall ms": 2}


def test_rounds_go_there_and_back() -> None:
    trial = Trial("", [side("a"), side("b"), side("c")], rounds=2)
    assert [[side.name for side in trial.order(number)] for number in (0, 1, 2)] == [
        ["a", "b", "c"],
        ["c", "b", "a"],
        ["a", "b", "c"],
    ]


def test_figures_of_a_trial_know_their_base() -> None:
    trial = Trial("", [side("ours"), side("ext4")], rounds=1, base="ext4")
    ours, base = figures(trial, {"ours": runs(2.0), "ext4": runs(1.0)})
    assert (ours.ratio, base.ratio) == (0.5, 1.0)
    alone = figures(replace(trial, base=None), {"ours": runs(2.0), "ext4": runs(1.0)})
    assert [figure.ratio for figure in alone] == [None, None]


def test_a_part_has_less_data_but_as_many_runs() -> None:
    part = FULL.part(0.1)
    assert (part.entries, part.small_files, part.large_files, part.chunks) == (128_000, 10_000, 500, 26)
    assert (part.rounds, part.kills, part.seeds, part.epochs) == (5, 20, 12, 20)
    assert QUICK.part(1) == QUICK


@pytest.mark.parametrize(
    ("durations_s", "verdict"),
    [
        ([1.0] * 4, "too few rounds"),
        ([1.02, 0.5, 3.0, 1.0, 1.01], "alike"),
        ([0.9, 0.5, 0.8, 0.9, 0.99], "faster"),
        ([1.2, 1.5, 1.1, 1.9, 1.01], "slower"),
        ([1.2, 1.5, 1.1, 1.9, 0.99], "undecided"),
    ],
)
def test_a_verdict_needs_all_rounds(durations_s: list[float], verdict: str) -> None:
    base = Figure(side("base"), runs(*[1.0] * len(durations_s)))
    assert Figure(side(), runs(*durations_s), base).verdict == verdict
    assert base.verdict == ""
