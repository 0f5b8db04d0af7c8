"""The search for the files that make a command fail, by runs that keep only some of them. No I/O.

A file that fails alone is found in log2 n runs: the shortest beginning of the list that fails ends with it. If it does
not fail alone, the rest of its cause is in that beginning, and is found in the same way, with the file kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What a run of the command shows."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


Test = Callable[[Sequence[int]], Verdict]
"""Runs the command with some of the files, ascending, and all others left out. May raise Unfinished."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Files that fail together, and no fewer of them. `among`: files of which at least one belongs to the cause, if the
    runs could not decide which; else empty.
    """

    files: tuple[int, ...]
    among: tuple[int, ...] = ()


class Unfinished(Exception):
    """The search ends here. The message says why; `cause`: what it knows of the cause that it was looking for."""

    cause: Cause | None = None


def runs_for(files: int, causes: int = 1) -> int:
    """The most runs that `causes_of` takes for causes of one file each, with the runs of all files and of none."""
    return 2 + causes * ((files - 1).bit_length() + 2)


def causes_of(files: int, test: Test) -> Iterator[Cause]:
    """The causes among the files 0 to `files` - 1, of which a test of all fails and of none does not. A file belongs to
    one cause at most.

    More files must not make a bad run good. Raises Unfinished as `test`, and if the last run is undecided.
    """
    left = list(range(files))
    while left and (verdict := test(left)) is not Verdict.GOOD:
        if verdict is Verdict.UNKNOWN:
            raise Unfinished("the run without the files that were found is undecided: there may be more")
        cause = _cause(left, test)
        yield cause
        left = [file for file in left if file not in {*cause.files, *cause.among}]


def _cause(left: Sequence[int], test: Test) -> Cause:
    """One cause among files whose test fails."""
    needed: list[int] = []
    while True:
        among = _narrowed(needed, left, test)
        if len(among) > 1:
            return Cause(tuple(sorted(needed)), tuple(among))
        needed += among
        left = [file for file in left if file < among[0]]
        try:
            if not left or test(sorted(needed)) is Verdict.BAD:
                return Cause(tuple(sorted(needed)))
        except Unfinished as error:
            error.cause = Cause(tuple(sorted(needed)), tuple(left))
            raise


def _narrowed(needed: Sequence[int], left: Sequence[int], test: Test) -> Sequence[int]:
    """The files, usually one, of which the last one of the shortest failing beginning of `left` is one."""
    good, bad = 0, len(left)
    unknown: set[int] = set()
    while open_ends := [end for end in range(good + 1, bad) if end not in unknown]:
        end = min(open_ends, key=lambda end: abs(2 * end - good - bad))
        try:
            verdict = test(sorted([*needed, *left[:end]]))
        except Unfinished as error:
            error.cause = Cause(tuple(sorted(needed)), tuple(left[good:bad]))
            raise
        if verdict is Verdict.UNKNOWN:
            unknown.add(end)
        elif verdict is Verdict.BAD:
            bad = end
        else:
            good = end
    return left[good:bad]
