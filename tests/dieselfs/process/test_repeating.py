"""A call that is repeated beside a block of code."""

import pytest

from dieselfs.errors import Unavailable
from dieselfs.process.repeating import repeated
from tests.support.dlcmd import wait_until


@pytest.mark.parametrize("error", [Unavailable("the server is away"), ValueError("a bug")])
def test_a_call_that_fails_is_logged_and_repeated(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    calls = list[Exception]()

    def failing() -> None:
        calls.append(error)
        raise error

    with repeated(failing, 0.01):
        wait_until(lambda: len(calls) > 2)
    first = caplog.records[0]
    assert first.levelname == "WARNING" and str(error) in first.getMessage()
    assert bool(first.exc_info) == isinstance(error, ValueError), "the traceback of a bug"
