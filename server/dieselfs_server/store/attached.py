"""Attached chunks: the store has their preamble and header, and a foreign object or another chunk has the payload. This
module opens files and sends requests.

Above this wrapper, an attached chunk is read as any other. A range behind the header is read from the source, if that
is still the version that was attached. The first read of a chunk compares its whole payload with the digest, so what
has changed without another time is found here, with the name of the source. A chunk as source never changes: only a
read of its whole payload compares it. It has the bytes itself, so a read follows one reference at most.

Which sources may be read is the operator's decision (`attach_roots`): the server can read more than its users.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Lock

from dieselfs.attached import web_url
from dieselfs.attached.interface import OpenSource
from dieselfs.attached.opening import open_source
from dieselfs.attached.web_url import is_web_url
from dieselfs.chunk.format import (
    ATTACHED,
    PREAMBLE_BYTES,
    Preamble,
    check_payload,
    decode_header,
    decode_preamble,
    decode_source,
)
from dieselfs.chunk.ids import chunk_name
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs_server.store.interface import Buffer, ObjectStore, OpenPayload
from dieselfs_server.store.wrapper import StoreWrapper, delete_chunks

_REFUSED = "this server attaches nothing: see its setting attach_roots; dlcmd import copies the bytes instead"
_OUTSIDE = "it is not below attach_roots of this server; dlcmd import copies the bytes instead"


@dataclass(slots=True)
class Sources:
    """`roots`, which may be replaced: what may be read: folders, as absolute paths, and URLs of folders of buckets and
    of the web; None: all that the user of the server may read.
    """

    roots: Sequence[str] | None = ()

    def check_any(self, name: str) -> None:
        """Raise AccessDenied if nothing may be attached. `name`: what somebody tries to attach."""
        if self.roots is not None and not self.roots:
            raise AccessDenied(f"{name}: {_REFUSED}")

    def open(self, source: AttachedSource, is_to_read: bool = False) -> OpenSource:
        """The version of the object that `source` names; the caller closes it. `is_to_read`: it may be compared at the
        first read, instead of now.

        Raises AccessDenied, NotFound, Unavailable, InvalidInput for no regular file; Damaged if the object has changed.
        """
        self.check_any(source.name)
        opened = open_source(source.location, self._check_allowed, source if is_to_read else None)
        found = opened.source
        if found.version != source.version:
            opened.close()
            raise Damaged(
                f"{source.name}: it has changed since it was attached ({source.size_bytes} bytes and {source.mark} "
                f"then, {found.size_bytes} bytes and {found.mark} now); attach it again"
            )
        return opened

    def open_attached(self, source: AttachedSource, is_to_read: bool = True) -> OpenSource:
        """As `open`, for a chunk that is attached: Damaged, or Unavailable if a later try can succeed."""
        try:
            return self.open(source, is_to_read)
        except (AccessDenied, InvalidInput, NotFound) as error:
            raise Damaged(f"attached source {error}") from error

    def open_payload(self, preamble: Preamble, source: AttachedSource) -> OpenPayload:
        """The payload of an attached chunk in an open file, which the caller verifies. Raises Damaged, Unavailable."""
        name, length = payload_name(preamble, source), preamble.payload_length
        with closing(self.open_attached(source)) as opened:
            try:
                if opened.descriptor is not None:
                    return OpenPayload(os.dup(opened.descriptor), source.offset, length, name)
                content = memoryview(opened.read(source.offset, length))
                memory = OpenPayload(os.memfd_create("dieselfs-source", os.MFD_CLOEXEC), 0, length, name)
                try:
                    while content:
                        content = content[os.write(memory.descriptor, content) :]
                    return memory
                except BaseException:
                    os.close(memory.descriptor)
                    raise
            except OSError as error:
                raise Unavailable(f"{name}: {error.strerror}") from error

    def _check_allowed(self, location: bytes) -> None:
        """Raise AccessDenied for a location, without symbolic links, that is not below a root."""
        if self.roots is None:
            return
        if not any(_is_below(location, root) for root in self.roots):
            raise AccessDenied(f"{AttachedSource(location, 0, '').name}: {_OUTSIDE}")


def _is_below(location: bytes, root: str) -> bool:
    is_file = location.startswith(b"/")
    if is_file != root.startswith("/"):
        return False
    if is_file:
        # At each call: a root may become another folder while the server runs.
        return location.startswith(os.path.realpath(os.fsencode(root)).rstrip(b"/") + b"/")
    url = os.fsdecode(location)
    if is_web_url(url) or is_web_url(root):
        return is_web_url(url) and is_web_url(root) and web_url.is_below(url, root)
    from dieselfs.attached.bucket_object import is_below  # which needs the extra s3

    return is_below(location, root)


def payload_name(preamble: Preamble, source: AttachedSource) -> str:
    """How messages name the payload of an attached chunk."""
    if source.is_chunk:
        return f"chunk {chunk_name(preamble.chunk_id)}, which refers to {source.name}"
    return f"{source.name}, attached as chunk {chunk_name(preamble.chunk_id)} from offset {source.offset}"


KNOWN_MAX = 16_384
"""Limit of attached chunks whose sources are remembered."""

_FLAGS_PLACE = 10


@dataclass(slots=True)
class _Attached:
    preamble: Preamble
    source: AttachedSource
    is_verified: bool = False


class AttachedStore(StoreWrapper):
    """An `ObjectStore` over `store`, whose chunks may be attached to `sources`."""

    def __init__(self, store: ObjectStore, sources: Sources) -> None:
        super().__init__(store)
        self._sources = sources
        self._lock = Lock()  # guards the one below
        self._known: dict[tuple[bytes, bytes], _Attached] = {}

    def put(self, dataset_id: bytes, chunk_id: bytes, parts: Sequence[Buffer]) -> None:
        """Of an attached chunk, the source must be there. Raises AccessDenied, NotFound, InvalidInput."""
        source = source_of(parts[0] if len(parts) == 1 else b"".join(parts))
        if source is not None and not source.is_chunk:
            try:
                self._sources.open(source).close()
            except Damaged as error:
                raise InvalidInput(str(error)) from None
        self.store.put(dataset_id, chunk_id, parts)

    def get_range(self, dataset_id: bytes, chunk_id: bytes, offset: int, length: int) -> bytes:
        """A range of no bytes, behind the header of an attached chunk, only checks that the source is there."""
        attached = self._known.get((dataset_id, chunk_id))
        if attached is None and length:
            try:
                return self.store.get_range(dataset_id, chunk_id, offset, length)
            except Damaged:  # the object ends before
                attached = self._find(dataset_id, chunk_id)
                if attached is None:
                    raise
        elif attached is None:
            attached = self._find(dataset_id, chunk_id) if offset else None
            if attached is None:
                return self.store.get_range(dataset_id, chunk_id, offset, length)
        begin = attached.preamble.payload_start
        head_bytes = min(max(begin - offset, 0), length)
        head = self.store.get_range(dataset_id, chunk_id, offset, head_bytes) if head_bytes else b""
        if head_bytes == length and offset < begin:
            return head
        return head + self._read(attached, max(offset - begin, 0), length - head_bytes)

    def delete(self, dataset_id: bytes, chunk_id: bytes) -> None:
        self.delete_chunks(dataset_id, [chunk_id])

    def delete_chunks(self, dataset_id: bytes, chunk_ids: Iterable[bytes]) -> None:
        chunk_ids = list(chunk_ids)
        with self._lock:
            for chunk_id in chunk_ids:
                self._known.pop((dataset_id, chunk_id), None)
        delete_chunks(self.store, dataset_id, chunk_ids)

    def _find(self, dataset_id: bytes, chunk_id: bytes) -> _Attached | None:
        """The source of a chunk; None if it is not attached, or no chunk. Raises NotFound, Unavailable; Damaged for the
        header of an attached one.
        """
        name = f"chunk {chunk_name(chunk_id)}"
        try:
            head = self.store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
            preamble = decode_preamble(head, name, chunk_id)
        except Damaged:
            return None
        if not preamble.is_attached:
            return None
        head = self.store.get_range(dataset_id, chunk_id, PREAMBLE_BYTES, preamble.header_length)
        source = decode_header(preamble, head, name, dataset_id).source
        assert source is not None  # of each attached chunk, by its decoder
        attached = _Attached(preamble, source)
        with self._lock:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[dataset_id, chunk_id] = attached
        return attached

    def _read(self, attached: _Attached, offset: int, length: int) -> bytes:
        """A range of the payload. Raises Damaged, Unavailable."""
        source, preamble = attached.source, attached.preamble
        name = payload_name(preamble, source)
        if offset + length > preamble.payload_length:
            raise Damaged(f"{name}: {length} bytes at {offset} of a payload of {preamble.payload_length}")
        if source.is_chunk:
            return self._read_chunk(attached, offset, length, name)
        is_whole = length > 0 and not attached.is_verified
        begin, read_bytes = (0, preamble.payload_length) if is_whole else (offset, length)
        with closing(self._sources.open_attached(source, is_to_read=length > 0)) as opened:
            try:
                content = opened.read(source.offset + begin, read_bytes)
            except (AccessDenied, InvalidInput, NotFound) as error:
                raise Damaged(f"attached source {error}") from error
            opened.check()
        if not is_whole:
            return content
        check_payload(preamble, content, name)
        attached.is_verified = True
        return content if len(content) == length else content[offset : offset + length]

    def _read_chunk(self, attached: _Attached, offset: int, length: int, name: str) -> bytes:
        """A range of the payload of the chunk that is the source. Raises Damaged, Unavailable."""
        source, place = attached.source, attached.source.chunk
        try:
            if not length:
                self._check_whole(source)
            content = self.store.get_range(*place, source.offset + offset, length) if length else b""
        except (Damaged, NotFound) as error:
            raise Damaged(f"{name}: {error}") from error
        if length == attached.preamble.payload_length and not attached.is_verified:
            check_payload(attached.preamble, content, name)
            attached.is_verified = True
        return content

    def _check_whole(self, source: AttachedSource) -> None:
        """Raise Damaged, NotFound unless the chunk that is the source has its length, and the payload that it had."""
        place = source.chunk
        preamble = decode_preamble(self.store.get_range(*place, 0, PREAMBLE_BYTES), source.name, place[1])
        if preamble.stored_length != self.store.size(*place):
            raise Damaged(f"{source.name} has another length than its preamble says")
        if (preamble.object_length, preamble.payload_digest) != (source.size_bytes, source.payload_digest):
            raise Damaged(f"{source.name} is another one")


def open_referred(store: ObjectStore, preamble: Preamble, source: AttachedSource) -> OpenPayload | None:
    """The payload of a chunk that refers to another, in the open file of that; None if the store has no files, or that
    chunk is compressed. Raises Damaged, Unavailable.
    """
    name = payload_name(preamble, source)
    try:
        head = store.get_range(*source.chunk, 0, PREAMBLE_BYTES)
        if decode_preamble(head, name, source.chunk[1]).compressed_length:
            return None
        descriptor = store.open_chunk(*source.chunk)
    except NotFound as error:
        raise Damaged(f"{name}: {error}") from error
    return (
        None if descriptor is None else OpenPayload(descriptor, source.offset, preamble.payload_length, name)
    )


def source_of(data: Buffer) -> AttachedSource | None:
    """The source of the chunk with this object, which is verified; None if it is not attached, or no chunk."""
    if len(data) <= PREAMBLE_BYTES or not data[_FLAGS_PLACE] & ATTACHED:
        return None
    with suppress(Damaged):
        preamble = decode_preamble(data[:PREAMBLE_BYTES], "chunk")
        return decode_source(preamble, memoryview(data)[PREAMBLE_BYTES:], "chunk")
    return None
