"""The formats of imported sources: how each is recognized, and its reader. This module looks into folders."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import printable
from dieselfs_tools.archives.importing.inputs import Input
from dieselfs_tools.archives.importing.lmdb_file import DATA_FILE
from dieselfs_tools.archives.importing.mds_file import read_index
from dieselfs_tools.archives.importing.naming import WHOLE_NAME
from dieselfs_tools.archives.importing.record import Record
from dieselfs_tools.archives.importing.tfrecord_file import is_tfrecord

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
        reader: Reader = getattr(
            import_module(f"dieselfs_tools.archives.importing.{self.module}"), self.function
        )
        return reader


FORMATS = {
    one.name: one
    for one in (
        Format("tar", "tar_file"),
        Format("zip", "zip_file"),
        Format("npz", "zip_file", NUMBERED),
        Format("lmdb", "lmdb_file"),
        Format("hdf5", "hdf5_file"),
        Format("parquet", "parquet_file", NUMBERED),
        Format("tfrecord", "tfrecord_file", NUMBERED),
        Format("mds", "mds_file"),
        Format("litdata", "litdata_file"),
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
    """By content; the name decides between a zip and an npz file, and where a package is missing."""
    if source.is_folder:
        return _recognized_folder(source)
    head, name = source.head, source.name.lower()
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "npz" if name.endswith(".npz") else "zip"
    for format_name, magic, place in _MAGICS:
        if head.startswith(magic, place):
            return format_name
    if is_tar(head):
        return "tar"
    if _TFRECORD_NAME.search(name):
        return "tfrecord"
    return "tfrecord" if find_spec("google_crc32c") and is_tfrecord(head) else None


def _recognized_folder(source: Input) -> str | None:
    """A folder that is one source."""
    if source.path and os.path.exists(os.path.join(source.path, DATA_FILE)):
        return "lmdb"
    try:
        index, _ = read_index(source)
    except Damaged:
        return None
    if not isinstance(index, dict):
        return None
    return "mds" if "shards" in index else "litdata" if "chunks" in index else None


_TFRECORD_NAME = re.compile(r"\.tfrecords?([.-]|$)")
_MAGICS = (
    ("hdf5", b"\x89HDF\r\n\x1a\n", 0),
    ("parquet", b"PAR1", 0),
    ("lmdb", b"\xde\xc0\xef\xbe", 16),
)
"""Format, magic bytes, and their place."""


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
