"""The page helper: a process that stores files in the kernel's page cache, and drops them, for the daemon of a mount.

Each file takes one to three system calls. A thread would compete for the interpreter lock with the thread that answers
the kernel, and both would be several times slower. The process runs this file and imports nothing of dieselfs, so it
starts fast and takes little memory. This module calls the kernel.

Messages in both directions have their length (u32) before them, in the byte order of the machine. An order is a letter
and its arguments. The reply is the list of the items that failed, by number (u32 each).

    S  count (u32); headers of the notices (40 bytes each); how many pieces the bytes of each have (u32); address and
       length of each piece (u64, u64): store. Addresses are those of the shared memory; from IMAGE_BASE on, of the file
       with the metadata of an image; from ZEROS_BASE on, zeros.
    A  path, ended by NUL; offset and length of ranges (u64, u64): drop their pages of this file
    D  paths, each ended by NUL: drop the pages of these files
    L  paths, each ended by NUL: look these files up, so that the kernel knows them
    F  paths, each ended by NUL: list these folders, so that the kernel knows their entries
    R  count (u32); first byte and length (u64, u64) in the file of each path; paths, each ended by NUL: whether these
       ranges are resident. Those of which a page is missing failed, but not those of a file that cannot be opened.

It ends when the socket is closed, or with exit code 3 when the mount has ended. If daemon and supervisor are killed
while it waits for an answer of the kernel, it holds the last descriptor of the mount: a second thread closes that as
soon as the socket is closed, so that the kernel fails all requests, also the one that is waited for.
"""

import _thread
import errno
import mmap
import os
import select
import struct
import sys
from importlib import import_module
from itertools import islice
from types import ModuleType

LENGTH = struct.Struct("=I")
STORE_HEADER_BYTES = 40
EXIT_GONE = 3
IMAGE_BASE = 1 << 62
ZEROS_BASE = 1 << 63
ZEROS = bytes(4096)
_RANGE = struct.Struct("=QQ")
_GONE = frozenset({errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED})


def read_exactly(descriptor: int, length: int) -> bytes:
    """Raises EOFError if the other end closes first."""
    received = bytearray()
    while len(received) < length:
        more = os.read(descriptor, length - len(received))
        if not more:
            raise EOFError
        received += more
    return bytes(received)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def store(device: int, memory: memoryview, image: memoryview, message: bytes) -> list[int]:
    """Returns the numbers of the notices that the kernel did not take."""
    (count,) = LENGTH.unpack_from(message)
    counts_start = LENGTH.size + STORE_HEADER_BYTES * count
    counts = struct.unpack_from(f"={count}I", message, counts_start)
    pieces = _RANGE.iter_unpack(message[counts_start + LENGTH.size * count :])
    failed = []
    write, step, end = os.writev, STORE_HEADER_BYTES, LENGTH.size
    for number, parts in enumerate(counts):
        start, end = end, end + step
        views: list[bytes | memoryview] = [message[start:end]]
        for first, length in islice(pieces, parts):
            if first < IMAGE_BASE:
                views.append(memory[first : first + length])
            elif first < ZEROS_BASE:
                views.append(image[first - IMAGE_BASE : first - IMAGE_BASE + length])
            else:
                views.append(ZEROS[:length])
        try:
            write(device, views)
        except OSError as error:
            if error.errno in _GONE:
                raise
            failed.append(number)
    return failed


def drop(path: bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def drop_ranges(message: bytes) -> list[int]:
    """Returns the numbers of the ranges that failed; none can. Raises OSError if the file cannot be opened."""
    path, _, ranges = message.partition(b"\0")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for offset, length in _RANGE.iter_unpack(ranges):
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return []


def look_up(path: bytes) -> None:
    os.stat(path, follow_symlinks=False)


def list_folder(path: bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Without the listing that the kernel has cached, which would look nothing up.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with os.scandir(descriptor) as entries:
            for _ in entries:
                pass
    finally:
        os.close(descriptor)


_BY_PATH = {b"D": drop, b"L": look_up, b"F": list_folder}


def on_paths(kind: bytes, message: bytes) -> list[int]:
    """Returns the numbers of the paths that failed."""
    act, failed = _BY_PATH[kind], []
    for number, path in enumerate(message.split(b"\0")[:-1]):
        try:
            act(path)
        except OSError as error:
            if error.errno in _GONE:
                raise
            failed.append(number)
    return failed


def not_resident(message: bytes) -> list[int]:
    """Returns the numbers of the ranges of which a page is not resident."""
    is_resident = _residency().is_resident
    (count,) = LENGTH.unpack_from(message)
    places = struct.unpack_from(f"={2 * count}Q", message, LENGTH.size)
    paths = message[LENGTH.size + 16 * count :].split(b"\0")[:-1]
    failed = []
    for number, (path, first, length) in enumerate(zip(paths, places[::2], places[1::2], strict=True)):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not is_resident(descriptor, first, length):
                    failed.append(number)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _GONE:
                raise
    return failed


def _residency() -> ModuleType:
    """The module, which this process finds beside this file. It takes 10 ms and 1 MB, so only if it is used."""
    if __name__ == "__main__":
        return import_module("residency")
    return import_module("dieselfs_client.mount.kernel.residency")


_ON_MESSAGES = {b"A": drop_ranges, b"R": not_resident}


def serve(orders: int, device: int, memory: memoryview, image: memoryview) -> None:
    """Carry out orders until the socket is closed. Raises OSError when the mount has ended."""
    while True:
        try:
            (length,) = LENGTH.unpack(read_exactly(orders, LENGTH.size))
            order = read_exactly(orders, length)
        except EOFError:
            return
        kind, message = order[:1], order[1:]
        if kind == b"S":
            failed = store(device, memory, image, message)
        else:
            act = _ON_MESSAGES.get(kind)
            failed = on_paths(kind, message) if act is None else act(message)
        write_all(orders, LENGTH.pack(4 * len(failed)) + struct.pack(f"={len(failed)}I", *failed))


def close_when_abandoned(orders: int, device: int) -> None:
    """Wait until the other end of the socket is closed, then close the device."""
    poll = select.poll()
    poll.register(orders, 0)  # a closed end is reported nevertheless
    poll.poll()
    os.close(device)


def main() -> None:
    orders, device, shared, length, *image = map(int, sys.argv[1:])
    metadata = mmap.mmap(image[0], 0, prot=mmap.PROT_READ) if image else b""
    _thread.start_new_thread(close_when_abandoned, (orders, device))
    with mmap.mmap(shared, length, prot=mmap.PROT_READ) as memory:
        try:
            serve(orders, device, memoryview(memory), memoryview(metadata))
        except (OSError, KeyboardInterrupt):
            os._exit(EXIT_GONE)  # `close` would fail while views of the memory exist
        os._exit(0)


if __name__ == "__main__":
    main()
