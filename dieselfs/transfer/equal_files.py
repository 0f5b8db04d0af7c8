"""Finds the files of an upload that have equal bytes, so that their chunk has them once. This module reads files."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

from blake3 import blake3

from dieselfs.limits import CHUNK_TARGET_BYTES
from dieselfs.transfer.upload import ENTRY_ERRORS, Failed, SourceEntry, UploadEntry, source_entry


class EqualFiles:
    """Groups of files with equal digests, by the file that the walk meets first. They are hints: a chunk compares the
    bytes, so a file that changes meanwhile has its own. Takes 300 bytes of memory for each file that has the size of
    another one.
    """

    def __init__(
        self, walk: Callable[[Failed], Iterator[UploadEntry]], is_stored: Callable[[UploadEntry], bool]
    ) -> None:
        """Walks twice, and reads files of equal size that are not stored. What fails is left to the upload."""

        def files() -> Iterator[UploadEntry]:
            with suppress(*ENTRY_ERRORS):
                for entry in walk(lambda *_: None):
                    if entry.file_bytes and not is_stored(entry):
                        yield entry

        sizes = Counter(entry.file_bytes for entry in files())
        paths, firsts = Counter[bytes](), dict[bytes, bytes]()
        self._others: dict[bytes, list[tuple[bytes, bytes]]] = {}
        for entry in files():
            if sizes[entry.file_bytes] == 1:
                continue
            paths[entry.path] += 1
            with suppress(*ENTRY_ERRORS):
                first = firsts.setdefault(_digest(entry), entry.path)
                if first != entry.path:
                    self._others.setdefault(first, []).append((entry.source, entry.path))
        # Of a path with several sources, the last one counts: it keeps its turn.
        self._repeated = {path for path, count in paths.items() if count > 1}
        self._taken: dict[bytes, SourceEntry] = {}

    def taken(self, entry: UploadEntry) -> bool:
        """Whether a group had this entry, as it is now."""
        found = self._taken.pop(entry.path, None)
        return found is not None and entry.is_same(found.mode, found.file_bytes, found.mtime_ns, b"")

    def others(self, entry: UploadEntry) -> list[SourceEntry]:
        """The files that are stored with `entry`, when the walk meets it; `taken` from now on."""
        found: list[SourceEntry] = []
        if entry.path not in self._repeated:
            for source, path in self._others.pop(entry.path, ()):
                if path not in self._repeated:
                    found += source_entry(source, path, lambda *_: None)
        found = [each for each in found if each.file_bytes == entry.file_bytes]
        self._taken |= {each.path: each for each in found}
        return found


def _digest(entry: UploadEntry) -> bytes:
    digest, size = blake3(), entry.file_bytes
    ranges = ((place, min(CHUNK_TARGET_BYTES, size - place)) for place in range(0, size, CHUNK_TARGET_BYTES))
    with closing(entry.contents(ranges)) as contents:
        for content in contents:
            digest.update(content)
    return digest.digest(16)
