"""Which worker gets a connection. No I/O."""

from collections import Counter
from collections.abc import Collection
from itertools import count

from dieselfs.rpc.serving.slots import address_group


class Assignment:
    """The connections of each worker. A new one goes to the worker with the fewest of its address, and of these to the
    one with the fewest in all: connections live long, and a client opens few, which must not meet in one worker.
    """

    def __init__(self) -> None:
        self._of_workers: dict[int, Counter[str]] = {}  # by worker and address
        self._open: dict[int, tuple[int, str]] = {}  # by number: worker and address
        self._numbers = count()

    def begin(self, worker: int) -> None:
        """The worker takes connections from now on."""
        self._of_workers[worker] = Counter()

    def end(self, worker: int) -> None:
        """The worker has died, and its connections with it."""
        self._of_workers.pop(worker, None)
        self._open = {number: found for number, found in self._open.items() if found[0] != worker}

    @property
    def workers(self) -> Collection[int]:
        return self._of_workers.keys()

    def assign(self, peer: str, workers: Collection[int]) -> tuple[int, int]:
        """One of `workers` for a connection of the address `peer`, and the number of the connection."""
        group = address_group(peer)
        worker = min(workers, key=lambda each: (self._of_workers[each][group], self.count(each), each))
        self._of_workers[worker][group] += 1
        number = next(self._numbers)
        self._open[number] = worker, group
        return worker, number

    def ended(self, number: int) -> None:
        """A connection has ended; one of a worker that has died is unknown."""
        worker, group = self._open.pop(number, (-1, ""))
        if worker in self._of_workers:
            connections = self._of_workers[worker]
            connections[group] -= 1
            if not connections[group]:
                del connections[group]

    def count(self, worker: int) -> int:
        """Connections of a worker that takes them."""
        return self._of_workers[worker].total()
