"""A dataset of many small chunks: enough for every node of a job to own some, and fast to read."""

import os
from pathlib import Path

from dieselfs.chunk.frames import Compression
from dieselfs.dataset import Dataset
from dieselfs.transfer.upload import TreeUpload, walk_source

CHUNKS = 64
FILES_PER_CHUNK = 4
FILES = CHUNKS * FILES_PER_CHUNK
FILE_BYTES = 25_000


def content(number: int) -> bytes:
    return number.to_bytes(4, "little") * (FILE_BYTES // 4)


def store(data: Dataset, folder: Path, compression: Compression | None = None) -> None:
    """Store files `0`, `1`, ..., after writing them to `folder`, which is empty."""
    for number in range(FILES):
        (folder / str(number)).write_bytes(content(number))
    chunk_bytes = FILES_PER_CHUNK * FILE_BYTES
    upload = TreeUpload(
        data.client, data.create(), None, jobs=1, chunk_bytes=chunk_bytes, compression=compression
    )
    report = upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed))
    assert not report.failures
