"""A program that applies chunks to an SQLite metadata store, and prints the number of each chunk after its commit.

python -m tests.support.apply_chunks DATABASE
"""

import sys
from contextlib import closing, suppress

from dieselfs.chunk.format import Op
from dieselfs.errors import AlreadyExists
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from tests.support.metadata_chunks import DATASET, DATASET_ID, Put, apply, chunk_id, delete

CHUNKS = [
    [Put(b"d/f%d" % i, 1 + i, size=i) for i in range(40)],
    [Put(b"big", 100, Op.FILE, 9, 0, 5), delete(b"d/f3", 101), Put(b"d/f4", 102, size=7)],
    [Put(b"big", 100, Op.FILE, 9, 5, 4), Put(b"e/x", 103, Op.SYMLINK, target=b"y")],
    [Put(b"d/f%d" % i, 200 + i, size=3) for i in range(20, 60)],
]
IDS = [chunk_id(number) for number in range(len(CHUNKS))]


def main(path: str) -> None:
    with closing(SqliteMetadata(path)) as store:
        with suppress(AlreadyExists):
            store.create_dataset(DATASET, DATASET_ID)
        for number, (puts, identity) in enumerate(zip(CHUNKS, IDS, strict=True)):
            apply(store, puts, identity)
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
