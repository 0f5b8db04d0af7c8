"""Batches of files, read ahead into a ring, in an opportunistic order or in that of a plan. This module starts threads.

    with data.batches(256, seed=1, epoch=0) as batches:
        for batch in batches:
            train(batch.contents)

One thread loads files piece by piece while there is room, and batches are drawn from what it has loaded. In the order
of a plan a piece is a batch. In the opportunistic order (DeepIO) a piece is a chunk, first of those in memory, and each
file is drawn at random: storage sees whole chunks, one after the other, and no batch waits for a certain file.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Condition, Thread
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import (
    Arrival,
    OpportunisticOrder,
    Parts,
    ServedLog,
    begun,
    distances_of,
    log_of,
)
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import ReaderSpec

DEFAULT_BUFFER_BYTES = 256 << 20
DEFAULT_BATCHES_AHEAD = 4
MIX_SHARE = 0.5
"""Share of the buffer that is filled before batches are drawn: the fuller it is, the more random is the order."""
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


class Draw(Protocol):
    """A way to draw batches from loaded files. Used by one thread at a time."""

    @property
    def pieces(self) -> Iterable[npt.NDArray[np.integer]]:
        """The files to load, piece by piece: each of shape (n,)."""

    def has_room(self, piece: npt.NDArray[np.integer]) -> bool:
        """Whether the next piece can be loaded now."""

    def add(self, piece: npt.NDArray[np.integer], contents: list[bytes]) -> None:
        """A piece is loaded."""

    def next_batch(self, is_over: bool) -> Batch | None:
        """The next batch, None while it needs more files, or if there are none. `is_over`: no more files come."""


class ListDraw:
    """Batches of a list of files, in its order: each is one piece, and `ahead` of them wait."""

    def __init__(self, nodes: npt.NDArray[np.integer], batch: int, ahead: int) -> None:
        self.pieces = [nodes[first : first + batch] for first in range(0, len(nodes), batch)]
        self._ahead, self._ready = ahead, deque[Batch]()
        self._position = 0

    def has_room(self, piece: npt.NDArray[np.integer]) -> bool:
        return len(self._ready) < self._ahead

    def add(self, piece: npt.NDArray[np.integer], contents: list[bytes]) -> None:
        self._ready.append(Batch(self._position, piece.tolist(), contents))
        self._position += len(piece)

    def next_batch(self, is_over: bool) -> Batch | None:
        return self._ready.popleft() if self._ready else None


class OpportunisticDraw:
    """Batches of the files that have arrived in a buffer. `order` has the log."""

    def __init__(
        self,
        parts: Parts,
        order: OpportunisticOrder,
        sizes: Callable[[npt.NDArray[np.integer]], int],
        batch: int,
        buffer_bytes: int,
        first: Sequence[int],
        logged: Sequence[Arrival] = (),
    ) -> None:
        """`order`: at the position to begin with. `sizes(nodes)`: their bytes together. `first`: the parts, as they
        should be loaded. `logged`: arrivals to repeat, at their positions.
        """
        self.order = order
        self._sizes, self._batch, self._buffer_bytes = sizes, batch, buffer_bytes
        self._logged = deque(logged)
        began = {part: order.remaining(part) for part in parts.order if order.has_arrived(part)}
        wanted = dict.fromkeys([*began, *(one.part for one in logged), *first])
        self._parts = deque(wanted)  # to be loaded
        self.pieces: list[Nodes] = [began.get(part, parts.nodes[part]) for part in wanted]
        self._contents: dict[int, bytes] = {}
        self._arrived: list[int] = []  # loaded parts that the order does not have yet
        self._buffered_bytes = self._next_bytes = 0
        self._nodes: list[int] = []  # drawn for the next batch
        self._found: list[bytes] = []  # the contents of the first of these

    def has_room(self, piece: npt.NDArray[np.integer]) -> bool:
        """Also beyond the buffer, if drawn files are missing: a log may need more than it has."""
        self._next_bytes = self._sizes(piece)
        return not self._buffered_bytes or not self._is_full or len(self._found) < len(self._nodes)

    @property
    def _is_full(self) -> bool:
        return self._buffered_bytes + self._next_bytes > self._buffer_bytes

    def add(self, piece: npt.NDArray[np.integer], contents: list[bytes]) -> None:
        self._contents.update(zip(piece.tolist(), contents, strict=True))
        self._buffered_bytes += sum(map(len, contents))
        self._arrived.append(self._parts.popleft())
        self._next_bytes = 0

    def next_batch(self, is_over: bool) -> Batch | None:
        order, nodes, found = self.order, self._nodes, self._found
        while True:
            for node in nodes[len(found) :]:
                if (content := self._contents.pop(node, None)) is None:
                    return None
                found.append(content)
                self._buffered_bytes -= len(content)
            if len(nodes) == self._batch or not order.left:
                break
            drawn = order.draw(self._drawable(self._batch - len(nodes), is_over))
            if not drawn:
                if is_over:  # the loader has failed, which is raised after these files
                    break
                return None
            nodes += drawn
        self._nodes, self._found = [], []
        return Batch(order.position - len(nodes), nodes, found) if nodes else None

    def _drawable(self, wanted: int, is_over: bool) -> int:
        """How many files to draw now, at most `wanted`: after the arrivals that the log has for this position, or when
        enough is in the buffer.
        """
        order = self.order
        while self._logged and self._logged[0].position <= order.position:
            order.arrive(self._logged.popleft().part)
        if self._logged:
            count = min(wanted, self._logged[0].position - order.position)
            if order.available < count:
                raise InvalidInput(f"the log of an order has no files for position {order.position}")
            return count
        for part in self._arrived:
            if not order.has_arrived(part):
                order.arrive(part)
        self._arrived.clear()
        is_mixed = self._buffered_bytes >= MIX_SHARE * self._buffer_bytes
        is_enough = is_mixed and order.available >= min(wanted, order.left)
        return min(wanted, order.available) if is_enough or self._is_full or is_over else 0


class BatchReader(Iterator[Batch]):
    """Batches that a thread reads ahead. Close it after use, or use it in a `with` block."""

    def __init__(
        self,
        files: Files,
        draw: Draw,
        is_shared_plan: bool = False,
        log: Callable[[], ServedLog] | None = None,
    ) -> None:
        """Use `Dataset.batches`. `is_shared_plan`: see `Wanted`."""
        self._files, self._draw, self._is_shared_plan, self._log = files, draw, is_shared_plan, log
        self._changed = Condition()  # guards the draw, the log and all below
        self._is_over = self._is_closed = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._load_all, name="dieselfs-batches", daemon=True)
        self._thread.start()

    @property
    def log(self) -> ServedLog:
        """What repeats the order so far. Raises InvalidInput for the order of a plan, which needs none."""
        if self._log is None:
            raise InvalidInput("the order of a plan needs no log: its cursor repeats it")
        with self._changed:
            return self._log()

    def __next__(self) -> Batch:
        """Raises DieselfsError if a read fails; the batches before it were returned."""
        with self._changed:
            while not self._is_closed:
                is_over = self._is_over  # what comes after this test is for the next round
                if (batch := self._draw.next_batch(is_over)) is not None:
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
            for piece in self._draw.pieces:
                with self._changed:
                    while not self._is_closed and not self._draw.has_room(piece):
                        self._changed.notify_all()  # for enough is in the buffer
                        self._changed.wait(_WAIT_S)
                    if self._is_closed:
                        return
                contents = self._files.get_nodes(piece, self._is_shared_plan) if len(piece) else []
                with self._changed:
                    self._draw.add(piece, contents)
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
    spec, snapshot = plan.spec, plan.snapshot
    digest = plan.cursor(0).snapshot
    parts = Parts.of(plan, reader)
    if log is not None:
        log.check(log_of(digest, spec, reader, ()))
    order, left = begun(parts, spec.seed, spec.epoch, log.arrivals if log else (), reader.start)
    sizes, first = snapshot.column("sizes"), [*distances_of(parts, snapshot, distances)]
    draw = OpportunisticDraw(
        parts, order, lambda nodes: int(sizes[nodes].sum()), batch, buffer_bytes, first, left
    )
    return BatchReader(files, draw, log=lambda: log_of(digest, spec, reader, order.arrivals))
