"""Readers of folders that are right, wrong, or away."""

from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from dieselfs_tools.observe.faults import (
    FAILURES_KEPT,
    READERS_EACH,
    content_of,
    reading,
    wait_for,
)

CONTENTS = {f"{number}": content_of(f"{number}", 1000) for number in range(5)}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_what_is_right_is_counted(place: Path) -> None:
    with reading([place, place], CONTENTS) as readers:
        readers.begin()
        seen = readers.wait_for_reads(20)
    assert seen.reads >= 20 * 2 * READERS_EACH and seen.failures == [] and 0 < seen.worst_s < 30
    assert (seen.failed, seen.wrong) == (0, 0)


def test_wrong_bytes_and_failures_are_told_apart(place: Path) -> None:
    (place / "1").write_bytes(b"other")
    (place / "2").unlink()
    with reading([place], CONTENTS) as readers:
        wait_for(lambda: readers.seen().wrong > 9 and readers.seen().failed > 9, "both are seen")
        seen = readers.seen()
    assert seen.reads > seen.wrong + seen.failed and len(seen.failures) == FAILURES_KEPT
    assert set(seen.failures) <= {"1: wrong bytes", "2: No such file or directory"}


def test_what_never_happens_ends_the_wait() -> None:
    with pytest.raises(Unavailable, match="a miracle"):
        wait_for(lambda: False, "a miracle", 0.01)
