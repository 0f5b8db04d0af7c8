"""Replies of the server about entries, users and itself, as typed records. No I/O.

Named tuples, because they are made five times as fast as data classes when the module is imported.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple


class RemoteEntry(NamedTuple):
    """A file, folder or link in a listing of the server, without a snapshot. `op` is a `chunk.format.Op`."""

    name: bytes
    op: int
    mode: int
    mtime_ns: int
    size: int
    target: bytes


class PayloadFile(NamedTuple):
    """A file of the server with a payload, `length` bytes from `start` on; `descriptor` belongs to the receiver.
    `checksums`: those of its blocks that came with it.
    """

    descriptor: int
    start: int
    length: int
    checksums: bytes = b""


class SharedFile(NamedTuple):
    """A payload in memory of the server: `descriptor` is of sealed memory, and belongs to the receiver. `place`: of the
    chunk in the request; `digest`: of the payload, which the server has verified; `is_kept`: the server keeps it.
    """

    place: int
    length: int
    digest: bytes
    is_kept: bool
    descriptor: int


class KeyRecord(NamedTuple):
    """Times in seconds since 1970; `expires_s` 0 means never. `grants`: the most that the key may do, as of a user;
    empty: all that the user may.
    """

    key_id: str
    created_s: int
    expires_s: int
    grants: dict[str, str]


class UserRecord(NamedTuple):
    """A user; `grants` maps a dataset's name, or `*` for all, to `read`, `write` or `admin`. `groups`: those of which
    the user is by the identity provider.
    """

    name: str
    keys: tuple[KeyRecord, ...]
    grants: dict[str, str]
    is_barred: bool = False
    groups: tuple[str, ...] = ()


class GroupRecord(NamedTuple):
    """A group of users; `grants` as of a user. The group `everyone` has all users, and no list of members."""

    name: str
    members: tuple[str, ...]
    grants: dict[str, str]


class PurgeReport(NamedTuple):
    """The result of a purge. `chunks_waiting` are dead, but younger than the grace time, or held.

    `held_by` names the tags and pins that hold chunks beyond the grace time: `tag v1`, `pin of HOLDER`.
    """

    chunks_rewritten: int
    chunks_removed: int
    chunks_waiting: int
    bytes_freed: int
    held_by: tuple[str, ...] = ()


class RepackReport(NamedTuple):
    """The result of a repack: of `chunks`, whose `files` were copied into `chunks_written`, and `chunks_kept` as they
    were. `needed_bytes`: what the copies take beside the old chunks, until a purge.
    """

    chunks: int
    chunks_kept: int
    chunks_written: int
    files: int
    needed_bytes: int
    generation: int


class Existing(IntEnum):
    """What a copy does with a file or link that exists at its new path with other content."""

    REFUSE = 0
    """Nothing is copied."""
    KEEP = 1
    REPLACE = 2


class CopyRequest(NamedTuple):
    """What to copy, by the servers: a file, a link, or a folder with its content. `target_path` is the new path itself,
    not a folder to copy into. `tag`: of the source; empty for its newest generation. `is_move`: delete the source
    afterwards. `is_merged`: a folder may be copied into one that exists. `selection`: the entries to copy, if not all:
    a bit for each node of the source's snapshot, bit `i % 8` of byte `i // 8`; `generation`: of that snapshot.
    """

    dataset: str
    path: bytes
    target_dataset: str
    target_path: bytes
    tag: str = ""
    existing: int = Existing.REFUSE
    is_move: bool = False
    is_merged: bool = False
    is_dry_run: bool = False
    generation: int = 0
    selection: bytes = b""


class CopyReport(NamedTuple):
    """The result of a copy, or of its dry run. `skipped` entries exist already, with the same content, or are kept.
    `paths`: the first new paths, in a dry run.
    """

    copied: int
    copied_bytes: int
    skipped: int
    deleted: int
    generation: int
    paths: tuple[bytes, ...] = ()


class CopyProgress(NamedTuple):
    """Entries and bytes of files: stored until now, and in all. Of maintenance: chunks, without bytes."""

    done: int
    done_bytes: int
    total: int
    total_bytes: int


class AttachedRecord(NamedTuple):
    """A source that chunks are attached to. `files` and `total_bytes` are those that count in the newest generation;
    `trouble`: why it cannot be read, or empty.
    """

    location: bytes
    size_bytes: int
    mark: str
    chunks: int
    files: int
    total_bytes: int
    trouble: str


class DetachReport(NamedTuple):
    """The result of a detach: the removed entries, the sources that had them, the generation afterwards."""

    entries: int
    sources: int
    generation: int


class TagRecord(NamedTuple):
    """A name for a generation that is kept; `updated_ns`: when the generation was made, since 1970."""

    name: str
    generation: int
    updated_ns: int
    files: int
    total_bytes: int
    digest: bytes


class MirrorRecord(NamedTuple):
    """A dataset that follows `origin`, a dataset of another store. `generation`: the one that it shows, 0 for none;
    `newest`: the newest that its origin had when it was last seen; `current_s`: when these were equal last, in seconds
    since 1970. `signer`, `signature`: of the origin's servers, for the digest of the snapshot.
    """

    dataset: str
    origin: str
    generation: int
    updated_ns: int
    newest: int
    current_s: int
    digest: bytes
    signer: bytes
    signature: bytes


class PageLink(NamedTuple):
    """The web page of a server, and a token with which one browser logs in, once, within `expires_s`. `fingerprint`:
    SHA-256 of the certificate that the browser gets; empty without TLS.
    """

    address: str
    token: str
    fingerprint: bytes
    expires_s: int


class PinRecord(NamedTuple):
    """A lease of a reader on a generation; `holder`: `USER/NODE PROCESS PATH`, `expires_ns` since 1970."""

    holder: str
    generation: int
    expires_ns: int


class RebuildReport(NamedTuple):
    """The result of a rebuild; `damaged` has the chunks that could not be read, with the reasons."""

    chunks: int
    entries: int
    files: int
    generation: int
    damaged: tuple[str, ...]


class Problem(NamedTuple):
    """A problem that fsck found. `kind` is chunk, file, metadata, snapshot, name or clock."""

    kind: str
    what: str
    is_mended: bool


class FsckReport(NamedTuple):
    """The result of fsck; `problem_count` may be larger than the number of `problems`."""

    chunks: int
    entries: int
    total_bytes: int
    problem_count: int
    unmended_count: int
    problems: tuple[Problem, ...]


class ServerStatus(NamedTuple):
    """`started_s` in seconds since 1970; `store` and `metadata` as configured; `metrics` by name, since the start.
    `report`: JSON of a `telemetry.registry.Report` with the families that `telemetry.activity` reads.
    """

    version: str
    started_s: int
    store: str
    metadata: str
    metrics: Mapping[str, int]
    report: bytes


OK, WARNING, FAILURE = "ok", "warning", "failure"
"""States of a check."""


class CheckRecord(NamedTuple):
    """What a check found. A warning costs speed or comfort; with a failure something does not work. `fix`: what to
    change; empty if nothing needs to be changed.
    """

    name: str
    state: str
    text: str
    fix: str = ""


class ServerCheck(NamedTuple):
    """`time_ns`: the clock of the server. `checks`: of what it depends on, if they were asked for."""

    time_ns: int
    checks: tuple[CheckRecord, ...]


class RemoteSnapshot(NamedTuple):
    """A snapshot from the server. `content` is None if the caller has this digest, empty if it has gone elsewhere;
    it is a delta from the snapshot with `base_digest` if that is not empty. `statement`: of freshness, of the newest
    one; empty from an older server.
    """

    generation: int
    updated_ns: int
    digest: bytes
    content: bytearray | None
    base_digest: bytes = b""
    statement: bytes = b""
