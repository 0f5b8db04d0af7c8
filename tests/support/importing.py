"""Reads sources as `dlcmd import` does, into memory."""

from contextlib import ExitStack
from pathlib import Path
from zlib import crc32

from dieselfs_tools.archives.formats import AUTO, format_of
from dieselfs_tools.archives.importing.inputs import DirectOpener, Input
from dieselfs_tools.archives.importing.record import ArrayForm, Range, Record
from dieselfs_tools.cli.output import Output

QUIET = Output(is_quiet=True)


def source_of(name: str, stack: ExitStack) -> Input:
    """A source that this process reads itself."""
    return Input(name, stack, DirectOpener(name, QUIET))


def read_all(
    source: Path | str,
    format_name: str = AUTO,
    into: list[Record] | None = None,
    is_by_row: bool | None = None,
    is_in_place: bool = False,
    part: tuple[int, int] = (0, 0),
) -> list[Record]:
    """All records, each loaded before the next one is taken. `into` has those before an error. `is_in_place`: as for
    `dlcmd attach`, with the content that the source has at their places.
    """
    found = [] if into is None else into
    with ExitStack() as stack:
        opened = source_of(str(source), stack)
        opened.form, (opened.begin, opened.end) = ArrayForm(is_by_row, is_in_place), part
        for record in format_of(opened, format_name).read()(opened):
            if not record.fault:
                if is_in_place and record.ranges:
                    record.content = b"".join(map(bytes_of, record.ranges))
                    assert len(record.content) == record.size
                record.load()
                assert_placed(record)
            found.append(record)
    return found


def bytes_of(piece: Range) -> bytes:
    with open(piece.file, "rb") as file:
        file.seek(piece.offset)
        return file.read(piece.length)


def parts_of(source: Path, jobs: int) -> list[tuple[int, int]]:
    """Begin and end of each part of an archive, as several processes read it."""
    with ExitStack() as stack:
        opened = source_of(str(source), stack)
        begins = [0, *format_of(opened).starts(opened, jobs)]
    return [*zip(begins, [*begins[1:], 0], strict=True)]


def assert_placed(record: Record) -> None:
    """Where a record says that its source has its content, it is."""
    if record.place is None or record.content is None or "://" in record.place.file:
        return
    with open(record.place.file, "rb") as file:
        file.seek(record.place.offset)
        assert file.read(record.size) == record.content, record.name
    if record.place.crc32 is not None:
        assert record.place.crc32 == crc32(record.content)


def contents(
    source: Path | str, format_name: str = AUTO, is_by_row: bool | None = None, is_in_place: bool = False
) -> dict[str, bytes]:
    """The content of each file by its name."""
    return {
        record.name.decode(): record.content
        for record in read_all(source, format_name, is_by_row=is_by_row, is_in_place=is_in_place)
        if record.content is not None
    }
