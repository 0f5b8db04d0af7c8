"""Serves a mount through `/dev/fuse`. This module reads and writes the device.

One loop reads requests until there are none. What the snapshot or the memory can answer is answered on the spot by a
plain function; a READ whose bytes are not there becomes a task. Nothing that goes wrong with one request reaches
another: it becomes an errno.
"""

import errno
import logging
import os
import select
from collections.abc import Callable

import trio

from dieselfs.errors import DieselfsError, InvalidInput, NotFound, ProtocolError
from dieselfs.limits import NAME_BYTES_MAX
from dieselfs.names import printable
from dieselfs_client.mount import kernel_protocol as protocol
from dieselfs_client.mount.core import MountCore, Siblings
from dieselfs_client.mount.kernel_protocol import Opcode, Request
from dieselfs_client.reads import Buffers, Reads

LINGER_MS = 1
"""After the last request the loop waits so long on the device itself: much faster than a trip through the scheduler,
and too short for any other task to notice.
"""
REQUESTS_IN_A_ROW_MAX = 32
"""Other tasks get their turn after so many."""
BUFFERS_PER_REPLY_MAX = 256
"""A reply in more pieces is joined first; `writev` takes 1024."""

_DOTS = 2
"""The positions of `.` and `..` in a folder; its children follow."""
_UNANSWERED = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.DESTROY, Opcode.NOTIFY_REPLY})
_CHANGING = frozenset(
    {
        Opcode.SETATTR,
        Opcode.SYMLINK,
        Opcode.MKNOD,
        Opcode.MKDIR,
        Opcode.UNLINK,
        Opcode.RMDIR,
        Opcode.RENAME,
        Opcode.RENAME2,
        Opcode.LINK,
        Opcode.WRITE,
        Opcode.SETXATTR,
        Opcode.REMOVEXATTR,
        Opcode.CREATE,
        Opcode.TMPFILE,
        Opcode.FALLOCATE,
        Opcode.COPY_FILE_RANGE,
    }
)
# IOCTL is what Python's `open` sends with each file to learn that it is no terminal. The kernel cannot be told that it
# never is, so this is the one request that a file in the page cache still costs (11 us; not with `os.open`).
_ERRNO_BY_OPCODE: dict[int, int] = {Opcode.IOCTL: errno.ENOTTY} | {int(op): errno.EROFS for op in _CHANGING}
"""Requests that are always refused. Any other that has no answer is ENOSYS, after which the kernel does not ask
again: so it is with OPEN and OPENDIR too, and from then on files are opened without a word to us.
"""

_log = logging.getLogger(__name__)


class _Refused(Exception):
    """Carries the errno that answers a request."""

    def __init__(self, code: int) -> None:
        super().__init__(os.strerror(code))
        self.code = code


class KernelDriver:
    """Serves one connection to the kernel. Used from one trio thread.

    `device` is an open descriptor of `/dev/fuse`, mounted; the caller closes it. All files belong to `user` and
    `group`. `agreed` is set once kernel and driver have agreed (then `refusal` is None) or found that they cannot. With
    `is_taken_over`, somebody else may have agreed before: then it is set when nothing is left that he did not answer.
    """

    def __init__(
        self,
        device: int,
        core: MountCore,
        reads: Reads,
        user: int,
        group: int,
        is_taken_over: bool = False,
    ) -> None:
        self.agreed = trio.Event()
        self.refusal: str | None = None
        self._device = device
        self._core = core
        self._reads = reads
        self._is_taken_over = is_taken_over
        self._taking = trio.CancelScope()
        self._encoder = protocol.Encoder(user, group)
        # READs that wait for bytes, by `unique`; changed only between checkpoints.
        self._waiting: dict[int, trio.CancelScope] = {}
        self._answers: dict[int, Callable[[Request], bytes]] = {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._get_attributes,
            Opcode.READLINK: self._read_link,
            Opcode.READDIRPLUS: self._list_plus,
            Opcode.READDIR: self._list,
            Opcode.STATFS: self._statfs,
            Opcode.INIT: self._init,
        }

    async def run(self) -> None:
        """Serve until the filesystem is unmounted. If cancelled, requests under way stay unanswered."""
        os.set_blocking(self._device, False)
        async with trio.open_nursery() as nursery:
            with self._taking:
                await self._take_requests(nursery)
                nursery.cancel_scope.cancel()

    def finish(self) -> None:
        """Take no more requests; `run` returns when those under way are answered."""
        self._taking.cancel()

    async def _take_requests(self, nursery: trio.Nursery) -> None:
        """Returns when the filesystem is unmounted. If cancelled, whatever was taken is answered or under way."""
        readiness = select.poll()
        readiness.register(self._device, select.POLLIN)
        buffer = bytearray(protocol.REQUEST_BYTES_MAX)
        packet = memoryview(buffer)
        in_a_row = 0
        while True:
            if not readiness.poll(0 if self._waiting else LINGER_MS):
                if self._is_taken_over:
                    self.agreed.set()
                await trio.lowlevel.wait_readable(self._device)
                in_a_row = 0
            try:
                length = os.readv(self._device, [buffer])
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOENT):  # it was given up before we took it
                    continue
                if error.errno in (errno.ENODEV, errno.ECONNABORTED):  # unmounted
                    return
                raise
            self._serve(packet[:length], nursery)
            in_a_row += 1
            if in_a_row >= REQUESTS_IN_A_ROW_MAX:
                await trio.lowlevel.checkpoint()
                in_a_row = 0

    def _serve(self, packet: memoryview, nursery: trio.Nursery) -> None:
        """Answer one request, or start the task that will. Never raises: this is the outer guard."""
        request = None
        try:
            request = protocol.decode_request(packet)
            answer = self._answers.get(request.opcode)
            if answer is not None:
                payload = answer(request)
                self._write(protocol.encode_header(request.unique, len(payload)), payload)
            elif request.opcode == Opcode.READ:
                self._read(request, nursery)
            elif request.opcode == Opcode.INTERRUPT:
                self._interrupt(protocol.decode_interrupt(request.body))
            elif request.opcode not in _UNANSWERED:
                self._refuse(request.unique, _ERRNO_BY_OPCODE.get(request.opcode, errno.ENOSYS))
        except Exception as error:
            if request is None:
                _log.exception("a request that cannot be understood came from the kernel")
            else:
                self._fail(request, error)

    # -- replies -----------------------------------------------------------------------------------------

    def _write(self, *parts: bytes | memoryview) -> None:
        try:
            os.writev(self._device, parts)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the asker, or the mount, is gone
                raise

    def _refuse(self, unique: int, errno_: int) -> None:
        self._write(protocol.encode_header(unique, 0, errno_))

    def _fail(self, request: Request, error: Exception) -> None:
        """Answer a request with the errno that the error means."""
        if isinstance(error, _Refused):
            code = error.code
        elif isinstance(error, NotFound):
            code = errno.ESTALE
        elif isinstance(error, InvalidInput):
            code = errno.EINVAL
        elif isinstance(error, DieselfsError):
            code = errno.EIO
            _log.error("%s: %s", self._path(request.inode), error)
        else:
            code = errno.EIO
            what = f"request {request.opcode} about {self._path(request.inode)}"
            _log.error("%s failed", what, exc_info=error)
        try:
            self._refuse(request.unique, code)
        except OSError:
            _log.exception("request %d cannot be answered", request.opcode)

    def _path(self, inode: int) -> str:
        """What to call an inode in the log."""
        try:
            return printable(self._core.snapshot.path(self._core.node(inode))) or "the root"
        except NotFound:
            return f"inode {inode}"

    # -- what the snapshot answers -------------------------------------------------------------------------

    def _init(self, request: Request) -> bytes:
        try:
            return protocol.encode_init(protocol.decode_init(request.body))
        except ProtocolError as error:
            self.refusal = str(error)
            raise
        finally:
            self.agreed.set()

    def _lookup(self, request: Request) -> bytes:
        name = protocol.decode_name(request.body)
        if len(name) > NAME_BYTES_MAX:
            raise _Refused(errno.ENAMETOOLONG)
        inode = self._core.lookup(request.inode, name)
        return self._encoder.entry(self._core.attributes(inode)) if inode else protocol.NO_SUCH_ENTRY

    def _get_attributes(self, request: Request) -> bytes:
        return self._encoder.attributes(self._core.attributes(request.inode))

    def _read_link(self, request: Request) -> bytes:
        return self._core.target(request.inode)

    def _statfs(self, request: Request) -> bytes:
        return protocol.encode_statfs(self._core.totals())

    def _list_plus(self, request: Request) -> bytes:
        return self._listing(request, protocol.DIRENT_PLUS_BYTES, self._encoder.listing_plus)

    def _list(self, request: Request) -> bytes:
        return self._listing(request, protocol.DIRENT_BYTES, protocol.encode_listing)

    def _listing(
        self, request: Request, record_bytes: int, encode: Callable[[Siblings, int], bytes]
    ) -> bytes:
        position, room_bytes = protocol.decode_read(request.body)
        nodes = self._core.child_nodes(request.inode)
        dots = b""
        if position < _DOTS:
            dots = encode(self._core.dots(request.inode), 0)[position * (record_bytes + 8) :]
            position = _DOTS
        nodes = nodes[position - _DOTS :][: max(room_bytes // record_bytes, 1)]
        left_bytes = room_bytes - len(dots)
        fitting = protocol.count_that_fit(self._core.name_lengths(nodes), record_bytes, left_bytes)
        if fitting == 0 and nodes and not dots:  # an empty reply would mean the end of the folder
            raise _Refused(errno.EINVAL)
        return dots + encode(self._core.siblings(nodes[:fitting]), position)

    # -- reads -------------------------------------------------------------------------------------------

    def _read(self, request: Request, nursery: trio.Nursery) -> None:
        offset, size = protocol.decode_read(request.body)
        buffers = self._reads.at_once(request.inode, offset, size)
        if buffers is not None:
            self._reply_buffers(request.unique, buffers)
            return
        # Known as waiting from now on: the next request may be the one that interrupts it.
        scope = self._waiting[request.unique] = trio.CancelScope()
        nursery.start_soon(self._read_later, request, offset, size, scope)

    async def _read_later(self, request: Request, offset: int, size: int, scope: trio.CancelScope) -> None:
        unique = request.unique  # the body lies in the loop's buffer, and is overwritten by now
        try:
            with scope:
                self._reply_buffers(unique, await self._reads.fetch(request.inode, offset, size))
            if scope.cancelled_caught:
                self._refuse(unique, errno.EINTR)
        except Exception as error:
            self._fail(request, error)
        finally:
            self._waiting.pop(unique, None)

    def _interrupt(self, unique: int) -> None:
        """Give up a waiting READ: whoever asked got a signal. One that is answered already is left alone."""
        scope = self._waiting.pop(unique, None)
        if scope is not None:
            scope.cancel()

    def _reply_buffers(self, unique: int, buffers: Buffers) -> None:
        header = protocol.encode_header(unique, sum(map(len, buffers)))
        if len(buffers) < BUFFERS_PER_REPLY_MAX:
            self._write(header, *buffers)
        else:
            self._write(header, b"".join(buffers))
