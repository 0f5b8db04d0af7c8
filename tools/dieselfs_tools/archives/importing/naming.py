"""The names of imported records in the dataset: the template, and the rule for unsafe names and duplicates. No I/O.

Leading slashes, empty parts and `.` parts are dropped. Refused are: a `..` part, a NUL byte, a part that is too long,
the control folder of mounts, a name that occurred before in this import, and one that is a file and a folder. With
renaming, the first four are replaced, and a duplicate becomes `name~2.ext`, then `name~3.ext`. The same sources in the
same order have the same names again, so an interrupted import continues.
"""

import os
import re
import string
from collections.abc import Mapping

import numpy as np
from blake3 import blake3

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.limits import NAME_BYTES_MAX
from dieselfs.names import CONTROL_FOLDER, path_fault, printable, split_path
from dieselfs_tools.archives.formats import WHOLE_NAME

FIELDS = ("name", "folder", "stem", "ext", "source", "index")
RENAMES_MAX = 10_000
"""Duplicates of one name."""

_CONTROL = CONTROL_FOLDER.encode()
_WIDTH = re.compile(r"0?[1-9]?\d?")
_DIGEST_DIGITS = 16


class Template:
    """A name with fields in braces, as `{source}/{index:08}{ext}`.

    `name`: as in the source; `folder`, `stem`, `ext`: its parts, where `ext` begins at the last dot; `source`: the name
    of the source without its suffix; `index`: the number of the record in its source, from 0; others: what the format
    calls so, as the columns of a row.
    """

    def __init__(self, text: str) -> None:
        """Raises InvalidInput."""
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as error:
            raise InvalidInput(f"--name {text}: {error}") from None
        self.text = text
        self.is_whole_name = text == WHOLE_NAME
        self.has_index = any(name == "index" for _, name, _, _ in parts)
        self._parts: list[tuple[str, str, str]] = []
        for literal, name, width, conversion in parts:
            if name == "" or conversion or not _WIDTH.fullmatch(width or "") or (width and name != "index"):
                raise InvalidInput(
                    f"--name {text}: write fields as {{name}}, and a width only for {{index:08}}; "
                    f"fields: {', '.join(FIELDS)}"
                )
            self._parts.append((literal, name or "", width or ""))

    def fill(self, name: bytes, source: bytes, index: int, fields: Mapping[str, str]) -> bytes:
        """The name of one record. Raises InvalidInput for a field that it does not have."""
        if self.is_whole_name:
            return name
        folder, base = split_path(name)
        stem, dot, ext = base.rpartition(b".")
        if not stem:
            stem, dot, ext = base, b"", b""
        known = {"name": name, "folder": folder, "stem": stem, "ext": dot + ext, "source": source}
        filled = []
        for literal, field, width in self._parts:
            filled.append(os.fsencode(literal))
            if field == "index":
                filled.append(format(index, width + "d").encode())
            elif field in known:
                filled.append(known[field])
            elif field in fields:
                filled.append(os.fsencode(fields[field]))
            elif field:
                has = ", ".join([*FIELDS, *fields])
                raise InvalidInput(f"--name {self.text}: the record has no {field!r}; it has {has}")
        return b"".join(filled)


def cleaned(name: bytes) -> bytes:
    """The name without leading slashes, empty parts and `.` parts."""
    if path_fault(name) is None:
        return name
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def replaced(path: bytes) -> bytes:
    """A cleaned path whose unsafe parts are replaced; different paths stay different, but for `..` and NUL bytes."""
    return b"/".join(_replaced_part(part, number == 0) for number, part in enumerate(path.split(b"/")))


def _replaced_part(part: bytes, is_top: bool) -> bytes:
    if part == b"..":
        return b"__"
    if is_top and part == _CONTROL:
        return b"_" + part[1:]
    if len(part) > NAME_BYTES_MAX:
        digest = blake3(part).hexdigest()[:_DIGEST_DIGITS].encode()
        stem, dot, ext = part.rpartition(b".")
        tail = b"~" + digest + (dot + ext if stem and len(ext) < _DIGEST_DIGITS else b"")
        part = part[: NAME_BYTES_MAX - len(tail)] + tail
    return part.replace(b"\0", b"_")


class Names:
    """Gives each record of one import its path, below `folder`. Keeps 8 bytes and a slot of a set for each name."""

    def __init__(self, folder: bytes, is_renaming: bool = False) -> None:
        self._prefix = folder + b"/" if folder else b""
        self._folder = folder
        self._is_renaming = is_renaming
        # Hashes, because names would take several times the memory. Two names with one hash are refused, never lost.
        self._files: set[int] = set()
        self._folders: set[int] = set()
        self._refused: list[int] = []
        self._last_folder = b""

    def place(self, name: bytes, is_folder: bool) -> bytes:
        """The path of a record. Raises InvalidInput if its name is refused."""
        path = self._prefix + cleaned(name)
        if path == self._prefix:
            if is_folder:
                return self._folder
            raise InvalidInput("it has no name; give one with --name")
        fault = _fault(path)
        if fault is not None and self._is_renaming:
            path = replaced(path)
            fault = _fault(path)
        if fault is not None:
            raise InvalidInput(f"{fault}; --rename replaces what is not allowed, --name gives another name")
        taken, above = self._taken(path, is_folder), self._file_above(path)
        if taken and self._is_renaming and not is_folder and above is None:
            path, taken = self._free(path), ""
        if above is not None:
            taken = f"would be in {printable(above)}, which is a file of this import"
        if taken:
            self._refused.append(hash(above or path))
            raise InvalidInput(f"{printable(path)} {taken}; --rename or --name gives each its own name")
        self._keep(path, is_folder)
        return path

    def has_file(self, path: bytes) -> bool:
        return hash(path) in self._files

    def hashes(self) -> tuple[Numbers, Numbers]:
        """Those of the paths of files, once more for each that was refused, and of folders with all above paths: equal
        in forks of one process.
        """
        return np.fromiter([*self._files, *self._refused], np.int64), np.fromiter(self._folders, np.int64)

    def _taken(self, path: bytes, is_folder: bool) -> str:
        """Why a path is not free; empty if it is."""
        if hash(path) in self._files:
            return "is also a file of this import" if is_folder else "is also another file of this import"
        return "is also a folder of this import" if not is_folder and hash(path) in self._folders else ""

    def _file_above(self, path: bytes) -> bytes | None:
        """The first file on the way to a path."""
        folder = split_path(path)[0]
        if folder == self._last_folder:
            return None
        while folder and hash(folder) not in self._folders:
            if hash(folder) in self._files:
                return folder
            folder = split_path(folder)[0]
        return None

    def _free(self, path: bytes) -> bytes:
        """`name~2.ext`, or the next number that is free."""
        folder, base = split_path(path)
        stem, dot, ext = base.partition(b".")
        if not stem:
            stem, dot, ext = base, b"", b""
        head = folder + b"/" if folder else b""
        for number in range(2, RENAMES_MAX):
            tried = head + stem + b"~%d" % number + dot + ext
            if not self._taken(tried, False):
                if (fault := _fault(tried)) is not None:
                    raise InvalidInput(f"{fault}: {printable(tried)}")
                return tried
        raise InvalidInput(f"{printable(path)} occurs more than {RENAMES_MAX:,} times")

    def _keep(self, path: bytes, is_folder: bool) -> None:
        (self._folders if is_folder else self._files).add(hash(path))
        folder = split_path(path)[0]
        if folder != self._last_folder:
            self._last_folder = folder
            while folder and hash(folder) not in self._folders:
                self._folders.add(hash(folder))
                folder = split_path(folder)[0]


def _fault(path: bytes) -> str | None:
    if path == _CONTROL or path.startswith(_CONTROL + b"/"):
        return f"{CONTROL_FOLDER} is the control folder of mounts"
    return path_fault(path)
