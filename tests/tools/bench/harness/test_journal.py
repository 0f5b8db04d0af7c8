"""A benchmark that was cut off continues with the rounds that it lacks, if nothing has changed meanwhile."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from bench.harness.figures import Run, RunFailed, Side, Trial
from bench.harness.journal import Journal
from bench.harness.quiet import NotQuiet, quiet_load
from bench.harness.rounds import run_trial

MACHINE = {"commit": "0123456789", "command": "python -m bench upload", "data": "all"}
ROUNDS = 3


class Work:
    """Each run takes a second longer than the one before; it is interrupted in the run of this number."""

    def __init__(self, first: int = 1, interrupted_at: int = 0) -> None:
        self.numbers, self.interrupted_at = count(first), interrupted_at

    def run(self) -> Run:
        number = next(self.numbers)
        if number == self.interrupted_at:
            raise KeyboardInterrupt
        return Run(float(number))

    def trial(self, title: str) -> Trial:
        return Trial(
            title, [Side(name, self.run, 1, "files") for name in ("ours", "theirs")], ROUNDS, "theirs"
        )


def measured(work: Work, journal: Journal) -> list[list[float]]:
    """The durations of both sides, of two trials."""
    return [
        figure.durations_s
        for title in ("Upload", "Listing")
        for figure in run_trial(work.trial(title), journal)[0]
    ]


@pytest.mark.parametrize("interrupted_at", range(1, 4 * ROUNDS + 1))
def test_a_run_that_was_cut_off_lacks_no_round_and_repeats_none(tmp_path: Path, interrupted_at: int) -> None:
    whole = measured(Work(), Journal())
    file = tmp_path / "upload.json.part"
    with pytest.raises(KeyboardInterrupt):
        measured(Work(interrupted_at=interrupted_at), Journal(file, MACHINE))
    journal = Journal(file, MACHINE)
    rounds = (interrupted_at - 1) // 2
    assert journal.rounds_left == rounds
    assert measured(Work(first=2 * rounds + 1), journal) == whole
    journal.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (MACHINE, {**MACHINE, "data": "a share of 0.1"}),
        (MACHINE, {**MACHINE, "commit": "0123456789-dirty"}),
        ({**MACHINE, "commit": "0123456789-dirty"}, {**MACHINE, "commit": "0123456789-dirty"}),
    ],
)
def test_rounds_of_other_data_or_of_uncommitted_source_do_not_count(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    file = tmp_path / "upload.json.part"
    run_trial(Work().trial("Upload"), Journal(file, before))
    assert Journal(file, before | {"commit": "0123456789"}).rounds_left == (
        ROUNDS if before == MACHINE else 0
    )
    assert Journal(file, after).rounds_left == 0


def test_rounds_of_another_commit_count_and_name_it(tmp_path: Path) -> None:
    file, other = tmp_path / "upload.json.part", {**MACHINE, "commit": "9876543210"}
    run_trial(replace(Work().trial("Upload"), rounds=1), Journal(file, MACHINE))
    journal = Journal(file, other)
    found, _ = run_trial(Work().trial("Upload"), journal)
    for figure in found:
        commits = [journal.sessions[str(run.machine["session"])]["commit"] for run in figure.runs]
        assert commits == ["0123456789", "9876543210", "9876543210"]


def test_trials_are_found_in_any_order(tmp_path: Path) -> None:
    """As with `--only`, or where a first trial was added."""
    file = tmp_path / "upload.json.part"
    measured(Work(), Journal(file, MACHINE))
    found, _ = run_trial(Work(interrupted_at=1).trial("Listing"), Journal(file, MACHINE))
    assert [len(figure.runs) for figure in found] == [ROUNDS, ROUNDS]


def test_a_trial_whose_sides_have_changed_begins_with_its_first_round(tmp_path: Path) -> None:
    """Some names of sides have a count that was measured."""
    file, sides = tmp_path / "upload.json.part", [Side("ours", lambda: Run(1.0), 1, "files")]
    run_trial(Trial("Upload", sides, 1), Journal(file, MACHINE))
    changed = [*sides, Side("theirs", lambda: Run(1.0), 1, "files")]
    found, _ = run_trial(Trial("Upload", changed, 2), Journal(file, MACHINE))
    assert [len(figure.runs) for figure in found] == [2, 2]


def test_a_side_that_failed_before_is_not_tried_again(tmp_path: Path) -> None:
    def fail() -> Run:
        raise RunFailed("it is missing")

    def of(rounds: int) -> Trial:
        sides = [Side("ours", lambda: Run(1.0), 1, "files"), Side("theirs", fail, 1, "files")]
        return Trial("Upload", sides, rounds)

    file = tmp_path / "upload.json.part"
    run_trial(of(1), Journal(file, MACHINE))
    (ours,), left_out = run_trial(of(2), Journal(file, MACHINE))
    assert (len(ours.runs), left_out) == (2, {"theirs": "it is missing"})


def test_a_round_begins_when_the_machine_is_quiet() -> None:
    loads = iter([9.0, 1.6, 1.5, 1.4])
    assert quiet_load(lambda: next(loads)) == 1.4
    with pytest.raises(NotQuiet, match="end other programs and run the same command again"):
        quiet_load(lambda: 1.6, timeout_s=0.0)


def test_each_run_has_the_load_before_its_round() -> None:
    loads = iter([0.1, 0.2, 0.3])
    figures, _ = run_trial(Work().trial("Upload"), Journal(load=lambda: next(loads)))
    for figure in figures:
        assert [run.machine["round_load"] for run in figure.runs] == [0.1, 0.2, 0.3]
