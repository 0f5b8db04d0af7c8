"""Messages between `dlcmd import` and the process that reads a source.

From the reader, through a pipe: two lengths, a list in msgpack, and content.

    opened, FORMAT, IS_PLAIN        before all records
    record, ...                     see `record_message`; with the content, unless that is large or faulty
    part; end; fault, KIND, TEXT    the content of a large file, or of what is spooled
    find, BASE                      open a file of the folder
    spool                           keep the parts that follow in the temporary file
    done; error, KIND, TEXT         the last one

To the reader, as packets of a Unix socket: lists in msgpack, and descriptors.

    source, NAME, FORMAT, MTIME, PATH, IS_FOLDER, HAS_SPOOL, HAS_CONTENTS, IS_CHECK     what to read
    content; next                   of a large file: its content, or the next record
    found, MTIME; none              the answer to `find`
    spooled                         all parts are in the temporary file

The first one has the descriptors of the source, or of what a format opens in the folder, and of the temporary file.
This module reads and writes pipes and sockets.
"""

import os
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from dieselfs.errors import Damaged
from dieselfs.limits import FILE_BYTES_MAX, KIB, MIB
from dieselfs_tools.archives.importing.record import PERMISSIONS, Place, Record

MESSAGE_BYTES_MAX = 8 * MIB
"""A message without its content."""
PART_BYTES_MAX = 1 * MIB
"""The content of one message. That of a larger file is sent in parts, when it is asked for."""
FIELDS_CHARACTERS_MAX = 1 * MIB
"""The fields of a record for its name, all together."""
SENT_BYTES = 256 * KIB
SENT_PIECES = 256
"""Messages are sent when so much has gathered, or when their sender waits."""
PIPE_BYTES = 1 * MIB
READ_BYTES = 64 * KIB
"""Read from the pipe at once, unless the rest of one content is more."""
ANSWER_BYTES_MAX = 64 * KIB
ANSWER_DESCRIPTORS_MAX = 8

_LENGTHS = struct.Struct("<II")
KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def packed(message: Sequence[Any]) -> bytes:
    content: bytes = msgpack.packb(message, unicode_errors="surrogateescape")
    return content


def _unpacked(content: bytes) -> list[Any]:
    """Raises Damaged."""
    try:
        message = msgpack.unpackb(content, unicode_errors="surrogateescape")
        if isinstance(message, list) and message:
            return message
    except (ValueError, msgpack.UnpackException, RecursionError):
        pass
    raise Damaged("its reader sends what is no message")


class Writer:
    """The reader's end of the pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._pieces: list[bytes] = []
        self._bytes = 0

    def put(self, *message: Any, content: bytes = b"") -> None:
        """Send a message, now or by the next `flush`. Raises BrokenPipeError if nobody reads them."""
        head = packed(message)
        self._pieces += (_LENGTHS.pack(len(head), len(content)), head, content)
        self._bytes += len(head) + len(content)
        if self._bytes >= SENT_BYTES or len(self._pieces) >= SENT_PIECES:
            self.flush()

    def flush(self) -> None:
        """Send what has gathered."""
        pieces: Sequence[bytes | memoryview] = self._pieces
        total = sum(map(len, pieces))
        while total:
            sent = os.writev(self._pipe, pieces)
            total -= sent
            if total:
                pieces = [memoryview(b"".join(pieces))[sent:]]
        self._pieces, self._bytes = [], 0


class Reader:
    """The other end of the pipe. What comes through it is not believed."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self._buffer = memoryview(b"")

    def receive(self, wait: Callable[[], None]) -> tuple[list[Any], bytes] | None:
        """The next message and its content, None at the end. `wait` returns when there are bytes. Raises Damaged if
        there is no message in them.
        """
        if not self._buffer:
            wait()
        head = self._take(_LENGTHS.size)
        if len(head) < _LENGTHS.size:
            return None
        length, content_length = _LENGTHS.unpack(head)
        if length > MESSAGE_BYTES_MAX or content_length > PART_BYTES_MAX:
            raise Damaged("its reader sends a message that is too long")
        message, content = self._take(length), self._take(content_length)
        if len(message) < length or len(content) < content_length:
            return None
        return _unpacked(message), content

    def _take(self, size: int) -> bytes:
        """Fewer bytes only at the end. Blocks: a message is written at once."""
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        if len(taken) == size:
            return bytes(taken)
        parts, missing = [taken], size - len(taken)
        while missing and (part := memoryview(os.read(self.pipe, max(missing, READ_BYTES)))):
            parts.append(part[:missing])
            self._buffer = part[missing:]
            missing -= len(parts[-1])
        return b"".join(parts)


def send_answer(end: socket.socket, *message: Any, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(end, [packed(message)], descriptors)


def receive_answer(end: socket.socket) -> tuple[list[Any], list[int]]:
    """Raises BrokenPipeError if `dlcmd` has gone, or wants no more of this source."""
    content, descriptors, _, _ = socket.recv_fds(end, ANSWER_BYTES_MAX, ANSWER_DESCRIPTORS_MAX)
    if not content:
        raise BrokenPipeError
    return _unpacked(content), descriptors


def record_message(record: Record, has_content: bool, fault: tuple[str, str] | None = None) -> list[Any]:
    """A record as a message. `fault`: kind and text of the error of its content."""
    fields, why = record.fields, record.fault
    if sum(len(name) + len(text) for name, text in fields.items()) > FIELDS_CHARACTERS_MAX:
        fields, why = {}, why or f"its fields have more than {FIELDS_CHARACTERS_MAX} characters"
    mtime_ns = record.mtime_ns
    if abs(mtime_ns) >= 1 << 63:
        mtime_ns, why = 0, why or "its time is none that a file can have"
    return [
        "record",
        record.name,
        mtime_ns,
        record.size,
        record.mode,
        record.target,
        fields,
        why,
        record.is_hard_link,
        record.place,
        has_content,
        fault,
    ]


def record_of(message: Sequence[Any], content: bytes) -> tuple[Record, Any]:
    """The record of a message with its content, and the fault of that. Raises Damaged for any other message: nothing
    in it is believed.
    """
    match message:
        case [
            "record",
            bytes() as name,
            int() as mtime_ns,
            int() as size,
            int() as mode,
            bytes() as target,
            dict() as fields,
            str() as why,
            bool() as is_hard_link,
            None | [str(), int(), int() | None] as place,
            bool() as has_content,
            None | [str(), str()] as fault,
        ] if (
            0 <= size <= FILE_BYTES_MAX
            and stat.S_IFMT(mode) in KINDS
            and len(content) == (size if has_content else 0)
            and all(isinstance(text, str) for pair in fields.items() for text in pair)
        ):
            mode &= stat.S_IFMT(mode) | PERMISSIONS
            record = Record(name, mtime_ns, size, content if has_content else None, mode=mode)
            record.target, record.fields, record.fault, record.is_hard_link = (
                target,
                fields,
                why,
                is_hard_link,
            )
            record.place = None if place is None else Place(*place)
            return record, fault
    raise Damaged("its reader sends a record that cannot be")
