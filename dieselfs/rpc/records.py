"""What the server tells about entries, users and itself, as typed records. No I/O."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """A file, folder or link as the server lists it; for looking around without a snapshot. `op` is a
    `chunk.format.Op`.
    """

    name: bytes
    op: int
    mode: int
    mtime_ns: int
    size: int
    target: bytes


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """Times in seconds since 1970; `expires_s` 0 means never."""

    key_id: str
    created_s: int
    expires_s: int


@dataclass(frozen=True, slots=True)
class UserRecord:
    """A user; `grants` maps a dataset's name, or `*` for all, to `read`, `write` or `admin`."""

    name: str
    keys: tuple[KeyRecord, ...]
    grants: dict[str, str]


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did, or would do. `chunks_waiting` are dead, but younger than the grace time."""

    chunks_rewritten: int
    chunks_removed: int
    chunks_waiting: int
    bytes_freed: int


@dataclass(frozen=True, slots=True)
class TagRecord:
    """A name for a generation that is kept; `updated_ns` is when the generation came to be, since 1970."""

    name: str
    generation: int
    updated_ns: int
    files: int
    total_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild of metadata read; `damaged` says which chunks could not be read, and why."""

    chunks: int
    entries: int
    files: int
    generation: int
    damaged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that fsck found. `kind` is chunk, file, metadata or snapshot."""

    kind: str
    what: str
    is_mended: bool


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What was checked and found; `problem_count` may be more than `problems` lists."""

    chunks: int
    entries: int
    total_bytes: int
    problem_count: int
    unmended_count: int
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """`started_s` in seconds since 1970; `store` and `metadata` as the server was told. Bulk bytes are those of
    connections that are over; `payload_bytes_given`: of chunks, whole or in ranges, all that was asked for until now.
    """

    version: str
    started_s: int
    connections: int
    requests: int
    bulk_bytes_received: int
    bulk_bytes_sent: int
    store: str
    metadata: str
    payload_bytes_given: int


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """A snapshot as the server sends it; `content` is None if the caller has it already."""

    generation: int
    updated_ns: int
    digest: bytes
    content: bytearray | None
