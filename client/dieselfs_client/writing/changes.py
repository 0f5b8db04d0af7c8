"""What has to be stored and deleted for what programs have written through a mount. No I/O.

Overlayfs keeps it in an *upper* folder. An entry there covers the one with the same path in the *base*, which is the
generation that is mounted. A *whiteout* stands for a deleted entry of the base; an *opaque* folder shows nothing of
what the base has below its path.
"""

import os
import stat
from collections.abc import Iterable, Mapping, Set
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
    """An entry of the upper folder."""

    path: bytes
    key: Key
    is_whiteout: bool = False
    is_opaque: bool = False


class Base(Protocol):
    """A generation of the dataset, with the paths that the mount shows."""

    def stat(self, path: bytes) -> Stat | None: ...

    def below(self, path: bytes) -> Iterable[bytes]:
        """The paths below a folder; none for anything else."""


@dataclass
class Done:
    """What the mount has stored and deleted so far, by path; without what has been replaced since."""

    stored: dict[bytes, Key] = field(default_factory=dict)
    deleted: set[bytes] = field(default_factory=set)

    def expected(self, path: bytes, base: Base) -> Key | Stat | None:
        """What the dataset has at a path, unless another writer has changed it."""
        if path in self.deleted:
            return None
        return self.stored.get(path) or base.stat(path)

    def note(self, stored: Mapping[bytes, Key], deleted: Set[bytes]) -> None:
        for path in deleted:
            self.stored.pop(path, None)
        self.deleted |= deleted
        self.deleted -= stored.keys()
        self.stored.update(stored)


@dataclass(frozen=True, slots=True)
class Changes:
    """`deleted`: each folder comes after what was in it. `refused`: what no dataset can have."""

    put: list[Found]
    deleted: list[bytes]
    refused: list[bytes]

    def paths(self) -> Iterable[bytes]:
        """All that change in the dataset."""
        yield from (found.path for found in self.put)
        yield from self.deleted


def changes(entries: Iterable[Found], done: Done, base: Base) -> Changes:
    """What makes the dataset equal to `base` with the upper folder's `entries` over it, given what is done."""
    here: dict[bytes, Found] = {}
    refused, hidden = [], done.stored.keys() | set[bytes]()
    for found in entries:
        if found.is_whiteout:
            hidden.update(base.below(found.path))
            if base.stat(found.path) is not None:
                hidden.add(found.path)
            continue
        kind = stat.S_IFMT(found.key.mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
            refused.append(found.path)
            continue
        here[found.path] = found
        if found.is_opaque or kind != stat.S_IFDIR:
            hidden.update(base.below(found.path))
    gone = hidden - here.keys() - done.deleted
    put = [found for found in here.values() if _is_new(found, done, base)]
    return Changes(put, sorted(gone, reverse=True), refused)


def _is_new(found: Found, done: Done, base: Base) -> bool:
    if found.path in done.stored:
        return done.stored[found.path] != found.key
    return found.path in done.deleted or not found.key.is_stored_as(base.stat(found.path))


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
