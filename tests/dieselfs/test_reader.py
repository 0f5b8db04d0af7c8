"""What a reader fetches from a real server, and what it keeps."""

import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from dieselfs.dataset import Dataset
from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.meta.snapshot import ExtentRef
from dieselfs.reader import ChunkReader, FileReader
from tests.support.server import RunningServer

FILE_BYTES = 16_384
FILES_PER_CHUNK = CHUNK_TARGET_BYTES // FILE_BYTES
CHUNKS = 12
CACHE_BYTES = 2 * CHUNK_TARGET_BYTES


@pytest.fixture(scope="module")
def packed(server: RunningServer) -> Iterator[Dataset]:
    """A dataset of chunks that are full, each file with bytes of its own."""
    with Dataset(server.settings(), "t-reader", is_created=False) as dataset:
        for number in range(CHUNKS * FILES_PER_CHUNK):
            dataset.put(f"{number:06}", number.to_bytes(4, "big") * (FILE_BYTES // 4))
        dataset.flush()
        assert dataset.snapshot.chunk_count == CHUNKS
        yield dataset


class CountingChunks(ChunkReader):
    """The real one; counts the bytes that come."""

    fetched_bytes = 0

    def fetch_chunk(self, chunk: int) -> bytearray:
        payload = super().fetch_chunk(chunk)
        self.fetched_bytes += len(payload)
        return payload

    def fetch_extents(self, chunk: int, extents: Sequence[ExtentRef]) -> list[bytes]:
        pieces = super().fetch_extents(chunk, extents)
        self.fetched_bytes += sum(map(len, pieces))
        return pieces


class Reading:
    """A reader with room for two chunks, and what it fetches."""

    def __init__(self, packed: Dataset) -> None:
        self._snapshot = packed.snapshot
        self._chunks = CountingChunks(packed.client, packed.snapshot)
        self._reader = FileReader(self._chunks, CACHE_BYTES)

    def fetched_bytes(self, batches: Sequence[Sequence[str]]) -> int:
        """Read the files of each batch, compare them, and return how many bytes were fetched for that."""
        before = self._chunks.fetched_bytes
        for batch in batches:
            contents = self._reader.read_many([self._snapshot.find(path.encode()) for path in batch])
            for path, content in zip(batch, contents, strict=True):
                assert content == int(path).to_bytes(4, "big") * (FILE_BYTES // 4)
        return self._chunks.fetched_bytes - before


def test_in_chunk_wise_order_each_chunk_comes_about_once(packed: Dataset) -> None:
    paths = list(packed.shuffle(group_chunks=2))
    total = len(paths) * FILE_BYTES
    assert Reading(packed).fetched_bytes([[path] for path in paths]) < 1.05 * total


def test_a_batch_that_wants_a_quarter_of_a_chunk_gets_it_whole(packed: Dataset) -> None:
    batch = list(packed.shuffle(group_chunks=1))[: FILES_PER_CHUNK // 4]
    reading = Reading(packed)
    assert reading.fetched_bytes([batch]) == CHUNK_TARGET_BYTES
    assert reading.fetched_bytes([batch]) == 0


def test_in_random_order_over_more_than_fits_files_do_not_cost_chunks(packed: Dataset) -> None:
    paths = sorted(packed.files())
    random.Random(5).shuffle(paths)
    some = paths[:400]
    fetched = Reading(packed).fetched_bytes([[path] for path in some])
    assert fetched < 10 * len(some) * FILE_BYTES  # whole chunks would be about 200 times as much


def test_what_one_reader_keeps_is_bounded(packed: Dataset) -> None:
    reading = Reading(packed)
    by_chunk = np.arange(CHUNKS * FILES_PER_CHUNK).reshape(CHUNKS, FILES_PER_CHUNK)
    batches = [[f"{number:06}" for number in row] for row in by_chunk.tolist()]
    assert reading.fetched_bytes(batches) == CHUNKS * CHUNK_TARGET_BYTES
    assert reading.fetched_bytes(batches[-2:]) == 0
    assert reading.fetched_bytes(batches[:1]) == CHUNK_TARGET_BYTES
