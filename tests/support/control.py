"""A control tree over simple contents."""

from collections.abc import Mapping
from typing import Any

import trio

from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.control_tree import ControlTree
from dieselfs_client.mount.error_log import ErrorLog


class SimpleContents:
    """Shows `counts` and `texts`, and records `declared` plans. Readers wait only if a test replaces `is_ahead`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.counts: dict[str, int] = {}
        self.texts: list[str] = []
        self.declared: list[Share] = []
        self.warmed = 0
        self.is_ahead = trio.Event()
        self.is_ahead.set()
        self._snapshot = snapshot

    def stats(self) -> Mapping[str, Any]:
        return self.counts

    def info(self) -> Mapping[str, Any]:
        return {"dataset": self._snapshot.dataset}

    def cursors(self) -> list[str]:
        return self.texts

    def plan(self, spec: PlanSpec) -> Plan:
        return Plan(self._snapshot, spec)

    def declare(self, share: Share) -> None:
        self.declared.append(share)

    async def ahead_of(self, share: Share) -> None:
        await self.is_ahead.wait()

    async def warmth(self) -> Mapping[str, Any]:
        await self.is_ahead.wait()
        return {"warmed": self.warmed}

    def warm(self) -> None:
        self.warmed += 1


def simple_control(snapshot: Snapshot) -> ControlTree:
    return ControlTree(snapshot, SimpleContents(snapshot), ErrorLog())
