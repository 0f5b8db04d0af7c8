"""Files with payloads that a server on this machine passes to this process. This module reads and closes them."""

import os
import resource
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import Any

from dieselfs.errors import Damaged
from dieselfs.forks import renew_after_fork
from dieselfs.limits import MIB, SHARED_PAYLOADS_MAX
from dieselfs.rpc.connection import Connection
from dieselfs.rpc.records import PayloadFile, SharedFile

OPENED_MAX = 4_096
"""Limit of files that a process has open for later reads: 16 GiB of chunks."""
OPENED_SHARE = 0.25
"""The most that they take of the limit of descriptors of the process."""

FOLIO_BYTES = 2 * MIB
"""The kernel drops pages of a file in aligned pieces of up to this size, and no piece of which a part must stay."""


class OpenedFiles:
    """Files that were opened before they are needed; the oldest are closed if there are too many. Thread-safe. After a
    fork, the child has its own descriptors of the same files.
    """

    def __init__(self, files_max: int = OPENED_MAX) -> None:
        self._files_max = files_max
        self._files: OrderedDict[Hashable, PayloadFile] = OrderedDict()
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Threads of the parent may have held the lock."""
        self._lock = Lock()  # guards the files

    @property
    def files_max(self) -> int:
        """How many may be open now: programs change their limit of descriptors."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            return self._files_max
        return min(self._files_max, int(descriptors * OPENED_SHARE))

    def put(self, key: Hashable, file: PayloadFile) -> None:
        with self._lock:
            surplus = [self._files.pop(key)] if key in self._files else []
            self._files[key] = file
            if len(self._files) > self.files_max:
                surplus.append(self._files.popitem(last=False)[1])
        for each in surplus:
            os.close(each.descriptor)

    def take(self, key: Hashable) -> PayloadFile | None:
        """The file, which the caller closes; None if it is not open."""
        with self._lock:
            return self._files.pop(key, None)

    def read(
        self, key: Hashable, start: int, length: int, opened: Callable[[], PayloadFile | None]
    ) -> bytearray | None:
        """The bytes of a payload from `start` on. Its file is the result of `opened` if it is not open, and stays open.
        None without a file, or if it does not have them. Raises as `opened`.
        """
        file = self.take(key) or opened()
        if file is None:
            return None
        try:
            if start + length > file.length:
                return None
            offset, content = file.start + start, bytearray(length)
            return content if _read_all(file.descriptor, offset, memoryview(content)) else None
        except OSError:
            return None
        finally:
            self.put(key, file)

    def close(self) -> None:
        """Close the files, and those that come later."""
        with self._lock:
            self._files_max = 0
            files, self._files = self._files, OrderedDict()
        for each in files.values():
            os.close(each.descriptor)


def read_payload_file(
    connection: Connection,
    arguments: dict[str, object],
    length_bytes: int,
    parts: Callable[[], Iterator[memoryview]],
    timeout_s: float,
    drops_pages: bool = False,
) -> bool:
    """Read the payload that `arguments` name, of `length_bytes`, into the buffers of `parts()`, from the file that a
    server on this machine opens. False if the server has to send it instead.

    The server passes a descriptor; the kernel copies the payload from the page cache. The caller verifies it.
    `timeout_s` bounds the wait for the server; the time of the file system is not bounded. Raises the server's refusal,
    ProtocolError, Unavailable. The file is always closed. After False or an error, buffers may be partly filled.
    """
    file = opened_file(connection, arguments, timeout_s)
    return file is not None and read_opened(file, length_bytes, parts, drops_pages)


def received_payload(
    reply: Any,
    length_bytes: int,
    parts: Callable[[], Iterator[memoryview]],
    name: str,
    room_of: Callable[[int], memoryview] | None = None,
) -> Iterator[memoryview]:
    """The buffers for what follows a reply to `get_payload`: those of `parts()`, or one for a compressed chunk, in the
    memory of `room_of` (`frames.received`). Raises Damaged for a payload of another length, and for damaged frames.
    """
    if reply.table_length:
        from dieselfs.chunk import frames  # with numpy, which dlcmd starts without

        lengths = reply.bulk_length, reply.table_length, length_bytes
        yield from frames.received(*lengths, parts, name, room_of or frames.new_room)
        return
    if reply.bulk_length != length_bytes:
        raise Damaged(f"{name} has {reply.bulk_length} bytes, {length_bytes} in the snapshot")
    yield from parts()


def opened_file(
    connection: Connection,
    arguments: dict[str, object],
    timeout_s: float,
    take_checksums: Callable[[bytes], object] | None = None,
) -> PayloadFile | None:
    """The file that a server on this machine opens, which the caller closes; None if the server has none. Checksums of
    blocks that come with it go to `take_checksums`. Raises as `Connection.call`.
    """
    if not connection.gives_files:
        return None
    reply, descriptors = connection.call_for_files("open_payload", arguments, timeout_s)
    connection.gives_files = reply.is_file
    if take_checksums is not None and reply.checksums:
        take_checksums(reply.checksums)
    return PayloadFile(descriptors[0], reply.start, reply.length) if descriptors else None


def read_opened(
    file: PayloadFile,
    length_bytes: int,
    parts: Callable[[], Iterator[memoryview]],
    drops_pages: bool = False,
) -> bool:
    """As `read_payload_file`, from an open file, which is closed. `drops_pages`: the payload leaves the page cache."""
    try:
        if file.length != length_bytes:
            return False
        # No advice (POSIX_FADV_WILLNEED): it makes the kernel read into single pages, not into large folios.
        offset = file.start
        for part in parts():
            if not _read_all(file.descriptor, offset, part):
                return False
            offset += len(part)
        if drops_pages:
            first = file.start // FOLIO_BYTES * FOLIO_BYTES
            end = -(-(file.start + length_bytes) // FOLIO_BYTES) * FOLIO_BYTES
            os.posix_fadvise(file.descriptor, first, end - first, os.POSIX_FADV_DONTNEED)
        return True
    except OSError:
        return False
    finally:
        os.close(file.descriptor)


def opened_files(connection: Connection, arguments: dict[str, object], timeout_s: float) -> list[PayloadFile]:
    """The files that a server opens, as `open_payloads` of the protocol; the caller closes their descriptors. None of a
    server that passes no files. Raises as `Connection.call`.
    """
    if not connection.gives_files:
        return []
    reply, descriptors = connection.call_for_files("open_payloads", arguments, timeout_s, SHARED_PAYLOADS_MAX)
    # Fewer descriptors than files: this process has none left. More: the server is not what it seems.
    files = [
        PayloadFile(descriptor, each.start, each.length, each.checksums or b"")
        for each, descriptor in zip(reply.files, descriptors, strict=False)
    ]
    for descriptor in descriptors[len(files) :]:
        os.close(descriptor)
    return files


def shared_files(connection: Connection, arguments: dict[str, object], timeout_s: float) -> list[SharedFile]:
    """The payloads that a server shares, as `share_payloads` of the protocol; the caller closes their descriptors. None
    of a server that is not a process of this user or of root on this machine. Raises as `Connection.call`.
    """
    if not connection.is_of_own_user:
        return []
    reply, descriptors = connection.call_for_files(
        "share_payloads", arguments, timeout_s, SHARED_PAYLOADS_MAX
    )
    # Fewer descriptors than payloads: this process has none left. More: the server is not what it seems.
    files = [
        SharedFile(each.place, each.length, each.digest, each.is_kept, descriptor)
        for each, descriptor in zip(reply.payloads, descriptors, strict=False)
    ]
    for descriptor in descriptors[len(files) :]:
        os.close(descriptor)
    return files


def _read_all(descriptor: int, offset: int, destination: memoryview) -> bool:
    """Fill `destination` from `offset`; False if the file ends before."""
    while destination:
        size = os.preadv(descriptor, [destination], offset)
        if size == 0:
            return False
        offset += size
        destination = destination[size:]
    return True
