"""A program that puts chunks into a store in a folder, and prints "stored" after each acknowledgement.

    python -m tests.support.put_chunk ROOT [CHUNKS]

Without CHUNKS it puts one chunk. Exit code 3: a chunk already exists. 4: the store failed; the message is printed.
"""

import sys

from dieselfs.errors import AlreadyExists, StorageFull, Unavailable
from dieselfs_server.store.posix import PosixStore

DATASET_ID = bytes(range(16))
CHUNK_ID = b"\x65" + bytes(range(15))
CONTENT = bytes(range(256)) * 1000

EXIT_EXISTS = 3
EXIT_FAILED = 4


def main(root: str, chunks: int = 1) -> int:
    try:
        store = PosixStore(root)
        for number in range(chunks):
            store.put(
                DATASET_ID, CHUNK_ID[:-1] + bytes([CHUNK_ID[-1] + number]), [CONTENT[:100], CONTENT[100:]]
            )
    except AlreadyExists:
        return EXIT_EXISTS
    except (StorageFull, Unavailable) as error:
        print(error)
        return EXIT_FAILED
    print("stored", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
