from dataclasses import replace

import pytest

from bench.figures import Aim, Figure, Quantity, Run, Side, Trial, figures


def side(name: str = "ours", amount: float = 100, size_bytes: int = 0, aim: Aim | None = None) -> Side:
    return Side(name, lambda: Run(1.0), amount, "files", size_bytes, aim)


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


@pytest.mark.parametrize(
    ("aim", "duration_s", "reached"),
    [
        (Aim(Quantity.RATE, 50), 1.0, 2.0),
        (Aim(Quantity.RATE, 50), 4.0, 0.5),
        (Aim(Quantity.RATIO, 0.5), 2.0, 1.0),
        (Aim(Quantity.RATIO, 0.5), 4.0, 0.5),
        (Aim(Quantity.DURATION_S, 15), 5.0, 3.0),
        (Aim(Quantity.DURATION_S, 15), 30.0, 0.5),
    ],
)
def test_how_much_of_an_aim_is_reached(aim: Aim, duration_s: float, reached: float) -> None:
    (figure, _) = figures(
        Trial("", [side(aim=aim), side("base")], rounds=1, base="base"),
        {"ours": runs(duration_s), "base": runs(1.0)},
    )
    assert figure.reached == pytest.approx(reached)


def test_nothing_is_reached_without_an_aim_or_without_what_it_is_compared_with() -> None:
    assert Figure(side(), runs(1.0)).reached is None
    assert Figure(side(aim=Aim(Quantity.RATIO, 0.7)), runs(1.0)).reached is None


def test_an_aim_may_be_about_other_sides_than_the_base_and_is_as_far_as_its_hardest_part() -> None:
    aim = Aim(Quantity.RATIO, 2, of=("lmdb", "tar"))
    trial = Trial("", [side(aim=aim), side("lmdb"), side("tar"), side("base")], rounds=1, base="base")
    measured = {"ours": runs(1.0), "lmdb": runs(2.0), "tar": runs(4.0), "base": runs(8.0)}
    ours, *_ = figures(trial, measured)
    assert (ours.ratio, ours.reached) == (8.0, 1.0)
    assert [rival.side.name for rival in ours.rivals] == ["lmdb", "tar"]


def test_rivals_that_could_not_be_run_do_not_count() -> None:
    aim = Aim(Quantity.RATIO, 1, of=("lmdb", "tar"))
    ours, _ = figures(
        Trial("", [side(aim=aim), side("tar")], rounds=1), {"ours": runs(1.0), "tar": runs(2.0)}
    )
    assert ours.reached == 2.0


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
