"""The records of sources, as another process reads them (`reader_process.py`). This module opens files and sockets,
and starts a process.
"""

import errno
import fcntl
import io
import os
import select
import signal
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from dieselfs.errors import Damaged, DieselfsError, InvalidInput, NotFound
from dieselfs.forks import renew_after_fork
from dieselfs.names import path_fault
from dieselfs.process.launch import module_environment, python_command
from dieselfs.process.sandbox import PROCESSOR_S_MAX
from dieselfs_tools.archives.formats import AUTO, FORMATS, Format
from dieselfs_tools.archives.importing.channel import ANOTHER, NO_ORDER, PIPE_BYTES, record_of, send_answer
from dieselfs_tools.archives.importing.inputs import DirectOpener, Found, OpenRemote, name_beside
from dieselfs_tools.archives.importing.record import ArrayForm, Record
from dieselfs_tools.cli.output import Output
from dieselfs_tools.cli.progress import no_room_for, spool
from dieselfs_tools.transfers.content_ring import ContentRing, ring_memory
from dieselfs_tools.transfers.messages import PART_BYTES_MAX, Reader
from dieselfs_tools.transfers.workers import STALLED_S

ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONUTF8")
"""Variables that the reader gets. Others have keys of the user."""

DATA_FILES = ("data.mdb",)
"""What a library opens in a folder by its name."""
STATUS_BYTES_MAX = 16


class Readers:
    """Reads one source at a time. The process starts with the first one, and serves all. For one thread at a time.
    Close it at the end. A forked child gets a process of its own, which the first one forks.

    `steps` rises while a source is read.
    """

    def __init__(
        self, output: Output, open_remote: OpenRemote | None = None, form: ArrayForm | None = None
    ) -> None:
        self._form = form or ArrayForm()
        self._output = output
        self._open_remote = open_remote
        self._control: socket.socket | None = None
        self._kept: SourceReader | None = (
            None  # of which another part may follow: to begin costs more than to read
        )
        self._last = ""  # the format of the last source, whose library the process imports before it forks
        self._end: weakref.finalize[[socket.socket, subprocess.Popen[bytes]], Readers] | None = None
        self.steps = 0
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._output = Output(is_quiet=True)  # the command shows the progress
        if self._end is not None:
            self._end.detach()
        if self._control is not None:
            before, self._control = self._control, _another(self._control)
            before.close()

    def read(
        self,
        name: str,
        format_name: str = AUTO,
        has_contents: bool = True,
        jobs: int = 0,
        begin: int = 0,
        end: int = 0,
    ) -> "SourceReader":
        """The records of a source. Raises NotFound, Unavailable, DieselfsError, and what the reader does for a source
        that is not of the format. `has_contents`: records have their content; `begin` and `end`: as of `Input`. `jobs`:
        not 0 has no records, but `starts` of parts for this number of processes; others can be read meanwhile.
        """
        if (kept := self._kept) is not None:
            if (begin or end) and kept.name == name and kept.is_done:
                kept.go_on(begin, end)
                return kept
            self._kept = None
            kept.close()
        opener = DirectOpener(name, self._output, self._open_remote)
        source = SourceReader(name, opener, self._output, has_contents, self._step)
        try:
            control = self._started() if jobs <= 1 else source.own(_another(self._started()))
            source.start(control, format_name, self._last, (jobs, begin, end, *self._form))
        except BaseException:
            source.close()
            raise
        self._last = source.format.name
        if begin or end:
            source.is_kept, self._kept = True, source
        return source

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
        if self._end is not None:
            self._end()

    def start(self) -> None:
        """Start the process, before forks that read."""
        self._started()

    def _step(self) -> None:
        self.steps += 1

    def _started(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            with theirs:
                process = subprocess.Popen(
                    python_command(__name__.replace(".reader", ".reader_process"), str(theirs.fileno())),
                    env=module_environment(kept) | {"OPENBLAS_NUM_THREADS": "1", "HDF5_PLUGIN_PRELOAD": "::"},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            self._end = weakref.finalize(self, _end, self._control, process)
        return self._control


def _another(control: socket.socket) -> socket.socket:
    """The control of a fork of the process, which reads another source."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, suppress(OSError):  # the process has ended: the next source fails
        socket.send_fds(control, [ANOTHER], [theirs.fileno()])
    return ours


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # also for a thread that waits
    control.close()
    process.wait()  # it ends as soon as this end is closed, with its child


class SourceReader:
    """One source that is read. Iterate over its records; the content of one can be read until the next one is taken.
    Close it. `format` and `is_plain`: as of `Input`. `is_done`: all records were sent; it then stays open if it
    `is_kept`.
    """

    format: Format
    is_plain: bool

    def __init__(
        self,
        name: str,
        opener: DirectOpener,
        output: Output,
        has_contents: bool,
        progressed: Callable[[], object],
    ) -> None:
        """`progressed` is called for each message, and each time that it is given bytes."""
        self.name = name
        self.is_kept = self.is_done = False
        self._progressed = progressed
        self._opener = opener
        self._output = output
        self._has_contents = has_contents
        self._stack = ExitStack()
        self._feeds: list[_Feed] = []
        self._stack.callback(self._close_feeds)
        self._files = {name, *(os.path.join(name, base) for base in DATA_FILES)}
        self._spool: io.FileIO | None = None
        self._control: socket.socket | None = None

    def own(self, control: socket.socket) -> socket.socket:
        """Its process ends with this source, also while forks of `dlcmd` have this end."""
        self._stack.enter_context(control)
        self._stack.callback(control.shutdown, socket.SHUT_RDWR)
        return control

    def start(self, control: socket.socket, format_name: str, last: str, task: Sequence[Any]) -> None:
        """Have the source read, up to its first record."""
        found = self._opener.find()
        descriptors = self._data_files(found) if found.raw is None else [self._given(found.raw)]
        with suppress(OSError):  # most sources do not need it
            self._spool = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed by the stack
            self._stack.callback(self._spool.close)
            descriptors.append(self._opened(f"/proc/self/fd/{self._spool.fileno()}"))
        self._end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._stack.enter_context(self._end)
        with theirs, ring_memory() as ring:
            pipe, given = _large_pipe()
            self._stack.callback(os.close, pipe)
            self._messages = Reader(pipe, ContentRing(ring))
            order = (last if format_name == AUTO else format_name) or AUTO
            try:
                socket.send_fds(control, [order.encode()], [given, theirs.fileno(), ring])
            finally:
                os.close(given)
        self._control = control
        is_folder, has_spool = found.raw is None, self._spool is not None
        facts = (found.mtime_ns, found.path, is_folder, has_spool, self._has_contents, *task)
        self.send("source", self.name, format_name, *facts, descriptors=descriptors)
        match self.answer()[0]:
            case ["opened", str() as name, bool() as is_plain] if name in FORMATS:
                self.format, self.is_plain = FORMATS[name], is_plain
            case _:
                raise Damaged("its reader begins without a format")

    def __enter__(self) -> "SourceReader":
        return self

    def __exit__(self, *error: object) -> None:
        if not (self.is_kept and self.is_done):
            self.close()

    def go_on(self, begin: int, end: int) -> None:
        """Read another part, as of `Input`."""
        self.is_done = False
        self.send("range", begin, end)

    def __iter__(self) -> Iterator[Record]:
        """Raises what the reader of the format does, and Damaged if its process ends."""
        while (answer := self.answer())[0] != ["done"]:
            record, fault = record_of(*answer)
            if any(piece.file not in self._files for piece in record.ranges):
                raise Damaged("its reader names another file")
            is_large = self._has_contents and record.size > PART_BYTES_MAX and not record.fault
            if not is_large and fault is None:
                yield record
                continue
            content = LargeContent(self, None if fault is None else error_of(*fault), is_large)
            record.opened = content.begin
            yield record
            content.finish()
        self.is_done = True

    def starts(self) -> Iterator[int]:
        """As of the format. The next one is found while its caller uses the last one. Raises as `__iter__`."""
        last, poll = 0, select.poll()
        poll.register(self._messages.pipe, select.POLLIN)
        while self._messages.has_more or poll.poll(
            STALLED_S * 1000
        ):  # what does not answer is left to workers
            match self.answer()[0]:
                case ["done"]:
                    return
                case ["start", int() as start] if last < start < 1 << 63:
                    self.send("next")
                    yield start
                    last = start
                case _:
                    raise Damaged("its reader begins a part elsewhere")

    def answer(self) -> tuple[list[Any], bytes]:
        """The next message about records or their content. The reader gets what it asks for meanwhile."""
        while True:
            answer = self._messages.receive(self._feed)
            if answer is None:
                raise self._ended()
            self._progressed()
            match answer[0]:
                case ["find", str() as base]:
                    self._find(base)
                case ["spool"]:
                    self._keep()
                case ["error", str() as kind, str() as text]:
                    raise next((feed.error for feed in self._feeds if feed.error), error_of(kind, text))
                case _:
                    return answer

    def send(self, *message: Any, descriptors: Sequence[int] = ()) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `answer` says why
            send_answer(self._end, *message, descriptors=descriptors)

    def _given(self, raw: io.RawIOBase) -> int:
        """The descriptor for the reader: the file, or a pipe that this process fills."""
        if isinstance(raw, io.FileIO):
            self._stack.callback(raw.close)
            return raw.fileno()
        self._feeds.append(_Feed(raw))
        return self._feeds[-1].given

    def _close_feeds(self) -> None:
        for feed in self._feeds:
            feed.close()

    def _opened(self, path: str) -> int:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _data_files(self, folder: Found) -> list[int]:
        files = [os.path.join(folder.path, base) for base in DATA_FILES if folder.path]
        return [self._opened(file) for file in files if os.path.exists(file)]

    def _find(self, base: str) -> None:
        found = None
        if not path_fault(os.fsencode(base)):
            with suppress(NotFound):
                found = self._opener.find(base)
        if found is None or found.raw is None:
            self.send("none")
            return
        self._files.add(name_beside(self.name, base))
        if isinstance(found.raw, io.FileIO):
            with found.raw:  # the reader has it then: a folder may have more files than a process can open
                self.send("found", found.mtime_ns, descriptors=[found.raw.fileno()])
            return
        self.send("found", found.mtime_ns, descriptors=[self._given(found.raw)])
        self._feeds[-1].let_go()

    def _keep(self) -> None:
        """Write the parts that follow into the temporary file."""
        if self._spool is None:
            raise no_room_for(self.name, OSError(errno.EACCES, os.strerror(errno.EACCES)))
        spool(LargeContent(self, None, False, is_coming=True).read, self._spool, self._output, self.name)
        self.send("spooled")

    def _feed(self) -> None:
        """Fill pipes until there is a message."""
        self._feeds = [feed for feed in self._feeds if feed.is_open or feed.error]
        while open_feeds := [feed for feed in self._feeds if feed.is_open]:
            poll = select.poll()
            poll.register(self._messages.pipe, select.POLLIN)
            for feed in open_feeds:
                poll.register(feed.pipe, select.POLLOUT)
            ready = dict(poll.poll())
            if self._messages.pipe in ready:
                return
            for feed in open_feeds:
                if feed.pipe in ready:
                    feed.fill()
                    self._progressed()

    def _ended(self) -> DieselfsError:
        """Why the reader has ended without an answer."""
        code = self._status()
        if code == -signal.SIGXCPU:
            return Damaged(f"its reader took {PROCESSOR_S_MAX} s of the processor without a record")
        how = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        return Damaged(f"the library that reads it has crashed ({how}): it is damaged, or made to do so")

    def _status(self) -> int | None:
        """Of the process; once."""
        control, self._control = self._control, None
        status = control.recv(STATUS_BYTES_MAX) if control is not None else b""
        return int(status) if status else None

    def close(self) -> None:
        """End the reader of this source."""
        self._stack.close()
        if self._control is not None:
            with suppress(OSError):  # the process was ended by somebody
                self._control.send(NO_ORDER)
                self._status()


def _large_pipe() -> tuple[int, int]:
    """The ends to read and to write."""
    ends = os.pipe2(os.O_CLOEXEC)
    with suppress(OSError):  # the user has many pipes
        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends


class _Feed:
    """A pipe to the reader, and the stream that fills it. `given`: the end for the reader."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self._pending = memoryview(b"")
        self.error: Exception | None = None
        self.given, self.pipe = _large_pipe()
        self.is_open = self._has_given = True
        os.set_blocking(self.pipe, False)

    def fill(self) -> None:
        """Write what the pipe takes; an error of the stream is an end, and raised later."""
        try:
            if not self._pending:
                self._pending = memoryview(self._raw.read(PIPE_BYTES) or b"")
                if not self._pending:
                    self._end()
                    return
            self._pending = self._pending[os.write(self.pipe, self._pending) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._end()
        except (OSError, DieselfsError) as error:
            self.error = error
            self._end()

    def _end(self) -> None:
        self.is_open = False
        os.close(self.pipe)
        self._raw.close()

    def let_go(self) -> None:
        """The reader has its end: a folder may have more files than a process can open."""
        os.close(self.given)
        self._has_given = False

    def close(self) -> None:
        if self._has_given:
            self.let_go()
        if self.is_open:
            self._end()


class LargeContent:
    """The content of a file that comes in parts, or its fault."""

    def __init__(
        self, reader: SourceReader, fault: Exception | None, is_asked: bool, is_coming: bool = False
    ) -> None:
        """`is_asked`: the reader waits for `content` or `next`; `is_coming`: it sends parts already."""
        self._reader = reader
        self._fault = fault
        self._waits = is_asked
        self._is_all = not is_coming
        self._part = b""

    def begin(self) -> "LargeContent":
        if self._waits:
            self._waits = self._is_all = False
            self._reader.send("content")
        return self

    def read(self, size: int, /) -> bytes:
        """Raises Damaged, InvalidInput."""
        if self._fault is not None:
            raise self._fault
        while not self._part and not self._is_all:
            message, content = self._reader.answer()
            match message:
                case ["part"]:
                    self._part = content
                case ["end"]:
                    self._is_all = True
                case ["fault", str() as kind, str() as text]:
                    self._is_all, self._fault = True, error_of(kind, text)
                    raise self._fault
                case _:
                    raise Damaged("its reader sends something else than content")
        part, self._part = self._part[:size], self._part[size:]
        return part

    def finish(self) -> None:
        """Come to the next record."""
        if self._waits:
            self._reader.send("next")
        while not self._is_all:
            with suppress(Damaged, InvalidInput):
                while self.read(PART_BYTES_MAX):
                    pass


def error_of(kind: str, text: str) -> DieselfsError:
    """An error of the reader: it says why no more can be read, and nothing else."""
    return {"Damaged": Damaged, "NotFound": NotFound}.get(kind, InvalidInput)(text)
