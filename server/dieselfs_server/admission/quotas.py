"""Admits chunks within the quotas of their dataset and of its owner. This module calls the metadata store, and waits.

A hold is what a chunk that is being stored takes of quotas, beside what is stored. A note of the metadata store has all
holds on datasets of one owner. A chunk is stored only while it has a hold, which is added by compare and swap to the
very note that was compared with the quotas. So the decision has no window: of two servers that see the same room, one
must look again. The hold ends once the chunk is counted as stored, or is refused.

Servers read the table of users again only now and then. A note changes with each change of it that decides about
quotas, so a server knows when its table is too old.
"""

import json
import logging
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import add
from threading import Lock
from typing import NamedTuple

from dieselfs.chunk.cost import folders_above
from dieselfs.chunk.format import ChunkHeader, Op, Preamble
from dieselfs.chunk.ids import chunk_name, parse_chunk_name
from dieselfs.errors import (
    AccessDenied,
    AlreadyExists,
    Damaged,
    DieselfsError,
    InvalidInput,
    NotFound,
    StorageFull,
    Unavailable,
)
from dieselfs.records import DatasetRecord, DatasetUsage, NoteChange
from dieselfs.rpc.limit_kinds import QUOTAS, Limits
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Accounts, dataset_account
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.room import Room
from dieselfs_server.datasets.references import NotClaimed, StoreFull
from dieselfs_server.metadata.interface import MetadataStore


class Amount(NamedTuple):
    """What counts towards quotas: a field for each kind of `QUOTAS`, with its name, in the order of notes."""

    stored_bytes: int = 0
    files: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(*map(add, self, other))

    @classmethod
    def of_chunks(cls, chunks: Sequence[tuple[Preamble, ChunkHeader]], folders: int) -> "Amount":
        """What chunks take once they are stored. `folders`: those that come to be above their entries. They count as
        files, as do links and folders with an entry: each takes a row of metadata. A file that spans chunks has one.
        """
        made, files = set[bytes](), set[bytes]()
        for _, header in chunks:
            for path, op in zip(header.paths, header.ops.tolist(), strict=True):
                if op != Op.DELETE:
                    made.add(path)
                if op == Op.FILE:
                    files.add(path)
        return cls(
            sum(preamble.object_length for preamble, _ in chunks), max(len(made), len(files) + folders)
        )

    @classmethod
    def of_datasets(cls, usages: Sequence[DatasetUsage | None]) -> "Amount":
        """What datasets take together."""
        found = [usage for usage in usages if usage is not None]
        return cls(sum(usage.stored_bytes for usage in found), sum(usage.paths for usage in found))


@dataclass(frozen=True, slots=True)
class Hold:
    """`expires_s`: since 1970; until then the server that made it has stored the chunk, or is gone."""

    dataset: str
    chunk: str
    amount: Amount
    expires_s: int


@dataclass(frozen=True, slots=True)
class Holds:
    """The content of a note. `changes` counts them, so that no content comes back: what was read then is old."""

    changes: int = 0
    held: tuple[Hold, ...] = ()

    def with_hold(self, hold: Hold, now_s: float) -> "Holds":
        """With one more; without those that have expired, and without an earlier one of this chunk."""
        return Holds(self.changes + 1, (*self._others(hold.chunk, now_s), hold))

    def without(self, chunk: str, now_s: float) -> "Holds":
        return Holds(self.changes + 1, self._others(chunk, now_s))

    def amount(self, chunk: str, now_s: float, dataset: str | None = None) -> Amount:
        """What the other chunks take, of one dataset or of all."""
        total = Amount()
        for hold in self._others(chunk, now_s):
            if dataset in (None, hold.dataset):
                total = total.plus(hold.amount)
        return total

    def _others(self, chunk: str, now_s: float) -> tuple[Hold, ...]:
        return tuple(hold for hold in self.held if hold.chunk != chunk and now_s < hold.expires_s)

    def encode(self) -> bytes:
        rows = [[hold.dataset, hold.chunk, *hold.amount, hold.expires_s] for hold in self.held]
        return json.dumps([self.changes, rows], separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes | None) -> "Holds":
        """Raises Damaged."""
        if content is None:
            return cls()
        try:
            changes, rows = json.loads(content)
            held = tuple(
                Hold(str(dataset), str(chunk), Amount(*map(int, (size, files, *later))), int(expires_s))
                # Kinds that come later are at the end, and missing in notes of earlier servers.
                for dataset, chunk, size, files, *later, expires_s in rows
            )
            return cls(int(changes), held)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise Damaged(f"metadata store: a note about quotas is invalid: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Limit:
    """A quota, and what counts towards it. `subject`: as messages say it; `account`: as `dlcmd quota` takes it."""

    subject: str
    account: str
    quota: Limits
    used: Amount
    held: Amount

    def stored_only(self) -> "Limit":
        """Without the holds: what they take may come back."""
        return replace(self, held=Amount())

    def excess(self, asked: Amount) -> str | None:
        """Why a chunk does not fit, in a line; None if it fits."""
        taken = self.used.plus(self.held)
        for kind in QUOTAS:
            limit, has, more = (
                self.quota.get(kind.name),
                getattr(taken, kind.name),
                getattr(asked, kind.name),
            )
            if limit is not None and has + more > limit:
                return (
                    f"over quota: {self.subject} has {kind.number(has)} of {kind.text(limit)}, and "
                    f"{kind.number(more)} more are to be stored; {kind.remedy}, or ask an administrator: "
                    f"dlcmd quota set {self.account} {kind.option} {kind.metavar}"
                )
        return None


HOLD_S = 600
"""A hold that a server did not end, because it has died or the metadata store was away, ends after this time, and a
second for each further chunk of a bundle: they are applied one by one.
"""
QUOTA_WAIT_S, QUOTA_PAUSE_S = 5.0, 0.05
"""How long a chunk waits for the holds of other chunks if it would fit without them, and how often it checks."""
DELETES_LOOKED_UP = 64
"""How many paths of a chunk of deletes are looked up. If most do not exist, the chunk counts like an upload."""
FOLDERS_LOOKED_UP = 64
"""Up to this many folders for each chunk are looked up, since those that exist do not count again."""
DELETE_BYTES_MAX, DELETES_BYTES_MAX = 128, 4096
"""Size limits of a chunk of deletes beside its paths: for each path, and for the whole chunk."""
CHANGE_TRIES_MAX = 256
"""Attempts to change a note. An attempt fails only if another server has changed it."""

TABLE_NOTE = "quota-table"
"""A new random content with each change of owners and quotas. Notes of owners have a slash."""

_NOT_STORED = (AccessDenied, AlreadyExists, Damaged, InvalidInput, NotClaimed, NotFound, StoreFull)
"""Errors of a commit after which the chunk is not stored, and will not be. After others it may yet be applied."""

log = logging.getLogger(__name__)


class QuotaExceeded(StorageFull):
    """A chunk does not fit into a quota. It is not stored."""


class RoomAwaited(QuotaExceeded):
    """A chunk would fit without the holds of others, which may be given back soon."""


class Quotas:
    """Thread-safe. All methods block."""

    def __init__(
        self,
        metadata: MetadataStore,
        users: UserStore,
        metrics: Registry,
        clock: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
        room: Room | None = None,
    ) -> None:
        self._metadata = metadata
        self._users = users
        self._room = room or Room()
        self._clock = clock
        self._pause = pause
        self._locks_lock = Lock()  # guards `_locks`
        # By note: this process makes one change at a time.
        self._locks: defaultdict[str, Lock] = defaultdict(Lock)
        self._seen: bytes | None = None  # the note of the table when `users` read it last for its sake
        self._refusals = metrics.counter("quota.refusals", "Chunks that did not fit into a quota.")

    def announce(self) -> None:
        """Let all servers decide about the next chunks by the present table of users. Raises Unavailable.

        Without any quota in it, there is nothing to decide.
        """
        if not self._users.latest.quotas:
            return
        for _ in range(CHANGE_TRIES_MAX):
            content = self._metadata.common_note(TABLE_NOTE)
            if self._metadata.change_common_note(NoteChange(TABLE_NOTE, content, secrets.token_bytes(8))):
                return
        raise Unavailable("too many servers change quotas or owners at once; try again")

    def _table(self) -> Accounts:
        """The table of users, with all that was announced."""
        accounts = self._users.current()
        if not accounts.quotas:
            return accounts
        note = self._metadata.common_note(TABLE_NOTE)
        if note != self._seen:
            accounts = self._users.newest()
            self._seen = note
            return accounts
        # Read after `_seen`: as new as what another thread has read for the sake of the note.
        return self._users.latest

    @contextmanager
    def admitted(
        self,
        dataset: DatasetRecord,
        preamble: Preamble,
        header: ChunkHeader,
        wait_s: float = QUOTA_WAIT_S,
        others: Sequence[tuple[Preamble, ChunkHeader]] = (),
    ) -> Iterator[None]:
        """Store a chunk, and `others` before it, in the block. Raises QuotaExceeded before it, StorageFull for a full
        disk, and Unavailable. With a `wait_s` of 0 it does not wait for the holds of others: the caller does, after
        RoomAwaited.

        Deletes of what exists always fit, and chunks that are applied already.
        """
        chunks = (*others, (preamble, header))
        for each in chunks:
            self._room.check(*each)
        accounts, name = self._table(), dataset.name
        owner = accounts.owners.get(name, "")
        is_limited = accounts.quotas.get(dataset_account(name)) or (owner and accounts.quota_of_user(owner))
        if (
            not is_limited
            or self._metadata.has_chunk(dataset.dataset_id, preamble.chunk_id)
            or self._is_of_deletes(dataset, preamble, header)
        ):
            yield
            return
        asked = Amount.of_chunks(chunks, self._new_folders(dataset, [header for _, header in chunks]))
        # With the digest: a client that sends two chunks of one ID must not replace the hold of the larger one.
        chunk = f"{dataset.dataset_id.hex()}/{chunk_name(preamble.chunk_id)}/{preamble.header_digest.hex()}"
        note = f"quota/{owner}"
        expires_s = int(self._clock()) + HOLD_S + len(others)
        self._take(accounts, name, owner, note, Hold(name, chunk, asked, expires_s), wait_s)
        try:
            yield
        except _NOT_STORED:
            self._end(note, chunk)
            raise
        self._end(note, chunk)

    def _new_folders(self, dataset: DatasetRecord, headers: Sequence[ChunkHeader]) -> int:
        """How many folders come to be above the entries of chunks; of many, those that exist are not looked for."""
        folders = set[bytes]()
        for header in headers:
            entries = zip(header.paths, header.ops.tolist(), strict=True)
            folders |= folders_above((path for path, op in entries if op != Op.DELETE), len(header)).paths
        if len(folders) > FOLDERS_LOOKED_UP * len(headers):
            return len(folders)
        listed = (self._metadata.list_folder(dataset.dataset_id, folder, b"", 1) for folder in folders)
        return sum(not page for page in listed)

    def _is_of_deletes(self, dataset: DatasetRecord, preamble: Preamble, header: ChunkHeader) -> bool:
        """Whether a chunk has nothing but deletes, most of which delete what exists. So they cannot take more than was
        stored. A delete that is older than the entry of its path deletes nothing, and could be repeated for ever.
        """
        paths: dict[bytes, int] = dict(zip(header.paths, header.versions.tolist(), strict=True))
        if not paths or preamble.payload_length or not (header.ops == Op.DELETE).all():
            return False
        if preamble.header_length > DELETES_BYTES_MAX + sum(DELETE_BYTES_MAX + len(path) for path in paths):
            return False
        asked = random.sample(sorted(paths), min(len(paths), DELETES_LOOKED_UP))
        deleted = 0
        for path in asked:
            entry = self._metadata.lookup(dataset.dataset_id, path)
            deleted += entry is not None and entry.version < paths[path]
        return 2 * deleted >= len(asked)

    def _take(self, accounts: Accounts, name: str, owner: str, note: str, hold: Hold, wait_s: float) -> None:
        deadline_s = self._clock() + wait_s
        while True:
            with self._lock(note):
                reason, is_final = self._try(accounts, name, owner, note, hold)
            if reason is not None and not is_final and self._end_applied(note):
                with self._lock(note):
                    reason, is_final = self._try(accounts, name, owner, note, hold)
            if reason is None:
                return
            if is_final or self._clock() >= deadline_s:
                self._refusals.value += 1
                raise (QuotaExceeded if is_final else RoomAwaited)(reason)
            self._pause(QUOTA_PAUSE_S)

    def _try(
        self, accounts: Accounts, name: str, owner: str, note: str, hold: Hold
    ) -> tuple[str | None, bool]:
        """Add the hold if the chunk fits; else why it does not, and whether it would not without other holds either."""
        for _ in range(CHANGE_TRIES_MAX):
            now_s = self._clock()
            content = self._metadata.common_note(note)
            holds = Holds.decode(content)
            # After the note: a chunk without a hold there is counted here, or was not admitted yet.
            limits = self._limits(accounts, name, owner, holds, hold.chunk, now_s)
            reasons = [(limit, limit.excess(hold.amount)) for limit in limits]
            for limit, reason in reasons:
                if reason is not None:
                    return reason, limit.stored_only().excess(hold.amount) is not None
            changed = holds.with_hold(hold, now_s).encode()
            if self._metadata.change_common_note(NoteChange(note, content, changed)):
                return None, False
        raise Unavailable(f"dataset {name}: too many servers store chunks within a quota at once; try again")

    def _limits(
        self, accounts: Accounts, name: str, owner: str, holds: Holds, chunk: str, now_s: float
    ) -> list[Limit]:
        limits = []
        account = dataset_account(name)
        if quota := accounts.quotas.get(account):
            amount = Amount.of_datasets(self._metadata.usage([name]))
            held = holds.amount(chunk, now_s, name)
            limits.append(Limit(f"dataset {name}", f"dl://{name}", quota, amount, held))
        if owner and (quota := accounts.quota_of_user(owner)):
            amount = Amount.of_datasets(self._metadata.usage(accounts.datasets_of(owner)))
            limits.append(Limit(f"user {owner}", owner, quota, amount, holds.amount(chunk, now_s)))
        return limits

    def _end_applied(self, note: str) -> bool:
        """Remove the holds of chunks that are applied, which count twice: their server has died before it did so.
        Returns whether there were any.
        """
        has_ended = False
        for hold in Holds.decode(self._metadata.common_note(note)).held:
            dataset_id, name, *_ = hold.chunk.split("/")
            if self._metadata.has_chunk(bytes.fromhex(dataset_id), parse_chunk_name(name)):
                self._end(note, hold.chunk)
                has_ended = True
        return has_ended

    def _end(self, note: str, chunk: str) -> None:
        """Remove a hold; if that fails, it expires."""
        try:
            with self._lock(note):
                for _ in range(CHANGE_TRIES_MAX):
                    content = self._metadata.common_note(note)
                    changed = Holds.decode(content).without(chunk, self._clock()).encode()
                    if self._metadata.change_common_note(NoteChange(note, content, changed)):
                        return
        except DieselfsError as error:
            log.warning("a hold on a quota stays for %d s: %s", HOLD_S, error)

    def _lock(self, note: str) -> Lock:
        with self._locks_lock:
            return self._locks[note]
