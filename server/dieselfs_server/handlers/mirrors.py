"""Handlers for mirrors: datasets that follow one of another store."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.limits import MIRROR_PARTS_MAX
from dieselfs.rpc.records import MirrorRecord
from dieselfs.telemetry.registry import Registry
from dieselfs_server.access.accounts import Right
from dieselfs_server.admission.room import Room
from dieselfs_server.call import Call
from dieselfs_server.datasets.mirrors import Mirrors
from dieselfs_server.metadata.interface import MetadataStore


@dataclass(eq=False)
class MirrorCalls:
    mirrors: Mirrors
    metadata: MetadataStore
    metrics: Registry
    room: Room

    def __post_init__(self) -> None:
        self._current_s: dict[str, int] = {}  # when each mirror had the newest generation last
        self.metrics.gauge(
            "mirrors.lag_s",
            "Seconds since a mirror had the newest generation of its origin, of the mirror that is furthest behind, "
            "among those that report to this process.",
            lambda: max((time.time() - seen_s for seen_s in [*self._current_s.values()]), default=None),
        )

    def forget_ended(self) -> None:
        """No lag of what was dropped, or promoted, also by another process. Blocks. Raises Unavailable, Damaged."""
        for name in [*self._current_s]:
            try:
                is_mirror = self.mirrors.is_mirror(self.metadata.dataset(name))
            except NotFound:
                is_mirror = False
            if not is_mirror:
                self._current_s.pop(name, None)

    async def keep_mirror(self, call: Call) -> MirrorRecord:
        dataset, asked = await call.dataset(), call.arguments
        self._current_s.pop(dataset.name, None)  # it may be no mirror any more
        seen = dataset, asked.origin, asked.generation
        return self._noted(await trio.to_thread.run_sync(self.mirrors.note_seen, *seen))

    async def put_mirror(self, call: Call) -> MirrorRecord:
        dataset, part, parts = await call.dataset(), call.arguments.part, call.arguments.parts
        if not 0 <= part < parts <= MIRROR_PARTS_MAX:
            raise InvalidInput(
                f"part {part} of {parts} of a snapshot is out of range (1 to {MIRROR_PARTS_MAX})"
            )
        ahead = f"the snapshot of mirror dl://{dataset.name}", (parts - part) * len(call.bulk)
        await trio.to_thread.run_sync(self.room.check_ahead, *ahead)
        if part < parts - 1:
            return await trio.to_thread.run_sync(self.mirrors.keep_part, dataset, part, call.bulk)
        sent = dataset, parts - 1, call.bulk
        return self._noted(await trio.to_thread.run_sync(self.mirrors.show, *sent))

    def _noted(self, found: MirrorRecord) -> MirrorRecord:
        self._current_s[found.dataset] = found.current_s
        return found

    async def list_mirrors(self, call: Call) -> Sequence[MirrorRecord]:
        datasets = await trio.to_thread.run_sync(self.metadata.datasets)
        rights = await call.rights([dataset.name for dataset in datasets])
        readable = [dataset for dataset in datasets if rights[dataset.name] >= Right.READ]
        return await trio.to_thread.run_sync(self.mirrors.records, readable)
