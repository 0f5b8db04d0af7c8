"""A control tree over simple contents."""

from collections.abc import Mapping
from typing import Any

import trio

from dieselfs.errors import InvalidInput
from dieselfs.importance.score_lines import LossBatch
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.control.tree import ControlTree
from dieselfs_client.mount.reading.error_log import ErrorLog


class SimpleContents:
    """Shows `counts` and `texts`, and records `declared` plans. Readers wait only if a test replaces `is_ahead`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.counts: dict[str, int] = {}
        self.texts: list[str] = []
        self.declared: list[Share] = []
        self.read_next: list[int] = []
        self.warmed = 0
        self.scored: list[LossBatch] = []
        self.is_ahead = trio.Event()
        self.is_ahead.set()
        self._snapshot = snapshot

    def stats(self) -> Mapping[str, Any]:
        return self.counts

    def info(self) -> Mapping[str, Any]:
        return {"dataset": self._snapshot.dataset}

    def cursors(self) -> list[str]:
        return self.texts

    def share(self, asked: ShareName) -> Share:
        return asked.share(lambda spec: Plan(self._snapshot, spec))

    def log(self, asked: ShareName) -> str:
        raise InvalidInput("no order has a log")

    def declare(self, share: Share) -> None:
        self.declared.append(share)

    async def order_opened(self, name: bytes) -> None:
        pass

    def is_starting(self) -> bool:
        return not self.is_ahead.is_set()

    async def ahead_of(self, share: Share) -> None:
        await self.is_ahead.wait()

    def read_ahead(self, numbers: list[int]) -> None:
        self.read_next += numbers

    def score(self, batch: LossBatch) -> None:
        if b"missing" in batch.paths:
            raise InvalidInput("missing is no file")
        self.scored.append(batch)

    async def warmth(self) -> Mapping[str, Any]:
        await self.is_ahead.wait()
        return {"warmed": self.warmed}

    def warm(self) -> None:
        self.warmed += 1


def simple_control(snapshot: Snapshot) -> ControlTree:
    return ControlTree(snapshot, SimpleContents(snapshot), ErrorLog())
