import errno
import logging

import pytest

from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.reading.core import MountCore
from dieselfs_client.mount.reading.error_log import REPEAT_NS, ErrorLog, Refused
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes

CORE = MountCore(Snapshot(snapshot_bytes(SAMPLE), SOURCE))
CAT = CORE.snapshot.require(b"train/cat.txt") + 1
GONE = 1 << 50


@pytest.fixture
def errors() -> ErrorLog:
    return ErrorLog()


@pytest.mark.parametrize(
    ("error", "inode", "code"),
    [
        (Refused(errno.ENAMETOOLONG), CAT, errno.ENAMETOOLONG),
        (NotFound("x"), GONE, errno.ESTALE),
        (InvalidInput("x"), CAT, errno.EINVAL),
    ],
)
def test_what_the_asker_did_is_not_noted(errors: ErrorLog, error: Exception, inode: int, code: int) -> None:
    assert errors.code(CORE, "read", inode, error) == code
    assert errors.text() == ""


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("not in time"),
        Damaged("not in time"),
        AccessDenied("not in time"),
        NotFound("not in time"),  # the dataset was removed: the file of the mount is not stale
    ],
)
def test_bytes_that_do_not_come_are_noted(errors: ErrorLog, error: Exception) -> None:
    assert errors.code(CORE, "read", CAT, error) == errno.EIO
    assert errors.text().split("\t")[1:] == ["train/cat.txt", "not in time\n"]


def test_a_read_in_vain_names_why_the_server_is_away(errors: ErrorLog) -> None:
    refused = "cannot reach the server at tcp://a:1: Connection refused"
    errors.trouble = lambda: refused
    for error, reason in (
        (Unavailable("its bytes did not come within 8 s"), f"its bytes did not come within 8 s; {refused}"),
        (Unavailable(refused), refused),
        (Damaged("checksum"), "checksum"),
    ):
        errors.code(CORE, "read", CAT, error)
        assert errors.text().rstrip().endswith(f"train/cat.txt\t{reason}")


def test_a_fault_of_ours_is_noted_and_logged_with_its_place(
    errors: ErrorLog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert errors.code(CORE, "read", 1 << 50, ZeroDivisionError("division by zero")) == errno.EIO
    assert "inode" in errors.text() and "ZeroDivisionError" in errors.text()
    assert caplog.records[0].exc_info is not None
    assert errors.code(CORE, "read", 1, RuntimeError()) == errno.EIO
    assert "\tthe root\t" in errors.text()


AT_NS = 1_700_000_000_123_456_789


def test_a_line_has_time_path_and_reason() -> None:
    errors = ErrorLog(clock_ns=lambda: AT_NS)
    errors.note("train/cat.txt", "the server\nis gone")
    assert errors.text() == "2023-11-14T22:13:20.123+00:00\ttrain/cat.txt\tthe server is gone\n"


def test_the_oldest_make_room() -> None:
    errors = ErrorLog(errors_max=2, clock_ns=lambda: AT_NS)
    assert errors.text() == ""
    for number in range(5):
        errors.note(str(number), "gone")
    assert [line.split("\t")[1] for line in errors.text().splitlines()] == ["3", "4"]


def test_an_error_that_is_repeated_at_once_is_listed_once() -> None:
    now_ns = [AT_NS]
    errors = ErrorLog(clock_ns=lambda: now_ns[0])
    for number, path in enumerate(("a", "b", "a", "b")):
        errors.note(path, str(number))
    assert [line.split("\t")[1:] for line in errors.text().splitlines()] == [["a", "2"], ["b", "3"]]
    now_ns[0] += REPEAT_NS
    errors.note("a", "connection refused")
    assert len(errors.text().splitlines()) == 3
