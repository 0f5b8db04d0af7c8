"""A call that is repeated beside a block of code, as to renew a lease. This module starts a thread."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from dieselfs.errors import DieselfsError

_log = logging.getLogger(__name__)


@contextmanager
def repeated(call: Callable[[], object], interval_s: float) -> Iterator[None]:
    """Call every `interval_s` until the end of the block, in a thread. An error is logged, and no reason to stop."""
    has_ended = Event()

    def run() -> None:
        while not has_ended.wait(interval_s):
            try:
                call()
            except Exception as error:  # a bug must not end the calls while the block continues
                is_bug = not isinstance(error, DieselfsError)
                _log.warning("a call failed, the next is in %g s: %s", interval_s, error, exc_info=is_bug)

    thread = Thread(target=run, name="repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
