"""What dieselfs is compared with: the same files in memory, in a squashfs image, in LMDB, and in a tar file.

This module writes files, starts processes and mounts.
"""

import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.figures import RunFailed
from bench.trees import SourceTree

MEMORY_FOLDER = Path("/dev/shm")
"""A tmpfs on every Linux."""

LMDB_MAP_BYTES = 64 << 30
"""How large the file could become; it takes what is stored in it."""

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.01


def squashfuse_lack() -> str | None:
    """Why squashfuse cannot be measured, None if it can."""
    for program, package in (("mksquashfs", "squashfs-tools"), ("squashfuse_ll", "squashfuse")):
        if shutil.which(program) is None:
            return f"there is no {program} (package {package})"
    return None


def lmdb_lack() -> str | None:
    """Why LMDB cannot be measured, None if it can."""
    return None if importlib.util.find_spec("lmdb") else "there is no lmdb (pip install 'dieselfs[bench]')"


@contextmanager
def copy_in_memory(tree: SourceTree) -> Iterator[Path]:
    """The tree in a tmpfs until the end of the block."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY_FOLDER, prefix="dieselfs-bench-"))
    try:
        shutil.copytree(tree.folder, folder, dirs_exist_ok=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_squashfs(tree: SourceTree, image: Path) -> None:
    """Nothing compressed: the content is random, as that of JPEG files."""
    options = ["-noI", "-noD", "-noF", "-noX", "-quiet", "-no-progress"]
    subprocess.run(["mksquashfs", tree.folder, image, *options], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def squashfuse(image: Path, mountpoint: Path) -> Iterator[int]:
    """The image mounted by squashfuse_ll until the end of the block; its process ID."""
    mountpoint.mkdir(exist_ok=True)
    process = subprocess.Popen(["squashfuse_ll", "-f", image, mountpoint], stderr=subprocess.PIPE)
    try:
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        while not mountpoint.is_mount():
            if process.poll() is not None or time.monotonic() > deadline_s:
                assert process.stderr is not None
                process.kill()
                raise RunFailed(f"squashfuse_ll: {process.stderr.read().decode(errors='replace')}")
            time.sleep(_POLL_S)
        yield process.pid
    finally:
        process.terminate()  # it unmounts
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
        process.kill()
        process.communicate()
        if mountpoint.is_mount():
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)


def make_lmdb(tree: SourceTree, path: Path) -> None:
    """One file, the paths as keys, filled in their order, which makes it as dense and as sequential as it gets."""
    import lmdb

    with (
        lmdb.open(str(path), map_size=LMDB_MAP_BYTES, subdir=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name in sorted(map(os.fsencode, tree.paths())):
            transaction.put(name, (tree.folder / os.fsdecode(name)).read_bytes(), append=True)


def make_tar(tree: SourceTree, path: Path) -> dict[str, tuple[int, int]]:
    """A tar file; returns where in it the files lie: offset and size by path."""
    with tarfile.open(path, "w:") as archive:
        for name in tree.paths():
            archive.add(tree.folder / name, name)
    with tarfile.open(path, "r:") as archive:
        return {member.name: (member.offset_data, member.size) for member in archive}
