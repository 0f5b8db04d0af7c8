"""One dataset as files, in dieselfs, and in the formats of peers.

A dataset in dieselfs has an embedded server, and mounts, which are also cleaned up after an interrupt. This module
writes files, and starts servers and mounts.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.harness.figures import RunFailed
from dieselfs.dataset import Dataset
from dieselfs.errors import MountError, Unavailable
from dieselfs.limits import LIBRARY_MEMORY_BYTES, WRITE_EVERY_S
from dieselfs.names import SCHEME
from dieselfs.net.address import UnixAddress
from dieselfs.net.sockets import open_socket, peer_process
from dieselfs.process.embedded_server import socket_path
from dieselfs.process.launch import ProcessHandle
from dieselfs.settings.table import AUTO, FUSE, IMAGE, KERNEL, OVERLAY, Settings
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.options import MountOptions
from lab.namespace import wait_for
from lab.server import upload

DATASET = "bench"
ENTRIES_PER_FOLDER = 1280
MOUNT_MEMORY_BYTES = 2 << 30
VIEWS = (IMAGE, OVERLAY, FUSE)
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 30.0, 20.0


@dataclass(frozen=True, slots=True)
class Home:
    """The home of an embedded server, which starts at the first use."""

    folder: Path

    def dataset(self, must_exist: bool = True, memory_bytes: int = LIBRARY_MEMORY_BYTES) -> Dataset:
        settings = Settings(home=self.folder, cache=self.folder / "cache")
        return Dataset(settings, DATASET, must_exist=must_exist, memory_bytes=memory_bytes)

    def server_process(self) -> int:
        """Process ID of the running server. Raises Unavailable."""
        with open_socket(UnixAddress(str(socket_path(self.folder)))) as connection:
            return peer_process(connection)

    def stop_server(self) -> None:
        """Stop the server, if it runs, and wait for its end."""
        with suppress(Unavailable, ProcessLookupError):
            ProcessHandle(self.server_process()).end(_STOP_TIMEOUT_S)


@contextmanager
def running_home(folder: Path) -> Iterator[Home]:
    """A home in a new or empty folder, with a running server until the end of the block."""
    folder.mkdir(exist_ok=True)
    home = Home(folder)
    try:
        with _uninterrupted(), home.dataset(must_exist=False) as dataset:
            dataset.create()
        yield home
    finally:
        with _uninterrupted():
            home.stop_server()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Defer SIGINT and SIGTERM to the end of the block."""
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = {
        number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)


def store_tree(home: Home, folder: Path, size_bytes: int) -> None:
    with home.dataset(must_exist=False) as dataset:
        stored_bytes = upload(dataset, folder)
    assert stored_bytes == size_bytes, f"stored {stored_bytes} of {size_bytes} bytes"


def put_tree(home: Home, folder: Path, jobs: int) -> None:
    """Store a tree as `dlcmd put -r` with `--jobs`, the whole command. Raises RunFailed."""
    dlcmd(home, "put", "-q", "-r", f"--jobs={jobs}", f"{folder}/", f"{SCHEME}{DATASET}/")


def dlcmd(home: Home, verb: str, *arguments: str) -> None:
    """A whole command of an ordinary user; what it prints is dropped. Raises RunFailed."""
    done = subprocess.run(
        [sys.executable, "-m", "dieselfs_tools.dlcmd", verb, *arguments],
        env={**os.environ, "DIESELFS_HOME": str(home.folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunFailed(f"dlcmd {verb}: {done.stderr.strip()}")


def store_entries(home: Home, entries: int) -> None:
    """Fill a new dataset with files of one byte, in folders like those of ImageNet, without a source tree."""
    with home.dataset() as dataset:
        for number in range(entries):
            path = b"train/n%08d/n%08d_%07d.JPEG" % (
                number // ENTRIES_PER_FOLDER,
                number // ENTRIES_PER_FOLDER,
                number,
            )
            dataset.put(path, b"\n", mtime_ns=1_600_000_000_000_000_000)


@contextmanager
def mounted(
    home: Home,
    mountpoint: Path,
    driver: str = KERNEL,
    view: str = AUTO,
    memory_bytes: int = MOUNT_MEMORY_BYTES,
    write_folder: str | None = None,
) -> Iterator[int]:
    """Mount the home's dataset until the end of the block; the process ID of the supervisor, the ancestor of all
    processes of the mount. With `write_folder`, it can be written, and stores what was written at the end. Raises
    MountError for a missing driver.
    """
    mountpoint.mkdir(exist_ok=True)
    options = MountOptions(
        home=str(home.folder),
        memory_bytes=memory_bytes,
        log_file=f"{mountpoint}.log",
        driver=driver,
        view=view,
        write=write_folder is not None,
        write_every_s=WRITE_EVERY_S if write_folder is None else _NO_ROUND_S,
        write_folder=write_folder,
    )
    try:
        with _uninterrupted():
            process = control.mount(DATASET, mountpoint, options)
        yield process
    finally:
        with _uninterrupted(), suppress(MountError):  # there may be no mount yet
            try:
                control.unmount(mountpoint)
            except MountError:  # interrupted: a file is still open
                control.unmount(mountpoint, lazily=True)


def fetched_bytes(mountpoint: Path) -> int:
    """What a mount has fetched since its start."""
    fetches = json.loads((mountpoint / ".dieselfs" / "stats").read_bytes())["fetches"]
    return sum(fetches[f"{what}_bytes"] for what in ("chunk", "range", "block"))


@contextmanager
def mounted_views(home: Home, folder: Path) -> Iterator[dict[str, Path]]:
    """Mount the home's dataset in each view that is possible here, until the end of the block; the mounts by view."""
    places = {}
    with ExitStack() as stack:
        for view in VIEWS:
            with suppress(MountError):
                stack.enter_context(mounted(home, folder / view, view=view))
                places[view] = folder / view
        yield places


_NO_ROUND_S = 86_400.0
SMALL_FILE_BYTES = 4096
LARGE_FILE_BYTES = 110_000
"""About the mean of ImageNet."""
FILES_PER_FOLDER = 1000
LMDB_MAP_BYTES = 64 << 30
"""Limit of the sparse file."""

_SEED = 7
_PIECE_BYTES = 64 << 20
"""`Random.randbytes` makes no more than 256 MiB."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A folder with `files` files of `file_bytes` each, 1,000 to a folder, their content random."""

    folder: Path
    files: int
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.files * self.file_bytes

    @property
    def title(self) -> str:
        return f"{self.files:,} files of {self.file_bytes:,} bytes"

    def paths(self) -> list[str]:
        folders = (f"n{number // FILES_PER_FOLDER:05}" for number in range(self.files))
        return [f"{folder}/{folder}_{number:08}.jpg" for number, folder in enumerate(folders)]


def make_tree(folder: Path, files: int, file_bytes: int) -> SourceTree:
    """Write a source tree. The content is the same in every run."""
    content, tree = random.Random(_SEED), SourceTree(folder, files, file_bytes)
    for path in tree.paths():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        with open(folder / path, "wb") as file:
            for start in range(0, file_bytes, _PIECE_BYTES):
                file.write(content.randbytes(min(file_bytes - start, _PIECE_BYTES)))
    return tree


def shuffled(paths: Sequence[str]) -> list[str]:
    """The paths in random order, the same in every run."""
    return random.Random(_SEED).sample(paths, len(paths))


def filesystem_type(folder: Path) -> str:
    command = ["df", "--output=fstype", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]


KEEP_CACHES = "BENCH_KEEP_CACHES"
"""The caches are those of the whole machine: tests of benchmarks leave them to the tests that run beside."""


def can_drop_caches() -> bool:
    return os.access("/proc/sys/vm/drop_caches", os.W_OK)


def drop_caches(what: str = "3") -> None:
    """Sync and, as root, drop the kernel's caches: "1" of pages, "3" of names and inodes too. Nothing where the
    environment has KEEP_CACHES.
    """
    if KEEP_CACHES in os.environ:
        return
    os.sync()
    if can_drop_caches():
        Path("/proc/sys/vm/drop_caches").write_text(what)


# -- peers -----------------------------------------------------------------------------------------------


def lack(program: str, package: str) -> str | None:
    """Why a program cannot be measured, or None."""
    return None if shutil.which(program) else f"there is no {program} (apt-get install {package})"


@contextmanager
def squashfuse(image: Path, mountpoint: Path) -> Iterator[int]:
    """The image mounted by squashfuse_ll until the end of the block; its process ID. Raises RunFailed."""
    missing = lack("squashfuse_ll", "squashfuse") or lack("mksquashfs", "squashfs-tools")
    if missing is not None:
        raise RunFailed(missing)
    mountpoint.mkdir(exist_ok=True)
    process = subprocess.Popen(["squashfuse_ll", "-f", image, mountpoint])

    def is_mounted() -> bool:
        if process.poll() is not None:
            raise RunFailed(f"squashfuse_ll ended with {process.returncode}")
        return mountpoint.is_mount()

    try:
        wait_for(is_mounted, f"squashfuse_ll has mounted {mountpoint}", _START_TIMEOUT_S)
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            ProcessHandle(process.pid).end(_STOP_TIMEOUT_S)  # it unmounts
        process.kill()
        process.wait()
        if mountpoint.is_mount():
            subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False)


def make_lmdb(tree: SourceTree, path: Path) -> None:
    """One file with the paths as keys, filled in their order, so it is dense and sequential."""
    import lmdb

    with (
        lmdb.open(str(path), map_size=LMDB_MAP_BYTES, subdir=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for name in sorted(map(os.fsencode, tree.paths())):
            transaction.put(name, (tree.folder / os.fsdecode(name)).read_bytes(), append=True)


def make_tar(tree: SourceTree, path: Path) -> dict[str, tuple[int, int]]:
    """A tar file; returns the offset and size of each file by path."""
    with tarfile.open(path, "w:") as archive:
        for name in tree.paths():
            archive.add(tree.folder / name, name)
    with tarfile.open(path, "r:") as archive:
        return {member.name: (member.offset_data, member.size) for member in archive}


@dataclass(frozen=True, slots=True)
class Forms:
    """`image` exists unless squashfs-tools are missing; mounts go below `folder`."""

    folder: Path
    tree: SourceTree
    home: Home
    in_memory: Path
    image: Path
    lmdb: Path
    tar: Path
    tar_index: Mapping[str, tuple[int, int]]


@contextmanager
def all_forms(folder: Path, files: int, file_bytes: int) -> Iterator[Forms]:
    """In a new folder, with a running server, until the end of the block."""
    folder.mkdir()
    tree = make_tree(folder / "source", files, file_bytes)
    image, database, archive = folder / "image.squashfs", folder / "data.mdb", folder / "archive.tar"
    with (
        running_home(folder / "home") as home,
        tempfile.TemporaryDirectory(dir="/dev/shm", prefix="dieselfs-bench-") as memory,
    ):
        store_tree(home, tree.folder, tree.size_bytes)
        shutil.copytree(tree.folder, memory, dirs_exist_ok=True)
        if shutil.which("mksquashfs"):  # uncompressed: the content is random, like that of JPEG files
            options = ["-noI", "-noD", "-noF", "-noX", "-quiet", "-no-progress"]
            subprocess.run(
                ["mksquashfs", tree.folder, image, *options], check=True, stdout=subprocess.DEVNULL
            )
        make_lmdb(tree, database)
        yield Forms(folder, tree, home, Path(memory), image, database, archive, make_tar(tree, archive))
