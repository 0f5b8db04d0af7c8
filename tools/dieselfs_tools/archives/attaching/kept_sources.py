"""The sources of one attach: each remote byte is fetched once, for names and for digests. This module reads them."""

import os
from collections import deque
from typing import TYPE_CHECKING

from dieselfs.attached.opening import OpenSource, open_source
from dieselfs.attached.web_url import is_web_url
from dieselfs.bucket.url import is_object_url
from dieselfs.chunk.source import AttachedSource
from dieselfs.limits import MIB

if TYPE_CHECKING:
    from dieselfs_tools.archives.importing.remote_stream import RemoteStream

KEPT_BYTES_MAX = 96 * MIB
"""Of what was read last of a source, for the digests. What lies further back is fetched again."""

OPEN_MAX = 2
"""Sources that stay open: the last records of one are attached when the next one is read."""


class KeptSource:
    """An `OpenSource` that remembers the last bytes of its stream."""

    def __init__(self, opened: OpenSource) -> None:
        self._opened = opened
        self._parts: deque[tuple[int, bytes]] = deque()  # one after the other
        self._kept_bytes = 0

    @property
    def source(self) -> AttachedSource:
        return self._opened.source

    @property
    def mtime_ns(self) -> int:
        return self._opened.mtime_ns

    @property
    def descriptor(self) -> int | None:
        return self._opened.descriptor

    def stream(self) -> "RemoteStream":
        """All bytes, from the begin."""
        from dieselfs_tools.archives.importing.remote_stream import RemoteStream

        self._parts.clear()
        self._kept_bytes = 0
        return RemoteStream(
            lambda begin, end: self._opened.read(begin, end - begin),
            self.source.size_bytes,
            self.mtime_ns,
            self._keep,
        )

    def _keep(self, begin: int, part: bytes) -> None:
        self._parts.append((begin, part))
        self._kept_bytes += len(part)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._parts.popleft()[1])

    def read(self, offset: int, length: int) -> bytes:
        end = offset + length
        if (
            not self._parts
            or offset < self._parts[0][0]
            or end > self._parts[-1][0] + len(self._parts[-1][1])
        ):
            return self._opened.read(offset, length)
        return b"".join(
            part[max(offset - begin, 0) : end - begin]
            for begin, part in self._parts
            if begin < end and offset < begin + len(part)
        )

    def check(self) -> None:
        self._opened.check()

    def close(self) -> None:
        self._opened.close()


class KeptSources:
    """For one thread. `name`: of a local file, or a URL. Close it at the end."""

    def __init__(self) -> None:
        self._open: dict[str, KeptSource] = {}  # the last one used is the last one here

    def opened(self, name: str) -> KeptSource:
        """The source with this name. Raises what `open_source` does."""
        found = self._open.pop(name, None)
        if found is None:
            while len(self._open) >= OPEN_MAX:
                self._open.pop(next(iter(self._open))).close()
            location = name if is_object_url(name) or is_web_url(name) else os.path.abspath(name)
            found = KeptSource(open_source(os.fsencode(location), lambda _: None))
        self._open[name] = found
        return found

    def stream(self, name: str) -> "RemoteStream":
        """Of a source at a URL, from its begin."""
        return self.opened(name).stream()

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()
