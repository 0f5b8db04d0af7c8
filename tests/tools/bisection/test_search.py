"""The search of bisect: it finds what fails, in log2 n runs for a file, and says what it could not decide."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dieselfs_tools.bisection.search import Cause, Unfinished, Verdict, causes_of, runs_for


class Command:
    """Fails where all files of a cause are kept. `undecided`: kept files whose runs show nothing."""

    def __init__(
        self,
        files: int,
        causes: Sequence[set[int]],
        undecided: Sequence[set[int]] = (),
        runs_max: int = 10**9,
    ) -> None:
        self.files, self._causes, self._undecided, self._runs_max = files, causes, undecided, runs_max
        self.runs: dict[tuple[int, ...], Verdict] = {}

    def __call__(self, kept: Sequence[int]) -> Verdict:
        if tuple(kept) not in self.runs and len(self.runs) == self._runs_max:
            raise Unfinished("no more runs")
        assert list(kept) == sorted(set(kept))
        is_bad = any(cause <= {*kept} for cause in self._causes)
        verdict = Verdict.UNKNOWN if {*kept} in self._undecided else Verdict.BAD if is_bad else Verdict.GOOD
        self.runs[tuple(kept)] = verdict
        return verdict

    def found(self) -> list[Cause]:
        assert self(range(self.files)) is Verdict.BAD and self([]) is Verdict.GOOD
        return [*causes_of(self.files, self)]


@pytest.mark.parametrize("files", [1, 2, 7, 64, 100])
def test_each_bad_file_is_found_in_log2_of_the_runs(files: int) -> None:
    for bad in range(files):
        command = Command(files, [{bad}])
        assert command.found() == [Cause((bad,))]
        assert len(command.runs) <= runs_for(files)


@settings(max_examples=200)
@given(st.data())
def test_several_bad_files_and_files_that_are_bad_together_are_found(data: st.DataObject) -> None:
    files = data.draw(st.integers(1, 200))
    bad = data.draw(st.lists(st.integers(0, files - 1), min_size=1, max_size=8, unique=True))
    ends = sorted({*data.draw(st.lists(st.integers(1, len(bad)), max_size=3)), len(bad)})
    causes = [{*bad[first:end]} for first, end in zip([0, *ends], ends, strict=False)]
    command = Command(files, causes)
    assert {cause.files for cause in command.found()} == {tuple(sorted(cause)) for cause in causes}
    assert len(command.runs) <= runs_for(files, len(bad))


def test_what_is_undecided_is_named_as_such() -> None:
    undecided = [{*range(end)} for end in range(8, 13)]
    command = Command(64, [{9}], undecided)
    assert command.found() == [Cause((), tuple(range(7, 13)))]
    with pytest.raises(Unfinished, match="there may be more"):
        Command(64, [{9}], [{*range(64)} - {9}]).found()


def test_what_is_known_when_the_runs_are_used_up_is_returned_first() -> None:
    for runs_max in range(2, runs_for(64)):
        with pytest.raises(Unfinished, match="no more runs") as raised:
            Command(64, [{20}], runs_max=runs_max).found()
        cause = raised.value.cause
        assert cause is None or 20 in cause.files + cause.among
        assert (cause is None) == (
            runs_max == runs_for(64) - 1
        )  # the cause is known, and whether there are more is not
