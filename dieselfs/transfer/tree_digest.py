"""One digest of a tree: of a dataset, or of a folder of the local file system (`dlcmd verify`). This module
opens files.

It covers the paths of all files, folders and links, the contents of files, and the targets of links; not modes and
times, which a copy may change, and not how files lie in chunks. So equal trees have equal digests. The entries are
hashed in the order of their paths, part by part, each folder before its content (`docs/reference/tree-digest.md`).
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from blake3 import blake3

from dieselfs.chunk.format import Op
from dieselfs.chunk.ids import chunk_name
from dieselfs.digests import EXTENT_DIGEST_BYTES, extent_digest_of
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.limits import MIB
from dieselfs.names import printable
from dieselfs.snapshot.reader import ExtentRef, Snapshot
from dieselfs.snapshot.subtree import walk_order

_CONTEXT = b"dieselfs tree 1\0"
_ENTRY = struct.Struct("<BIQ")
"""Kind, bytes of the path, bytes of content or target; the path follows, and the digest or the target."""
_READ_BYTES = 1 * MIB
_BLOCK_NODES = 16_384
"""Nodes of a snapshot whose columns are read at once."""


class ChunkReader(Protocol):
    """Reads verified payloads and extents of a snapshot; a `Source` does."""

    def fetch_chunk(self, chunk: int) -> bytes | bytearray: ...

    def fetch_extents(self, chunk: int, extents: list[ExtentRef]) -> list[bytes]: ...


@dataclass(eq=False)
class TreeDigest:
    """The digest so far, and what it covers. Entries are added in the order of their paths."""

    folders: int = 0
    files: int = 0
    links: int = 0
    total_bytes: int = 0
    skipped: list[bytes] = field(default_factory=list)
    """Paths of local devices, pipes and sockets, which a dataset cannot have."""
    read_bytes: int = 0
    """So far, for any thread."""

    def __post_init__(self) -> None:
        self._hash = blake3(_CONTEXT)

    def add_folder(self, path: bytes) -> None:
        self.folders += 1
        self._hash.update(_ENTRY.pack(Op.DIRECTORY, len(path), 0) + path)

    def add_file(self, path: bytes, size: int, digest: bytes) -> None:
        """`digest`: BLAKE3 of the content, EXTENT_DIGEST_BYTES long."""
        self.files += 1
        self.total_bytes += size
        self._hash.update(_ENTRY.pack(Op.FILE, len(path), size) + path + digest)

    def add_link(self, path: bytes, target: bytes) -> None:
        self.links += 1
        self._hash.update(_ENTRY.pack(Op.SYMLINK, len(path), len(target)) + path + target)

    def hex(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()


def digest_of_folder(root: str, tree: TreeDigest | None = None) -> TreeDigest:
    """The digest of a folder of the local file system, in `tree`, which is new. Raises NotFound, and InvalidInput if
    something cannot be read.
    """
    tree = tree or TreeDigest()
    if os.path.exists(root) and not os.path.isdir(root):
        raise InvalidInput(f"{printable(os.fsencode(root))}: not a folder")
    try:
        _add_local(tree, os.fsencode(root), b"")
    except FileNotFoundError as error:
        raise NotFound(f"{printable(os.fsencode(error.filename or root))}: no such file or folder") from None
    except OSError as error:
        name = printable(os.fsencode(error.filename or root))
        raise InvalidInput(f"{name}: cannot be read: {error.strerror}") from None
    return tree


def _add_local(tree: TreeDigest, root: bytes, below: bytes) -> None:
    # Paths in reverse order; a stack, because folders may be nested deeper than Python's calls.
    ahead = [below]
    while ahead:
        path = ahead.pop()
        place = os.path.join(root, path) if path else root
        status = os.lstat(place) if path else os.stat(place)
        if stat.S_ISDIR(status.st_mode):
            if path:
                tree.add_folder(path)
            names = sorted(os.listdir(place), reverse=True)
            ahead += [path + b"/" + name if path else name for name in names]
        elif stat.S_ISREG(status.st_mode):
            tree.add_file(path, *_digest_of_file(place, tree))
        elif stat.S_ISLNK(status.st_mode):
            tree.add_link(path, os.readlink(place))
        else:
            tree.skipped.append(path)


def _digest_of_file(place: bytes, tree: TreeDigest) -> tuple[int, bytes]:
    """Size and digest of a file. Raises OSError."""
    content, size = blake3(), 0
    with open(place, "rb", buffering=0) as file:
        while part := file.read(_READ_BYTES):
            content.update(part)
            size += len(part)
            tree.read_bytes += len(part)
    return size, content.digest(EXTENT_DIGEST_BYTES)


def digest_of_snapshot(
    snapshot: Snapshot, chunks: ChunkReader, is_quick: bool = False, tree: TreeDigest | None = None
) -> TreeDigest:
    """The digest of a dataset, in `tree`, which is new. Raises Damaged if a byte differs from what the snapshot says,
    Unavailable.

    Every chunk is read, and each extent compared with its digest in the snapshot. With `is_quick` only files that span
    chunks are read; for the others, the snapshot is believed.
    """
    tree = tree or TreeDigest()
    if is_quick and not snapshot.header.is_encrypted:  # its digests are those of the ciphertext
        spanning = {node: content_digest(snapshot, chunks, node) for node in _spanning_nodes(snapshot)}
    else:
        spanning = _checked_digests(snapshot, chunks, tree)
    order, of_nothing = walk_order(snapshot), extent_digest_of(b"")
    firsts, digests = snapshot.column("firsts"), snapshot.column("extent_digests")
    for start in range(0, len(order), _BLOCK_NODES):
        nodes = order[start : start + _BLOCK_NODES]
        columns = (snapshot.column(name)[nodes].tolist() for name in ("modes", "sizes"))
        for node, path, mode, size in zip(nodes.tolist(), snapshot.path_many(nodes), *columns, strict=True):
            if stat.S_ISDIR(mode):
                tree.add_folder(path)
            elif stat.S_ISLNK(mode):
                tree.add_link(path, snapshot.target(node))
            elif size:
                tree.add_file(path, size, spanning.get(node) or digests[firsts[node]].tobytes())
            else:
                tree.add_file(path, 0, of_nothing)
    return tree


def _spanning_nodes(snapshot: Snapshot) -> list[int]:
    """The files whose digest is not in the snapshot."""
    is_file = snapshot.types() == stat.S_IFREG
    extents_min = 1 if snapshot.header.is_encrypted else 2
    nodes: list[int] = np.flatnonzero(is_file & (snapshot.column("counts") >= extents_min)).tolist()
    return nodes


def content_digest(snapshot: Snapshot, chunks: ChunkReader, node: int) -> bytes:
    """The digest of a file, EXTENT_DIGEST_BYTES long. Its bytes are fetched. Raises Damaged, Unavailable."""
    content = blake3()
    for extent in snapshot.extents(node):
        content.update(chunks.fetch_extents(extent.chunk, [extent])[0])
    return content.digest(EXTENT_DIGEST_BYTES)


@dataclass(eq=False)
class _Growing:
    """A file that spans chunks, hashed up to `size` bytes."""

    content: blake3
    size: int = 0


def _checked_digests(snapshot: Snapshot, chunks: ChunkReader, tree: TreeDigest) -> dict[int, bytes]:
    """Check every extent; the digests of the files that span chunks. Raises Damaged."""
    growing = {node: _Growing(blake3()) for node in _spanning_nodes(snapshot)}
    for chunk, owners, extents in _by_chunk(snapshot):
        payload = memoryview(chunks.fetch_chunk(chunk))
        for node, extent in zip(owners, extents, strict=True):
            content = payload[extent.offset : extent.offset + extent.length]
            # Bytes that were decrypted were verified by that.
            if not snapshot.header.is_encrypted and extent_digest_of(content) != extent.digest:
                raise Damaged(
                    f"chunk {chunk_name(snapshot.chunk_id(chunk))} of {snapshot.dataset}: payload offset "
                    f"{extent.offset}: digest of {printable(snapshot.path(node))!r} does not match"
                )
            file = growing.get(node)
            tree.read_bytes += extent.length
            if file is not None and file.size == extent.place:
                file.content.update(content)
                file.size += extent.length
    return {
        node: file.content.digest(EXTENT_DIGEST_BYTES)
        if file.size == snapshot.size(node)
        else content_digest(snapshot, chunks, node)  # its extents are not in the order of the chunks
        for node, file in growing.items()
    }


def _by_chunk(snapshot: Snapshot) -> Iterator[tuple[int, list[int], list[ExtentRef]]]:
    """The extents of each chunk that is in use, with their files, in the order of chunk IDs and offsets."""
    files = np.flatnonzero(snapshot.types() == stat.S_IFREG)
    owners = np.repeat(files, snapshot.column("counts")[files])
    numbers = snapshot.column("extent_chunks")
    order = np.lexsort((snapshot.column("extent_offsets"), numbers))
    ends = np.searchsorted(numbers[order], np.arange(snapshot.chunk_count), side="right")
    start = 0
    for chunk, end in enumerate(ends.tolist()):
        rows = order[start:end]
        if len(rows):
            yield chunk, owners[rows].tolist(), snapshot.extent_refs(rows)
        start = end
