"""What must hold in a job: no wrong byte, each chunk once, one master for a node, one placement. No I/O of its own."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dieselfs.cluster.member import Member
from tests.simulation.green import Process
from tests.simulation.world import World

READ_S_MAX = 60.0
"""A read ends within this time while servers answer: it waits for a master, for a peer, then for a server."""


@dataclass(eq=False)
class JobOracle:
    """- `contents`: of all files, by path; `programs`: the names of all
    - `sent`: how often servers have sent each chunk, or a part of it
    """

    world: World
    contents: dict[str, bytes]
    programs: list[str] = field(default_factory=list)
    sent: Counter[int] = field(default_factory=Counter)
    reads: int = 0
    slowest_s: float = 0.0
    failures_excused: bool = False
    """Whether servers may fail, so reads may."""

    def came(self, chunk: int) -> None:
        self.sent[chunk] += 1

    def check_read(
        self, what: str, path: str, content: bytes, begin: int = 0, end: int | None = None
    ) -> None:
        self.reads += 1
        if content != self.contents[path][begin:end]:
            self.world.violated(f"{what}: wrong bytes of {path}: {content[:24]!r}, {len(content)} bytes")

    def took(self, what: str, seconds: float, limit_s: float) -> None:
        self.slowest_s = max(self.slowest_s, seconds)
        if seconds > limit_s:
            self.world.violated(f"{what} took {seconds:.0f} s")

    def failed(self, what: str, error: Exception) -> None:
        self.world.note(f"{what}: {type(error).__name__}: {error}")
        if not self.failures_excused:
            self.world.violated(f"{what} failed although servers answer: {error!r}")

    def check_once(self, what: str, before: Counter[int] | None = None, limit: int = 1) -> None:
        """No chunk was sent more often than `limit`, since `before`."""
        since = self.sent - (before or Counter())
        if again := {chunk: count for chunk, count in sorted(since.items()) if count > limit}:
            self.world.violated(f"{what}: servers sent chunks again, by number: {again}")

    def check_masters(self, living: Iterable[Process]) -> None:
        """Called when a process becomes a node master."""
        numbers = [process.number for process in living if "pool" in process.parts]
        if len(numbers) > 1:
            self.world.violated(f"two node masters on one machine: processes {numbers}")

    def check_agreement(
        self, masters: list[tuple[Process, Any]], lists: list[tuple[str, tuple[Member, ...]]]
    ) -> None:
        """All pools know all masters, and each chunk has one owner. `lists`: what attached processes know."""
        expected = sorted(pool._membership._me.incarnation.hex()[:8] for _, pool in masters)
        for process, pool in masters:
            lists = [*lists, (f"master {process.number} of {process.name}", pool.members)]
            if suspected := sorted(pool.peers.detector.suspected()):
                self.world.violated(f"{process.name} suspects {suspected}, which live")
        for who, members in lists:
            known = sorted(member.incarnation.hex()[:8] for member in members)
            if known != expected:
                self.world.violated(f"{who} knows the members {known}, there are {expected}")
        for chunk in range(masters[0][1]._snapshot.chunk_count if masters else 0):
            owners = [process.name for process, pool in masters if pool._ownership.owner(chunk) is None]
            if len(owners) != 1:
                self.world.violated(f"chunk {chunk} has the owners {owners}")
