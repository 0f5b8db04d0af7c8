"""Holds: what the chunks that are being stored now take of quotas, beside what is stored. No I/O.

A note of the metadata store has all holds on datasets of one owner. A chunk is stored only while it has a hold, and a
hold is added only to the very note that was compared with the quota, so two servers never give the same room twice.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import NamedTuple

from dieselfs.chunk.format import ChunkHeader, Op, Preamble
from dieselfs.errors import Damaged
from dieselfs.records import DatasetUsage
from dieselfs.rpc.limit_kinds import QUOTAS, Limits


class Amount(NamedTuple):
    """What counts towards quotas: a field for each kind of `QUOTAS`, with its name, in the order of notes."""

    stored_bytes: int = 0
    files: int = 0

    def plus(self, other: "Amount") -> "Amount":
        return Amount(*map(add, self, other))

    @classmethod
    def of_chunk(cls, preamble: Preamble, header: ChunkHeader) -> "Amount":
        """What a chunk takes once it is stored."""
        return cls(preamble.object_length, int((header.ops == Op.FILE).sum()))

    @classmethod
    def of_datasets(cls, usages: Sequence[DatasetUsage | None]) -> "Amount":
        """What datasets take together."""
        found = [usage for usage in usages if usage is not None]
        return cls(sum(usage.stored_bytes for usage in found), sum(usage.record.files for usage in found))


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
