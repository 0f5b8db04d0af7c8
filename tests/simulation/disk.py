"""The virtual disks: an object store that all servers share, and a database that a crash throws back to a commit.

Each call takes time, may fail before or after its effect, and may be the last of its process.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dieselfs.chunk.bundle import is_bundle
from dieselfs.chunk.format import PREAMBLE_BYTES, decode_preamble
from dieselfs.errors import Damaged, StorageFull, Unavailable
from dieselfs_server.metadata.sqlite import connections
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.wrapper import StoreWrapper
from tests.simulation.clock import now_s
from tests.simulation.green import Killed, Process, current_process
from tests.simulation.world import World

Crash = Callable[[Process, str], None]

STORE_S = 0.003
METADATA_S = 0.0005
_CHANGES = frozenset(("put", "delete", "delete_dataset", "put_record", "create_record", "delete_record"))
_FILLS = frozenset(("put", "put_record", "create_record"))


class SimulatedStore(StoreWrapper):
    """The object store as one process reaches it. Its answers are late, missing, or lost after the effect."""

    def __init__(self, store: MemoryStore, world: World, process: Process, crash: Crash) -> None:
        super().__init__(store)
        self._world, self._process, self._crash = world, process, crash
        self._empty = MemoryStore()

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        listed = list(super().list_chunks(dataset_id, since_s))
        return iter([] if listed and self._world.fault("empty listing") else listed)

    def _pass(self, call: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]  # passes on any call
        world, name = self._world, call.__name__
        self._process.check()
        world.pause(STORE_S)
        if world.fault("store away"):
            raise Unavailable(f"object store: {name} failed")
        if name in _FILLS and world.fault("store full"):
            raise StorageFull("object store: no space left")
        if name in _CHANGES and world.fault("crash before store"):
            self._crash(self._process, name)
            raise Killed(self._process.name)
        if now_s() < world.unmounted_until_s:
            call = getattr(self._empty, name)
        result = call(*args)
        if name in _CHANGES:
            world.note(f"store {name} {_shown(args)}")
            if world.fault("crash after store"):
                self._crash(self._process, name)
                raise Killed(self._process.name)
        world.pause(STORE_S)
        if name in _CHANGES and world.fault("store answer lost"):
            raise Unavailable(f"object store: the answer to {name} is lost")
        return self._damaged(result, *args) if name == "get_range" and result else result

    def _damaged(self, content: bytes, dataset_id: bytes, chunk_id: bytes, offset: int, *_: Any) -> bytes:
        """What a damaged disk returns: other bytes, once or in each read of this place. Too few are an error."""
        world = self._world
        place = world.faults.randrange(len(content)) if not world.is_calm else 0
        if world.fault("wrong bytes"):
            content = _flipped(content, place)
        if world.fault("lasting damage") and offset + place >= self._header_end(dataset_id, chunk_id):
            world.damage.append((chunk_id, offset + place))
        if world.fault("short bytes"):
            raise Damaged(f"chunk {chunk_id.hex()}: {place} bytes where {len(content)} are expected")
        for damaged_id, damaged in world.damage if not world.is_calm else ():
            if damaged_id == chunk_id and 0 <= damaged - offset < len(content):
                content = _flipped(content, damaged - offset)
        return content

    def _header_end(self, dataset_id: bytes, chunk_id: bytes) -> int:
        """Where the payload begins. Files of a chunk whose header is lastingly damaged are gone until it is mended. A
        bundle has headers alone.
        """
        if is_bundle(chunk_id):
            return self.store.size(dataset_id, chunk_id)
        content = self.store.get_range(dataset_id, chunk_id, 0, PREAMBLE_BYTES)
        return PREAMBLE_BYTES + decode_preamble(content, "chunk", chunk_id).header_length

    def close(self) -> None:
        """The objects stay."""


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


def _shown(args: tuple[Any, ...]) -> str:
    return " ".join(
        each.hex()[-12:] if isinstance(each, bytes) and len(each) <= 16 else str(each)[:60]
        for each in args
        if isinstance(each, bytes | str)
    )


COMMITS_LOST_MAX = 3
"""A power cut throws the database back by so many commits at most."""


class Database:
    """What is on the disk of one server: the newest commits of its SQLite database, the last one is the newest."""

    def __init__(self) -> None:
        self.commits: list[bytes] = [b""]

    def committed(self, image: bytes, is_durable: bool) -> None:
        if is_durable:
            self.commits = []
        self.commits = [*self.commits, image][-COMMITS_LOST_MAX - 1 :]

    def cut_power(self, lost: int) -> int:
        """Lose the newest commits, if they are not durable; returns how many."""
        lost = min(lost, len(self.commits) - 1)
        self.commits = self.commits[: len(self.commits) - lost]
        return lost


_real_writing, _real_connect = connections.Connections.writing, connections._connect


def _connect(path: str) -> sqlite3.Connection:
    connection = _real_connect(path)
    process = current_process()
    database = process.parts.get("database") if process is not None and path == connections.MEMORY else None
    if (
        database is not None
        and process is not None
        and "is_opening" in process.parts
        and database.commits[-1]
    ):
        connection.deserialize(database.commits[-1])
    return connection


@contextmanager
def _writing(self: connections.Connections, is_durable: bool = False) -> Iterator[sqlite3.Connection]:
    database = getattr(self, "database", None)
    if database is None:
        with _real_writing(self, is_durable) as connection:
            yield connection
        return
    before = self._writer.total_changes
    with _real_writing(self, is_durable) as connection:
        yield connection
    if self._writer.total_changes != before:
        database.committed(self._writer.serialize(), is_durable)


def install() -> None:
    """SQLite in memory, whose commits go to the database of the process."""
    connections._connect = _connect
    connections.Connections.writing = _writing  # type: ignore[method-assign]  # counts commits


def open_database(process: Process, database: Database) -> SqliteMetadata:
    """The real store over the last commit."""
    process.parts |= {"database": database, "is_opening": True}
    metadata = SqliteMetadata(connections.MEMORY)
    del process.parts["is_opening"]
    metadata._connections.database = database  # type: ignore[attr-defined]  # found again by `_writing`
    return metadata


def open_copy(database: Database) -> SqliteMetadata:
    """The last commit, to look at."""
    metadata = SqliteMetadata(connections.MEMORY)
    if database.commits[-1]:
        metadata._connections._writer.deserialize(database.commits[-1])
    return metadata


class SimulatedMetadata:
    """A `MetadataStore` as one process reaches it: each call takes time, and may be its last."""

    def __init__(self, metadata: Any, world: World, process: Process, crash: Crash) -> None:
        self._metadata, self._world, self._process, self._crash = metadata, world, process, crash

    def lineage(self) -> int:
        lineage: int = self._metadata.lineage()
        return lineage

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._metadata, name)

        def passed(*args: Any, **options: Any) -> Any:
            world = self._world
            self._process.check()
            self._pause()
            if world.fault("metadata away"):
                raise Unavailable(f"metadata store: {name} failed")
            if name in ("apply", "change_notes", "change_common_note", "reserve_versions") and world.fault(
                "metadata full"
            ):
                raise StorageFull("metadata store: disk full")
            if name == "apply" and world.fault("crash before apply"):
                self._crash(self._process, name)
                raise Killed(self._process.name)
            result = call(*args, **options)
            if name == "apply":
                world.note(f"metadata apply -> {result}")
                if world.fault("crash after apply"):
                    self._crash(self._process, name)
                    raise Killed(self._process.name)
            self._pause()
            return result

        return passed

    def _pause(self) -> None:
        """The model of Redis has pauses of its own."""
        if "redis" not in self._process.parts:
            self._world.pause(METADATA_S)

    def close(self) -> None:
        if not self._process.is_dead:
            self._metadata.close()
