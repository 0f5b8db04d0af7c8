"""The work of `dlcmd check`. This module reads files."""

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dieselfs.digests import extent_digest_of
from dieselfs.errors import InvalidInput
from dieselfs.names import Location, printable
from dieselfs.snapshot.reader import ExtentRef
from dieselfs_tools.differences import differences, print_differences
from dieselfs_tools.entries import Entry
from dieselfs_tools.patterns import Patterns
from dieselfs_tools.session import Session
from dieselfs_tools.sources import find_sources, relative_path, walk
from dieselfs_tools.stored_trees import StoredTree

if TYPE_CHECKING:
    from dieselfs.transfer.upload import UploadEntry


def run_check(
    session: Session,
    name: str,
    location: Location,
    patterns: Patterns,
    is_quick: bool,
) -> int:
    """Compare a local folder with the place that `put -r` gives it; returns the exit code.

    Raises NotFound if the folder, the dataset or the place in it is missing.
    """
    if os.path.exists(name) and not os.path.isdir(name):
        raise InvalidInput(f"{name} is not a folder: compare the folder that has it, with --include /NAME")
    (source,) = find_sources([name], location, is_into=True, is_recursive=True)
    snapshot = session.dataset(location.state).snapshot
    stored = StoredTree(snapshot, source.path)
    failures: list[tuple[str, str]] = []
    unread: set[bytes] = set()

    def fail(place: bytes, reason: str, is_damaged: bool = False) -> None:
        failures.append((printable(place), reason))
        unread.add(place)

    places: dict[bytes, bytes] = {}
    local: dict[bytes, Entry] = {}
    for found in walk(source, patterns, True, fail):
        path = relative_path(source, found.path)
        try:
            if path:
                local[path] = _entry(path, found)
                places[path] = found.source
        except OSError as error:  # it was removed meanwhile
            fail(found.source, error.strerror or str(error))
        except InvalidInput as error:
            fail(found.source, str(error))

    def has_same_content(path: bytes) -> bool:
        try:
            return is_quick or _has_extents(places[path], snapshot.extents(stored.nodes[path]))
        except OSError as error:
            fail(places[path], error.strerror or str(error))
            return True

    wanted = stored.selected(patterns)
    different = (
        one
        for one in differences(wanted, local, has_same_content)
        if os.path.join(source.source, one.entry.path) not in unread
    )
    return print_differences(session.output, different, len(wanted), failures)


def _entry(path: bytes, found: "UploadEntry") -> Entry:
    """Raises OSError, and InvalidInput for devices, pipes and sockets."""
    if not (found.is_folder or stat.S_ISREG(found.mode) or stat.S_ISLNK(found.mode)):
        raise InvalidInput("neither file nor folder nor link")
    is_link = stat.S_ISLNK(found.mode)
    target = os.readlink(found.source) if is_link else b""
    return Entry(path, found.mode, len(target) if is_link else found.file_bytes, found.mtime_ns, target)


def _has_extents(place: bytes, extents: Sequence[ExtentRef]) -> bool:
    """Whether a file of the right size has the bytes of these extents. Raises OSError."""
    with open(place, "rb", buffering=0) as file:
        for extent in extents:
            content = os.pread(file.fileno(), extent.length, extent.place)
            if extent_digest_of(content) != extent.digest:
                return False
    return True
