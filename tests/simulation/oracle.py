"""What must hold: which contents a file may have, given what clients were told. No I/O.

Each path has one writer, whose writes follow each other. A write without a reply may count or not, until a later one
was acknowledged, or until somebody has seen it.
"""

from dataclasses import dataclass, field

Content = bytes | None
"""Of a file; None: there is none."""


@dataclass(eq=False)
class Reading:
    """What a reader may see that has begun: what was possible then, and what was written since."""

    allowed: dict[bytes, set[Content]]


@dataclass(eq=False)
class Oracle:
    possible: dict[bytes, list[Content]] = field(default_factory=dict)  # the newest write is the last
    snapshots: dict[tuple[int, int], bytes] = field(default_factory=dict)  # digest by generation and its time
    acknowledged: int = 0
    _readings: list[Reading] = field(default_factory=list)

    def begin(self, path: bytes, content: Content) -> None:
        """A write is sent."""
        self.possible.setdefault(path, [None]).append(content)
        for reading in self._readings:
            reading.allowed.setdefault(path, {None}).add(content)

    def acknowledge(self, path: bytes, content: Content) -> None:
        """The newest write was reported as stored."""
        self.possible[path] = [content]
        self.acknowledged += 1

    def read(self) -> Reading:
        """A read begins."""
        reading = Reading({path: set(contents) for path, contents in self.possible.items()})
        self._readings.append(reading)
        return reading

    def end(self, reading: Reading, found: dict[bytes, bytes] | None) -> list[str]:
        """A read has ended, with these files, or None if it failed; returns what is wrong."""
        self._readings.remove(reading)
        if found is None:
            return []
        wrong = []
        for path in sorted(found.keys() | reading.allowed.keys()):
            content = found.get(path)
            if content not in reading.allowed.get(path, {None}):
                allowed = sorted(map(_shown, reading.allowed.get(path, {None})))
                wrong.append(f"{path!r} is {_shown(content)}, it may be {' or '.join(allowed)}")
            elif content is not None and content == self.possible[path][-1]:  # contents are unique
                self.possible[path] = [content]
        return wrong

    def snapshot(self, generation: int, updated_ns: int, digest: bytes) -> str | None:
        """A server has sent a snapshot; what is wrong with it."""
        known = self.snapshots.setdefault((generation, updated_ns), digest)
        return None if known == digest else f"generation {generation} has two snapshots"


def _shown(content: Content) -> str:
    return "absent" if content is None else repr(content[:24])
