"""Listing through the mount: `ls -lR`, `ls -R` and `find`, cold and warm, compared with the local file system. Whole
commands of dlcmd on a large dataset, with its first mount.

Cold: a new mount, and the kernel's caches dropped on both sides. Warm: after the same command on the same mount. First
mount: neither the server nor this machine has a snapshot.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from bench.harness.figures import Run, Scale, Side, Trial
from bench.harness.forms import (
    DATASET,
    SMALL_FILE_BYTES,
    Home,
    can_drop_caches,
    dlcmd,
    drop_caches,
    filesystem_type,
    make_tree,
    mounted,
    running_home,
    store_tree,
)
from bench.harness.stopwatch import measure
from dieselfs.names import SCHEME

# $1 is the folder, $2 the number of files in it.
WALKS = {
    "ls -lR": 'exec ls -lR "$1" >/dev/null',
    "ls -R": 'exec ls -R "$1" >/dev/null',
    "find -type f | wc -l": 'test "$(find "$1" -type f | wc -l)" = "$2"',
}

LARGE_DATASET_FILE_BYTES = 1
COMMANDS = {"ls -R": ("ls", "-R"), "ls -lR": ("ls", "-lR"), "find": ("find",), "du": ("du",)}


def listing(folder: Path, scale: Scale) -> Generator[Trial]:
    for name, files, file_bytes in (
        ("large", scale.entries, LARGE_DATASET_FILE_BYTES),
        ("small", scale.small_files, SMALL_FILE_BYTES),
    ):
        if any(map(scale.wants, _titles(files, scale))):
            yield from _walks(folder / name, files, file_bytes, scale)


def _titles(files: int, scale: Scale) -> list[str]:
    walks = [f"{walk} of {files:,} files, {state}" for walk in WALKS for state in ("cold", "warm")]
    return walks if files != scale.entries else [_by_commands(files), *walks]


def _by_commands(files: int) -> str:
    return f"{files:,} files by whole commands"


def _walks(folder: Path, files: int, file_bytes: int, scale: Scale) -> Generator[Trial]:
    mountpoint, rounds = folder / "mount", scale.rounds
    tree, local = make_tree(folder / "source", files, file_bytes), filesystem_type(folder)
    with running_home(folder / "home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
        if files == scale.entries:
            yield _commands(home, mountpoint, files, rounds)
        for walk in WALKS:
            title = f"{walk} of {files:,} files"
            if can_drop_caches():
                ours = _side("mount", files, partial(_walk_cold, walk, files, mountpoint, home))
                sides = [ours, _side(local, files, partial(_walk_cold, walk, files, tree.folder))]
                yield Trial(f"{title}, cold", sides, rounds, local)
            if not scale.wants(f"{title}, warm"):
                continue
            with mounted(home, mountpoint) as mount:
                ours = _side("mount", files, partial(_walk_again, walk, files, mountpoint, mount))
                sides = [ours, _side(local, files, partial(_walk_again, walk, files, tree.folder))]
                yield Trial(f"{title}, warm", sides, rounds, local)


def _commands(home: Home, mountpoint: Path, files: int, rounds: int) -> Trial:
    """Commands of dlcmd from their start to their end."""
    ways: dict[str, Callable[[], Run]] = {
        "mount, the first": partial(_first_mount, home, mountpoint),
        "mount": partial(_mount_by_command, home, mountpoint),
        **{name: partial(_command, home, *command) for name, command in COMMANDS.items()},
    }
    sides = [_side(f"dlcmd {name}", files, way) for name, way in ways.items()]
    return Trial(_by_commands(files), sides, rounds)


def _side(name: str, files: int, run: Callable[[], Run]) -> Side:
    return Side(name, run, files, "files")


def _walk(walk: str, files: int, folder: Path, daemon: int | None = None) -> Run:
    command = ["sh", "-c", WALKS[walk], "sh", str(folder), str(files)]
    run = partial(subprocess.run, command, env={**os.environ, "LC_ALL": "C"}, check=True)
    return measure(run, {"daemon": [daemon]} if daemon is not None else {})


def _walk_again(walk: str, files: int, folder: Path, daemon: int | None = None) -> Run:
    _walk(walk, files, folder)
    return _walk(walk, files, folder, daemon)


def _walk_cold(walk: str, files: int, folder: Path, home: Home | None = None) -> Run:
    """`home`: of a new mount."""
    with mounted(home, folder) if home is not None else nullcontext() as mount:
        drop_caches()
        return _walk(walk, files, folder, mount)


def _first_mount(home: Home, mountpoint: Path) -> Run:
    home.stop_server()
    for kept in ("state", "cache"):
        shutil.rmtree(home.folder / kept, ignore_errors=True)
    return _mount_by_command(home, mountpoint)


def _mount_by_command(home: Home, mountpoint: Path) -> Run:
    """Until the mount is ready. The server runs."""
    mountpoint.mkdir(exist_ok=True)
    with home.dataset() as dataset:
        dataset.create()
        server = {"server": [home.server_process()]}
        run = measure(lambda: dlcmd(home, "mount", f"{SCHEME}{DATASET}", str(mountpoint)), server)
    dlcmd(home, "umount", str(mountpoint))
    return run


def _command(home: Home, verb: str, *options: str) -> Run:
    with home.dataset():  # its connection keeps the server
        return measure(lambda: dlcmd(home, verb, *options, f"{SCHEME}{DATASET}"))
