"""Batches of files, read ahead into a ring, in an opportunistic order or in that of a plan. This module starts threads.

    with data.batches(256, seed=1, epoch=0) as batches:
        for batch in batches:
            train(batch.contents)

One thread loads files piece by piece while there is room, and batches come from what it has loaded. In the order of a
plan a piece is a batch. In the opportunistic order (DeepIO) a piece is a chunk, first of those in memory, and the order
is drawn as if chunks arrived in time: storage sees whole chunks, one after the other, and a batch waits for no chunk
that is loaded later than others.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import Condition, Thread
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import Parts, ServedLog, log_ahead, log_of, served
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import ReaderSpec

DEFAULT_BUFFER_BYTES = 256 << 20
DEFAULT_BATCHES_AHEAD = 4
MIX_SHARE = 0.5
"""Share of the buffer from which each file is drawn: the larger, the more random is the order. The thread fills the
rest ahead.
"""
_WAIT_S = 1.0
"""Waits look again this often, so that a signal is handled in time."""
JOIN_TIMEOUT_S = 60.0
"""`close` waits this long for a read that is in flight; reads end within 30 s."""


class Batch(NamedTuple):
    """`position`: of its first file in the order of this rank. `nodes`: shape (n,), node numbers in the snapshot.

    `contents`: the bytes of each file.
    """

    position: int
    nodes: list[int]
    contents: list[bytes]


class Files(Protocol):
    """The part of a `Dataset` that reads files."""

    def get_nodes(
        self, nodes: Sequence[int] | npt.NDArray[np.integer], is_shared_plan: bool = False
    ) -> list[bytes]: ...


class Ring:
    """Batches of a list of files, in its order. Used by one thread at a time."""

    def __init__(
        self,
        nodes: npt.NDArray[np.integer],
        batch: int,
        pieces: Sequence[npt.NDArray[np.integer]],
        room: int,
        cost: Callable[[npt.NDArray[np.integer]], int] = len,
        position: int = 0,
    ) -> None:
        """`nodes`: shape (n,), each file once. `pieces`: the same files, as they are loaded. `room`: for loaded files,
        by `cost(nodes)` of them together. `position`: of the first file in the order of the rank.
        """
        self.pieces, self._room, self._cost = pieces, room, cost
        self._nodes, self._batch, self._position = nodes, batch, position
        self._first = 0  # of the next batch
        self._contents: dict[int, bytes] = {}
        self._held = 0  # by cost
        self._is_missing = False  # files of the next batch

    @classmethod
    def of_list(cls, nodes: npt.NDArray[np.integer], batch: int, ahead: int) -> Self:
        """Each batch is a piece, and `ahead` of them wait."""
        pieces = [nodes[first : first + batch] for first in range(0, len(nodes), batch)]
        return cls(nodes, batch, pieces, ahead * batch)

    def has_room(self, piece: npt.NDArray[np.integer]) -> bool:
        """Whether the next piece can be loaded now: also beyond the room, if the next batch needs it."""
        return not self._held or self._is_missing or self._held + self._cost(piece) <= self._room

    def add(self, piece: npt.NDArray[np.integer], contents: list[bytes]) -> None:
        """A piece is loaded."""
        self._contents.update(zip(piece.tolist(), contents, strict=True))
        self._held += self._cost(piece)
        self._is_missing = False

    def next_batch(self, is_over: bool) -> Batch | None:
        """The next batch, None while it needs more files, or if there are none. `is_over`: no more files come."""
        nodes: list[int] = self._nodes[self._first : self._first + self._batch].tolist()
        there = next((place for place, node in enumerate(nodes) if node not in self._contents), len(nodes))
        self._is_missing = there < len(nodes)
        if self._is_missing and not is_over:
            return None
        nodes = nodes[:there]  # all, unless the loader has failed, which is raised after these files
        if not nodes:
            return None
        found = Batch(self._position + self._first, nodes, [self._contents.pop(node) for node in nodes])
        self._first += len(nodes)
        self._held -= self._cost(np.array(nodes, np.int64))
        return found


class BatchReader(Iterator[Batch]):
    """Batches that a thread reads ahead. Close it after use, or use it in a `with` block."""

    def __init__(
        self, files: Files, ring: Ring, is_shared_plan: bool = False, log: ServedLog | None = None
    ) -> None:
        """Use `Dataset.batches`. `is_shared_plan`: see `Wanted`."""
        self._files, self._ring, self._is_shared_plan, self._log = files, ring, is_shared_plan, log
        self._changed = Condition()  # guards the ring and all below
        self._is_over = self._is_closed = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._load_all, name="dieselfs-batches", daemon=True)
        self._thread.start()

    @property
    def log(self) -> ServedLog:
        """What repeats the order. Raises InvalidInput for the order of a plan, which needs none."""
        if self._log is None:
            raise InvalidInput("the order of a plan needs no log: its cursor repeats it")
        return self._log

    def __next__(self) -> Batch:
        """Raises DieselfsError if a read fails; the batches before it were returned."""
        with self._changed:
            while not self._is_closed:
                is_over = self._is_over  # what comes after this test is for the next round
                if (batch := self._ring.next_batch(is_over)) is not None:
                    self._changed.notify_all()
                    return batch
                if is_over:
                    break
                self._changed.notify_all()  # for there may be room, or it is missing files
                self._changed.wait(_WAIT_S)
            if self._error is not None:
                raise self._error
            raise StopIteration

    def _load_all(self) -> None:
        try:
            for piece in self._ring.pieces:
                with self._changed:
                    while not self._is_closed and not self._ring.has_room(piece):
                        self._changed.wait(_WAIT_S)
                    if self._is_closed:
                        return
                contents = self._files.get_nodes(piece, self._is_shared_plan)
                with self._changed:
                    self._ring.add(piece, contents)
                    self._changed.notify_all()
        except BaseException as error:  # `__next__` raises it
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def close(self) -> None:
        """End the thread; a read in flight ends first. May be called again."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(JOIN_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opportunistic_batches(
    files: Files,
    plan: Plan,
    reader: ReaderSpec,
    batch: int,
    *,
    distances: Numbers | None = None,
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    log: ServedLog | None = None,
) -> BatchReader:
    """Batches of one rank in the opportunistic order of the plan's files, seed and epoch; begins at `reader.start`,
    which needs a log. `distances`: of the chunks, see `distances_of`.

    Raises InvalidInput for a log of another order.
    """
    if log is not None:
        log.check(log_of(plan.cursor(0).snapshot, plan.spec, reader, ()))
    parts, sizes = Parts.of(plan, reader), plan.snapshot.column("sizes")

    def bytes_of(nodes: npt.NDArray[np.integer]) -> int:
        return int(sizes[nodes].sum())

    total_bytes = sum(map(bytes_of, parts.nodes.values()))
    mixed_chunks = max(int(MIX_SHARE * buffer_bytes * len(parts.order) / max(total_bytes, 1)), 1)
    # Of chunks in memory, too, no more than the buffer is held here.
    further = None if distances is None else distances + 1
    drawn = log_ahead(plan, reader, further, mixed_chunks, log.arrivals if log else ())
    nodes = served(parts, drawn).nodes[reader.start :]
    is_left = np.zeros(len(plan.snapshot), np.bool_)
    is_left[nodes] = True
    loaded = (parts.nodes[part] for _, part in drawn.arrivals)
    pieces = [left for of_part in loaded if len(left := of_part[is_left[of_part]])]
    ring = Ring(nodes, batch, pieces, buffer_bytes, bytes_of, reader.start)
    return BatchReader(files, ring, log=drawn)
