"""Serves a mount through libfuse, with pyfuse3: the driver `pyfuse3`. This module reads and writes the device.

Its replies are those of `kernel_driver`, from the same core, read path and control tree. Differences: each open and
close of a file or folder is a request, and entries of a folder are encoded one by one. Reads cannot be interrupted, and
no other daemon can take the connection over.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyfuse3
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FUSEError,
    InodeT,
    RequestContext,
    SetattrFields,
)

from dieselfs.errors import MountError
from dieselfs.limits import NAME_BYTES_MAX
from dieselfs_client.mount.drivers.driver import Driver
from dieselfs_client.mount.kernel.protocol import FOREVER_S
from dieselfs_client.mount.reading.core import (
    CONTROL_INODE,
    IO_BLOCK_BYTES,
    ROOT_INODE,
    STAT_BLOCK_BYTES,
    Attributes,
)
from dieselfs_client.mount.reading.error_log import Refused

REQUESTS_AT_ONCE_MAX = 1000
"""Limit of requests that wait for bytes; at the limit, no request is answered until one of these is."""
ENTRIES_AT_ONCE = 64
"""A listing is made in steps of this many entries; a reply has room for about twenty."""

_DOTS = 2
"""The positions of `.` and `..` in a folder; its children follow."""


class Pyfuse3Driver(Driver, pyfuse3.Operations):
    """One per process; `device` is a new mount, not one that was taken over."""

    supports_dot_lookup = True
    enable_writeback_cache = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._requests = {
            name: self.reads.metrics.counter(
                "fuse.requests", "Requests of the kernel.", operation=name.upper()
            )
            for name in ("lookup", "getattr", "readlink", "readdir", "read", "open", "write", "setattr")
        }

    async def run(self) -> None:
        descriptor = os.dup(self.device)  # libfuse closes its own
        try:
            # libfuse also accepts the descriptor of an existing mount as the mount point.
            pyfuse3.init(self, f"/dev/fd/{descriptor}", set())
        except RuntimeError as error:
            os.close(descriptor)
            raise MountError(f"libfuse cannot serve the mount: {error}") from None
        try:
            await pyfuse3.main(max_tasks=REQUESTS_AT_ONCE_MAX)
        except* ConnectionAbortedError:
            pass  # unmounted while a request was read: libfuse handles only ENODEV
        finally:
            pyfuse3.close(unmount=False)

    def finish(self) -> None:
        pyfuse3.terminate()

    def init(self) -> None:
        self.agreed.set()

    @contextmanager
    def _answering(self, what: str, inode: int) -> Iterator[None]:
        """Answer with the errno of any error."""
        self._requests[what].value += 1
        try:
            yield
        except Exception as error:  # a bug fails this request, not the mount
            raise FUSEError(self._code(what, inode, error)) from None

    def _entry(self, of: Attributes) -> EntryAttributes:
        entry = EntryAttributes()
        entry.entry_timeout = self._name_valid_s(of)
        entry.attr_timeout = FOREVER_S
        entry.st_ino = InodeT(of.inode)
        entry.st_mode = pyfuse3.ModeT(of.mode)
        entry.st_nlink = 1
        is_other = of.inode == ROOT_INODE and self.root_user is not None
        entry.st_uid = (self.root_user or 0) if is_other else self.user
        entry.st_gid = self.group
        entry.st_size = of.size
        entry.st_blksize, entry.st_blocks = of.io_block_bytes, of.blocks
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = of.mtime_ns
        return entry

    # -- names -------------------------------------------------------------------------------------------

    async def lookup(self, parent_inode: InodeT, name: bytes, ctx: RequestContext) -> EntryAttributes:
        with self._answering("lookup", parent_inode):
            if self._takes_time(parent_inode, name):
                return self._entry(await self.control.lookup_later(parent_inode, name))
            found = self._found(parent_inode, name)
            if found is None:  # the kernel caches that there is no entry
                found = Attributes(0, 0, 0, 0)
            return self._entry(found)

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for inode, lookups in inode_list:
            if inode >= CONTROL_INODE:
                self.control.forget(inode, lookups)

    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        with self._answering("getattr", inode):
            return self._entry(self._tree(inode).attributes(inode))

    async def readlink(self, inode: InodeT, ctx: RequestContext) -> pyfuse3.FileNameT:
        with self._answering("readlink", inode):
            return pyfuse3.FileNameT(self.core.target(inode))

    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        header = self.core.snapshot.header
        data = pyfuse3.StatvfsData()
        data.f_bsize, data.f_frsize = IO_BLOCK_BYTES, STAT_BLOCK_BYTES
        data.f_blocks = -(-header.total_bytes // STAT_BLOCK_BYTES)
        data.f_bfree = data.f_bavail = data.f_ffree = data.f_favail = 0
        data.f_files = header.nodes
        data.f_namemax = NAME_BYTES_MAX
        return data

    # -- folders; the handle of one is its inode -----------------------------------------------------------

    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        return FileHandleT(inode)

    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        with self._answering("readdir", fh):
            for next_position, name, found in self._entries(fh, start_id):
                if not pyfuse3.readdir_reply(
                    token, pyfuse3.FileNameT(name), self._entry(found), next_position
                ):
                    self.control.forget(found.inode, 1)  # the kernel did not receive the entry
                    return

    def _entries(self, folder: int, position: int) -> Iterator[tuple[int, bytes, Attributes]]:
        """The entries of a folder from a position on, each with the next position."""
        tree = self._tree(folder)
        dots, nodes = tree.dots(folder), tree.child_nodes(folder)
        origin = nodes.start - _DOTS
        for place in range(position, _DOTS):
            inode = int(dots.inodes[place])
            yield place + 1, dots.names[place], self._tree(inode).attributes(inode)
        nodes = nodes[max(position - _DOTS, 0) :]
        while run := tree.listed(nodes)[:ENTRIES_AT_ONCE]:
            siblings = tree.siblings(run)
            for node, name, inode in zip(run, siblings.names, siblings.inodes.tolist(), strict=True):
                found = (
                    self.core.attributes(inode)
                    if siblings.is_cacheable
                    else self.control.lookup(folder, name)
                )
                if found is not None:
                    yield node - origin + 1, name, found
            nodes = range(run.stop, nodes.stop)

    async def releasedir(self, fh: FileHandleT) -> None:
        pass

    # -- files; the handle of one is its inode -------------------------------------------------------------

    async def open(self, inode: InodeT, flags: pyfuse3.FlagT, ctx: RequestContext) -> FileInfo:
        with self._answering("open", inode):
            if flags & os.O_ACCMODE != os.O_RDONLY:
                self._writable(inode)
                if flags & os.O_TRUNC:
                    self.control.truncated(inode)
            return FileInfo(fh=FileHandleT(inode), keep_cache=True)

    # -- writes, to the control tree only ------------------------------------------------------------------------

    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        with self._answering("write", fh):
            self._writable(fh)
            return self.control.write(fh, off, bytes(buf))

    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Programs truncate a file when they open it to write."""
        with self._answering("setattr", inode):
            self._writable(inode)
            if not fields.update_size or attr.st_size:
                raise Refused(errno.EROFS)
            return self._entry(self.control.truncated(inode))

    def _writable(self, inode: int) -> None:
        """Raises Refused for an entry of the dataset."""
        if inode < CONTROL_INODE:
            raise Refused(errno.EROFS)

    async def _refuse(self, *_: Any, **__: Any) -> Any:  # with the signatures of all of these
        raise FUSEError(errno.EROFS)

    create = mknod = mkdir = symlink = link = unlink = rmdir = rename = setxattr = removexattr = _refuse

    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        with self._answering("read", fh):
            if fh >= CONTROL_INODE:
                data = self.control.at_once(fh, off, size)
                return await self.control.fetch(fh, off, size) if data is None else data
            buffers = self.reads.at_once(fh, off, size)
            if buffers is None:
                buffers = await self.reads.fetch(fh, off, size)
            return b"".join(buffers)

    async def release(self, fh: FileHandleT) -> None:
        pass
