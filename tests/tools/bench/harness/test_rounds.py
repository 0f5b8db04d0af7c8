from collections.abc import Callable

from bench.harness.figures import Run, RunFailed, Side, Trial
from bench.harness.rounds import run_trial


def side(name: str, run: Callable[[], Run]) -> Side:
    return Side(name, run, 1, "files")


def fail() -> Run:
    raise RunFailed("no such feature")


def test_a_side_that_fails_is_left_out_and_the_others_go_on() -> None:
    trial = Trial("", [side("ours", lambda: Run(1.0)), side("theirs", fail)], rounds=3, base="theirs")
    (ours,), left_out = run_trial(trial)
    assert left_out == {"theirs": "no such feature"}
    assert (len(ours.runs), ours.ratio) == (3, None)


def test_each_run_has_what_the_machine_did_beside_it() -> None:
    (ours,), _ = run_trial(Trial("", [side("ours", lambda: Run(1.0, seen={"reads": 3}))], rounds=1))
    assert ours.seen == {"reads": 3}
    assert set(ours.runs[0].machine) == {
        *("session", "round_load", "load_before", "load_after", "stolen_s", "took_s")
    }
    assert ours.runs[0].machine["stolen_s"] >= 0
