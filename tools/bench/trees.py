"""Source trees on the local file system, and the kernel's caches of them. This module writes files."""

import os
import random
from dataclasses import dataclass
from pathlib import Path

FILES_PER_FOLDER = 1000
SMALL_FILE_BYTES = 4096
LARGE_FILE_BYTES = 110_000
"""About the mean of ImageNet."""

_SEED = 7


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A folder with `files` files of `file_bytes` each, 1,000 to a folder, their content random."""

    folder: Path
    files: int
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.files * self.file_bytes

    def paths(self) -> list[str]:
        """The files' paths below the tree."""
        return [_file_path(number) for number in range(self.files)]

    def warm(self) -> None:
        """Bring everything into the page cache."""
        for path in self.paths():
            (self.folder / path).read_bytes()


def _file_path(number: int) -> str:
    return f"n{number // FILES_PER_FOLDER:05}/n{number // FILES_PER_FOLDER:05}_{number:08}.jpg"


def make_tree(folder: Path, files: int, file_bytes: int) -> SourceTree:
    """Write a source tree. The content is the same in every run."""
    content = random.Random(_SEED)
    for number in range(files):
        path = folder / _file_path(number)
        if number % FILES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content.randbytes(file_bytes))
    return SourceTree(folder, files, file_bytes)


def shuffled(paths: list[str]) -> list[str]:
    """The paths in random order, the same in every run."""
    order = list(paths)
    random.Random(_SEED).shuffle(order)
    return order


def can_drop_caches() -> bool:
    return os.access("/proc/sys/vm/drop_caches", os.W_OK)


def drop_pages() -> None:
    """Write back what is dirty and empty the kernel's cache of pages; names and inodes stay. For root only."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")


def drop_caches() -> None:
    """Write back what is dirty and empty the kernel's caches of pages, names and inodes. For root only."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
