"""What other nodes ask of the samples that the ranks of this node keep. This module reads and writes the files of
`SampleStore`, and blocks.
"""

from itertools import accumulate
from typing import Any

import numpy as np

from dieselfs.cluster.chunk_requests import ChunkAvailability
from dieselfs.columns import U32
from dieselfs.errors import InvalidInput
from dieselfs.limits import PEER_ANSWER_BYTES_MAX, PEER_CHUNKS_MAX
from dieselfs.samples.sample_pool import pooled_sizes
from dieselfs.samples.sample_store import MEMORY_FOLDER, SampleStore
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.cluster.job_files import JobFiles


def read_samples(
    snapshot: Snapshot, arguments: Any, parent: str = MEMORY_FOLDER, of_job: JobFiles | None = None
) -> tuple[list[ChunkAvailability], list[bytes]]:
    """The states of the files of `get_samples`, and the bytes of those that are here. `of_job`: if its store is asked.
    Raises InvalidInput.
    """
    files, sizes = _files(snapshot, arguments.files)
    wanted = set() if of_job is None else of_job.admit(files)
    store = of_job or SampleStore.existing(arguments.store, parent)
    found = [store.read(file) if store is not None else None for file in files]
    states, contents = [], []
    for file, content, size in zip(files, found, sizes, strict=True):
        if content is None or len(content) != size:
            states.append(ChunkAvailability.LATER if file in wanted else ChunkAvailability.ELSEWHERE)
        else:
            states.append(ChunkAvailability.HERE)
            contents.append(content)
    return states, contents


def write_samples(
    snapshot: Snapshot,
    arguments: Any,
    bulk: bytearray,
    parent: str = MEMORY_FOLDER,
    of_job: JobFiles | None = None,
) -> None:
    """Keep the files of `put_samples`, if this node has the store. Raises as `read_samples`."""
    files, sizes = _files(snapshot, arguments.files)
    if len(bulk) != sum(sizes):
        raise InvalidInput(f"{len(bulk)} bytes of samples, {sum(sizes)} expected")
    store = of_job or SampleStore.existing(arguments.store, parent)
    if store is not None:
        content = memoryview(bulk)
        for file, size, end in zip(files, sizes, accumulate(sizes), strict=True):
            store.write(file, content[end - size : end])


def _files(snapshot: Snapshot, encoded: bytes) -> tuple[list[int], list[int]]:
    """The files of a request, and their sizes. Raises InvalidInput."""
    if len(encoded) % 4 or not 0 < len(encoded) <= 4 * PEER_CHUNKS_MAX:
        raise InvalidInput(f"malformed request: {len(encoded)} bytes of numbers of files")
    files = np.frombuffer(encoded, U32)
    if int(files.max()) >= len(snapshot):
        raise InvalidInput(f"the snapshot has no entry {files.max()}")
    sizes = pooled_sizes(snapshot, files.astype(np.int64)).tolist()
    if sum(sizes) > PEER_ANSWER_BYTES_MAX:
        raise InvalidInput(f"{sum(sizes)} bytes of samples, limit {PEER_ANSWER_BYTES_MAX}")
    return files.tolist(), sizes
