"""The folder `.dieselfs/` in the root of a mount; listings omit it. No I/O; long work in worker threads.

    .dieselfs/stats     statistics of the daemon, JSON     .dieselfs/cursor    positions of the readers of plans
    .dieselfs/info      the mounted dataset, JSON          .dieselfs/errors    the newest errors
    .dieselfs/warm      the warmth of the memory, JSON     .dieselfs/warm-now  the same; a read of it starts warming.
                                                           Not listed, so that no search through all files starts it
    .dieselfs/scores    losses of files are written to it, as lines (`importance.score_lines`)
    .dieselfs/shuffle/seed=1,epoch=0,rank=0,world=8        the paths that one reader reads, one per line; not listed.
                                                           With policy=importance they are drawn by the losses,
                                                           with policy=opportunistic from what is in memory first
    .dieselfs/shuffle/ahead=DIGEST+12-15+40                to look it up is to say which extents are read next
                                                           (`dieselfs.shuffle.ahead_name`)

The kernel does not report that a file is opened, and does not read beyond the size from its lookup. So each lookup of a
file makes a new inode with fixed content. The inode ends when the kernel forgets it.
"""

import errno
import json
import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import trio

from dieselfs.arrays import among
from dieselfs.errors import InvalidInput, NotFound, Unavailable
from dieselfs.importance.score_lines import LossBatch, ScoreLines
from dieselfs.limits import READ_TIMEOUT_S
from dieselfs.names import printable
from dieselfs.shuffle.ahead_name import extents_ahead, is_ahead_name
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.mount.reading.core import CONTROL_FOLDER, CONTROL_INODE, ROOT_INODE, Attributes, Siblings
from dieselfs_client.mount.reading.error_log import ErrorLog, Refused

CONTROL_FILES_MAX = 1024
"""Files of `.dieselfs/` that the kernel may hold; beyond that, the oldest become unreadable."""
SHUFFLES_KEPT_MAX = 16
"""File lists that `.dieselfs/shuffle/` keeps for repeated requests; 4 bytes a file."""
ORDERS_AT_ONCE_MAX = 40
"""Threads for orders. They may wait for the other nodes of a job, whose list the daemon updates meanwhile."""

ORDER_HELD_NS = 10 * 10**9
"""A program that opens the list of an order begins to read it within this time. The kernel does not report a close."""

SHUFFLE_INODE = CONTROL_INODE + 1
_WARM, _WARM_NOW, _SCORES = b"warm", b"warm-now", b"scores"
_LISTED_INODE = CONTROL_INODE + 2
"""The inode of the first file in a listing; no lookup returns it."""
_FILES_INODE = CONTROL_INODE + 16
_AHEAD_INODE = _FILES_INODE - 1
"""The empty file of all names that say what is read next."""

_FOLDER_MODE = stat.S_IFDIR | 0o555
_FILE_MODE = stat.S_IFREG | 0o444
_PRIVATE_MODE = stat.S_IFREG | 0o400
LINES_PER_BLOCK = 1024
"""The offset of each block of this many lines is kept, instead of the offset of each line."""
NEWLINE, NUL = b"\n", b"\0"
SCAN_BYTES = 1 << 20


class PathLines:
    """A long list of paths as the text of a file: those of files, in order, byte for byte, each with `terminator`
    behind it.

    Only the nodes are kept; the text is made when it is read (about 0.2 us per line).
    """

    def __init__(self, snapshot: Snapshot, nodes: npt.NDArray[np.uint32], terminator: bytes) -> None:
        """Takes about 10 ns per line. With NEWLINE as the terminator, the caller checks the paths with `unwritable`."""
        self._snapshot = snapshot
        self._nodes = nodes
        self._terminator = terminator
        starts = range(0, len(nodes), LINES_PER_BLOCK)
        sizes = [int(_line_bytes(snapshot, nodes[start : start + LINES_PER_BLOCK]).sum()) for start in starts]
        self._block_ends = np.cumsum(sizes, dtype=np.int64)
        self.size_bytes = sum(sizes)

    def read(self, offset: int, size_bytes: int) -> bytes:
        """`size_bytes` of the text from `offset` on, fewer at its end."""
        end = min(offset + size_bytes, self.size_bytes)
        if offset >= end:
            return b""
        first, last = np.searchsorted(self._block_ends, (offset, end - 1), side="right").tolist()
        origin = int(self._block_ends[first - 1]) if first else 0
        nodes = self._nodes[first * LINES_PER_BLOCK : (last + 1) * LINES_PER_BLOCK]
        text = self._snapshot.path_lines(nodes, self._terminator)
        return text[offset - origin : end - origin]


def _line_bytes(snapshot: Snapshot, nodes: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """The length of each path and its terminator. No file is node 0, so each has a path before it."""
    ends = snapshot.column("path_ends").view(np.int64)
    return ends[nodes] - ends[nodes.astype(np.int64) - 1] + 1


def unwritable(snapshot: Snapshot, nodes: npt.NDArray[np.uint32]) -> bytes | None:
    """One of these paths that contains a newline; None if there is none."""
    paths = snapshot.column("paths")
    for start in range(0, len(paths), SCAN_BYTES):
        breaks = start + np.flatnonzero(paths[start : start + SCAN_BYTES] == ord(NEWLINE))
        if len(breaks):
            owners = np.searchsorted(snapshot.column("path_ends"), breaks, side="right")
            found = np.flatnonzero(among(nodes, owners))
            if len(found):
                return snapshot.path(int(nodes[found[0]]))
    return None


class ControlContents(Protocol):
    """The content of the files, and the receiver of plans. Methods that are not `async` do not wait."""

    def stats(self) -> Mapping[str, Any]:
        """For `stats`; goes into JSON."""

    def info(self) -> Mapping[str, Any]:
        """For `info`; goes into JSON."""

    def cursors(self) -> list[str]:
        """For `cursor`: one text for each plan that was declared."""

    def share(self, asked: ShareName) -> Share:
        """The share of this name. Called from worker threads. Raises InvalidInput, NotFound."""

    def log(self, asked: ShareName) -> str:
        """The log of the opportunistic order of this name. Called and raises as `share`."""

    def declare(self, share: Share) -> None:
        """A process has begun to read the files of this share."""

    async def order_opened(self, name: bytes) -> None:
        """A process opens the order `name`. Raises Refused if the mount has been replaced."""

    def is_starting(self) -> bool:
        """Whether the first files of a declared share are on their way."""

    async def ahead_of(self, share: Share) -> None:
        """Wait, for a limited time, until the first files of a declared share are stored."""

    def read_ahead(self, numbers: list[int]) -> None:
        """A program reads these extents of the snapshot next."""

    async def warmth(self) -> Mapping[str, Any]:
        """For `warm`; goes into JSON. Waits for other nodes, for a limited time."""

    def score(self, batch: LossBatch) -> None:
        """A program has written these losses. Raises InvalidInput."""

    def warm(self) -> None:
        """Start warming, on this node and on the other nodes of the job."""


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text
        self._bytes = text.encode("utf-8", "surrogateescape")
        self.size_bytes = len(self._bytes)

    def read(self, offset: int, size_bytes: int) -> bytes:
        return self._bytes[offset : offset + size_bytes]


@dataclass(eq=False, slots=True)
class _File:
    """One inode. `lookups`: how many lookups of the kernel returned it. The list of an inherited order has no `content`
    until it is read; `share` is the share that it lists. `on_first_read` is called once, at the first read from 0.
    `written`: what was written to it; None for a file that cannot be written to.
    """

    name: bytes
    attributes: Attributes
    content: _Text | PathLines | None
    share: Share | None = None
    on_first_read: Callable[[], None] | None = None
    lookups: int = 1
    written: ScoreLines | None = None


@dataclass(frozen=True, slots=True)
class ControlFile:
    """One inode, handed over to the next daemon: with its text, or only with its name if it is the list of an order."""

    inode: int
    mode: int
    size: int
    mtime_ns: int
    name: str
    lookups: int
    text: str | None


class ControlTree:
    """Used from one trio thread. Methods raise NotFound for an inode that has ended, and InvalidInput for an operation
    that the type of the inode does not have.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        contents: ControlContents,
        errors: ErrorLog,
        files_max: int = CONTROL_FILES_MAX,
        clock_ns: Callable[[], int] = time.time_ns,
        on_new_file: Callable[[], None] = lambda: None,
        is_private: bool = False,
    ) -> None:
        """`on_new_file` is called after each new file, before the reply to the kernel. `is_private`: only the owner may
        declare plans, write losses and start warming, by the modes of `shuffle`, `scores` and `warm`.
        """
        self._shuffle_mode = stat.S_IFDIR | (0o500 if is_private else 0o555)
        self._order_mode = _PRIVATE_MODE if is_private else _FILE_MODE
        self._scores_mode = stat.S_IFREG | (0o200 if is_private else 0o222)
        self.errors = errors
        self._on_new_file = on_new_file
        self._snapshot = snapshot
        self._contents = contents
        self._files_max = files_max
        self._clock_ns = clock_ns
        self._started_ns = clock_ns()
        # A daemon that takes a mount over must not reuse an inode of the previous daemon for another file.
        self._next_inode = _FILES_INODE + self._started_ns
        self._files: OrderedDict[int, _File] = OrderedDict()
        self._texts: dict[bytes, tuple[int, Callable[[], str]]] = {
            b"cursor": (_FILE_MODE, lambda: "".join(line + "\n" for line in contents.cursors())),
            b"errors": (_PRIVATE_MODE, errors.text),
            b"info": (_FILE_MODE, lambda: _json(contents.info())),
            b"stats": (_FILE_MODE, lambda: _json(contents.stats())),
        }
        self._shuffle = lru_cache(SHUFFLES_KEPT_MAX)(self._lay_out)
        self._orders = trio.CapacityLimiter(ORDERS_AT_ONCE_MAX)

    # -- names -------------------------------------------------------------------------------------------

    def lookup(self, folder: int, name: bytes) -> Attributes | None:
        """The entry `name` of a folder, except for the names of `takes_time`; None if there is none.

        Each lookup makes a new file, so the kernel must not cache the name.
        """
        found = {b".": folder, b"..": ROOT_INODE if folder == CONTROL_INODE else CONTROL_INODE}.get(name)
        if folder == CONTROL_INODE:
            if name in self._texts:
                mode, text = self._texts[name]
                return self._admit(name, mode, _Text(text()))
            if name == _SCORES:
                return self._admit(name, self._scores_mode, _Text(""), written=ScoreLines())
            found = SHUFFLE_INODE if name == b"shuffle" else found
        elif folder != SHUFFLE_INODE:
            self._file(folder)
            raise InvalidInput("not a folder")
        return None if found is None else self.attributes(found)

    def takes_time(self, folder: int, name: bytes) -> bool:
        """Whether a name must be looked up with `lookup_later`."""
        if folder == CONTROL_INODE:
            return name in (_WARM, _WARM_NOW)
        return folder == SHUFFLE_INODE and name not in (b".", b"..")

    async def lookup_later(self, folder: int, name: bytes) -> Attributes:
        """As `lookup`, for the names of `takes_time`. Raises as `lookup_shuffle`. If cancelled, it makes no file."""
        if folder == SHUFFLE_INODE and is_ahead_name(name):
            extents = len(self._snapshot.column("extent_chunks"))
            self._contents.read_ahead(extents_ahead(name, self._snapshot.digest, extents))
            return self.attributes(_AHEAD_INODE)
        if folder == SHUFFLE_INODE:
            await self._contents.order_opened(name)
            return await self.lookup_shuffle(name)
        text = _Text(_json(await self._contents.warmth()))
        begin = self._contents.warm if name == _WARM_NOW else None
        return self._admit(name, self._order_mode, text, on_first_read=begin)

    async def lookup_shuffle(self, name: bytes) -> Attributes:
        """A new file for `name` in `SHUFFLE_INODE`. The first one of an order takes 0.3 s for a million files.

        Raises InvalidInput, which is also noted in `errors`, and Unavailable after READ_TIMEOUT_S. If cancelled, it
        makes no file.
        """
        share, content = await self._found(name)
        on_first_read = None if share is None else partial(self._contents.declare, share)
        return self._admit(name, self._order_mode, content, share, on_first_read)

    async def _found(self, name: bytes) -> tuple[Share | None, PathLines | _Text]:
        try:
            with trio.move_on_after(READ_TIMEOUT_S):
                asked = ShareName.parse(name)
                return await trio.to_thread.run_sync(
                    self._shuffle, asked, abandon_on_cancel=True, limiter=self._orders
                )
        except (InvalidInput, NotFound) as error:
            self.errors.note(printable(CONTROL_FOLDER + b"/shuffle/" + name), str(error))
            # Not NotFound: the kernel repeats a lookup that found nothing.
            raise InvalidInput(str(error)) from None
        raise Unavailable(
            f"the order {printable(name)} was not computed within {READ_TIMEOUT_S:g} s: open the file again"
        )

    def _lay_out(self, asked: ShareName) -> tuple[Share | None, PathLines | _Text]:
        if asked.is_log:
            return None, _Text(self._contents.log(asked))
        share = self._contents.share(asked)
        nodes = share.nodes()
        if not asked.is_null and (path := unwritable(self._snapshot, nodes)) is not None:
            raise InvalidInput(
                f"path {printable(path)} contains a newline: add null=1 to the name, for paths that end with NUL"
            )
        return share, PathLines(self._snapshot, nodes, NUL if asked.is_null else NEWLINE)

    def _admit(
        self,
        name: bytes,
        mode: int,
        content: _Text | PathLines,
        share: Share | None = None,
        on_first_read: Callable[[], None] | None = None,
        written: ScoreLines | None = None,
    ) -> Attributes:
        inode = self._next_inode
        self._next_inode += 1
        attributes = Attributes(inode, mode, content.size_bytes, self._clock_ns())
        self._files[inode] = _File(name, attributes, content, share, on_first_read, written=written)
        while len(self._files) > self._files_max:
            self._files.popitem(last=False)
        self._on_new_file()
        return attributes

    def forget(self, inode: int, lookups: int) -> None:
        """The kernel has released this many of its lookups of an inode."""
        file = self._files.get(inode)
        if file is not None:
            file.lookups -= lookups
            if file.lookups <= 0:
                del self._files[inode]

    def has_unread_orders(self) -> bool:
        """Whether a program has opened an order lately and not begun to read it."""
        since_ns = self._clock_ns() - ORDER_HELD_NS
        return any(
            file.share is not None and file.on_first_read is not None and file.attributes.mtime_ns > since_ns
            for file in self._files.values()
        )

    # -- handover to the next daemon -----------------------------------------------------------------------

    def files(self) -> list[ControlFile]:
        """The files that the kernel may still read. A writer opens its file again."""
        return [
            ControlFile(
                *file.attributes,
                os.fsdecode(file.name),
                file.lookups,
                file.content.text if isinstance(file.content, _Text) else None,
            )
            for file in self._files.values()
            if file.written is None
        ]

    def inherit(self, files: Iterable[ControlFile]) -> None:
        """Add the files of the previous daemon."""
        for of in files:
            attributes = Attributes(of.inode, of.mode, of.size, of.mtime_ns)
            content = None if of.text is None else _Text(of.text)
            name = os.fsencode(of.name)
            self._files[of.inode] = _File(name, attributes, content, lookups=of.lookups)

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, inode: int, offset: int, content: bytes) -> int:
        """Take bytes that a program has written to a file; returns how many. Batches that end in them count at once.

        Raises InvalidInput, also noted in `errors`, for malformed text, and Refused for any other file.
        """
        written = self._written(inode)
        try:
            for batch in written.write(offset, content):
                self._contents.score(batch)
        except InvalidInput as error:
            self.errors.note(printable(CONTROL_FOLDER + b"/" + _SCORES), str(error))
            raise
        return len(content)

    def truncated(self, inode: int) -> Attributes:
        """A writer that begins at 0 may truncate its file. Raises as `write`."""
        if self._written(inode).length_bytes:
            raise InvalidInput("losses that were written count already: open the file again")
        return self.attributes(inode)

    def _written(self, inode: int) -> ScoreLines:
        written = None if inode in (CONTROL_INODE, SHUFFLE_INODE) else self._file(inode).written
        if written is None:
            raise Refused(errno.EROFS)
        return written

    # -- inodes ------------------------------------------------------------------------------------------

    def _file(self, inode: int) -> _File:
        file = self._files.get(inode)
        if file is None:
            raise NotFound(f"inode {inode} of {printable(CONTROL_FOLDER)} has ended: open the file again")
        return file

    def attributes(self, inode: int) -> Attributes:
        if inode in (CONTROL_INODE, SHUFFLE_INODE):
            mode = _FOLDER_MODE if inode == CONTROL_INODE else self._shuffle_mode
            return Attributes(inode, mode, 0, self._started_ns)
        if inode == _AHEAD_INODE:
            return Attributes(inode, self._order_mode, 0, self._started_ns)
        return self._file(inode).attributes

    def at_once(self, inode: int, offset: int, size_bytes: int) -> bytes | None:
        """Bytes of a file, or None where the read must wait with `fetch`. A first read that starts a task also waits,
        and so do those of a list while the first files of a plan are on their way: so that the task runs meanwhile.
        """
        if inode in (CONTROL_INODE, SHUFFLE_INODE):
            raise InvalidInput("not a file")
        file = self._file(inode)
        is_first = offset == 0 and file.on_first_read is not None
        is_end = file.share is not None and offset + size_bytes >= file.attributes.size
        if is_first or is_end or file.content is None:
            return None
        if file.share is not None and self._contents.is_starting():
            return None
        return self._read(file, offset, size_bytes)

    async def fetch(self, inode: int, offset: int, size_bytes: int) -> bytes:
        """As `at_once`, but waits for an order to be computed; raises as `lookup_shuffle`. At the end of an order it
        waits for `ahead_of`, because the reader reads the files next.

        The first read from the beginning of an order declares the share of its reader.
        """
        file = self._file(inode)
        if file.content is None:
            file.share, file.content = await self._found(file.name)
        data = self._read(file, offset, size_bytes)
        if file.share is not None and offset + size_bytes >= file.attributes.size:
            await self._contents.ahead_of(file.share)
        return data

    def _read(self, file: _File, offset: int, size_bytes: int) -> bytes:
        assert file.content is not None
        if offset == 0 and file.on_first_read is not None:
            begin, file.on_first_read = file.on_first_read, None
            begin()
        return file.content.read(offset, size_bytes)

    # -- folders: as in MountCore; a node is an index into the listing ------------------------------------------

    def child_nodes(self, folder: int) -> range:
        if folder == CONTROL_INODE:
            return range(len(self._listed()))
        if folder != SHUFFLE_INODE:
            self._file(folder)
            raise InvalidInput("not a folder")
        return range(0)

    def listed(self, nodes: range) -> range:
        return nodes

    def name_lengths(self, nodes: range) -> npt.NDArray[np.uint8]:
        return np.array([len(name) for name, _ in self._listed()[nodes.start : nodes.stop]], np.uint8)

    def dots(self, folder: int) -> Siblings:
        parent = ROOT_INODE if folder == CONTROL_INODE else CONTROL_INODE
        own_mode = _FOLDER_MODE if folder == CONTROL_INODE else self._shuffle_mode
        return self._siblings([folder, parent], [own_mode, _FOLDER_MODE], [b".", b".."])

    def siblings(self, nodes: range) -> Siblings:
        listed = self._listed()[nodes.start : nodes.stop]
        inodes = [_LISTED_INODE + node for node in nodes]
        return self._siblings(inodes, [mode for _, mode in listed], [name for name, _ in listed])

    def _listed(self) -> list[tuple[bytes, int]]:
        files = [(name, mode) for name, (mode, _) in self._texts.items()]
        others = [(_SCORES, self._scores_mode), (b"shuffle", self._shuffle_mode), (_WARM, self._order_mode)]
        return [*files, *others]

    def _siblings(self, inodes: list[int], modes: list[int], names: list[bytes]) -> Siblings:
        return Siblings(
            np.array(inodes, np.uint64),
            np.array(modes, np.uint32),
            np.zeros(len(names), np.uint64),
            np.full(len(names), self._started_ns, np.int64),
            np.array([len(name) for name in names], np.uint8),
            names,
            is_cacheable=False,
        )


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"
