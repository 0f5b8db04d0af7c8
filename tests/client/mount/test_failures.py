import errno
import logging

import pytest

from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.core import MountCore
from dieselfs_client.mount.error_log import ErrorLog
from dieselfs_client.mount.failures import Failures, Refused
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes

CORE = MountCore(Snapshot(snapshot_bytes(SAMPLE), SOURCE))
CAT = CORE.snapshot.require(b"train/cat.txt") + 1


@pytest.fixture
def failures() -> Failures:
    return Failures(CORE, ErrorLog())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(errno.ENAMETOOLONG), errno.ENAMETOOLONG),
        (NotFound("x"), errno.ESTALE),
        (InvalidInput("x"), errno.EINVAL),
    ],
)
def test_what_the_asker_did_is_not_noted(failures: Failures, error: Exception, code: int) -> None:
    assert failures.code("read", CAT, error) == code
    assert failures.errors.text() == ""


@pytest.mark.parametrize(
    "error", [Unavailable("not in time"), Damaged("not in time"), AccessDenied("not in time")]
)
def test_bytes_that_do_not_come_are_noted(failures: Failures, error: Exception) -> None:
    assert failures.code("read", CAT, error) == errno.EIO
    assert failures.errors.text().split("\t")[1:] == ["train/cat.txt", "not in time\n"]


def test_a_read_in_vain_names_why_the_server_is_away(failures: Failures) -> None:
    refused = "cannot reach the server at tcp://a:1: Connection refused"
    failures.errors.trouble = lambda: refused
    for error, reason in (
        (Unavailable("its bytes did not come within 8 s"), f"its bytes did not come within 8 s; {refused}"),
        (Unavailable(refused), refused),
        (Damaged("checksum"), "checksum"),
    ):
        failures.code("read", CAT, error)
        assert failures.errors.text().rstrip().endswith(f"train/cat.txt\t{reason}")


def test_a_fault_of_ours_is_noted_and_logged_with_its_place(
    failures: Failures, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        assert failures.code("read", 1 << 50, ZeroDivisionError("division by zero")) == errno.EIO
    assert "inode" in failures.errors.text() and "ZeroDivisionError" in failures.errors.text()
    assert caplog.records[0].exc_info is not None
    assert failures.code("read", 1, RuntimeError()) == errno.EIO
    assert "\tthe root\t" in failures.errors.text()
