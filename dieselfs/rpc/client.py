"""The server as an object with typed methods. This module opens sockets.

Thread-safe: each call takes its own connection from a pool. Fork-safe: a child never touches its parent's connections.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dieselfs.errors import AlreadyExists, DieselfsError, InvalidInput, ProtocolError
from dieselfs.limits import (
    ATTACHED_PER_REPLY_MAX,
    JOB_ANSWER_TIMEOUT_S,
    JOB_INTERVAL_S_MIN,
    LISTING_ENTRIES_MAX,
    OPEN_AHEAD_S,
    REQUEST_TIMEOUT_S,
    SNAPSHOT_BYTES_MAX,
    STRATA_BYTES_MAX,
)
from dieselfs.names import split_path
from dieselfs.net import auth
from dieselfs.records import DatasetRecord, PendingFile
from dieselfs.rpc.connection import Connection
from dieselfs.rpc.encrypted import cipher_of, keyring, plain_entry, plain_pending
from dieselfs.rpc.limit_kinds import QuotaRecord, RateRecord, UsageRecord
from dieselfs.rpc.members import MEMBERSHIP_LIST_BYTES_MAX, JobId, MembershipList, decode_members
from dieselfs.rpc.methods import METHODS, READER
from dieselfs.rpc.mirror_methods import MirrorMethods
from dieselfs.rpc.payload_files import (
    opened_file,
    opened_files,
    read_opened,
    read_part,
    read_payload_file,
    received_payload,
    shared_files,
)
from dieselfs.rpc.records import (
    AttachedRecord,
    CheckRecord,
    CopyProgress,
    CopyReport,
    CopyRequest,
    DetachReport,
    FsckReport,
    GroupRecord,
    KeyRecord,
    PageLink,
    PinRecord,
    Problem,
    PurgeReport,
    RebuildReport,
    RemoteEntry,
    RemoteSnapshot,
    RepackReport,
    ServerCheck,
    ServerStatus,
    SharedFile,
    TagRecord,
    UserRecord,
)
from dieselfs.rpc.server_connections import ServerConnections
from dieselfs.rpc.wire import Buffer
from dieselfs.settings.table import Settings

if TYPE_CHECKING:  # a tool with one request starts without numpy
    import numpy as np
    import numpy.typing as npt

    from dieselfs.encryption.cipher import DatasetCipher

MEMBERS_PER_CALL_MAX = 50
"""A call has 64 values at most."""

Progressed = Callable[[CopyProgress], object]
"""Called about once a second while a server works, with what it has done."""

_T = TypeVar("_T")


def _snapshot_parts(
    parts: Callable[[int], Iterator[memoryview]], dataset: str, reply: Any
) -> Iterator[memoryview]:
    length = reply.bulk_length
    if length > SNAPSHOT_BYTES_MAX:
        raise ProtocolError(f"the server announces {length} bytes of {dataset}, limit {SNAPSHOT_BYTES_MAX}")
    return parts(length) if length else iter(())


class ServerClient(MirrorMethods, ServerConnections):
    """Calls a server, or one of several over the same stores. Every method raises Unavailable, ProtocolError,
    AccessDenied, and the errors in its docstring.

    Every call is bounded. Each wait for bytes ends after 30 s; that of a read, if there is another server, after 12 s,
    and after 2 s if the machine is gone. A reply takes at most 60 s, and longer only while the server sends signs of
    life: 10 min for a snapshot that is built, 24 h for maintenance. Bulk bytes move at 64 KiB/s at least. A failed call
    is repeated on the next server, once for each, until 60 s have passed; a read is repeated for 25 s. A call that must
    not run twice moves to another server only if it could not connect.
    """

    def __init__(self, settings: Settings, start: int | None = None) -> None:
        """As of `ServerConnections`."""
        super().__init__(settings, start)
        self._ciphers: dict[str, DatasetCipher | None] = {}  # by dataset; changed in single steps

    def _call(
        self,
        method: str,
        *,
        bulk: Sequence[Buffer] = (),
        timeout_s: float = REQUEST_TIMEOUT_S,
        bulk_bytes_max: int = 0,
        progressed: Progressed | None = None,
        destination: Callable[[Any], Iterator[memoryview]] | None = None,
        **arguments: object,
    ) -> tuple[Any, bytearray | None]:
        """The reply, and the bulk bytes behind it. Options: see `Connection.call`."""
        row = METHODS[method]
        ask = None
        if row.urgency == READER:

            def ask(connection: Connection, wait_s: float) -> None:
                connection.ask(method, arguments, wait_s)

        return self._with_connection(
            lambda connection, wait_s: connection.call(
                method,
                arguments,
                bulk,
                wait_s,
                destination,
                work_s=row.work.limit_s,
                bulk_bytes_max=bulk_bytes_max,
                progressed=progressed,
            ),
            row,
            timeout_s,
            ask,
            bulk_bytes_max,
        )

    def _value(self, method: str, **options: Any) -> Any:  # the reply alone
        return self._call(method, **options)[0]

    # -- datasets ----------------------------------------------------------------------------------------

    def create_dataset(self, name: str, dataset_id: bytes = b"") -> DatasetRecord:
        """`dataset_id`: for a mirror, that of its origin. Raises InvalidInput, AlreadyExists."""
        return _copy(DatasetRecord, self._value("create_dataset", name=name, dataset_id=dataset_id))

    def ensure_dataset(self, name: str) -> DatasetRecord:
        """The dataset, which is created unless it exists. Raises InvalidInput, AccessDenied."""
        try:
            return self.create_dataset(name)
        except AlreadyExists:
            return self.dataset(name)

    def dataset(self, name: str) -> DatasetRecord:
        """Raises NotFound."""
        return _copy(DatasetRecord, self._value("get_dataset", name=name))

    def datasets(self) -> list[DatasetRecord]:
        """The datasets that this user may read, ordered by name."""
        return [_copy(DatasetRecord, info) for info in self._value("list_datasets")]

    def lost_datasets(self) -> list[str]:
        """Names of the datasets that have chunks, but no metadata, and that this user may read; sorted."""
        return [str(name) for name in self._value("list_lost_datasets")]

    def drop_dataset(self, name: str, dataset_id: bytes = b"") -> None:
        """Remove a dataset with all of its content, for good. `dataset_id`: not another one, which has been made under
        the name since. Raises NotFound.
        """
        self._value("drop_dataset", name=name, dataset_id=dataset_id)

    # -- maintenance -------------------------------------------------------------------------------------

    def purge(
        self, dataset: str, grace_s: int, is_dry_run: bool, progressed: Progressed | None = None
    ) -> PurgeReport:
        """Rewrite chunks with dead entries; remove chunks that have been dead for `grace_s`. Raises NotFound."""
        report = self._job("purge", progressed, dataset=dataset, grace_s=grace_s, is_dry_run=is_dry_run)
        return _copy(PurgeReport, report, held_by=tuple(report.held_by))

    def attached_sources(self, dataset: str) -> list[AttachedRecord]:
        """The sources of attached chunks, ordered by location. Raises NotFound, and Damaged for an unreadable chunk."""
        found: list[AttachedRecord] = []
        while True:
            after = found[-1].location if found else b""
            page = self._value("list_attached", dataset=dataset, after=after)
            found += [_copy(AttachedRecord, info) for info in page]
            if len(page) < ATTACHED_PER_REPLY_MAX:
                return found

    def detach(self, dataset: str, location: bytes) -> DetachReport:
        """Delete the entries that come from the sources at or below `location`. Raises NotFound."""
        return _copy(DetachReport, self._value("detach", dataset=dataset, location=location))

    def copy_attached(self, dataset: str, is_dry_run: bool, progressed: Progressed | None = None) -> int:
        """Copy the bytes of attached chunks into ordinary chunks; returns the number of attached ones.

        Raises NotFound; Damaged at a source that cannot be read, and what is copied by then stays.
        """
        return int(self._job("copy_attached", progressed, dataset=dataset, is_dry_run=is_dry_run))

    def repack(
        self,
        dataset: str,
        generation: int,
        strata: "npt.NDArray[np.uint16]",
        seed: int,
        is_dry_run: bool,
        progressed: Progressed | None = None,
        chunk_bytes: int = 0,
    ) -> RepackReport:
        """Copy files into chunks with all `strata` in proportion, which `dieselfs.shuffle.strata` makes of the snapshot
        of this generation. `chunk_bytes`: of the new chunks, 0 for the default. Raises NotFound, StorageFull, and
        InvalidInput for more files than STRATA_BYTES_MAX.
        """
        encoded = strata.astype("<u2").tobytes()
        if not encoded:
            return RepackReport(0, 0, 0, 0, 0, generation)
        if len(encoded) > STRATA_BYTES_MAX:
            raise InvalidInput(
                f"dl://{dataset} has {len(strata):,} extents, a repack takes {STRATA_BYTES_MAX // 2:,} at most"
            )
        options = {"dataset": dataset, "generation": generation, "seed": seed, "is_dry_run": is_dry_run}
        sent = {"bulk": [encoded], "bulk_length": len(encoded), "chunk_bytes": chunk_bytes}
        return _copy(RepackReport, self._job("repack", progressed, **options, **sent))

    def rebuild(
        self,
        dataset: str,
        since_s: int | None = None,
        progressed: Progressed | None = None,
        is_forced: bool = False,
    ) -> RebuildReport:
        """Make the metadata again from all chunks, or from those since a time (seconds since 1970).

        Raises NotFound; Damaged if recorded chunks with files are missing, unless `is_forced`.
        """
        since_s = -1 if since_s is None else since_s
        report = self._job("rebuild", progressed, dataset=dataset, since_s=since_s, is_forced=is_forced)
        return _copy(RebuildReport, report, damaged=tuple(report.damaged))

    def fsck(
        self, dataset: str, is_deep: bool, is_repair: bool, progressed: Progressed | None = None
    ) -> FsckReport:
        """Compare chunks, metadata and snapshot. Raises NotFound."""
        report = self._job("fsck", progressed, dataset=dataset, is_deep=is_deep, is_repair=is_repair)
        return _copy(FsckReport, report, problems=tuple(_copy(Problem, one) for one in report.problems))

    def _job(self, method: str, progressed: Progressed | None, **arguments: object) -> Any:
        return self._value(method, progressed=progressed, with_progress=progressed is not None, **arguments)

    def put_tag(self, dataset: str, tag: str, generation: int = 0) -> TagRecord:
        """Keep a generation, 0 for the newest, under a name. Raises AlreadyExists, NotFound, InvalidInput."""
        return _copy(TagRecord, self._value("put_tag", dataset=dataset, tag=tag, generation=generation))

    def tags(self, dataset: str, with_kept: bool = False) -> list[TagRecord]:
        """By name; first, on request, the generations that the server keeps without a name. Raises NotFound."""
        return [
            _copy(TagRecord, tag) for tag in self._value("list_tags", dataset=dataset, with_kept=with_kept)
        ]

    def delete_tag(self, dataset: str, tag: str) -> None:
        """Raises NotFound."""
        self._value("delete_tag", dataset=dataset, tag=tag)

    def pin(self, dataset: str, holder: str, generation: int, updated_ns: int, lease_s: int) -> None:
        """Protect the chunks of a snapshot from purges for `lease_s` seconds; 0 ends the pin. Raises NotFound."""
        pinned = {"dataset": dataset, "generation": generation, "updated_ns": updated_ns}
        self._value("pin", **pinned, holder=holder, lease_s=lease_s)

    def pins(self, dataset: str) -> list[PinRecord]:
        """The pins that have not expired, ordered by holder. Raises NotFound."""
        return [_copy(PinRecord, pin) for pin in self._value("list_pins", dataset=dataset)]

    # -- keys of encrypted datasets ----------------------------------------------------------------------

    def keys(self, dataset: str) -> bytes:
        """The record of the keys of a dataset (`KeyRecord`), empty if it is not encrypted. Raises NotFound."""
        return bytes(self._value("get_keys", dataset=dataset))

    def cipher(self, dataset: DatasetRecord) -> "DatasetCipher | None":
        """What encrypts and decrypts the dataset, None if it is not encrypted; asks the server.

        Raises AccessDenied without a key for it, Damaged if it is not the one of before.
        """
        found = self._ciphers[dataset.name] = cipher_of(self.settings, dataset, self.keys(dataset.name))
        return found

    def known_cipher(self, dataset: str) -> "DatasetCipher | None":
        """As `cipher`; asks the server once for each dataset."""
        if dataset not in self._ciphers:
            if not self.keys(dataset):
                self._ciphers[dataset] = None
            else:
                self.cipher(self.dataset(dataset))
        return self._ciphers[dataset]

    def encrypt(self, dataset: DatasetRecord) -> None:
        """Give a dataset without files a new key, for this user, unless it has one.

        Raises InvalidInput, AccessDenied.
        """
        if not self.keys(dataset.name):
            record = keyring(self.settings).new_record(dataset.dataset_id)
            with suppress(AlreadyExists):  # another writer's is taken
                self.put_keys(dataset.name, record.encode(), b"")
        self.cipher(dataset)

    def put_keys(self, dataset: str, content: bytes, known: bytes) -> None:
        """Create the record (`known` is empty) of a dataset without files, or replace the `known` one.

        Raises NotFound, InvalidInput, AlreadyExists.
        """
        self._value("put_keys", dataset=dataset, content=content, known=known)

    # -- jobs --------------------------------------------------------------------------------------------

    def join_job(
        self, job_id: JobId, fingerprint: bytes, member: bytes, known_version: int, progress: bytes = b""
    ) -> MembershipList:
        """Join a job (`known_version` 0) or renew the lease, and get the other members. `member` is sealed. `progress`:
        an encoded `NodeProgress`, or empty.

        Raises NotFound, InvalidInput, or AlreadyExists if the others read something else, or the node has a new master.
        """
        info, members = self._call(
            "join_job",
            timeout_s=JOB_ANSWER_TIMEOUT_S,
            bulk_bytes_max=MEMBERSHIP_LIST_BYTES_MAX,
            fingerprint=fingerprint,
            member=member,
            known_version=known_version,
            progress=progress,
            **asdict(job_id),
        )
        interval_s = max(info.interval_ms / 1000, JOB_INTERVAL_S_MIN)
        return MembershipList(info.version, interval_s, None if members is None else decode_members(members))

    def leave_job(self, job_id: JobId, fingerprint: bytes, member: bytes) -> None:
        """End the membership; no error if there is none. Raises NotFound."""
        leaving = {"job": job_id.job, "fingerprint": fingerprint, "member": member}
        self._value("leave_job", dataset=job_id.dataset, **leaving)

    # -- writing -----------------------------------------------------------------------------------------

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

    def copy_entries(self, request: CopyRequest, progressed: Progressed | None = None) -> CopyReport:
        """Copy inside the servers, also to another dataset; `progressed` is called about once a second. Of an
        interrupted copy each entry is complete or absent; the source is deleted when all are stored. May be repeated.

        Raises NotFound, InvalidInput, Damaged, StorageFull, or AlreadyExists for a path that is taken.
        """
        progressed = progressed or (lambda _: None)  # the server sends progress in any case
        report = self._value("copy_entries", progressed=progressed, **request._asdict())
        return _copy(CopyReport, report, paths=tuple(report.paths))

    def pending_file(self, dataset: str, path: bytes) -> PendingFile:
        """What is stored of an interrupted upload to `path`. Raises NotFound if there is no such dataset."""
        cipher = self.known_cipher(dataset)
        if cipher is not None:
            path = cipher.names.seal_path(path)
        info = self._value("get_pending", dataset=dataset, path=path)
        if len(info.extents) % 16:
            raise ProtocolError(f"the server sent {len(info.extents)} bytes of extents, no multiple of 16")
        extents = frozenset(struct.iter_unpack("<QQ", info.extents))
        found = PendingFile(info.version, info.size, info.mtime_ns, extents)
        return found if cipher is None else plain_pending(found)

    # -- reading -----------------------------------------------------------------------------------------

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
        named: dict[str, Any] = {
            "dataset": dataset,
            "generation": generation,
            "known_digest": known_digest,
            "tag": tag,
            "bases": bases,
        }
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
    ) -> None:
        """Receive the payload of a chunk, unverified, into the buffers of `parts()`. Each buffer is full when the next
        one is requested, or the iterator ends; it may be the same buffer again. A retry calls `parts()` again and
        starts at the first byte.

        An own server on this machine passes the descriptor of the chunk's file, if it has files; this process reads
        the file. It also opens the files of the chunks `ahead`, SHARED_PAYLOADS_MAX at most, for later calls; its
        errors are not raised. `is_sent` makes the server read and send the payload.
        A server sends a compressed chunk as it is stored; its frames are decompressed here.
        Raises NotFound, Damaged (also if the length differs); then buffers may be partly filled.
        """
        if ahead:
            self._open_ahead(dataset, ahead)
        file = None if is_sent else self._opened.take(chunk_id)
        if file is not None and read_opened(file, length_bytes, parts):
            return
        arguments: dict[str, object] = {"dataset": dataset, "chunk_id": chunk_id}
        sent = {**arguments, "takes_frames": True}

        def fetch(connection: Connection, wait_s: float) -> None:
            name = f"chunk {chunk_id.hex()} of the server at {connection.address}"
            destination = partial(received_payload, length_bytes=length_bytes, parts=parts, name=name)
            may_read = connection.gives_files and not is_sent
            if not (may_read and read_payload_file(connection, arguments, length_bytes, parts, wait_s)):
                connection.call("get_payload", sent, (), wait_s, destination)

        def ask(connection: Connection, wait_s: float) -> None:
            if is_sent or not connection.gives_files:
                connection.ask("get_payload", sent, wait_s)

        self._with_connection(fetch, METHODS["get_payload"], ask=ask, length_bytes=length_bytes)

    def _open_ahead(self, dataset: str, chunk_ids: Sequence[bytes]) -> None:
        """Have an own server on this machine open files with one call, over a connection that is idle. Raises nothing:
        the call for a chunk that has no file here meets the error.
        """
        arguments: dict[str, object] = {"dataset": dataset, "chunk_ids": b"".join(chunk_ids)}
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

    def shared_payloads(self, dataset: str, chunk_ids: bytes, wanted_bytes: int) -> list[SharedFile]:
        """Payloads in memory of an own server on this machine, as `shared_files`. Raises NotFound, Damaged."""
        arguments = {"dataset": dataset, "chunk_ids": chunk_ids, "wanted_bytes": wanted_bytes}
        return self._with_connection(
            lambda connection, wait_s: shared_files(connection, arguments, wait_s), METHODS["share_payloads"]
        )

    def part(self, dataset: str, chunk_id: bytes, start: int, length: int) -> bytearray | None:
        """A part of a payload, unverified, from its file, which stays open for others. None unless an own server on
        this machine passes it. Raises NotFound, Damaged.
        """
        arguments: dict[str, object] = {"dataset": dataset, "chunk_id": chunk_id}
        file = self._opened.take(chunk_id) or self._with_connection(
            lambda connection, wait_s: opened_file(connection, arguments, wait_s), METHODS["open_payload"]
        )
        if file is None:
            return None
        content = bytearray(length)
        is_read = read_part(file, start, memoryview(content))
        self._opened.put(chunk_id, file)
        return content if is_read else None

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
        if cipher is None:
            return _copy(RemoteEntry, self._value("stat", dataset=dataset, path=path))
        sealed = cipher.names.seal_path(path)
        found = _copy(RemoteEntry, self._value("stat", dataset=dataset, path=sealed))
        return plain_entry(cipher, found, split_path(sealed)[0])

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
        infos = self._value("list_folder", dataset=dataset, path=path, after=after, limit=limit)
        return [_copy(RemoteEntry, info) for info in infos]

    # -- users and server --------------------------------------------------------------------------------

    def add_key(self, user: str, expires_s: int = 0) -> auth.Key:
        """A new key for `user`, a new user if need be. It is made here; the server gets what checks it. Raises
        AlreadyExists if the server has another key with this random ID, InvalidInput at its limits.
        """
        key = self._new_key(user)
        known = key.verifier()
        self._value(
            "add_key",
            user=user,
            key_id=key.key_id,
            verifier=known.verifier,
            server_key=known.server_key,
            expires_s=expires_s,
        )
        return key

    def add_token(self, datasets: Sequence[str], right: str, expires_s: int) -> auth.Key:
        """A new key of this user, with `right` (`read` or `write`) on these datasets, and no more than the user may. It
        adds no keys. Raises InvalidInput at the limits of the server, AccessDenied if the key of this
        client is such a key.
        """
        own = self._access.current().key
        if own is None:
            raise InvalidInput("a token is of a user: name your key file (--key-file)")
        key = self._new_key(own.user)
        known = key.verifier()
        self._value(
            "add_token",
            key_id=key.key_id,
            verifier=known.verifier,
            server_key=known.server_key,
            expires_s=expires_s,
            datasets=list(datasets),
            right=right,
        )
        return key

    def _new_key(self, user: str) -> auth.Key:
        named = bytes(
            self._value("server_pin", with_next=True)
        )  # an earlier server names the present one alone
        pin, next_pin = named[: auth.PIN_BYTES], named[auth.PIN_BYTES :]
        own = self._access.current().key
        if own is not None and pin not in own.pins:
            raise ProtocolError("the server names another identity than the key file")
        return auth.Key.generate(user, pin, next_pin)

    def expire_key(self, key_id: str, expires_s: int) -> None:
        """Let a key of this user expire at `expires_s`, or earlier if it did already. Raises NotFound."""
        self._value("expire_key", key_id=key_id, expires_s=expires_s)

    def remove_key(self, user: str, key_id: str = "") -> None:
        """Remove a key, or without `key_id` the user. Users may remove their own keys. Raises NotFound."""
        self._value("remove_key", user=user, key_id=key_id)

    def bar(self, user: str, is_barred: bool) -> None:
        """Refuse all keys of a user, or accept them again. Raises NotFound."""
        self._value("bar_user", user=user, is_barred=is_barred)

    def grant(self, user: str, dataset: str, right: str) -> None:
        """Give `right` (read, write, admin, or none) on a dataset, or on `*`; `user` may be `group:NAME`.

        Raises NotFound, InvalidInput.
        """
        self._value("grant", user=user, dataset=dataset, right=right)

    def users(self) -> list[UserRecord]:
        """All users; only this one unless it is an administrator."""
        return [
            _copy(
                UserRecord,
                user,
                keys=tuple(_copy(KeyRecord, key) for key in user.keys),
                groups=tuple(user.groups or ()),
            )
            for user in self._value("list_users")
        ]

    def add_members(self, group: str, users: Sequence[str]) -> None:
        """Add users to a group, which is created if it is missing. Raises NotFound, InvalidInput."""
        self._change_members("add_members", group, users)

    def remove_members(self, group: str, users: Sequence[str] = ()) -> None:
        """Remove users from a group or, if none is named, the group. Raises NotFound."""
        self._change_members("remove_members", group, users)

    def _change_members(self, method: str, group: str, users: Sequence[str]) -> None:
        for start in range(0, max(len(users), 1), MEMBERS_PER_CALL_MAX):
            self._value(method, group=group, users=list(users[start : start + MEMBERS_PER_CALL_MAX]))

    def groups(self) -> list[GroupRecord]:
        """By name; `everyone` only if it has a right."""
        return [_copy(GroupRecord, info, members=tuple(info.members)) for info in self._value("list_groups")]

    # -- quotas ------------------------------------------------------------------------------------------

    def usage(self, dataset: str = "") -> list[UsageRecord]:
        """What a dataset takes or, without a name, all datasets that this user may read, and this user. Administrators
        get all users who own datasets or have quotas. Raises NotFound.
        """
        return [_copy(UsageRecord, info) for info in self._value("usage", dataset=dataset)]

    def set_quota(self, quota: QuotaRecord) -> None:
        """Limit what an account may store; without limits, remove the quota. Raises NotFound, InvalidInput."""
        self._value("set_quota", **quota._asdict())

    def quotas(self) -> list[QuotaRecord]:
        """All quotas, ordered by account."""
        return [_copy(QuotaRecord, info) for info in self._value("list_quotas")]

    def set_rate(self, rate: RateRecord) -> None:
        """Limit what each server moves for a user; without limits, remove the rate. Raises NotFound, InvalidInput."""
        self._value("set_rate", **rate._asdict())

    def rates(self) -> list[RateRecord]:
        """All rates, ordered by user."""
        return [_copy(RateRecord, info) for info in self._value("list_rates")]

    def set_owner(self, dataset: str, user: str) -> None:
        """Let a dataset count towards the quota of `user`, or, if it is empty, of nobody. Raises NotFound."""
        self._value("set_owner", dataset=dataset, user=user)

    def status(self) -> ServerStatus:
        return _copy(ServerStatus, self._value("status"))

    def check_server(self, is_whole: bool) -> ServerCheck:
        """The clock of the server; with `is_whole` also its checks, for which it writes a record of its store, reads it
        and removes it. Raises AccessDenied unless the user is an administrator, who alone may have the checks.
        """
        found = self._value("check_server", is_whole=is_whole)
        return _copy(ServerCheck, found, checks=tuple(_copy(CheckRecord, check) for check in found.checks))

    def open_page(self, lease_s: int) -> PageLink:
        """A one-time link to the web page of a server. An embedded server serves it for `lease_s` from now.

        Raises Unavailable if there is no page.
        """
        return _copy(PageLink, self._value("open_page", lease_s=lease_s))

    def keep_page(self, lease_s: int) -> None:
        """Let an embedded server serve its page for `lease_s` from now; 0: no longer."""
        self._value("keep_page", lease_s=lease_s)


def _copy(kind: Callable[..., _T], struct: Any, **converted: object) -> _T:
    """A record from a Thrift struct with the same fields; other names are a TypeError."""
    return kind(**{name: getattr(struct, name) for _, name, *_ in struct.thrift_spec.values()} | converted)
