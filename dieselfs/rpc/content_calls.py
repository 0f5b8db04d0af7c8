"""The calls that write and read the content of datasets. This module opens sockets."""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from dieselfs.errors import DieselfsError, ProtocolError
from dieselfs.limits import LISTING_ENTRIES_MAX, OPEN_AHEAD_S, SNAPSHOT_BYTES_MAX
from dieselfs.names import split_path
from dieselfs.records import PendingFile
from dieselfs.rpc.connection import Connection
from dieselfs.rpc.dataset_calls import DatasetCalls
from dieselfs.rpc.encrypted import plain_entry
from dieselfs.rpc.methods import METHODS
from dieselfs.rpc.payload_files import (
    opened_file,
    opened_files,
    read_opened,
    read_payload_file,
    received_payload,
    shared_files,
)
from dieselfs.rpc.records import RemoteEntry, RemoteSnapshot, SharedFile
from dieselfs.rpc.wire import Buffer

if TYPE_CHECKING:  # a tool with one request starts without numpy
    import numpy as np
    import numpy.typing as npt


def _snapshot_parts(
    parts: Callable[[int], Iterator[memoryview]], dataset: str, reply: Any
) -> Iterator[memoryview]:
    length = reply.bulk_length
    if length > SNAPSHOT_BYTES_MAX:
        raise ProtocolError(f"the server announces {length} bytes of {dataset}, limit {SNAPSHOT_BYTES_MAX}")
    return parts(length) if length else iter(())


class ContentCalls(DatasetCalls):
    """A part of `ServerClient`."""

    def reserve_versions(self, dataset: str, count: int) -> int:
        """The first of `count` consecutive versions. Raises NotFound."""
        return int(self._value("reserve_versions", dataset=dataset, count=count))

    def put_chunk(self, dataset: str, chunk_id: bytes, parts: Sequence[Buffer], key_id: bytes = b"") -> int:
        """Store a chunk; returns the dataset's generation once the chunk is durable and applied. May be repeated.
        `key_id`: of the key with which it is encrypted.

        Raises NotFound, Damaged, StorageFull, or AlreadyExists if another chunk has this ID.
        """
        length = sum(len(part) for part in parts)
        named = {"dataset": dataset, "chunk_id": chunk_id, "key_id": key_id}
        return int(self._value("put_chunk", bulk=parts, bulk_length=length, **named))

    def pending_file(self, dataset: str, path: bytes) -> PendingFile:
        """What is stored of an interrupted upload to `path`; nothing in an encrypted dataset, in which equal bytes have
        different digests. Raises NotFound if there is no such dataset.
        """
        if self.known_cipher(dataset) is not None:
            return PendingFile()
        info = self._value("get_pending", dataset=dataset, path=path)
        extents, digests = info.extents, info.digests
        if digests is None:  # of an earlier release, so it is not known which bytes are stored
            return PendingFile()
        if len(extents) % 16 or len(digests) != len(extents):
            raise ProtocolError(f"the server sent {len(extents)} bytes of extents, {len(digests)} of digests")
        each = (digests[start : start + 16] for start in range(0, len(digests), 16))
        found = dict(zip(struct.iter_unpack("<QQ", extents), each, strict=True))
        return PendingFile(info.version, info.size, info.mtime_ns, found)

    def snapshot(
        self,
        dataset: str,
        generation: int = 0,
        known_digest: bytes = b"",
        tag: str = "",
        bases: bytes = b"",
        parts: Callable[[int], Iterator[memoryview]] | None = None,
    ) -> RemoteSnapshot:
        """The snapshot of a generation, 0 for the newest, or of a tag; or a delta from `bases`. Raises NotFound.

        `parts` gets the length in bytes, and yields buffers for the content, as in `payload_in_parts`; then `content`
        is empty, if there is one. Its errors are raised.
        """
        named: dict[str, Any] = {"dataset": dataset, "generation": generation, "known_digest": known_digest}
        named |= {"tag": tag, "bases": bases}
        if parts is None:
            info, content = self._call("get_snapshot", bulk_bytes_max=SNAPSHOT_BYTES_MAX, **named)
        else:
            found = partial(_snapshot_parts, parts, dataset)
            info, _ = self._call("get_snapshot", destination=found, **named)
            content = bytearray() if info.bulk_length else None
        if content is None and info.digest != known_digest:
            raise ProtocolError(f"the server sent no snapshot of {dataset}")
        state = info.generation, info.updated_ns, info.digest
        return RemoteSnapshot(*state, content, info.base_digest or b"", info.statement or b"")

    def payload_in_parts(
        self,
        dataset: str,
        chunk_id: bytes,
        length_bytes: int,
        parts: Callable[[], Iterator[memoryview]],
        is_sent: bool = False,
        ahead: Sequence[bytes] = (),
        room_of: Callable[[int], memoryview] | None = None,
    ) -> None:
        """Receive the payload of a chunk, unverified, into the buffers of `parts()`. Each buffer is full when the next
        one is requested, or the iterator ends; it may be the same buffer again. A retry calls `parts()` again and
        starts at the first byte.

        An own server on this machine passes the descriptor of the chunk's file, if it has files; this process reads
        the file. It also opens the files of the chunks `ahead`, SHARED_PAYLOADS_MAX at most, for later calls; its
        errors are not raised. `is_sent` makes the server read and send the payload.
        A server sends a compressed chunk as it is stored; its frames are decompressed here. `room_of`: memory for them,
        see `frames.received`.
        Raises NotFound, Damaged (also if the length differs); then buffers may be partly filled.
        """
        if ahead:
            self.open_ahead(dataset, ahead)
        file = None if is_sent else self._opened.take(chunk_id)
        if file is not None and read_opened(file, length_bytes, parts, self.drops_pages):
            return
        arguments: dict[str, object] = {"dataset": dataset, "chunk_id": chunk_id}
        sent = {**arguments, "takes_frames": True}

        def fetch(connection: Connection, wait_s: float) -> None:
            name = f"chunk {chunk_id.hex()} of the server at {connection.address}"
            destination = partial(
                received_payload, length_bytes=length_bytes, parts=parts, name=name, room_of=room_of
            )
            named = connection, arguments, length_bytes, parts, wait_s, self.drops_pages
            if is_sent or not connection.gives_files or not read_payload_file(*named):
                connection.call("get_payload", sent, (), wait_s, destination)

        def ask(connection: Connection, wait_s: float) -> None:
            if is_sent or not connection.gives_files:
                connection.ask("get_payload", sent, wait_s)

        self._with_connection(fetch, METHODS["get_payload"], ask=ask, length_bytes=length_bytes)

    def open_ahead(
        self,
        dataset: str,
        chunk_ids: Sequence[bytes],
        take_checksums: Callable[[bytes, bytes], object] | None = None,
    ) -> None:
        """Have an own server on this machine open files for later reads with one call, over a connection that is idle.
        `take_checksums` gets the ID of each chunk whose checksums of blocks come with its file, and these. Raises
        nothing: the call for a chunk that has no file here meets the error.
        """
        arguments: dict[str, object] = {
            "dataset": dataset,
            "chunk_ids": b"".join(chunk_ids),
            "with_checksums": take_checksums is not None,
        }
        with suppress(DieselfsError):
            connection = self._idle_connection()
            if connection is None:
                return
            try:
                files = opened_files(connection, arguments, OPEN_AHEAD_S)
            finally:
                self._give_back(connection)
            for chunk_id, file in zip(chunk_ids, files, strict=False):
                self._opened.put(chunk_id, file)
                if take_checksums is not None and file.checksums:
                    take_checksums(chunk_id, file.checksums)

    @property
    def opened_max(self) -> int:
        """How many files of a server this process keeps open."""
        return self._opened.files_max

    def shared_payloads(self, dataset: str, chunk_ids: bytes, wanted_bytes: int) -> list[SharedFile]:
        """Payloads in memory of an own server on this machine, as `shared_files`. Raises NotFound, Damaged."""
        arguments = {"dataset": dataset, "chunk_ids": chunk_ids, "wanted_bytes": wanted_bytes}
        return self._with_connection(
            lambda connection, wait_s: shared_files(connection, arguments, wait_s), METHODS["share_payloads"]
        )

    def part(
        self,
        dataset: str,
        chunk_id: bytes,
        start: int,
        length: int,
        take_checksums: Callable[[bytes], object] | None = None,
    ) -> bytearray | None:
        """A part of a payload, unverified, from its file, which stays open. None unless an own server on this machine
        passes it. `take_checksums` gets those of its blocks if they come with it. Raises NotFound, Damaged.
        """
        named = {"dataset": dataset, "chunk_id": chunk_id, "with_checksums": bool(take_checksums)}
        opened = partial(
            self._with_connection,
            lambda connection, wait_s: opened_file(connection, named, wait_s, take_checksums),
            METHODS["open_payload"],
        )
        return self._opened.read(chunk_id, start, length, opened)

    def ranges(self, dataset: str, chunk_id: bytes, ranges: "npt.NDArray[np.uint32]") -> bytearray:
        """Ranges of a payload, joined, unverified; shape (n, 2): offset, length. Raises NotFound, Damaged."""
        encoded = ranges.astype("<u4").tobytes()
        expected = int(ranges[:, 1].sum(dtype="i8"))
        named: dict[str, Any] = {"dataset": dataset, "chunk_id": chunk_id, "ranges": encoded}
        received = self._call("get_ranges", bulk_bytes_max=expected, **named)[1] or bytearray()
        if len(received) != expected:
            raise ProtocolError(f"requested {expected} bytes from the server, it sent {len(received)}")
        return received

    def block_checksums(self, dataset: str, chunk_id: bytes, blocks: int) -> "npt.NDArray[np.uint64]":
        """The checksum of each of the `blocks` of a payload, which the server has verified.

        Raises NotFound, Damaged.
        """
        import numpy as np

        named: dict[str, Any] = {"dataset": dataset, "chunk_id": chunk_id}
        received = self._call("get_block_checksums", bulk_bytes_max=8 * blocks, **named)[1] or b""
        if len(received) != 8 * blocks:
            raise ProtocolError(f"expected the checksums of {blocks} blocks, got {len(received)} bytes")
        return np.frombuffer(received, "<u8")

    def stat(self, dataset: str, path: bytes) -> RemoteEntry:
        """Raises NotFound."""
        cipher = self.known_cipher(dataset)
        sealed = path if cipher is None else cipher.names.seal_path(path)
        found = self._record(RemoteEntry, "stat", dataset=dataset, path=sealed)
        return found if cipher is None else plain_entry(cipher, found, split_path(sealed)[0])

    def list_folder(self, dataset: str, path: bytes, after: bytes, limit: int) -> list[RemoteEntry]:
        """Up to `limit` entries whose names sort behind `after`. Raises NotFound."""
        cipher = self.known_cipher(dataset)
        if cipher is None:
            return self._list_folder(dataset, path, after, limit)
        sealed, found, last = cipher.names.seal_path(path), [], b""
        while page := self._list_folder(dataset, sealed, last, LISTING_ENTRIES_MAX):  # in another order
            found += [plain_entry(cipher, entry, sealed) for entry in page]
            last = page[-1].name
        return sorted(entry for entry in found if entry.name > after)[:limit]

    def _list_folder(self, dataset: str, path: bytes, after: bytes, limit: int) -> list[RemoteEntry]:
        named = {"dataset": dataset, "path": path, "after": after, "limit": limit}
        return self._records(RemoteEntry, "list_folder", **named)
