"""Objects in S3, Google Cloud Storage and Azure as sources: one, all below a folder, or those of a pattern; as streams
that threads read ahead.

This module sends requests and starts threads.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

from dieselfs.bucket.client import PART_BYTES, PARTS_AT_ONCE_MAX, Bucket, ObjectVersion
from dieselfs.bucket.url import parse_object
from dieselfs.errors import NotFound
from dieselfs_tools.cli.patterns import Pattern

INDEX = "index.json"
"""The file that names the shards of a folder of MDS or LitData."""

SOURCE_FILES = frozenset((INDEX, "zarr.json", ".zarray", ".zmetadata", ".zgroup"))
"""A folder with one of them is one source; the others are those of zarr."""

FIRST_BYTES = 1 << 20
"""What is read first, to recognize the format. Reading ahead begins behind it."""


class RemoteStream(io.RawIOBase):
    """One version of a file, from its begin. Holds up to PARTS_AT_ONCE_MAX parts of PART_BYTES."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        size_bytes: int,
        mtime_ns: int,
        keep: Callable[[int, bytes], None] = lambda begin, part: None,
    ) -> None:
        """`read` returns the bytes from a place to before another; any thread calls it, and what it raises, reading
        raises. `keep` gets each part, and where it begins, when the stream comes to it.
        """
        self.mtime_ns = mtime_ns
        self._read = read
        self._size_bytes = size_bytes
        self._keep = keep
        self._threads = ThreadPoolExecutor(PARTS_AT_ONCE_MAX, "dieselfs-import")
        self._parts = self._read_ahead()
        self._part = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not self._part:
            begin, part = next(self._parts, (0, b""))
            if part:
                self._keep(begin, part)
            self._part = memoryview(part)
        length = min(len(view), len(self._part))
        view[:length] = self._part[:length]
        self._part = self._part[length:]
        return length

    def _read_ahead(self) -> Iterator[tuple[int, bytes]]:
        position = min(FIRST_BYTES, self._size_bytes)
        if position:
            yield 0, self._read(0, position)
        pending: deque[tuple[int, Future[bytes]]] = deque()
        while pending or position < self._size_bytes:
            while position < self._size_bytes and len(pending) < PARTS_AT_ONCE_MAX:
                end = min(position + PART_BYTES, self._size_bytes)
                pending.append((position, self._threads.submit(self._read, position, end)))
                position = end
            begin, part = pending.popleft()
            yield begin, part.result()

    def close(self) -> None:
        """Requests that run end by their timeout."""
        if not self.closed:
            self._threads.shutdown(wait=False, cancel_futures=True)
        super().close()


_WILD = frozenset("*[{")


@cache
def opened(url: str) -> Bucket:
    """The bucket of an object. Raises InvalidInput, Unavailable without credentials."""
    return Bucket(parse_object(url)[0])


os.register_at_fork(after_in_child=opened.cache_clear)  # its connections are those of the parent


def _bucket(name: str, key: str) -> Bucket:
    """One for all objects with the same options."""
    return opened(_named(name, key, ""))


def expanded(name: str) -> list[str]:
    """The sources that a URL names, sorted: an object, the objects that match a pattern, or those below a folder, which
    is one source itself if it has one of SOURCE_FILES.

    Raises InvalidInput, NotFound, Unavailable.
    """
    _, key = parse_object(name)
    bucket = _bucket(name, key)
    wild = next((place for place, character in enumerate(key) if character in _WILD), None)
    if wild is not None:
        pattern = Pattern("/" + key)
        folder = key[:wild].rpartition("/")[0]
        found = [one.key for one in bucket.below(folder) if pattern.matches(one.key.encode())]
    elif key and not key.endswith("/") and _exists(bucket, key):
        return [name]
    else:
        folder = key.strip("/")
        found = [one.key for one in bucket.below(folder) if one.size]
        if not SOURCE_FILES.isdisjoint(one.removeprefix(f"{folder}/") for one in found):
            return [_named(name, key, folder + "/")]
    if not found:
        raise NotFound(f"{_named(name, key, key)}: there is no such object, and none below it")
    return [_named(name, key, one) for one in sorted(found)]


def _exists(bucket: Bucket, key: str) -> bool:
    try:
        bucket.find(key)
    except NotFound:
        return False
    return True


def _named(name: str, key: str, other: str) -> str:
    """The URL with another key."""
    url, _ = parse_object(name)
    options = name[len(f"{url.kind}://{url.bucket}/") + len(key) :]
    return f"{url.kind}://{url.bucket}/{other}{options}"


def beside(name: str, base: str) -> str:
    """The URL of an object in the folder `name`."""
    _, key = parse_object(name)
    return _named(name, key, key + base)


class BucketFile(RemoteStream):
    """One version of an object as a stream."""

    def __init__(self, name: str) -> None:
        """Raises InvalidInput, NotFound, Unavailable. Reading raises Damaged if the object was replaced."""
        _, key = parse_object(name)
        bucket = _bucket(name, key)
        self.version: ObjectVersion = bucket.find(key)
        super().__init__(partial(bucket.read_part, self.version), self.version.size, self.version.mtime_ns)
