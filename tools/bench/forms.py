"""One dataset in every form that is read: as a tree, in dieselfs, and as peers keep it. This module writes files."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.homes import Home, running_home, upload_tree
from bench.peers import copy_in_memory, lmdb_lack, make_lmdb, make_squashfs, make_tar, squashfuse_lack
from bench.trees import SourceTree, make_tree


@dataclass(frozen=True, slots=True)
class Forms:
    """`image` and `lmdb` are there unless squashfuse or LMDB are lacking; mounts go below `folder`."""

    folder: Path
    tree: SourceTree
    home: Home
    in_memory: Path
    image: Path
    lmdb: Path
    tar: Path
    tar_index: Mapping[str, tuple[int, int]]

    @property
    def title(self) -> str:
        return f"{self.tree.files:,} files of {self.tree.file_bytes:,} bytes"


@contextmanager
def all_forms(folder: Path, files: int, file_bytes: int) -> Iterator[Forms]:
    """In the new folder `folder`, until the end of the block; its server runs."""
    folder.mkdir()
    tree = make_tree(folder / "source", files, file_bytes)
    image, database, archive = folder / "image.squashfs", folder / "data.mdb", folder / "archive.tar"
    with running_home(folder / "home") as home, copy_in_memory(tree) as in_memory:
        upload_tree(home, tree)
        if squashfuse_lack() is None:
            make_squashfs(tree, image)
        if lmdb_lack() is None:
            make_lmdb(tree, database)
        yield Forms(folder, tree, home, in_memory, image, database, archive, make_tar(tree, archive))
