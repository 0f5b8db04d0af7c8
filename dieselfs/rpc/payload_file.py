"""Payloads from files that a server opens for a client on its own machine. This module reads files.

The server passes a descriptor and neither reads nor sends the payload; the kernel copies it from the page cache to its
destination. The caller verifies it as all that a server sends.
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
    """Read the payload that `arguments` name, of `length_bytes`, into the buffers of `parts()`. False if the server has
    to send it instead.

    `timeout_s` bounds the wait for the server; the time of the file system is not bounded. Raises the server's refusal,
    ProtocolError, Unavailable. The file is always closed. After False or an error, buffers may be partly filled.
    """
    reply, descriptor = connection.call_for_file("open_payload", arguments, timeout_s)
    connection.gives_files = reply.is_file
    if descriptor is None:
        return False
    try:
        if reply.length != length_bytes:
            return False
        # One read from the disk: windows of read-ahead take twice the time, and twice the processor time.
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
    """Fill `destination` from `offset`; False if the file ends before."""
    while destination:
        size = os.preadv(descriptor, [destination], offset)
        if size == 0:
            return False
        offset += size
        destination = destination[size:]
    return True
