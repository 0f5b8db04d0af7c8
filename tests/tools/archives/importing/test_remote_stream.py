"""A remote file as a stream: its bytes in their order, whatever threads read, and errors where they are."""

import io
import os

import pytest

from dieselfs.bucket.client import PART_BYTES
from dieselfs.errors import Damaged
from dieselfs_tools.archives.importing.bucket_files import FIRST_BYTES, RemoteStream

CONTENT = os.urandom(1_000_003) * ((FIRST_BYTES + 3 * PART_BYTES) // 1_000_003)


def test_all_bytes_in_their_order_and_each_part_is_kept() -> None:
    kept: list[tuple[int, bytes]] = []
    with RemoteStream(
        lambda begin, end: CONTENT[begin:end], len(CONTENT), 7, lambda begin, part: kept.append((begin, part))
    ) as stream:
        assert stream.mtime_ns == 7
        assert io.BufferedReader(stream, 100_000).read() == CONTENT
    assert b"".join(part for _, part in kept) == CONTENT
    assert all(CONTENT[begin : begin + len(part)] == part for begin, part in kept)


def test_an_error_comes_behind_the_bytes_before_it() -> None:
    def read(begin: int, end: int) -> bytes:
        if begin:
            raise Damaged("it was replaced")
        return CONTENT[begin:end]

    with RemoteStream(read, len(CONTENT), 0) as stream:
        content = bytearray()
        while len(content) < FIRST_BYTES:
            content += stream.read(100_000) or b""
        assert content == CONTENT[:FIRST_BYTES]
        with pytest.raises(Damaged, match="replaced"):
            stream.read(1)


def test_an_empty_file() -> None:
    with RemoteStream(lambda begin, end: b"", 0, 0) as stream:
        assert stream.readall() == b""
