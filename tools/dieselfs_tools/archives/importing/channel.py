"""Messages between `dlcmd import` and the process that reads a source.

From the reader, through a pipe and a ring of contents beside it: two lengths, a list in msgpack, and content.

    opened, FORMAT, IS_PLAIN        before all records
    record, ...                     see `record_message`; with the content, unless that is large or faulty
    part; end; fault, KIND, TEXT    the content of a large file, or of what is spooled
    start, NUMBER                   where a part begins, in place of records; `next` asks for another
    find, BASE                      open a file of the folder
    spool                           keep the parts that follow in the temporary file
    done; error, KIND, TEXT         the last one

To the reader, as packets of a Unix socket: lists in msgpack, and descriptors.

    source, NAME, FORMAT, MTIME, PATH, IS_FOLDER, HAS_SPOOL, HAS_CONTENTS, JOBS, BEGIN, END, FORM...    what to read
    content; next                   of a large file: its content, or the next record
    found, MTIME; none              the answer to `find`
    spooled                         all parts are in the temporary file
    range, BEGIN, END               after `done`: another part of the source

The first one has the descriptors of the source, or of what a format opens in the folder, and of the temporary file.
This module reads and writes pipes and sockets.
"""

import socket
import stat
from collections.abc import Sequence
from typing import Any

from dieselfs.errors import Damaged
from dieselfs.limits import FILE_BYTES_MAX, KIB, MIB
from dieselfs_tools.archives.importing.record import PERMISSIONS, Place, Range, Record
from dieselfs_tools.transfers.messages import packed, unpacked

FIELDS_CHARACTERS_MAX = 1 * MIB
"""The fields of a record for its name, all together."""
PIPE_BYTES = 1 * MIB
ANSWER_BYTES_MAX = 64 * KIB
ANSWER_DESCRIPTORS_MAX = 8

NO_ORDER = b"-"
"""Ends the reader of a source, if there is one."""
ANOTHER = b"+"
"""Fork another process that serves; with the end of its own socket."""

KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)


def send_answer(end: socket.socket, *message: Any, descriptors: Sequence[int] = ()) -> None:
    socket.send_fds(end, [packed(message)], descriptors)


def receive_answer(end: socket.socket) -> tuple[list[Any], list[int]]:
    """Raises BrokenPipeError if `dlcmd` has gone, or wants no more of this source."""
    content, descriptors, _, _ = socket.recv_fds(end, ANSWER_BYTES_MAX, ANSWER_DESCRIPTORS_MAX)
    if not content:
        raise BrokenPipeError
    return unpacked(content), descriptors


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
        [*record.pieces],
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
            list() as pieces,
            bool() as has_content,
            None | [str(), str()] as fault,
        ] if (
            0 <= size <= FILE_BYTES_MAX
            and stat.S_IFMT(mode) in KINDS
            and len(content) == (size if has_content else 0)
            and all(isinstance(text, str) for pair in fields.items() for text in pair)
            and _are_ranges(pieces, size)
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
            record.pieces = [Range(*piece) for piece in pieces]
            return record, fault
    raise Damaged("its reader sends a record that cannot be")


def _are_ranges(pieces: Sequence[Any], size: int) -> bool:
    """Whether these are none, or ranges with this many bytes together."""
    left = size
    for piece in pieces:
        match piece:
            case [str(), int() as offset, int() as length] if offset >= 0 < length:
                left -= length
            case _:
                return False
    return not pieces or not left
