"""The server as an object with typed methods. This module opens sockets.

Safe to use from several threads (each call takes a connection of its own from a pool) and after a fork (a
child never touches the connections of its parent).
"""

import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dieselfs.cache.member import Terms
from dieselfs.cache.roll import Roll, decode_members
from dieselfs.config import Settings
from dieselfs.embedded import connect_embedded, socket_path
from dieselfs.errors import AccessDenied, Damaged, ProtocolError, Unavailable
from dieselfs.limits import (
    JOB_ANSWER_TIMEOUT_S,
    JOB_INTERVAL_S_MIN,
    MAINTENANCE_TIMEOUT_S,
    REQUEST_TIMEOUT_S,
    SERVER_SILENCE_S,
    SNAPSHOT_BUILD_TIMEOUT_S,
)
from dieselfs.meta.records import DatasetRecord, PendingFile
from dieselfs.rpc import auth
from dieselfs.rpc.address import Address, Servers, UnixAddress, parse_servers
from dieselfs.rpc.connection import Connection, open_socket
from dieselfs.rpc.endpoints import Tries, open_endpoints
from dieselfs.rpc.payload_file import read_payload_file
from dieselfs.rpc.records import (
    FsckReport,
    KeyRecord,
    Problem,
    PurgeReport,
    RebuildReport,
    RemoteEntry,
    RemoteSnapshot,
    ServerStatus,
    TagRecord,
    UserRecord,
)
from dieselfs.rpc.wire import Buffer

EMBEDDED_TRIES_MAX = 3
EMBEDDED_PAUSE_S = 0.05

POOL_CONNECTIONS_MAX = 16
"""Idle connections kept; more are opened when more threads call, and closed afterwards."""

_T = TypeVar("_T")


class ServerClient:
    """Calls a server, or one of several over the same stores. Every method raises Unavailable, ProtocolError,
    AccessDenied, and what its docstring names.

    Every call is bounded: each wait for bytes to move ends after 30 s (a snapshot may take longer to be
    built), that of a read after 12 s if there is another server to go to. A call that fails on one server is made
    again on the next, each is tried once, none after 60 s; for a read, again and again for 25 s. But calls that must
    not happen twice only go on to another server while no connection could be made.
    """

    def __init__(self, settings: Settings, start: int | None = None) -> None:
        """`start`: which of several servers is called first; None for a random one."""
        self.settings = settings
        self.address: Servers = (
            parse_servers(settings.server)
            if settings.server
            else UnixAddress(str(socket_path(settings.home)))
        )
        self._key = auth.read_key_file(settings.key_file) if settings.server and settings.key_file else None
        self._tls = _tls_context(settings.tls_ca) if settings.server and settings.tls_ca else None
        self._lock = Lock()  # guards the four below
        self._process_id = os.getpid()
        self._endpoints = open_endpoints(self.address, settings.etcd, start)
        self._idle: list[Connection] = []
        self._is_closed = False

    def close(self) -> None:
        """Close the idle connections; calls that are under way end as they would."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _connect(self, tries: Tries) -> Connection:
        if self.settings.server is None:
            return self._connect_embedded()
        while True:
            server = tries.next()
            try:
                return Connection(open_socket(server, self._tls), server, self._key)
            except Unavailable as error:
                tries.failed(server, error)

    def _connect_embedded(self) -> Connection:
        """A server that is just ending may still take a connection and drop it; then another is started."""
        address = UnixAddress(str(socket_path(self.settings.home)))
        for _ in range(EMBEDDED_TRIES_MAX - 1):
            try:
                return Connection(connect_embedded(self.settings.home), address, None)
            except Unavailable:
                time.sleep(EMBEDDED_PAUSE_S)
        return Connection(connect_embedded(self.settings.home), address, None)

    def _tries(self, is_patient: bool) -> Tries:
        with self._lock:
            if (
                os.getpid() != self._process_id
            ):  # after a fork the connections are our parent's, who is using them
                self._process_id = os.getpid()
                self._idle = []
                self._endpoints = self._endpoints.forked()
            return self._endpoints.tries(is_patient)

    def _take(self, tries: Tries) -> tuple[Connection, bool]:
        """`(connection, whether it is a new one)`."""
        with self._lock:
            while self._idle and not tries.has_failed:
                connection = self._idle.pop()
                if connection.is_usable:
                    return connection, False
                connection.close()
        return self._connect(tries), True

    def _close_idle(self, server: Address) -> None:
        """A connection to `server` failed: the idle ones to it would too, each after its own wait."""
        with self._lock:
            failed = [connection for connection in self._idle if connection.address == server]
            self._idle = [connection for connection in self._idle if connection.address != server]
        for connection in failed:
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if connection.is_open and not self._is_closed and len(self._idle) < POOL_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _call(
        self,
        method: str,
        arguments: dict[str, object],
        bulk: Sequence[Buffer] = (),
        timeout_s: float = REQUEST_TIMEOUT_S,
        is_repeatable: bool = True,
        is_urgent: bool = False,
    ) -> tuple[Any, bytearray | None]:
        """`is_urgent`: somebody waits who cannot do without. A server that is silent is given up earlier, as long as
        there is another one; but servers that have failed are tried again.
        """
        return self._with_connection(
            lambda connection, wait_s: connection.call(method, arguments, bulk, wait_s),
            timeout_s,
            is_repeatable,
            is_urgent,
        )

    def _with_connection(
        self,
        call: Callable[[Connection, float], _T],
        timeout_s: float,
        is_repeatable: bool,
        is_urgent: bool,
    ) -> _T:
        """What `call` returns for one of the servers. It gets a connection, and how long to wait for bytes to move."""
        tries = self._tries(is_patient=is_urgent)
        while True:
            connection, is_new = self._take(tries)
            try:
                is_impatient = is_urgent and tries.has_other(connection.address)
                return call(connection, SERVER_SILENCE_S if is_impatient else timeout_s)
            except Unavailable as error:
                if connection.is_open or not is_repeatable:
                    raise
                self._close_idle(connection.address)
                tries.failed(
                    connection.address, error, is_final=is_new
                )  # the server may just have been restarted
            finally:
                self._give_back(connection)

    def _bytes(self, method: str, arguments: dict[str, object]) -> bytearray:
        """The bulk bytes that a reader waits for."""
        return self._call(method, arguments, is_urgent=True)[1] or bytearray()

    def _value(self, method: str, arguments: dict[str, object], is_repeatable: bool = True) -> Any:
        return self._call(method, arguments, is_repeatable=is_repeatable)[0]

    # -- datasets ----------------------------------------------------------------------------------------

    def create_dataset(self, name: str) -> DatasetRecord:
        """Raises InvalidInput, AlreadyExists."""
        return _dataset_record(self._value("create_dataset", {"name": name}))

    def dataset(self, name: str) -> DatasetRecord:
        """Raises NotFound."""
        return _dataset_record(self._value("get_dataset", {"name": name}))

    def datasets(self) -> list[DatasetRecord]:
        """Those that this user may read, ordered by name."""
        return [_dataset_record(info) for info in self._value("list_datasets", {})]

    def drop_dataset(self, name: str) -> None:
        """Remove a dataset, all of it, for good. Raises NotFound."""
        self._value("drop_dataset", {"name": name}, is_repeatable=False)

    # -- looking after datasets --------------------------------------------------------------------------

    def purge(self, dataset: str, grace_s: int, is_dry_run: bool) -> PurgeReport:
        """Rewrite chunks with holes; remove chunks that have been dead for `grace_s`. Raises NotFound."""
        arguments: dict[str, object] = {"dataset": dataset, "grace_s": grace_s, "is_dry_run": is_dry_run}
        return _copy(PurgeReport, self._maintain("purge", arguments))

    def rebuild(self, dataset: str, since_s: int | None = None) -> RebuildReport:
        """Make the metadata anew from all chunks, or from those since a time (seconds since 1970).

        Raises NotFound.
        """
        report = self._maintain(
            "rebuild", {"dataset": dataset, "since_s": -1 if since_s is None else since_s}
        )
        return RebuildReport(
            report.chunks, report.entries, report.files, report.generation, tuple(report.damaged)
        )

    def fsck(self, dataset: str, is_deep: bool, is_repair: bool) -> FsckReport:
        """Compare chunks, metadata and snapshot. Raises NotFound."""
        report = self._maintain("fsck", {"dataset": dataset, "is_deep": is_deep, "is_repair": is_repair})
        problems = tuple(_copy(Problem, problem) for problem in report.problems)
        return FsckReport(
            report.chunks,
            report.entries,
            report.total_bytes,
            report.problem_count,
            report.unmended_count,
            problems,
        )

    def _maintain(self, method: str, arguments: dict[str, object]) -> Any:
        return self._call(method, arguments, timeout_s=MAINTENANCE_TIMEOUT_S, is_repeatable=False)[0]

    def put_tag(self, dataset: str, tag: str, generation: int = 0) -> TagRecord:
        """Keep a generation, 0 for the newest, under a name. Raises AlreadyExists, NotFound, InvalidInput."""
        arguments: dict[str, object] = {"dataset": dataset, "tag": tag, "generation": generation}
        return _copy(TagRecord, self._call("put_tag", arguments, timeout_s=SNAPSHOT_BUILD_TIMEOUT_S)[0])

    def tags(self, dataset: str) -> list[TagRecord]:
        """Ordered by name. Raises NotFound."""
        return [_copy(TagRecord, tag) for tag in self._value("list_tags", {"dataset": dataset})]

    def delete_tag(self, dataset: str, tag: str) -> None:
        """Raises NotFound."""
        self._value("delete_tag", {"dataset": dataset, "tag": tag}, is_repeatable=False)

    def pin(self, dataset: str, holder: str, generation: int, updated_ns: int, lease_s: int) -> None:
        """Keep the chunks of a snapshot from being purged for `lease_s` seconds; 0 lets go. Raises NotFound."""
        arguments: dict[str, object] = {
            "dataset": dataset,
            "holder": holder,
            "generation": generation,
            "updated_ns": updated_ns,
            "lease_s": lease_s,
        }
        self._value("pin", arguments)

    # -- jobs --------------------------------------------------------------------------------------------

    def join_job(self, terms: Terms, fingerprint: bytes, member: bytes, known_version: int) -> Roll:
        """Become a member of a job (`known_version` 0), or stay one, and hear who else is. `member` is sealed.

        Raises NotFound, InvalidInput, or AlreadyExists if the others read something else, or the node has a new master.
        """
        arguments: dict[str, object] = {
            "dataset": terms.dataset,
            "job": terms.job,
            "fingerprint": fingerprint,
            "generation": terms.generation,
            "digest": terms.digest,
            "member": member,
            "known_version": known_version,
        }
        info, members = self._call("join_job", arguments, timeout_s=JOB_ANSWER_TIMEOUT_S)
        interval_s = max(info.interval_ms / 1000, JOB_INTERVAL_S_MIN)
        return Roll(info.version, interval_s, None if members is None else decode_members(members))

    def leave_job(self, terms: Terms, fingerprint: bytes, member: bytes) -> None:
        """Be a member no longer. Without error if one is none. Raises NotFound."""
        arguments: dict[str, object] = {
            "dataset": terms.dataset,
            "job": terms.job,
            "fingerprint": fingerprint,
            "member": member,
        }
        self._value("leave_job", arguments)

    # -- writing -----------------------------------------------------------------------------------------

    def reserve_versions(self, dataset: str, count: int) -> int:
        """The first of `count` consecutive versions. Raises NotFound."""
        return int(self._value("reserve_versions", {"dataset": dataset, "count": count}))

    def put_chunk(self, dataset: str, chunk_id: bytes, parts: Sequence[Buffer]) -> int:
        """Store a chunk; returns the dataset's generation once it is durable and counts. May be repeated.

        Raises NotFound, Damaged, StorageFull, or AlreadyExists if another chunk has this ID.
        """
        length = sum(len(part) for part in parts)
        arguments: dict[str, object] = {"dataset": dataset, "chunk_id": chunk_id, "bulk_length": length}
        return int(self._call("put_chunk", arguments, parts)[0])

    def pending_file(self, dataset: str, path: bytes) -> PendingFile:
        """What is stored of an upload to `path` that was interrupted.

        Raises NotFound if there is no such dataset.
        """
        info = self._value("get_pending", {"dataset": dataset, "path": path})
        if len(info.pieces) % 16:
            raise ProtocolError("the server sent half a piece")
        pieces = np.frombuffer(info.pieces, "<u8").reshape(-1, 2).tolist()
        return PendingFile(info.version, info.size, info.mtime_ns, frozenset((p, n) for p, n in pieces))

    # -- reading -----------------------------------------------------------------------------------------

    def snapshot(
        self, dataset: str, generation: int = 0, known_digest: bytes = b"", tag: str = ""
    ) -> RemoteSnapshot:
        """The snapshot of a generation, 0 for the newest, or of a tag. Raises NotFound."""
        arguments: dict[str, object] = {
            "dataset": dataset,
            "generation": generation,
            "known_digest": known_digest,
            "tag": tag,
        }
        info, content = self._call("get_snapshot", arguments, timeout_s=SNAPSHOT_BUILD_TIMEOUT_S)
        if content is None and info.digest != known_digest:
            raise ProtocolError("the server sent no snapshot")
        return RemoteSnapshot(info.generation, info.updated_ns, info.digest, content)

    def payload(self, dataset: str, chunk_id: bytes, destination: memoryview, is_sent: bool = False) -> None:
        """Receive the payload of a chunk, as it comes, into memory of its length.

        A server of our own on this machine opens the chunk's file for us, if it has files, and it is read here;
        with `is_sent` it is made to read and send the payload itself.
        Raises NotFound, Damaged (also if it is of another length); then part of it may have been received.
        """
        self.payload_in_parts(dataset, chunk_id, len(destination), lambda: iter((destination,)), is_sent)

    def payload_in_parts(
        self,
        dataset: str,
        chunk_id: bytes,
        length_bytes: int,
        parts: Callable[[], Iterator[memoryview]],
        is_sent: bool = False,
    ) -> None:
        """As `payload`, into one piece of memory after the other, each of which is full when `parts()` is asked for the
        next, or ends: it may be the same piece again. Called anew when it has to begin from the start.
        """
        arguments: dict[str, object] = {"dataset": dataset, "chunk_id": chunk_id}

        def fetch(connection: Connection, wait_s: float) -> None:
            def destination(reply: Any) -> Iterator[memoryview]:
                if reply.bulk_length != length_bytes:
                    raise Damaged(
                        f"the server at {connection.address} has {reply.bulk_length} bytes where "
                        f"{length_bytes} belong"
                    )
                yield from parts()

            may_read = connection.gives_files and not is_sent
            if not (may_read and read_payload_file(connection, arguments, length_bytes, parts, wait_s)):
                connection.call("get_payload", arguments, (), wait_s, destination)

        self._with_connection(fetch, REQUEST_TIMEOUT_S, is_repeatable=True, is_urgent=True)

    def ranges(self, dataset: str, chunk_id: bytes, ranges: npt.NDArray[np.uint32]) -> bytearray:
        """Parts of a payload, joined, as they came.

        `ranges` has shape (n, 2): offset, length. Raises NotFound, Damaged.
        """
        arguments: dict[str, object] = {
            "dataset": dataset,
            "chunk_id": chunk_id,
            "ranges": ranges.astype("<u4").tobytes(),
        }
        received = self._bytes("get_ranges", arguments)
        expected = int(ranges[:, 1].sum(dtype=np.int64))
        if len(received) != expected:
            raise ProtocolError(f"asked the server for {expected} bytes, it sent {len(received)}")
        return received

    def stat(self, dataset: str, path: bytes) -> RemoteEntry:
        """Raises NotFound."""
        return _remote_entry(self._value("stat", {"dataset": dataset, "path": path}))

    def list_folder(self, dataset: str, path: bytes, after: bytes, limit: int) -> list[RemoteEntry]:
        """Up to `limit` entries whose names sort behind `after`. Raises NotFound."""
        arguments: dict[str, object] = {"dataset": dataset, "path": path, "after": after, "limit": limit}
        return [_remote_entry(entry) for entry in self._value("list_folder", arguments)]

    # -- users and server --------------------------------------------------------------------------------

    def add_key(self, user: str, expires_s: int = 0) -> str:
        """A new key for `user`, who is created if need be.

        Returns the content of the key file, shown only now.
        """
        return str(self._value("add_key", {"user": user, "expires_s": expires_s}, is_repeatable=False))

    def remove_key(self, user: str, key_id: str = "") -> None:
        """Remove a key, or without `key_id` the user. Raises NotFound."""
        self._value("remove_key", {"user": user, "key_id": key_id}, is_repeatable=False)

    def grant(self, user: str, dataset: str, right: str) -> None:
        """Give `right` (read, write, admin, or none) on a dataset, or on `*`.

        Raises NotFound, InvalidInput.
        """
        self._value("grant", {"user": user, "dataset": dataset, "right": right})

    def users(self) -> list[UserRecord]:
        return [
            UserRecord(
                user.name,
                tuple(KeyRecord(key.key_id, key.created_s, key.expires_s) for key in user.keys),
                dict(user.grants),
            )
            for user in self._value("list_users", {})
        ]

    def status(self) -> ServerStatus:
        return _copy(ServerStatus, self._value("status", {}))


def _copy(kind: Callable[..., _T], struct: Any) -> _T:
    """A record from a Thrift struct with the same fields in the same order."""
    return kind(*(getattr(struct, spec[1]) for spec in struct.thrift_spec.values()))


def _dataset_record(info: Any) -> DatasetRecord:
    return DatasetRecord(
        info.dataset_id,
        info.name,
        info.generation,
        info.updated_ns,
        info.files,
        info.total_bytes,
        info.chunks,
    )


def _remote_entry(info: Any) -> RemoteEntry:
    return _copy(RemoteEntry, info)


def _tls_context(ca_path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=os.path.expanduser(ca_path))
    except OSError as error:
        raise AccessDenied(f"TLS certificates {ca_path}: {error.strerror or error}") from None
