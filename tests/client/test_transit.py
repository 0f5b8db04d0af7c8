"""Which chunks go first when room is needed: against a model that looks at everything anew each time."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dieselfs.cache.segment import Segment
from dieselfs_client.transit import Transit
from tests.support.dataset import TreeEntry, pack_entries

CHUNKS = 6
FILE_BYTES = 1000
FILES_EACH = 4
CHUNK_BYTES = FILE_BYTES * FILES_EACH

SNAPSHOT = pack_entries(
    [TreeEntry(b"%02d" % n, 0o100644, 0, bytes([n]) * FILE_BYTES) for n in range(CHUNKS * FILES_EACH)],
    chunk_bytes=CHUNK_BYTES,
).snapshot
chunks = st.integers(0, CHUNKS - 1)


def segment() -> Segment:
    return Segment.create(CHUNK_BYTES)


class TransitMachine(RuleBasedStateMachine):
    """The model: what is here, last used last, with the files of it that were handed out, and when all were."""

    def __init__(self) -> None:
        super().__init__()
        self.transit = Transit(SNAPSHOT, 3 * CHUNK_BYTES)
        self.here: dict[int, set[int]] = {}
        self.finished: list[int] = []

    def forget(self, chunk: int) -> None:
        del self.here[chunk]
        if chunk in self.finished:
            self.finished.remove(chunk)

    @rule(chunk=chunks)
    def comes(self, chunk: int) -> None:
        if chunk in self.here:
            return
        self.transit.add(chunk, segment())
        if len(self.here) == 3:
            self.forget(self.finished[0] if self.finished else next(iter(self.here)))
        self.here[chunk] = set()

    @rule(chunk=chunks, files=st.sets(st.integers(0, FILES_EACH - 1), min_size=1))
    def are_handed_out(self, chunk: int, files: set[int]) -> None:
        ranges = [(file * FILE_BYTES, FILE_BYTES) for file in files]
        self.transit.handed_out(chunk, np.array(ranges, np.int64))
        if chunk not in self.here:
            return
        handed = self.here[chunk]
        if handed & files:
            handed.clear()
        handed |= files
        if chunk in self.finished:
            self.finished.remove(chunk)
        if len(handed) == FILES_EACH:
            self.finished.append(chunk)

    @rule(chunk=chunks)
    def is_used(self, chunk: int) -> None:
        assert (self.transit.get(chunk) is not None) == (chunk in self.here)
        if chunk in self.here:
            self.here[chunk] = self.here.pop(chunk)

    @rule(chunk=chunks)
    def is_taken(self, chunk: int) -> None:
        assert (self.transit.take(chunk) is not None) == (chunk in self.here)
        if chunk in self.here:
            self.forget(chunk)

    @invariant()
    def holds_the_same(self) -> None:
        assert {chunk for chunk in range(CHUNKS) if chunk in self.transit} == set(self.here)
        assert self.transit.bytes == len(self.here) * CHUNK_BYTES <= self.transit.bytes_max


TestTransit = TransitMachine.TestCase


def test_one_that_is_larger_than_all_the_room_passes_through_alone() -> None:
    transit = Transit(SNAPSHOT, CHUNK_BYTES - 1)
    for chunk in range(3):
        transit.add(chunk, segment())
        assert chunk in transit and transit.bytes == CHUNK_BYTES
