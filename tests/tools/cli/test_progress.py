"""The progress of a command, and a stream as a temporary file."""

import io
import os
import tempfile
from pathlib import Path
from threading import Event

import pytest

from dieselfs.errors import DieselfsError
from dieselfs_tools.cli import progress
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import Reading, progress_line, shown, spooled


def test_a_line_says_how_far_how_fast_and_how_long_still() -> None:
    reading = Reading(1234, 1 << 30, 5678, 5 << 30, 2)
    assert progress_line("put", reading, 1 << 30, 10) == (
        "put: 20%, 1,234 of 5,678 files, 1.0 GiB of 5.0 GiB, 102 MiB/s, 40 s left, 2 failed"
    )


def test_while_totals_grow_no_time_left_is_claimed() -> None:
    line = progress_line("put", Reading(1, 10, 2, 20, is_total_known=False), 10, 1)
    assert line == "put: 1 of 2 files, 10 B of 20 B found so far, 10 B/s, 0 failed"
    assert "left" not in progress_line("put", Reading(0, 0, 0, 0), 0, 0)


class Stream(io.StringIO):
    """Tells when something is written; a terminal if it is told so."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        result = super().write(text)
        if text.strip():
            self.written.set()
        return result


def test_what_was_skipped_counts_neither_for_the_rate_nor_for_the_time_left() -> None:
    resumed = Reading(900, 900 << 20, 1000, 1000 << 20, skipped_bytes=890 << 20)
    line = progress_line("put", resumed, resumed.worked_bytes, 10)
    assert "1.0 MiB/s" in line and "1 min 40 s left" in line


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_a_narrow_terminal_keeps_what_matters_most(columns: int) -> None:
    line = progress_line("put", Reading(1, 10, 20, 20), 10, 1, columns)
    assert len(line) <= columns
    assert line.startswith("put: 50%, 1 of 20 f")
    assert ("failed" in line) is (columns >= 80)


def test_bytes_alone_count_where_there_are_no_files() -> None:
    reading = Reading(0, 2048, 0, 2048, None, is_total_known=False, noun="")
    assert progress_line("read", reading, 2048, 2) == "read: 2.0 KiB, 1.0 KiB/s"
    reading = Reading(0, 2048, 0, 8192, None, noun="")
    assert (
        progress_line("verify", reading, 2048, 2) == "verify: 25%, 2.0 KiB of 8.0 KiB, 1.0 KiB/s, 6.0 s left"
    )


def test_chunks_alone_count_where_bytes_are_not_known() -> None:
    reading = Reading(10, 0, 40, 0, None, noun="chunk", has_bytes=False)
    assert progress_line("fsck", reading, 0, 2) == "fsck: 25%, 10 of 40 chunks, 6.0 s left"
    assert (
        progress_line("fsck", Reading(0, 0, 0, 0, None, noun="chunk", has_bytes=False), 0, 2)
        == "fsck: 0 of 0 chunks"
    )


def test_a_terminal_that_does_not_know_its_size_shows_progress() -> None:
    ours, theirs = os.openpty()  # of 0 columns and 0 rows
    try:
        with (
            os.fdopen(theirs, "w") as terminal,
            shown(Output(), "get", lambda: Reading(1, 2048, 3, 4096), terminal),
        ):
            assert b"get: 50%, 1 of 3 files" in os.read(ours, 4096)
    finally:
        os.close(ours)


@pytest.mark.parametrize("is_terminal", [False, True])
def test_something_is_shown_soon(is_terminal: bool) -> None:
    stream = Stream(is_terminal)
    with shown(Output(is_progress=True), "get", lambda: Reading(1, 2048, 3, 4096), stream):
        assert stream.written.wait(30)
    assert "get: " in stream.getvalue()
    assert ("\n" in stream.getvalue()) is not is_terminal


@pytest.mark.parametrize(
    ("output", "is_terminal"),
    [(Output(is_quiet=True), True), (Output(is_quiet=True, is_progress=True), False), (Output(), False)],
)
def test_quiet_and_pipes_show_nothing(output: Output, is_terminal: bool) -> None:
    stream = Stream(is_terminal)
    with shown(output, "get", lambda: pytest.fail("asked"), stream):
        pass
    assert stream.getvalue() == ""


def test_the_first_line_comes_within_a_second_and_the_others_every_ten() -> None:
    assert progress.FIRST_LINE_S < 1
    assert progress.LINE_INTERVAL_S == 10


QUIET = Output(is_quiet=True)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("size", [0, 1, 3 << 20])
def test_the_file_holds_it_all_and_is_gone_afterwards(scratch: Path, size: int) -> None:
    content = os.urandom(size)
    with spooled(io.BytesIO(content), QUIET) as path:
        assert Path(path).read_bytes() == content
        assert Path(path).stat().st_mode & 0o777 == 0o644, "which the dataset records"
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700, "other users cannot read it"
    assert os.listdir(scratch) == []


def test_a_failure_afterwards_leaves_nothing_and_stays_what_it_is(scratch: Path) -> None:
    with pytest.raises(OSError, match="of another"), spooled(io.BytesIO(b"x"), QUIET):
        raise OSError("of another")
    assert os.listdir(scratch) == []


def test_no_room_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    wanted = pytest.raises(DieselfsError, match="/no/such/folder: No such file or directory; set TMPDIR")
    with wanted, spooled(io.BytesIO(b"x"), QUIET):
        pass
