"""Payloads out of files that a server has opened for a client on its own machine. This module reads files.

A server that hands out a file neither reads nor sends the payload, and nothing is received: the kernel copies it from
the page cache to where it stays. What comes is verified like everything that a server sends, by whoever asked for it.
"""

import os
from collections.abc import Callable, Iterator

from dieselfs.rpc.connection import Connection


def read_payload_file(
    connection: Connection,
    arguments: dict[str, object],
    length_bytes: int,
    parts: Callable[[], Iterator[memoryview]],
    timeout_s: float,
) -> bool:
    """Read the payload that `arguments` name, which has so many bytes, into one of `parts()` after the other. False if
    it has to be sent after all.

    `timeout_s` bounds the wait for the server, but nothing bounds the reading: it takes as long as the file system
    does. Raises what the server refuses with, ProtocolError, Unavailable. The file is closed in any case, also by an
    interrupt; then, and where the payload has to be sent, part of it may have been read.
    """
    reply, descriptor = connection.call_for_file("open_payload", arguments, timeout_s)
    connection.gives_files = reply.is_file
    if descriptor is None:
        return False
    try:
        if reply.length != length_bytes:
            return False
        # All of it from the disk at once: windows of read-ahead take twice the time, and twice the processor time.
        os.posix_fadvise(descriptor, reply.start, length_bytes, os.POSIX_FADV_WILLNEED)
        offset = reply.start
        for part in parts():
            if not _read_all(descriptor, offset, part):
                return False
            offset += len(part)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, offset: int, destination: memoryview) -> bool:
    """Fill `destination` from `offset` on; False if the file ends before."""
    while destination:
        size = os.preadv(descriptor, [destination], offset)
        if size == 0:
            return False
        offset += size
        destination = destination[size:]
    return True
