"""How the units of a transfer are spread over workers. This module starts threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any, Protocol

DEFAULT_JOBS = 2
"""One thread fetches while another writes; more threads are slower."""


class Transfer(Protocol):
    """Work of units that do not depend on each other. Units and results are what msgpack can send, so that workers may
    be processes: forks of the one that has the transfer.
    """

    @property
    def place(self) -> bytes:
        """The path of what is written, for messages."""

    def units(self) -> Iterator[Sequence[Any]]:
        """All units. Used by one thread at a time."""

    def work(self, units: Iterator[Sequence[Any]]) -> Iterator[Any]:
        """In a worker: do the units that it takes, and yield the result of each before it takes the next one."""

    def finish(self, result: Any) -> None:
        """Called with each result, by one thread at a time, never while `units` is used."""

    def pulse(self) -> tuple[int, bool]:
        """In a worker: a number that changes with each file, and whether a server is called."""


Spread = Callable[[Transfer], None]
"""Does all units of a transfer. After an error, which is raised, and after an interrupt, workers take no other unit."""


def in_threads(transfer: Transfer, jobs: int = DEFAULT_JOBS) -> None:
    """Spread a transfer over as many threads."""
    units = transfer.units()
    lock = Lock()  # guards `units`, and what `finish` changes
    is_ending = Event()

    def left() -> Iterator[Sequence[Any]]:
        while not is_ending.is_set():
            with lock:
                found = next(units, None)
            if found is None:
                return
            yield found

    def loop() -> None:
        try:
            for result in transfer.work(left()):
                with lock:
                    transfer.finish(result)
        except BaseException:
            is_ending.set()
            raise

    with ThreadPoolExecutor(jobs, "dieselfs-transfer") as threads:
        try:
            for future in [threads.submit(loop) for _ in range(jobs)]:
                future.result()
        finally:
            is_ending.set()
