"""Rules for the names of datasets, tags and paths, and the `dl://dataset/path` form. No I/O.

A path inside a dataset is bytes: parts of 1 to 255 bytes joined by `/`, without `.`, `..`, a leading or a trailing
slash, or NUL; the empty path is the root. Names are checked when they are written, and when they are read from a chunk,
a snapshot, or the network.
"""

import os
import re
from dataclasses import dataclass

from dieselfs.errors import InvalidInput
from dieselfs.limits import (
    DATASET_NAME_CHARACTERS_MAX,
    NAME_BYTES_MAX,
    PATH_BYTES_MAX,
    PATH_DEPTH_MAX,
    TAG_NAME_CHARACTERS_MAX,
)

SCHEME = "dl://"

CONTROL_FOLDER = ".dieselfs"
"""The folder in the root of a mount with its control files; it hides an entry of the dataset with this name, which
listings and orders leave out as well.
"""
COLUMNS_PATH = CONTROL_FOLDER.encode() + b"/columns.parquet"
"""The file of a dataset with the values of its files (`dieselfs.selection`)."""

_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

# One expression for speed, because uploader and chunk decoder apply it to every path. Each part is not "." or "..", and
# has 1 to 255 bytes that are neither "/" nor NUL.
_PART = rb"(?!\.{1,2}(?:/|\Z))[^/\0]{1,%d}" % NAME_BYTES_MAX
_PATH = re.compile(rb"%b(?:/%b)*\Z" % (_PART, _PART))
is_part = re.compile(rb"%b\Z" % _PART).match
"""Whether a path may have this part: None if not."""


def check_dataset_name(name: str) -> str:
    """Return `name` if it is a valid name of a dataset. Raises InvalidInput."""
    return _check_name(name, "dataset name", DATASET_NAME_CHARACTERS_MAX)


def check_tag_name(name: str) -> str:
    """Return `name` if it is a valid tag. Raises InvalidInput."""
    return _check_name(name, "tag", TAG_NAME_CHARACTERS_MAX)


def _check_name(name: str, kind: str, characters_max: int) -> str:
    if len(name) > characters_max or not _DATASET_NAME.fullmatch(name):
        raise InvalidInput(
            f"{kind} {name[:80]!r} is not allowed: use up to {characters_max} of the letters A-Z a-z, digits, "
            "'.', '_' and '-', beginning with a letter or a digit"
        )
    return name


def path_fault(path: bytes) -> str | None:
    """Why `path` is invalid in a dataset, or None. The empty path is the root."""
    if not path or (len(path) <= PATH_BYTES_MAX and _PATH.match(path) and path.count(b"/") < PATH_DEPTH_MAX):
        return None
    if len(path) > PATH_BYTES_MAX:
        return f"path is longer than {PATH_BYTES_MAX} bytes"
    if path.count(b"/") >= PATH_DEPTH_MAX:
        return f"path has more than {PATH_DEPTH_MAX} parts"
    if b"\0" in path:
        return "path holds a NUL byte"
    for part in path.split(b"/"):
        if not part:
            return "path has an empty part"
        if part in (b".", b".."):
            return f"path has a part '{part.decode()}'"
        if len(part) > NAME_BYTES_MAX:
            return f"path has a part longer than {NAME_BYTES_MAX} bytes"
    raise AssertionError(f"the path rule and its explanation disagree on {path!r}")


def check_path(path: bytes) -> bytes:
    """Return `path` if it is valid in a dataset (the empty path is the root). Raises InvalidInput."""
    fault = path_fault(path)
    if fault is not None:
        raise InvalidInput(f"{fault}: {printable(path[:200])}")
    return path


def user_path(path: str | bytes | os.PathLike[str]) -> bytes:
    """The stored form of a path as users write it: without leading and trailing slashes, and checked."""
    return check_path(os.fsencode(path).strip(b"/"))


def printable(path: bytes) -> str:
    """`path` as text for messages: undecodable bytes and control characters as escapes."""
    text = path.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """`(folder, name)` of a path; the folder of a top-level name is the empty path."""
    folder, _, name = path.rpartition(b"/")
    return folder, name


@dataclass(frozen=True, slots=True)
class Location:
    """A dataset and a path in it, as in `dl://dataset/path`. `is_folder_form`: the text ended in a slash, or named the
    root, so it means "into this folder". `remote`: the site of the dataset, empty for that of the settings.
    """

    dataset: str
    path: bytes = b""
    is_folder_form: bool = True
    tag: str = ""
    remote: str = ""

    @property
    def state(self) -> str:
        """The dataset, at the tag if there is one: `dataset` or `dataset@tag`."""
        return f"{self.dataset}@{self.tag}" if self.tag else self.dataset

    @property
    def part(self) -> str:
        """The dataset and the path in it, without scheme and last slash: `dataset@tag/path`. For programs."""
        return f"{self.state}/{os.fsdecode(self.path)}" if self.path else self.state

    def below(self, path: bytes) -> bytes:
        """A path of the dataset relative to this folder; of the place itself, its name."""
        return split_path(path)[1] if path == self.path else path[len(self.path) :].lstrip(b"/")

    def __str__(self) -> str:
        slash = "/" if self.path and self.is_folder_form else ""
        site = f"{self.remote}:" if self.remote else ""
        return f"{SCHEME}{site}{self.state}/{printable(self.path)}{slash}"


def is_location(text: str) -> bool:
    return text.startswith(SCHEME)


def split_remote(text: str) -> tuple[str, str]:
    """The remote of `dl://remote:dataset/path`, and the location at that site; without a remote, "" and the text.
    Raises InvalidInput.
    """
    remote, colon, place = text.removeprefix(SCHEME).partition(":")
    if not is_location(text) or not colon or "/" in remote:
        return "", text
    return _check_name(remote, "name of a remote", DATASET_NAME_CHARACTERS_MAX), SCHEME + place


def is_file_path(text: str) -> bool:
    """Whether a text where a dataset may stand is the path of a saved snapshot: it begins as a path does."""
    return text.startswith(("/", "./", "../", "~/"))


def parse_location(text: str) -> Location:
    """Parse `dl://dataset[@tag][/path]`. Raises InvalidInput, which names the invalid part."""
    if not is_location(text):
        hint = f"did you mean {SCHEME}{text}?" if _DATASET_NAME.match(text) else f"write {SCHEME}DATASET/PATH"
        raise InvalidInput(f"{text!r} is not a dataset location: {hint}")
    name, _, path = text[len(SCHEME) :].partition("/")
    if ":" in name:
        raise InvalidInput(
            f"{text}: here, the name of a dataset has no remote: name its server in the settings, and write "
            f"{SCHEME}DATASET/PATH"
        )
    dataset, at, tag = name.partition("@")
    if not dataset:
        raise InvalidInput(f"{text!r} names no dataset: write {SCHEME}DATASET/PATH")
    if at:
        check_tag_name(tag)
    return Location(check_dataset_name(dataset), user_path(path), not path or path.endswith("/"), tag)
