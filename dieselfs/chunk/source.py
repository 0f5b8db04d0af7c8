"""The object that has the payload of an attached chunk: where it is, and how it is recognized. No I/O.

A source is a foreign object, or another chunk of the same store, to which copies inside the servers refer. It never
changes for a chunk: the chunk keeps the size and the mark that the object had when it was attached. An object with
another size or mark is another one, whose bytes are not used.
"""

import re
from dataclasses import dataclass
from typing import Any

from dieselfs.bucket.url import OPTIONS
from dieselfs.chunk.ids import chunk_name, parse_chunk_name
from dieselfs.digests import DIGEST_BYTES
from dieselfs.errors import InvalidInput
from dieselfs.fields import TEXT_BYTES_MAX, FieldsFault
from dieselfs.limits import FILE_BYTES_MAX, PATH_BYTES_MAX
from dieselfs.names import printable

SOURCE_FIELDS: dict[str, type] = {
    "source": bytes,
    "source_size": int,
    "source_mark": str,
    "source_offset": int,
}
"""Fields of the header of an attached chunk, beside those of all chunks."""

OBJECT_SCHEMES = tuple(f"{kind}://".encode() for kind in OPTIONS)
WEB_SCHEMES = (b"https://", b"http://")

ETAG, MODIFIED = "etag=", "modified_ns="
"""How marks of objects and of files on the web begin."""

CHUNK_SCHEME = b"chunk://"
_CHUNK = re.compile(rb"chunk://([0-9a-f]{32})/([-_0-9A-Za-z]{22})")
_CHUNK_MARK = re.compile(rf"digest=([0-9a-f]{{{2 * DIGEST_BYTES}}})")


@dataclass(frozen=True, slots=True)
class AttachedSource:
    """A version of an object, and a place in it.

    `location`: an absolute path, or a URL of OBJECT_SCHEMES, WEB_SCHEMES or CHUNK_SCHEME. `size_bytes`: of the whole
    object. `mark`: what the storage says about its version: `mtime_ns=N` of a file, `etag=TEXT` or `modified_ns=N` of
    others, `digest=HEX` of the payload of a chunk. `offset`: where in the object the payload begins.
    """

    location: bytes
    size_bytes: int
    mark: str
    offset: int = 0

    @classmethod
    def of_chunk(
        cls, dataset_id: bytes, chunk_id: bytes, payload_start: int, length: int, digest: bytes
    ) -> "AttachedSource":
        """The whole payload of another chunk: `length` bytes at `payload_start` of its object, with this digest. In
        what a client sends, a range of it: `length` bytes at `payload_start` of the payload.
        """
        location = CHUNK_SCHEME + f"{dataset_id.hex()}/{chunk_name(chunk_id)}".encode()
        return cls(location, payload_start + length, f"digest={digest.hex()}", payload_start)

    @property
    def name(self) -> str:
        if not self.is_chunk:
            return printable(self.location)
        dataset_id, chunk_id = self.chunk
        return f"chunk {chunk_name(chunk_id)} of dataset {dataset_id.hex()}"

    @property
    def is_chunk(self) -> bool:
        return self.location.startswith(CHUNK_SCHEME)

    @property
    def chunk(self) -> tuple[bytes, bytes]:
        """The IDs of dataset and chunk."""
        match = _CHUNK.fullmatch(self.location)
        assert match is not None  # by `fault`
        return bytes.fromhex(match[1].decode()), parse_chunk_name(match[2].decode())

    @property
    def payload_digest(self) -> bytes:
        """Of a chunk."""
        return bytes.fromhex(self.mark.removeprefix("digest="))

    @property
    def is_file(self) -> bool:
        return self.location.startswith(b"/")

    @property
    def version(self) -> tuple[int, str]:
        """Differs if the object at the location does."""
        return self.size_bytes, self.mark

    def fields(self) -> dict[str, bytes | str | int]:
        return {
            "source": self.location,
            "source_size": self.size_bytes,
            "source_mark": self.mark,
            "source_offset": self.offset,
        }

    @classmethod
    def of_fields(cls, fields: dict[str, Any], payload_length: int) -> "AttachedSource":
        """Raises FieldsFault for values that cannot be."""
        found = cls(fields["source"], fields["source_size"], fields["source_mark"], fields["source_offset"])
        fault = found.fault()
        if fault is None and not 0 <= found.offset <= found.size_bytes - payload_length:
            fault = f"the payload, {payload_length} bytes at {found.offset}, lies outside of it"
        if fault is not None:
            raise FieldsFault(f"source {printable(found.location)[:200]!r}: {fault}")
        return found

    def fault(self) -> str | None:
        """Why no object can be named so."""
        location = self.location
        if not 0 < len(location) <= PATH_BYTES_MAX or b"\0" in location:
            return "its name is empty, too long, or holds a NUL byte"
        if self.is_file:
            if any(part in (b"", b".", b"..") for part in location[1:].split(b"/")):
                return "its path has an empty part, or one of . and .."
        elif self.is_chunk:
            if not _is_chunk(location) or not _CHUNK_MARK.fullmatch(self.mark):
                return "it names no chunk and its digest"
        elif not location.startswith(OBJECT_SCHEMES + WEB_SCHEMES):
            return "it is neither an absolute path nor a URL"
        if not 0 <= self.size_bytes <= FILE_BYTES_MAX:
            return f"a size of {self.size_bytes} bytes is out of range"
        if not 0 < len(self.mark.encode("utf-8", "surrogatepass")) <= TEXT_BYTES_MAX:
            return "its mark is empty or too long"
        return None


def _is_chunk(location: bytes) -> bool:
    match = _CHUNK.fullmatch(location)
    try:
        return match is not None and bool(parse_chunk_name(match[2].decode()))
    except InvalidInput:  # the last character of an ID has fewer values
        return False
