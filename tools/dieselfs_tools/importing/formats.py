"""The formats of imported sources: how each is recognized, and which module reads it. No I/O of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs_tools.importing.inputs import Input
from dieselfs_tools.importing.naming import WHOLE_NAME
from dieselfs_tools.importing.record import Record

AUTO = "auto"
NUMBERED = "{source}/{name}"
"""For formats whose records are numbered, so that shards do not have the same names."""

Reader = Callable[[Input], Iterator[Record]]


@dataclass(frozen=True)
class Format:
    """`template`: of the names, unless --name is given. The module `module` has the function `read`."""

    name: str
    module: str
    template: str = WHOLE_NAME
    function: str = "read"

    def reader(self) -> Reader:
        """Raises InvalidInput if a package is missing."""
        reader: Reader = getattr(import_module(f"dieselfs_tools.importing.{self.module}"), self.function)
        return reader


FORMATS = {
    one.name: one
    for one in (
        Format("tar", "tar_file"),
        Format("zip", "zip_file"),
        Format("npz", "zip_file", NUMBERED),
    )
}
"""By the names that `--format` takes; WebDataset shards are tar files."""


def format_of(source: Input, name: str = AUTO) -> Format:
    """The format with this name, or that of the source's first bytes. Raises InvalidInput."""
    if name != AUTO:
        return FORMATS[name]
    found = _recognized(source)
    if found is None:
        what = "the folder" if source.is_folder else "its first bytes"
        raise InvalidInput(
            f"{printable(source.name.encode('utf-8', 'surrogateescape'))}: the format is not recognized by {what}; "
            f"name it: --format {'|'.join(FORMATS)}"
            + (" (plain folders: dlcmd put -r)" if source.is_folder else "")
        )
    return FORMATS[found]


def _recognized(source: Input) -> str | None:
    """By content; the name decides between a zip and an npz file."""
    head = source.head
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "npz" if source.name.lower().endswith(".npz") else "zip"
    if is_tar(head):
        return "tar"
    return None


def is_tar(head: bytes) -> bool:
    """Whether a file begins with the header of a member whose checksum is right, or is an empty archive."""
    block = head[:512]
    if len(block) < 512:
        return False
    if not any(block):
        return True
    digits = block[148:156].strip(b" \0")
    total = sum(block[:148]) + 8 * ord(" ") + sum(block[156:])
    return digits.isdigit() and int(digits, 8) == total if set(digits) <= set(b"01234567") else False
