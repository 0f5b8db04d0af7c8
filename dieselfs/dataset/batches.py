"""Batches of files, read ahead in a ring, in an opportunistic order or in that of a plan. This module starts threads.

    with data.batches(256, seed=1, epoch=0) as batches:
        for batch in batches:
            train(batch.contents)

In the opportunistic order (DeepIO), a loader reads chunk by chunk into a buffer, first what is in memory, and batches
are drawn from the buffer: storage sees whole chunks, one after the other, and no batch waits for a certain file.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Condition, Thread
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.opportunistic import Arrival, OpportunisticOrder, Parts, ServedLog, begun, log_of
from dieselfs.shuffle.plan import Plan, Share
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


class BatchMaker(Protocol):
    """Makes batches, one after the other, in a thread of the ring."""

    def next_batch(self) -> Batch | None:
        """The next batch, None after the last. Raises DieselfsError."""
        ...

    def close(self) -> None:
        """A `next_batch` that waits ends. Called from another thread."""
        ...


class PlanMaker:
    """Batches in the order of a share of a plan."""

    def __init__(self, files: Files, share: Share, batch: int) -> None:
        self._files, self._nodes, self._batch = files, share.nodes(), batch
        self._is_shared = share.world > 1
        self._position = 0

    def next_batch(self) -> Batch | None:
        position = self._position
        nodes = self._nodes[position : position + self._batch]
        self._position += len(nodes)
        if not len(nodes):
            return None
        return Batch(position, nodes.tolist(), self._files.get_nodes(nodes, self._is_shared))

    def close(self) -> None:
        """It never waits for another thread."""


class OpportunisticMaker:
    """Batches of what a loader thread has read. `order` has the log."""

    def __init__(
        self,
        files: Files,
        parts: Parts,
        order: OpportunisticOrder,
        sizes: Callable[[Nodes], int],
        batch: int,
        buffer_bytes: int,
        first: Sequence[int] = (),
        logged: Sequence[Arrival] = (),
    ) -> None:
        """`order`: at the position to begin with. `sizes(nodes)`: their bytes together. `first`: parts that are loaded
        before others, because they are in memory. `logged`: arrivals to repeat, at their positions.
        """
        self._files, self._parts, self._order, self._sizes = files, parts, order, sizes
        self._batch, self._buffer_bytes = batch, buffer_bytes
        self._logged = deque(logged)
        begun = [part for part in parts.order if order.has_arrived(part)]
        wanted = [*begun, *(one.part for one in logged), *first, *parts.order]
        remaining = {part: order.remaining(part) for part in begun}
        self._changed = Condition()  # guards the order and all below
        self._contents: dict[int, bytes] = {}
        self._arrived: list[int] = []  # loaded parts that the order does not have yet
        self._buffered_bytes = 0
        self._is_full = self._is_over = self._is_closed = self._is_starving = False
        self._error: BaseException | None = None
        arguments = [*dict.fromkeys(wanted)], remaining
        self._thread = Thread(target=self._load_all, args=arguments, name="dieselfs-loader", daemon=True)
        self._thread.start()

    def arrivals(self) -> list[Arrival]:
        with self._changed:
            return [*self._order.arrivals]

    def entropy_ratio(self) -> float:
        with self._changed:
            return self._order.entropy_ratio()

    # -- the loader ----------------------------------------------------------------------------------------

    def _load_all(self, wanted: Sequence[int], remaining: dict[int, Nodes]) -> None:
        try:
            for part in wanted:
                if not self._load(part, remaining.get(part, self._parts.nodes[part])):
                    return
        except BaseException as error:  # `next_batch` raises it
            with self._changed:
                self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _load(self, part: int, nodes: Nodes) -> bool:
        """Read the files of a part when there is room for them; False after `close`."""
        size_bytes = self._sizes(nodes)
        with self._changed:
            # Ends when a batch is drawn, and with `close`.
            while self._buffered_bytes and not self._is_closed and not self._is_starving:
                if self._buffered_bytes + size_bytes <= self._buffer_bytes:
                    break
                self._is_full = True
                self._changed.notify_all()
                self._changed.wait(_WAIT_S)
            self._is_full = False
            if self._is_closed:
                return False
        contents = self._files.get_nodes(nodes) if len(nodes) else []
        with self._changed:
            self._contents.update(zip(nodes.tolist(), contents, strict=True))
            self._buffered_bytes += sum(map(len, contents))
            self._arrived.append(part)
            self._changed.notify_all()
        return True

    # -- batches -------------------------------------------------------------------------------------------

    def next_batch(self) -> Batch | None:
        with self._changed:
            order, position = self._order, self._order.position
            nodes: list[int] = []
            contents: list[bytes] = []
            while len(nodes) < self._batch and order.left and not self._is_closed:
                drawn = order.draw(self._wait_for_files(self._batch - len(nodes)))
                if not drawn and nodes:
                    break  # the loader has failed, which the next call raises
                if not drawn:
                    self._raise_error()
                self._wait_for_contents(drawn)
                if self._is_closed:
                    break
                found = [self._contents.pop(node) for node in drawn]
                self._buffered_bytes -= sum(map(len, found))
                self._is_full = False
                self._changed.notify_all()
                nodes += drawn
                contents += found
            return Batch(position, nodes, contents) if nodes and not self._is_closed else None

    def _wait_for_files(self, wanted: int) -> int:
        """How many files to draw now, at most `wanted`: after the arrivals that the log has for this position, or when
        enough is in the buffer. 0 if the loader has failed, or after `close`.
        """
        order = self._order
        while self._logged and self._logged[0].position <= order.position:
            order.arrive(self._logged.popleft().part)
        if self._logged:
            count = min(wanted, self._logged[0].position - order.position)
            if order.available < count:
                raise InvalidInput(f"the log of an order has no files for position {order.position}")
            return count
        # The loader adds files, ends, or finds the buffer full; its reads end in time, or with an error.
        while not self._is_closed:
            for part in self._arrived:
                if not order.has_arrived(part):
                    order.arrive(part)
            self._arrived.clear()
            is_mixed = self._buffered_bytes >= MIX_SHARE * self._buffer_bytes
            is_enough = is_mixed and order.available >= min(wanted, order.left)
            if (is_enough or self._is_full or self._is_over) and (order.available or self._error is not None):
                break
            self._changed.wait(_WAIT_S)
        return min(wanted, order.available)

    def _wait_for_contents(self, nodes: list[int]) -> None:
        """Until the loader has read these files, also beyond the buffer: a log may need more than it has."""
        while not self._is_closed and not all(map(self._contents.__contains__, nodes)):
            self._raise_error()
            self._is_starving = True
            self._changed.notify_all()
            self._changed.wait(_WAIT_S)
        self._is_starving = False

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(JOIN_TIMEOUT_S)


class BatchReader(Iterator[Batch]):
    """Batches from a ring of places, each of which is empty, being filled, or ready. One thread fills them.

    Close it after use, or use it in a `with` block.
    """

    def __init__(self, maker: BatchMaker, ahead: int, log: Callable[[], ServedLog] | None = None) -> None:
        """Use `Dataset.batches`. `ahead`: the places."""
        if ahead < 1:
            raise InvalidInput(f"ahead is {ahead}: give the number of batches to read ahead, 1 or more")
        self.maker = maker
        self._log = log
        self._ahead = ahead
        self._changed = Condition()  # guards all below
        self._ready: deque[Batch] = deque()
        self._is_over = self._is_closed = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._fill, name="dieselfs-batches", daemon=True)
        self._thread.start()

    @property
    def log(self) -> ServedLog:
        """What repeats the order so far, with the batches that were read ahead. Raises InvalidInput for the order of a
        plan, which needs none.
        """
        if self._log is None:
            raise InvalidInput("the order of a plan needs no log: its cursor repeats it")
        return self._log()

    def __next__(self) -> Batch:
        """Raises DieselfsError if a read fails; the batches before it were returned."""
        with self._changed:
            while not self._ready and not self._is_over:
                self._changed.wait(_WAIT_S)
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            raise StopIteration

    def _fill(self) -> None:
        try:
            while True:
                with self._changed:
                    while len(self._ready) >= self._ahead and not self._is_closed:
                        self._changed.wait(_WAIT_S)  # until a batch is taken
                    if self._is_closed:
                        return
                batch = self.maker.next_batch()
                if batch is None:
                    return
                with self._changed:
                    self._ready.append(batch)
                    self._changed.notify_all()
        except BaseException as error:  # `__next__` raises it
            self._error = error
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def close(self) -> None:
        """End both threads; a read in flight ends first. May be called again."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.maker.close()
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
    held: Callable[[int], bool] = lambda chunk: False,
    buffer_bytes: int = DEFAULT_BUFFER_BYTES,
    ahead: int = DEFAULT_BATCHES_AHEAD,
    log: ServedLog | None = None,
) -> BatchReader:
    """Batches of one rank in the opportunistic order of the plan's files, seed and epoch; begins at `reader.start`,
    which needs a log. `held(chunk)`: whether a chunk of the snapshot is in memory.

    Raises InvalidInput for a log of another order.
    """
    spec, snapshot = plan.spec, plan.snapshot
    digest = plan.cursor(0).snapshot
    parts = Parts(plan.layout, spec.seed, spec.epoch, reader.rank, reader.world)
    if log is not None:
        log.check(digest, spec.seed, spec.epoch, reader.rank, reader.world)
    order, left = begun(parts, spec.seed, spec.epoch, log.arrivals if log else (), reader.start)
    sizes, counts = snapshot.column("sizes"), snapshot.column("counts")
    chunks, firsts = snapshot.column("extent_chunks"), snapshot.column("firsts")

    def is_held(part: int) -> bool:
        with_bytes = parts.nodes[part][counts[parts.nodes[part]] > 0]
        return len(with_bytes) > 0 and held(int(chunks[firsts[with_bytes[0]]]))

    maker = OpportunisticMaker(
        files,
        parts,
        order,
        lambda nodes: int(sizes[nodes].sum()),
        batch,
        buffer_bytes,
        [*filter(is_held, parts.order)],
        left,
    )
    return BatchReader(maker, ahead, lambda: log_of(digest, spec, reader, maker.arrivals()))
