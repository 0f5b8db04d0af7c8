"""Upload: what `dlcmd put -r` does, one client process and an embedded server, beside `cp -r` to the same file system.

The source is warm. dieselfs has everything on disk when it answers, `cp` has not: another copy is followed by `sync`.
Copies stay until the end: some file systems avoid the inodes of files that were just removed, and search for long.
"""

import os
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.homes import running_home, upload_tree
from bench.scale import Scale
from bench.stopwatch import measure
from bench.trees import LARGE_FILE_BYTES, SMALL_FILE_BYTES, SourceTree, make_tree
from dieselfs.limits import CHUNK_TARGET_BYTES

SMALL_FILES_AIM = Aim(Quantity.RATE, 30_000)


def upload(folder: Path, scale: Scale) -> Generator[Trial]:
    small = make_tree(folder / "small", scale.small_files, SMALL_FILE_BYTES)
    yield _trial(small, scale.rounds, SMALL_FILES_AIM)
    large = make_tree(folder / "large", scale.large_files, LARGE_FILE_BYTES)
    yield _trial(large, scale.rounds, None)


def _trial(tree: SourceTree, rounds: int, aim: Aim | None) -> Trial:
    tree.warm()
    amounts = (tree.files, "files", tree.size_bytes)
    return Trial(
        f"Upload of {tree.files:,} files of {tree.file_bytes:,} bytes",
        [
            Side("dieselfs", lambda: _put(tree), *amounts, aim),
            Side("cp -r", lambda: _copy(tree, 'cp -r "$1" "$2"'), *amounts),
            Side("cp -r, then sync", lambda: _copy(tree, 'cp -r "$1" "$2" && sync -f "$2"'), *amounts),
            Side("the bytes alone, in synced files of 4 MiB", lambda: _write(tree), *amounts),
        ],
        rounds,
        base="cp -r",
    )


def _new_folder(tree: SourceTree) -> Path:
    return Path(tempfile.mkdtemp(dir=tree.folder.parent))


def _put(tree: SourceTree) -> Run:
    with running_home(_new_folder(tree)) as home:
        os.sync()
        return measure(lambda: upload_tree(home, tree), {"server": home.server_process()})


def _copy(tree: SourceTree, command: str) -> Run:
    arguments = ["sh", "-c", command, "sh", str(tree.folder), str(_new_folder(tree))]
    os.sync()
    return measure(lambda: subprocess.run(arguments, check=True))


def _write(tree: SourceTree) -> Run:
    """What the disk allows: as many bytes, in as many files as there are chunks, each synced before the next."""
    folder, content = _new_folder(tree), os.urandom(CHUNK_TARGET_BYTES)

    def write() -> None:
        for number in range(-(-tree.size_bytes // CHUNK_TARGET_BYTES)):
            with open(folder / str(number), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

    os.sync()
    return measure(write)
