"""What must hold: which contents a file may have, given what clients were told. No I/O.

Each path has one writer, whose writes follow each other. A write without a reply may count or not, until a later one
was acknowledged, or until somebody has seen it. A copy gives its path one of several contents: those that its source
had since it began.
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
    _copied: list[tuple[bytes, bytes, "Oracle"]] = field(default_factory=list)  # folders, and to where
    _unordered: set[bytes] = field(default_factory=set)  # paths with contents of which any may be the newest

    def begin(self, path: bytes, content: Content) -> None:
        """A write is sent."""
        self.possible.setdefault(path, [None]).append(content)
        self._unordered.discard(path)
        for reading in self._readings:
            reading.allowed.setdefault(path, {None}).add(content)
        for source, target, into in self._copied:
            if path.startswith(source):
                into.begin_any(target + path.removeprefix(source), {content})

    def begin_any(self, path: bytes, contents: set[Content]) -> None:
        """A write is sent that gives a path one of these contents."""
        present = self.possible.setdefault(path, [None])
        present += sorted(contents.difference(present), key=repr)
        self._unordered.add(path)
        for reading in self._readings:
            reading.allowed.setdefault(path, {None}).update(contents)

    def acknowledge(self, path: bytes, content: Content) -> None:
        """The newest write was reported as stored."""
        self.acknowledge_any(path, {content})
        self._unordered.discard(path)

    def acknowledge_any(self, path: bytes, contents: set[Content]) -> None:
        """It was reported as stored, with one of these contents."""
        self.possible[path] = sorted(contents, key=repr)
        self.acknowledged += 1

    def begin_copy(self, source: bytes, target: bytes, into: "Oracle") -> Reading:
        """A folder is copied to a new one, `into` the dataset of this; both end with a slash. `end_copy` must
        follow.
        """
        reading = self.read()
        for path, contents in [*self.possible.items()]:
            if path.startswith(source):
                into.begin_any(target + path.removeprefix(source), set(contents))
        self._copied.append((source, target, into))
        return reading

    def end_copy(self, reading: Reading, source: bytes, target: bytes, into: "Oracle", is_done: bool) -> None:
        """It has ended. Without a reply, a server may still be at it."""
        self._readings.remove(reading)
        if not is_done:
            return
        self._copied.remove((source, target, into))
        for path, contents in reading.allowed.items():
            if path.startswith(source):
                into.acknowledge_any(target + path.removeprefix(source), contents)

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
            elif path not in self._unordered and content is not None and content == self.possible[path][-1]:
                self.possible[path] = [content]  # contents are unique
        return wrong

    def snapshot(self, generation: int, updated_ns: int, digest: bytes) -> str | None:
        """A server has sent a snapshot; what is wrong with it."""
        known = self.snapshots.setdefault((generation, updated_ns), digest)
        return None if known == digest else f"generation {generation} has two snapshots"


def _shown(content: Content) -> str:
    return "absent" if content is None else repr(content[:24])
