"""Serves a mount through `/dev/fuse`. This module reads and writes the device.

One loop reads requests until there are none. A plain function answers each request that needs only the snapshot or
memory. A READ of bytes that are not in memory becomes a task. An error of one request becomes an errno and does not
affect other requests.
"""

import errno
import logging
import mmap
import os
import select
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from dieselfs.errors import ProtocolError
from dieselfs_client.mount.drivers.driver import Driver
from dieselfs_client.mount.kernel import protocol
from dieselfs_client.mount.kernel.protocol import KernelRequest, Opcode
from dieselfs_client.mount.reading.core import CONTROL_INODE, Attributes, Siblings
from dieselfs_client.mount.reading.error_log import Refused
from dieselfs_client.mount.reading.read_path import Buffers

LINGER_MS = 1
"""After the last request the loop polls the device for this time: it is faster than the scheduler, and delays other
tasks by no more than this. Not while tasks push for a sequential reader, or a reader waits for one.
"""
REQUESTS_IN_A_ROW_MAX = 32
"""Other tasks run after this many requests."""
BUFFERS_PER_REPLY_MAX = 256
"""A reply of more buffers is joined first; `writev` takes 1024."""

_DOTS = 2
"""The positions of `.` and `..` in a folder; its children follow."""
_UNANSWERED = frozenset({Opcode.DESTROY, Opcode.NOTIFY_REPLY})
_CHANGING = (
    *(Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR, Opcode.LINK),
    *(Opcode.RENAME, Opcode.RENAME2, Opcode.SETXATTR, Opcode.REMOVEXATTR, Opcode.CREATE),
    *(Opcode.TMPFILE, Opcode.FALLOCATE, Opcode.COPY_FILE_RANGE),
)
# Python's `open` sends IOCTL for each file, to detect terminals. No reply makes the kernel stop sending it. So it is
# the only request for a file in the page cache (11 us; none with `os.open`).
_ERRNO_BY_OPCODE: dict[int, int] = {Opcode.IOCTL: errno.ENOTTY} | {int(op): errno.EROFS for op in _CHANGING}
"""Requests that are always refused. All others without a handler get ENOSYS, and the kernel does not repeat them. OPEN
and OPENDIR are among these, so the kernel opens files without a request.
"""

_log = logging.getLogger(__name__)


class KernelDriver(Driver):
    def __post_init__(self) -> None:
        super().__post_init__()
        self._taking = trio.CancelScope()
        names = {0: "OTHER"} | {int(opcode): opcode.name for opcode in Opcode}
        self._requests = {
            opcode: self.reads.metrics.counter("fuse.requests", "Requests of the kernel.", operation=name)
            for opcode, name in names.items()
        }
        self._encoder = encoder = protocol.Encoder(self.user, self.group, self.root_user)
        # Requests that wait, by `unique`; changed only between checkpoints.
        self._waiting: dict[int, trio.CancelScope] = {}
        # Each returns the payload of its reply; None if there is no reply, or the handler sends it.
        self._answers: dict[int, Callable[[KernelRequest, trio.Nursery], bytes | None]] = {
            Opcode.READ: self._read,
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: lambda asked, _: encoder.attributes(
                self._tree(asked.inode).attributes(asked.inode)
            ),
            Opcode.READLINK: lambda asked, _: self.core.target(asked.inode),
            Opcode.READDIRPLUS: partial(self._listing, protocol.DIRENT_PLUS_BYTES, encoder.listing_plus),
            Opcode.READDIR: partial(self._listing, protocol.DIRENT_BYTES, protocol.encode_listing),
            Opcode.WRITE: self._write_control,
            Opcode.SETATTR: self._set_attributes,
            Opcode.STATFS: self._statfs,
            Opcode.INIT: self._init,
            Opcode.INTERRUPT: self._interrupt,
            Opcode.FORGET: self._forget,
            Opcode.BATCH_FORGET: self._forget_batch,
        }

    async def run(self) -> None:
        os.set_blocking(self.device, False)
        async with trio.open_nursery() as nursery:
            with self._taking:
                await self._take_requests(nursery)
                nursery.cancel_scope.cancel()

    def finish(self) -> None:
        self._taking.cancel()

    async def _take_requests(self, nursery: trio.Nursery) -> None:
        """Returns when the filesystem is unmounted. If cancelled, all requests taken are answered or in flight."""
        readiness = select.poll()
        readiness.register(self.device, select.POLLIN)
        # Most requests need a page of it. The others are not touched, as those of a bytearray would be.
        buffer = mmap.mmap(-1, protocol.REQUEST_BYTES_MAX, mmap.MAP_PRIVATE)
        packet = memoryview(buffer)
        in_a_row = 0
        while True:
            is_needed = self._waiting or self.reads.is_pushing()
            if not readiness.poll(0 if is_needed else LINGER_MS):
                if self.is_taken_over:
                    self.agreed.set()
                await trio.lowlevel.wait_readable(self.device)
                in_a_row = 0
            try:
                length = os.readv(self.device, [buffer])
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ENOENT):  # interrupted before it was read
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
        """Answer one request, or start a task that answers it. Never raises."""
        request = None
        try:
            request = protocol.decode_request(packet)
            self._requests[request.opcode if request.opcode in self._requests else 0].value += 1
            answer = self._answers.get(request.opcode)
            if answer is not None:
                payload = answer(request, nursery)
                if payload is not None:
                    self._write(protocol.encode_header(request.unique, len(payload)), payload)
            elif request.opcode not in _UNANSWERED:
                self._refuse(request.unique, _ERRNO_BY_OPCODE.get(request.opcode, errno.ENOSYS))
        except Exception as error:  # a bug fails this request, not the mount
            if request is None:
                _log.exception("malformed request from the kernel")
            else:
                self._fail(request, error)

    # -- replies -----------------------------------------------------------------------------------------

    def _write(self, *parts: bytes | memoryview) -> None:
        try:
            os.writev(self.device, parts)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # interrupted, or the mount has ended
                raise

    def _refuse(self, unique: int, errno_: int) -> None:
        self._write(protocol.encode_header(unique, 0, errno_))

    def _fail(self, request: KernelRequest, error: Exception) -> None:
        """Answer a request with the errno of an error."""
        what = f"request {request.opcode}"
        try:
            self._refuse(request.unique, self._code(what, request.inode, error))
        except OSError:
            _log.exception("%s cannot be answered", what)

    def _answer_later(
        self, request: KernelRequest, nursery: trio.Nursery, answer: Callable[[], Awaitable[Buffers]]
    ) -> None:
        """Answer when `answer` returns. `answer` bounds its own time, and does not use the body of the request."""
        # Entered before the task starts: the next request may interrupt this one.
        scope = self._waiting[request.unique] = trio.CancelScope()
        nursery.start_soon(self._wait, request, answer, scope)

    async def _wait(
        self, request: KernelRequest, answer: Callable[[], Awaitable[Buffers]], scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                self._reply_buffers(request.unique, await answer())
            if scope.cancelled_caught:
                self._refuse(request.unique, errno.EINTR)
        except Exception as error:  # a bug fails this request, not the mount
            self._fail(request, error)
        finally:
            self._waiting.pop(request.unique, None)

    def _interrupt(self, request: KernelRequest, _: trio.Nursery) -> None:
        """Cancel a waiting request, whose process got a signal. No effect if it was answered."""
        scope = self._waiting.pop(protocol.decode_number(request.body), None)
        if scope is not None:
            scope.cancel()

    def _reply_buffers(self, unique: int, buffers: Buffers) -> None:
        header = protocol.encode_header(unique, sum(map(len, buffers)))
        if len(buffers) < BUFFERS_PER_REPLY_MAX:
            self._write(header, *buffers)
        else:
            self._write(header, b"".join(buffers))

    # -- names and folders -----------------------------------------------------------------------------------

    def _init(self, request: KernelRequest, _: trio.Nursery) -> bytes:
        try:
            return protocol.encode_init(protocol.decode_init(request.body))
        except ProtocolError as error:
            self.refusal = str(error)
            raise
        finally:
            self.agreed.set()

    def _lookup(self, request: KernelRequest, nursery: trio.Nursery) -> bytes | None:
        folder, name = request.inode, protocol.decode_name(request.body)
        if self._takes_time(folder, name):

            async def later() -> Buffers:
                return [memoryview(self._entry(await self.control.lookup_later(folder, name)))]

            self._answer_later(request, nursery, later)
            return None
        return self._entry(self._found(folder, name))

    def _entry(self, found: Attributes | None) -> bytes:
        return self._encoder.entry(found, self._name_valid_s(found)) if found else protocol.NO_SUCH_ENTRY

    def _statfs(self, request: KernelRequest, _: trio.Nursery) -> bytes:
        header = self.core.snapshot.header
        return protocol.encode_statfs(header.total_bytes, header.nodes)

    def _listing(
        self,
        record_bytes: int,
        encode: Callable[[Siblings, int], bytes],
        request: KernelRequest,
        _: trio.Nursery,
    ) -> bytes:
        position, room_bytes = protocol.decode_read(request.body)[:2]
        tree = self._tree(request.inode)
        nodes = tree.child_nodes(request.inode)
        first_node = nodes.start
        dots = b""
        if position < _DOTS:
            dots = encode(tree.dots(request.inode), 0)[position * (record_bytes + 8) :]
            position = _DOTS
        nodes = tree.listed(nodes[position - _DOTS :][: max(room_bytes // record_bytes, 1)])
        left_bytes = room_bytes - len(dots)
        fitting = protocol.count_that_fit(tree.name_lengths(nodes), record_bytes, left_bytes)
        if not fitting:
            if nodes and not dots:  # an empty reply would mean the end of the folder
                raise Refused(errno.EINVAL)
            return dots
        return dots + encode(tree.siblings(nodes[:fitting]), _DOTS + nodes.start - first_node)

    def _forget(self, request: KernelRequest, _: trio.Nursery) -> None:
        if request.inode >= CONTROL_INODE:
            self.control.forget(request.inode, protocol.decode_number(request.body))

    def _forget_batch(self, request: KernelRequest, _: trio.Nursery) -> None:
        for inode, lookups in protocol.decode_batch_forget(request.body):
            if inode >= CONTROL_INODE:
                self.control.forget(inode, lookups)

    # -- reads -------------------------------------------------------------------------------------------

    def _read(self, request: KernelRequest, nursery: trio.Nursery) -> bytes | None:
        inode, (offset, size, is_direct) = request.inode, protocol.decode_read(request.body)
        if inode >= CONTROL_INODE:
            return self._read_control(request, nursery, offset, size)
        buffers = self.reads.at_once(inode, offset, size)
        if buffers is not None:
            self._reply_buffers(request.unique, buffers)
        elif not is_direct and self.reads.is_read_around(inode, offset, size):
            raise Refused(errno.EIO)
        else:
            self._answer_later(request, nursery, lambda: self.reads.fetch(inode, offset, size))
        return None

    # -- writes, to the control tree only ------------------------------------------------------------------------

    def _write_control(self, request: KernelRequest, _: trio.Nursery) -> bytes:
        if request.inode < CONTROL_INODE:
            raise Refused(errno.EROFS)
        offset, content = protocol.decode_write(request.body)
        return protocol.encode_written(self.control.write(request.inode, offset, bytes(content)))

    def _set_attributes(self, request: KernelRequest, _: trio.Nursery) -> bytes:
        """Programs truncate a file when they open it to write."""
        if request.inode < CONTROL_INODE or protocol.decode_setattr(request.body) != 0:
            raise Refused(errno.EROFS)
        return self._encoder.attributes(self.control.truncated(request.inode))

    def _read_control(
        self, request: KernelRequest, nursery: trio.Nursery, offset: int, size: int
    ) -> bytes | None:
        inode = request.inode
        data = self.control.at_once(inode, offset, size)
        if data is None:

            async def fetch() -> Buffers:
                return [memoryview(await self.control.fetch(inode, offset, size))]

            self._answer_later(request, nursery, fetch)
        return data
