"""What has to be stored and deleted for what programs have written through a mount. No I/O.

Overlayfs keeps it in an *upper* folder. An entry there covers the one with the same path in the *base*, which is the
generation that is mounted. A *whiteout* stands for a deleted entry of the base; an *opaque* folder shows nothing of
what the base has below its path; one with a *redirect*, which was renamed, shows what the base has below another path.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from dieselfs.snapshot.reader import Stat


class Key(NamedTuple):
    """What changes with each change of an entry. Of a folder, all but `mode` is 0: what is in it has keys of its own.
    `mode` has the type bits; `inode`: another file may have been renamed to the path.
    """

    mode: int
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        if stat.S_ISDIR(status.st_mode):
            return cls(status.st_mode)
        return cls(status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)

    def is_stored_as(self, stored: Stat | None) -> bool:
        """Whether a stored entry has this type and mode, and, unless it is a folder, this size and time."""
        if stored is None or self.mode != stored.mode:
            return False
        return stored.is_folder or (self.size, self.mtime_ns) == (stored.size, stored.mtime_ns)


class Found(NamedTuple):
    """An entry of the upper folder. `redirect`: a path of the base, with a slash before it; or another name, in the
    folder of the base that the folder above shows; empty without one.
    """

    path: bytes
    key: Key
    is_whiteout: bool = False
    is_opaque: bool = False
    redirect: bytes = b""

    def may_be_renamed(self, done: "Done") -> bool:
        """Whether it may have bytes that were stored under another path."""
        before = done.stored.get(self.path)
        return before is None or before.inode != self.key.inode


class Base(Protocol):
    """A generation of the dataset, with the paths that the mount shows."""

    def stat(self, path: bytes) -> Stat | None: ...

    def below(self, path: bytes) -> Iterable[bytes]:
        """The paths below a folder; none for anything else."""


@dataclass
class Done:
    """What the mount has stored and deleted so far, by path; without what has been replaced since.

    - `moved`: where an entry of the base is stored that a renamed folder shows, with its path in the base
    - `begun`: what a round was about to delete, or to store under a new path, until it is noted that it has; with the
      path in the base of what was there, or was to be moved there, and empty for a new entry
    """

    stored: dict[bytes, Key] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)
    moved: dict[bytes, bytes] = field(default_factory=dict)
    begun: dict[bytes, bytes] = field(default_factory=dict)

    def expected(self, path: bytes, base: Base) -> Key | Stat | None:
        """What the dataset has at a path, unless another writer has changed it."""
        if path in self.deleted:
            return None
        return self.stored.get(path) or base.stat(self.moved.get(path, path))

    def begin(self, work: "Changes", base: Base) -> bool:
        """Whether something is new in `begun`."""
        known = self.stored.keys() | self.moved.keys()
        put = {found.path for found in work.put} - known
        put = {path for path in put if path in self.deleted or base.stat(path) is None}
        before = len(self.begun)
        self.begun = {path: path for path in work.deleted} | self.begun | dict.fromkeys(put, b"") | work.moved
        return len(self.begun) > before or bool(work.moved)

    def note(self, stored: Mapping[bytes, Key], moved: Mapping[bytes, bytes], deleted: Set[bytes]) -> None:
        for path in (*deleted, *stored, *moved):
            for paths in self.stored, self.moved, self.begun:
                paths.pop(path, None)
        self.deleted = (self.deleted | deleted) - stored.keys() - moved.keys()
        self.stored.update(stored)
        self.moved.update(moved)


class Remains:
    """Stands in for a base that is gone: the newest generation as it was before the mount changed it."""

    def __init__(self, newest: Base, done: Done) -> None:
        self._newest = newest
        begun = {path for path, source in done.begun.items() if source != path}
        self._places = {source: path for path, source in done.moved.items() if path not in done.begun}
        for path, source in done.begun.items():  # a round was interrupted after or before it moved this
            if source and newest.stat(source) is None and newest.stat(path) is not None:
                self._places[source] = path
        self._hidden = done.stored.keys() | done.moved.keys() | begun | self._places.keys()
        self._below = defaultdict[bytes, list[bytes]](list)  # what is elsewhere now, by the folders above it
        for source in self._places:
            above = source
            while above := os.path.dirname(above):
                self._below[above].append(source)

    def place(self, path: bytes) -> bytes:
        """Where the newest generation has what the base had at `path`."""
        return self._places.get(path, path)

    def stat(self, path: bytes) -> Stat | None:
        if path in self._places:
            return self._newest.stat(self._places[path])
        return None if path in self._hidden else self._newest.stat(path)

    def below(self, path: bytes) -> Iterable[bytes]:
        yield from (each for each in self._newest.below(path) if each not in self._hidden)
        yield from self._below.get(path, ())


@dataclass(frozen=True, slots=True)
class Changes:
    """`moved`: what renamed folders show of the base, by its path in the dataset, and its path in the base; `folders`:
    such folders, and what each shows. `deleted`: each folder comes after what was in it. `refused`: what no dataset can
    have.
    """

    put: list[Found]
    moved: dict[bytes, bytes]
    folders: list[tuple[bytes, bytes]]
    deleted: list[bytes]
    refused: list[bytes]

    def paths(self) -> Iterable[bytes]:
        """All that change in the dataset."""
        yield from (found.path for found in self.put)
        yield from self.moved
        yield from self.deleted


def changes(entries: Iterable[Found], done: Done, base: Base) -> Changes:
    """What makes the dataset equal to `base` with the upper folder's `entries` over it, given what is done."""
    upper = {found.path: found for found in sorted(entries)}  # each folder before what is in it
    here: dict[bytes, Found] = {}
    bases: dict[bytes, bytes | None] = {b"": b""}
    folders, refused, hidden = [], [], set[bytes]()
    for path, found in upper.items():
        if found.is_whiteout:
            hidden.update(base.below(path))
            if base.stat(path) is not None:
                hidden.add(path)
            continue
        if stat.S_IFMT(found.key.mode) not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            refused.append(path)
            continue
        here[path] = found
        bases[path] = shown = _shown(found, bases, base)
        if shown != path:
            hidden.update(base.below(path))
            if shown is not None:
                folders.append((path, shown))
    moved = dict(_moved(folders, upper, base))
    touched = done.stored.keys() | done.moved.keys() | done.begun.keys() | done.deleted
    # A folder may have got its old name back.
    visible = touched - here.keys() - moved.keys() - hidden
    moved |= {path: path for path in visible if base.stat(path) is not None}
    gone = (hidden | touched) - here.keys() - moved.keys() - (done.deleted - done.begun.keys())
    put = [found for found in here.values() if _is_new(found, done, base)]
    moved = {path: source for path, source in moved.items() if _is_elsewhere(path, source, done)}
    return Changes(put, moved, folders, sorted(gone, reverse=True), refused)


def _shown(found: Found, bases: Mapping[bytes, bytes | None], base: Base) -> bytes | None:
    """The folder of the base whose content an entry shows; None if there is none."""
    if found.is_opaque or not stat.S_ISDIR(found.key.mode):
        return None
    above, name = os.path.split(found.path)
    if found.redirect.startswith(b"/"):
        path = found.redirect[1:]
    elif (folder := bases.get(above)) is not None:
        path = os.path.join(folder, found.redirect or name)
    else:
        return None
    stored = base.stat(path)
    is_there = stored is not None and stored.is_folder
    return path if is_there or any(True for _ in base.below(path)) else None


def _moved(
    folders: Iterable[tuple[bytes, bytes]], upper: Mapping[bytes, Found], base: Base
) -> Iterator[tuple[bytes, bytes]]:
    """What folders show below them of the base, where the upper folder has nothing: its path, and that in the base."""
    for folder, shown in folders:
        for source in base.below(shown):
            path = above = folder + source[len(shown) :]
            while above != folder and above not in upper:
                above = os.path.dirname(above)
            if above == folder:
                yield path, source


def _is_elsewhere(path: bytes, source: bytes, done: Done) -> bool:
    return done.moved.get(path) != source or path in done.begun


def _is_new(found: Found, done: Done, base: Base) -> bool:
    if found.path in done.deleted or found.path in done.begun:
        return True
    if found.path in done.stored:
        return done.stored[found.path] != found.key
    return not found.key.is_stored_as(base.stat(done.moved.get(found.path, found.path)))


def is_other(current: Stat | None, expected: Key | Stat | None) -> bool:
    """Whether what the dataset has at a path is not what was expected there."""
    if current is None or expected is None:
        return current is not expected
    if current.is_folder and stat.S_ISDIR(expected.mode):
        return False
    return (current.mode, current.size, current.mtime_ns) != (
        expected.mode,
        expected.size,
        expected.mtime_ns,
    )
