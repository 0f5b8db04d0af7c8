"""The sources of `put`, and their paths in the dataset. This module lists folders."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dieselfs.errors import DieselfsError, InvalidInput, NotFound
from dieselfs.names import Location, check_path, printable
from dieselfs.transfer.upload import Failed, SourceEntry, walk_source
from dieselfs_tools.cli.patterns import Patterns


@dataclass(frozen=True, slots=True)
class Source:
    """A file or folder to put, and its path in the dataset."""

    source: bytes
    path: bytes
    is_folder: bool


def place_of(source: bytes, is_folder: bool, destination: Location, is_into: bool) -> bytes:
    """The path of a source in the dataset, by the rules of rsync.

    A folder is put into the destination; with a slash at its end, its content is. A file is put into a destination that
    is a folder (`is_into`); otherwise the destination is its new name.
    """
    name = os.path.basename(source.rstrip(b"/"))
    if is_folder and (source.endswith(b"/") or name in (b"", b".", b"..")):
        return destination.path
    if is_folder or is_into:
        return destination.path + b"/" + name if destination.path else name
    return destination.path


def find_sources(
    names: Sequence[str], destination: Location, is_into: bool, is_recursive: bool
) -> list[Source]:
    """The named files and folders. A named link is followed, unless `is_recursive`.

    Raises NotFound for a missing one, and InvalidInput for a folder without `is_recursive`.
    """
    return [_find_source(os.fsencode(name), destination, is_into, is_recursive) for name in names]


def _find_source(name: bytes, destination: Location, is_into: bool, is_recursive: bool) -> Source:
    try:
        is_folder = stat.S_ISDIR((os.lstat if is_recursive else os.stat)(name).st_mode)
    except OSError as error:
        raise NotFound(f"{printable(name)}: {error.strerror}") from None
    if is_folder and not is_recursive:
        raise InvalidInput(f"{printable(name)} is a folder: put it with -r")
    path = check_path(place_of(name, is_folder, destination, is_into))
    return Source(name if is_recursive else os.path.realpath(name), path, is_folder)


def listed_sources(names: Sequence[bytes], folder: Source, failed: Failed) -> Iterator[Source]:
    """The names of a `--files-from`, relative to `folder`; errors go to `failed`."""
    for name in names:
        relative = name.removeprefix(b"./").rstrip(b"/")
        try:
            path = check_path(folder.path + b"/" + relative if folder.path else relative)
            source = os.path.join(folder.source, check_path(relative))
            yield Source(source, path, stat.S_ISDIR(os.lstat(source).st_mode))
        except OSError as error:
            failed(name, error.strerror or str(error))
        except DieselfsError as error:
            failed(name, str(error))


def relative_path(source: Source, path: bytes) -> bytes:
    """A path in the dataset, relative to a source folder; the name of a source file."""
    return path[len(source.path) :].lstrip(b"/") if source.is_folder else os.path.basename(path)


def walk(source: Source, patterns: Patterns, is_recursive: bool, failed: Failed) -> Iterator[SourceEntry]:
    """The selected entries of a source."""

    def is_pruned(entry: SourceEntry) -> bool:
        return source.is_folder and (
            not is_recursive or patterns.is_pruned(relative_path(source, entry.path))
        )

    for entry in walk_source(source.source, source.path, failed, is_pruned):
        if patterns.is_wanted(relative_path(source, entry.path), entry.is_folder):
            yield entry
