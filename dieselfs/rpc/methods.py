"""The calls of `dieselfs.thrift`: one row for each, from which client, server, peers and logs take all that they need
to know about it. No I/O.

A row has no defaults, and `messages.py` compares the table with the IDL, so a call without a column is not imported.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from dieselfs.errors import ProtocolError
from dieselfs.limits import (
    CALL_BYTES_MAX,
    CHUNK_OBJECT_BYTES_MAX,
    CHUNK_TARGET_BYTES,
    COPY_SELECTION_BYTES_MAX,
    INLINE_FILE_BYTES_MAX,
    LISTING_ENTRIES_MAX,
    MIRROR_PART_BYTES,
    PEER_ANSWER_BYTES_MAX,
    PEER_CHUNKS_MAX,
    RANGES_PER_REQUEST_MAX,
    SNAPSHOT_BUILD_TIMEOUT_S,
    STRATA_BYTES_MAX,
)
from dieselfs.records import DatasetRecord
from dieselfs.rpc.limit_kinds import QUOTAS, RATES, QuotaRecord, RateRecord, UsageRecord
from dieselfs.rpc.records import (
    AttachedRecord,
    CopyReport,
    DetachReport,
    FsckReport,
    GroupRecord,
    MirrorRecord,
    PageLink,
    PinRecord,
    PurgeReport,
    RebuildReport,
    RemoteEntry,
    RepackReport,
    ServerCheck,
    ServerStatus,
    TagRecord,
    UserRecord,
)
from dieselfs.rpc.scan import VALUES_MAX

MAINTENANCE_TIMEOUT_S = 24 * 3600.0
"""Limit of a purge, a rebuild, a check, or a copy of a whole dataset."""

PREFIX_BYTES = 128
"""Enough for the version, the length of the name, and the longest name of a method."""
_NAME_AT = 8


class Work(NamedTuple):
    """How long a server may work on a call. Above 0 it sends signs of life meanwhile; with `has_progress` they have its
    progress, unless the call has an argument `with_progress` that is not set.
    """

    limit_s: float
    has_progress: bool


SHORT = Work(0.0, False)
BUILD = Work(SNAPSHOT_BUILD_TIMEOUT_S, False)
MAINTENANCE = Work(MAINTENANCE_TIMEOUT_S, False)
JOB = Work(MAINTENANCE_TIMEOUT_S, True)


class Sizes(NamedTuple):
    """Limits of a call in bytes, of the bulk bytes behind it, and of the values in its reply, with those inside others:
    each value costs the receiver hundreds of bytes.
    """

    call_bytes: int
    bulk_bytes: int
    reply_values: int


SMALL = Sizes(CALL_BYTES_MAX, 0, 8_192)
LISTING = Sizes(CALL_BYTES_MAX, 0, VALUES_MAX)
PEER_BULK = Sizes(CALL_BYTES_MAX, PEER_ANSWER_BYTES_MAX, 8_192)
CHUNK = Sizes(CALL_BYTES_MAX, CHUNK_OBJECT_BYTES_MAX, 8_192)
FILE = Sizes(CALL_BYTES_MAX + INLINE_FILE_BYTES_MAX, 0, 8_192)
SELECTION = Sizes(CALL_BYTES_MAX + COPY_SELECTION_BYTES_MAX, 0, 8_192)
MIRRORED = Sizes(CALL_BYTES_MAX, MIRROR_PART_BYTES, 8_192)
STRATA = Sizes(CALL_BYTES_MAX, STRATA_BYTES_MAX, 8_192)
RANGES = Sizes(CALL_BYTES_MAX + 8 * RANGES_PER_REQUEST_MAX, 0, 8_192)
EXTENTS = Sizes(CALL_BYTES_MAX + 8 * PEER_CHUNKS_MAX + 8 * RANGES_PER_REQUEST_MAX, 0, 8_192)

READ, WRITE, ADMIN = "read", "write", "admin"
"""The caller needs this right on the dataset that the call names."""
SERVER_ADMIN = "server admin"
"""The caller must be an administrator of the server: `admin` on all datasets."""
ANYONE = "anyone"
"""Any user may call; the reply has what this user may see."""
SOME_RIGHT = "some right"
"""The caller needs a right on any dataset."""
HANDLER = "handler"
"""The handler decides: it depends on more than the arguments."""

ORDINARY = "ordinary"
READER = "reader"
"""A reader waits for bytes of chunks: a silent server is left sooner, and failed servers are tried again."""
RENEWAL = "renewal"
"""A lease must be renewed in time."""

Cost = int | Callable[[Any], int]
"""What a call costs a server, in microseconds in which others wait for it: of threads, of the processor, of stores. Of
the arguments, or the same for each call. It is a model: only relations count, and that no call costs far more than it
says.
"""

STEP = 500
"""A reply from memory, or a few bytes of a chunk."""
LOOKUP = 8_000
"""A thread that asks the metadata store, or changes something small: a server has few of them."""
TABLE = 20_000
"""The whole table of users or of datasets."""
START = 8_000
"""A job, or a snapshot that may have to be built: it has limits of its own while it runs."""
_FEW = 64
"""Up to this many numbers are added in less time than NumPy takes to start."""
RANGE_NS, ENTRY_US, READ_BYTES_PER_US, WRITE_BYTES_PER_US = 2_000, 20, 2_000, 1_000


def _ranges_cost(arguments: Any) -> int:
    """By the number of ranges and their bytes."""
    count = len(arguments.ranges) // 8
    lengths = memoryview(arguments.ranges)[: 8 * count].cast("I")[1::2]
    if count <= _FEW:  # also when the table is checked: dlcmd starts without numpy
        length_bytes = sum(lengths)
    else:
        import numpy as np

        length_bytes = int(np.asarray(lengths).sum(dtype=np.int64))
    return STEP + count * RANGE_NS // 1_000 + length_bytes // READ_BYTES_PER_US


def _payload_cost(_: Any) -> int:
    return STEP + CHUNK_TARGET_BYTES // READ_BYTES_PER_US


def _opened_cost(arguments: Any) -> int:
    """That of as many calls that open one file."""
    return STEP * (len(arguments.chunk_ids) // 16 + 1)


def _shared_cost(arguments: Any) -> int:
    wanted_bytes: int = arguments.wanted_bytes
    return STEP + min(max(wanted_bytes, 0), CHUNK_OBJECT_BYTES_MAX) // READ_BYTES_PER_US


def _chunk_cost(arguments: Any) -> int:
    bulk_length: int = arguments.bulk_length
    return STEP + max(bulk_length, 0) // WRITE_BYTES_PER_US


def _file_cost(arguments: Any) -> int:
    return LOOKUP + len(arguments.content) // WRITE_BYTES_PER_US


def _listing_cost(arguments: Any) -> int:
    limit: int = arguments.limit
    return LOOKUP + min(max(limit, 0), LISTING_ENTRIES_MAX) * ENTRY_US


ONCE, REPEATABLE = False, True

Needs = str | Callable[[Any], str]


class Method(NamedTuple):
    """A call. `reply`: the record, or of a list the records, that it returns; None without one, and for a struct
    that the handler fills. `needs`: the right that the caller must have, or a function of the arguments that
    returns it. `urgency`: ORDINARY, READER or RENEWAL. A call that is not repeatable is not sent again once a
    server may have it. `cost`: by which a server admits it in the turn of its user. `audited`: arguments that the
    audit log has of each call, also of a refused one. With None, the log has only calls to which the handler adds
    something.
    """

    name: str
    reply: type[Any] | None
    needs: Needs
    work: Work
    is_repeatable: bool
    urgency: str
    sizes: Sizes
    cost: Cost
    audited: tuple[str, ...] | None

    def cost_of(self, arguments: Any) -> int:
        return self.cost if isinstance(self.cost, int) else self.cost(arguments)


def _by(argument: str, needs: str, otherwise: str) -> Needs:
    """What a call needs if an argument is set, and otherwise."""
    return lambda arguments: needs if getattr(arguments, argument) else otherwise


_purge_needs = _by("is_dry_run", WRITE, ADMIN)
_fsck_needs = _by("is_repair", ADMIN, WRITE)
_keys_needs = _by("known", ADMIN, WRITE)
_copy_needs = _by("is_move", WRITE, READ)
_check_needs = _by("is_whole", SERVER_ADMIN, SOME_RIGHT)

_COPIED = ("dataset", "tag", "is_dry_run", "path", "target_dataset", "target_path", "is_move")
_QUOTA = ("account", *(kind.name for kind in QUOTAS))
_RATE = ("user", *(kind.name for kind in RATES))

FREE = 0
"""Without a turn: the handshake, and what nodes of a job, which know its secret, ask each other."""

_HANDSHAKE = (
    Method("hello", None, ANYONE, SHORT, ONCE, ORDINARY, SMALL, FREE, None),
    Method("prove", None, ANYONE, SHORT, ONCE, ORDINARY, SMALL, FREE, None),
)

_PEER = (
    Method("ping", None, ANYONE, SHORT, REPEATABLE, ORDINARY, SMALL, FREE, None),
    Method("get_warmth", None, ANYONE, SHORT, REPEATABLE, ORDINARY, SMALL, FREE, None),
    Method("get_held", None, ANYONE, SHORT, REPEATABLE, ORDINARY, SMALL, FREE, None),
    Method("get_report", None, ANYONE, SHORT, REPEATABLE, ORDINARY, SMALL, FREE, None),
    Method("get_extents", None, ANYONE, SHORT, REPEATABLE, READER, EXTENTS, FREE, None),
    Method("get_samples", None, ANYONE, SHORT, REPEATABLE, READER, SMALL, FREE, None),
    Method("put_samples", None, ANYONE, SHORT, REPEATABLE, ORDINARY, PEER_BULK, FREE, None),
    Method("put_scores", None, ANYONE, SHORT, REPEATABLE, ORDINARY, PEER_BULK, FREE, None),
    Method("get_order", None, ANYONE, SHORT, REPEATABLE, ORDINARY, SMALL, FREE, None),
)

_SERVER = (
    # -- datasets --
    Method("create_dataset", DatasetRecord, WRITE, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("name",)),
    Method("get_dataset", DatasetRecord, READ, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("list_datasets", DatasetRecord, ANYONE, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("list_lost_datasets", str, SOME_RIGHT, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("drop_dataset", None, ADMIN, SHORT, ONCE, ORDINARY, SMALL, TABLE, ("name",)),
    # -- maintenance --
    Method("purge", PurgeReport, _purge_needs, JOB, ONCE, ORDINARY, SMALL, START, ("dataset", "is_dry_run")),
    Method("list_attached", AttachedRecord, WRITE, MAINTENANCE, ONCE, ORDINARY, SMALL, START, None),
    Method("detach", DetachReport, WRITE, MAINTENANCE, ONCE, ORDINARY, SMALL, START, ("dataset",)),
    Method("copy_attached", int, _purge_needs, JOB, ONCE, ORDINARY, SMALL, START, ("dataset", "is_dry_run")),
    Method(
        "repack", RepackReport, _purge_needs, JOB, ONCE, ORDINARY, STRATA, START, ("dataset", "is_dry_run")
    ),
    Method("rebuild", RebuildReport, ADMIN, JOB, ONCE, ORDINARY, SMALL, START, ("dataset", "is_forced")),
    Method("object_bytes", int, WRITE, MAINTENANCE, REPEATABLE, ORDINARY, SMALL, START, None),
    Method("fsck", FsckReport, _fsck_needs, JOB, ONCE, ORDINARY, SMALL, START, None),
    # -- tags and leases --
    Method("put_tag", TagRecord, WRITE, BUILD, REPEATABLE, ORDINARY, SMALL, START, ("dataset", "tag")),
    Method("list_tags", TagRecord, READ, SHORT, REPEATABLE, ORDINARY, LISTING, LOOKUP, None),
    Method("delete_tag", None, WRITE, SHORT, ONCE, ORDINARY, SMALL, LOOKUP, ("dataset", "tag")),
    Method("keep_mirror", MirrorRecord, ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("put_mirror", MirrorRecord, ADMIN, BUILD, REPEATABLE, ORDINARY, MIRRORED, START, ("dataset",)),
    Method("promote_mirror", MirrorRecord, ADMIN, MAINTENANCE, ONCE, ORDINARY, SMALL, START, ("dataset",)),
    Method("list_mirrors", MirrorRecord, ANYONE, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("pin", None, READ, SHORT, REPEATABLE, RENEWAL, SMALL, STEP, None),
    Method("list_pins", PinRecord, READ, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    # -- keys of encrypted datasets --
    Method("get_keys", bytes, READ, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("put_keys", None, _keys_needs, SHORT, ONCE, ORDINARY, FILE, LOOKUP, ("dataset",)),
    # -- jobs --
    Method("join_job", None, READ, SHORT, REPEATABLE, RENEWAL, SMALL, STEP, None),
    Method("leave_job", None, READ, SHORT, REPEATABLE, RENEWAL, SMALL, STEP, None),
    # -- writing --
    Method("reserve_versions", int, WRITE, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("put_chunk", int, WRITE, SHORT, REPEATABLE, ORDINARY, CHUNK, _chunk_cost, None),
    Method("copy_entries", CopyReport, _copy_needs, JOB, ONCE, ORDINARY, SELECTION, START, _COPIED),
    Method("get_pending", None, WRITE, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("write_file", int, WRITE, SHORT, REPEATABLE, ORDINARY, FILE, _file_cost, None),
    # -- reading --
    Method("get_snapshot", None, READ, BUILD, REPEATABLE, ORDINARY, SMALL, START, None),
    Method("get_payload", None, READ, SHORT, REPEATABLE, READER, SMALL, _payload_cost, None),
    Method("open_payload", None, READ, SHORT, REPEATABLE, READER, SMALL, STEP, None),
    Method("open_payloads", None, READ, SHORT, REPEATABLE, READER, SMALL, _opened_cost, None),
    Method("share_payloads", None, READ, SHORT, REPEATABLE, READER, SMALL, _shared_cost, None),
    Method("get_ranges", None, READ, SHORT, REPEATABLE, READER, RANGES, _ranges_cost, None),
    Method("get_block_checksums", None, READ, SHORT, REPEATABLE, READER, SMALL, _payload_cost, None),
    Method("stat", RemoteEntry, READ, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("list_folder", RemoteEntry, READ, SHORT, REPEATABLE, ORDINARY, LISTING, _listing_cost, None),
    Method("read_file", bytes, READ, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    # -- users --
    Method("server_pin", bytes, ANYONE, SHORT, REPEATABLE, ORDINARY, SMALL, STEP, None),
    Method("add_key", None, HANDLER, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("user", "key_id")),
    Method(
        "add_token",
        None,
        HANDLER,
        SHORT,
        REPEATABLE,
        ORDINARY,
        SMALL,
        LOOKUP,
        ("key_id", "datasets", "right"),
    ),
    Method("expire_key", None, HANDLER, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("key_id",)),
    Method("remove_key", None, HANDLER, SHORT, ONCE, ORDINARY, SMALL, LOOKUP, ("user", "key_id")),
    Method("bar_user", None, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("user", "is_barred")),
    Method(
        "grant", None, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("dataset", "user", "right")
    ),
    Method("list_users", UserRecord, ANYONE, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("add_members", None, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("group", "users")),
    Method("remove_members", None, SERVER_ADMIN, SHORT, ONCE, ORDINARY, SMALL, LOOKUP, ("group", "users")),
    Method("list_groups", GroupRecord, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    # -- quotas --
    Method("usage", UsageRecord, HANDLER, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("set_quota", None, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, _QUOTA),
    Method("list_quotas", QuotaRecord, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("set_rate", None, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, _RATE),
    Method("list_rates", RateRecord, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, LISTING, TABLE, None),
    Method("set_owner", None, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, ("dataset", "user")),
    # -- the server and its web page --
    Method("status", ServerStatus, SERVER_ADMIN, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("check_server", ServerCheck, _check_needs, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("open_page", PageLink, SOME_RIGHT, SHORT, REPEATABLE, ORDINARY, SMALL, LOOKUP, None),
    Method("keep_page", None, SOME_RIGHT, SHORT, REPEATABLE, ORDINARY, SMALL, STEP, None),
)

METHODS = {row.name: row for row in (*_HANDSHAKE, *_PEER, *_SERVER)}
SERVER_METHODS = frozenset(row.name for row in (*_HANDSHAKE, *_SERVER))
PEER_METHODS = frozenset(row.name for row in (*_HANDSHAKE, *_PEER))
"""Calls between the nodes of a job; except for the handshake, a server answers none of them."""


def check_length(prefix: bytes | bytearray, length_bytes: int) -> None:
    """Raise ProtocolError if a message that begins with `prefix` (PREFIX_BYTES) is longer than its method allows."""
    name_end = _NAME_AT + int.from_bytes(prefix[4:_NAME_AT], "big")
    name = prefix[_NAME_AT:name_end].decode("ascii", "replace")
    limit_bytes = METHODS[name].sizes.call_bytes if name in METHODS else CALL_BYTES_MAX
    if length_bytes > limit_bytes:
        raise ProtocolError(f"a call of {name[:40]!r} has {length_bytes} bytes, limit {limit_bytes}")
