"""A call that is repeated beside a block of code, as to renew a lease. This module starts a thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from dieselfs.errors import DieselfsError


@contextmanager
def repeated(call: Callable[[], object], interval_s: float) -> Iterator[None]:
    """Call every `interval_s` until the end of the block, in a thread. A DieselfsError is no reason to stop."""
    has_ended = Event()

    def run() -> None:
        while not has_ended.wait(interval_s):
            with suppress(DieselfsError):
                call()

    thread = Thread(target=run, name="repeated", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
