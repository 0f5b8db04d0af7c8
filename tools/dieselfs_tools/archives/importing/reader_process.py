"""The process that reads the sources of an import, in place of `dlcmd`, which has keys and connections.

    python -m dieselfs_tools.archives.importing.reader_process DESCRIPTOR

It forks a child for each source, which gives up what it can (`dieselfs/process/sandbox.py`) before it reads the first
byte. The libraries of a format are imported before the fork. Ends when `dlcmd` does. This module forks.
"""

import io
import os
import select
import signal
import socket
import sys
import sysconfig
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, NoReturn

import dieselfs
import dieselfs_client
import dieselfs_tools
from dieselfs.errors import EXIT_BUG, EXIT_OK, Damaged, DieselfsError, NotFound
from dieselfs.limits import GIB
from dieselfs.process import sandbox
from dieselfs_client import capabilities
from dieselfs_tools.archives.formats import AS_IT_IS, FORMATS, format_of
from dieselfs_tools.archives.importing.channel import ANOTHER, receive_answer, record_message
from dieselfs_tools.archives.importing.inputs import MAPS, Found, Input
from dieselfs_tools.archives.importing.record import COPIED_BYTES_MAX, ArrayForm, Content, Record
from dieselfs_tools.transfers.content_ring import ContentRing
from dieselfs_tools.transfers.messages import PART_BYTES_MAX, SENT_BYTES, Writer

ORDER_BYTES_MAX = 64
LIBRARIES = (
    *("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache"),
    *("/dev/null", "/dev/urandom", "/proc/meminfo", "/proc/cpuinfo", "/sys/devices/system/cpu"),
)
"""What libraries read, besides the folders of Python."""
TEXT_CHARACTERS_MAX = 2_000
"""Of an error."""


def serve(control: socket.socket) -> None:
    """Fork a child for each order, which has its ends of a pipe, a socket and a ring; answer with its status. Or fork
    one that does the same for a worker of `dlcmd`.
    """
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, ORDER_BYTES_MAX, 3)
        if not order:
            return
        if not descriptors:
            continue
        if order == ANOTHER:
            if os.fork():
                os.close(descriptors[0])
            else:
                control.close()
                control = socket.socket(fileno=descriptors[0])
            continue
        if found := FORMATS.get(order.decode()):
            with suppress(DieselfsError):  # the child reports it
                found.read()
        child = os.fork()
        if not child:
            control.close()
            _be_reader(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(b"%d" % _await(child, control))


def _await(child: int, control: socket.socket) -> int:
    """The exit code of a child, or the negative number of its signal. It is killed if `dlcmd` wants it or has ended."""
    descriptor = os.pidfd_open(child)
    try:
        poll = select.poll()
        for one in (descriptor, control.fileno()):
            poll.register(one, select.POLLIN)
        if descriptor not in dict(poll.poll()):
            os.kill(child, signal.SIGKILL)  # not yet reaped, so it is the child
    finally:
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _be_reader(pipe: int, end: int, ring: int) -> NoReturn:
    code = EXIT_BUG
    try:
        os.dup2(1, 2)  # libraries print what they find damaged
        _read(Writer(pipe, ContentRing(ring)), socket.socket(fileno=end))
        code = EXIT_OK
    finally:
        os._exit(code)


def _read(writer: Writer, end: socket.socket) -> None:
    """Read one source and send its records."""
    sandbox.end_with_parent(signal.SIGKILL)
    message, descriptors = receive_answer(end)
    _, name, format_name, mtime_ns, path, is_folder, has_spool, has_contents, jobs, *part_and_form = message
    maps = io.FileIO(MAPS)
    _give_up(descriptors)
    found = Found(None if is_folder else io.FileIO(descriptors[0]), mtime_ns, path)
    opener = _Asked(writer, end, found, maps, descriptors[-1] if has_spool else None)
    kind, text = DieselfsError.__name__, ""
    try:
        with ExitStack() as stack:
            source = Input(name, stack, opener, is_packed=False if format_name == AS_IT_IS else None)
            source.begin, source.end, *form = part_and_form
            source.form = ArrayForm(*form)
            _send_all(writer, opener, source, format_name, has_contents, jobs)
    except DieselfsError as error:
        kind, text = type(error).__name__, str(error)
    except BrokenPipeError:  # nobody wants more of this source
        return
    except OSError as error:
        text = error.strerror or str(error)
    except MemoryError:
        kind = Damaged.__name__
        text = f"it needs more than {sandbox.DATA_BYTES_MAX // GIB} GiB of memory, the limit of its reader"
    except Exception as error:  # any one of a library, for bytes that its author did not think of
        kind, text = Damaged.__name__, f"cannot be read: {type(error).__name__}: {error}"
    if text:
        writer.put("error", kind, text[:TEXT_CHARACTERS_MAX])
    writer.flush()


def _give_up(descriptors: list[int]) -> None:
    """All that the reader of a source needs not."""
    sandbox.limit_resources()
    sandbox.leave_network()
    with suppress(OSError):
        capabilities.keep_only(capabilities.DAC_READ_SEARCH)  # root imports files of others
    sandbox.gain_no_privileges()
    python = {*sys.path, *sysconfig.get_paths().values(), f"{sys.base_prefix}/lib"}
    # An editable install imports them from folders that are not in `sys.path`.
    packages = {*dieselfs.__path__, *dieselfs_client.__path__, *dieselfs_tools.__path__}
    sandbox.restrict_files({*python, *packages, *LIBRARIES}, descriptors)
    sandbox.refuse_calls()


class _Asked:
    """Opens files by asking `dlcmd`. `maps`: opened before access to files was given up. A rule of Landlock would not
    do: it is for an inode, and a kernel that drops its caches makes a new one.
    """

    def __init__(
        self, writer: Writer, end: socket.socket, source: Found, maps: io.FileIO, spool: int | None
    ) -> None:
        self._maps = maps
        self._writer = writer
        self._end = end
        self._source = source
        self._spool = spool

    def maps(self) -> bytes:
        self._maps.seek(0)
        return self._maps.readall()

    def find(self, base: str = "") -> Found:
        if not base:
            return self._source
        self._writer.put("find", base)
        (word, *rest), descriptors = self.answer()
        if word != "found":
            raise NotFound(f"{base}: there is no such file")
        return Found(io.FileIO(descriptors[0]), rest[0])

    def file(self, stream: BinaryIO, stack: ExitStack) -> str:
        self._writer.put("spool")
        while part := stream.read(PART_BYTES_MAX):
            self._writer.put("part", content=part)
            sandbox.note_progress()
        self._writer.put("end")
        self.answer()
        return f"/proc/self/fd/{self._spool}"

    def answer(self) -> tuple[list[Any], list[int]]:
        self._writer.flush()
        return receive_answer(self._end)


def _send_all(
    writer: Writer, opener: _Asked, source: Input, format_name: str, has_contents: bool, jobs: int
) -> NoReturn:
    """Send what is wanted of the source, then of other parts. Raises BrokenPipeError if nobody wants more."""
    chosen = format_of(source, format_name)
    read = chosen.read()
    if not chosen.is_mapped:
        sandbox.limit_mappings()
    writer.put("opened", chosen.name, source.is_plain)
    for start in chosen.starts(source, jobs):
        sandbox.note_progress()
        writer.put("start", start)
        opener.answer()
    while True:
        for record in () if jobs else read(source):
            sandbox.note_progress()
            if has_contents:
                _send(writer, opener, record)
            elif record.content is not None and record.place is None and record.size <= COPIED_BYTES_MAX:
                writer.put(*record_message(record, True), content=record.content)
            else:
                writer.put(*record_message(record, False))
        writer.put("done")
        (_, source.begin, source.end), _ = opener.answer()


def _send(writer: Writer, opener: _Asked, record: Record) -> None:
    """A record with its content; that of a large one if it is asked for."""
    if record.size > PART_BYTES_MAX and not record.fault:
        writer.put(*record_message(record, False))
        (word, *_), _ = opener.answer()
        if word == "content":
            _send_content(writer, record)
        return
    fault = None
    try:
        if not record.fault:
            record.load()
    except (OSError, DieselfsError) as error:
        fault = _fault(error)
    content = None if fault else record.content
    writer.put(*record_message(record, content is not None, fault), content=content or b"")


def _send_content(writer: Writer, record: Record) -> None:
    try:
        content: Content = io.BytesIO(record.content or b"") if record.opened is None else record.opened()
        left = record.size
        while left and (part := content.read(min(left, SENT_BYTES))):
            writer.put("part", content=part)
            sandbox.note_progress()
            left -= len(part)
        writer.put("end")
    except BrokenPipeError:
        raise
    except (OSError, DieselfsError) as error:
        writer.put("fault", *_fault(error))


def _fault(error: Exception) -> tuple[str, str]:
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return type(error).__name__, text[:TEXT_CHARACTERS_MAX]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # of the terminal: `dlcmd` decides
    capabilities.write_no_core_files()
    with socket.socket(fileno=int(sys.argv[1])) as control, suppress(BrokenPipeError, ConnectionResetError):
        serve(control)  # until `dlcmd`, or its worker, ends


if __name__ == "__main__":
    main()
