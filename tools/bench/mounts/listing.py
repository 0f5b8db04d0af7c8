"""Listing through the mount: `ls -lR`, `ls -R` and `find`, cold and warm, compared with the local file system. Whole
commands of dlcmd on a large dataset, with its first mount.

Cold: a new mount, and the kernel's caches dropped on both sides. Warm: after the same command on the same mount. First
mount: neither the server nor this machine has a snapshot.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack, nullcontext
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
    store_entries,
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

COMMANDS = {"ls -R": ("ls", "-R"), "ls -lR": ("ls", "-lR"), "find": ("find",), "du": ("du",)}


def listing(folder: Path, scale: Scale) -> Generator[Trial]:
    if scale.wants(f"Listing of {scale.entries:,} files"):
        yield from _large(folder, scale)
    yield from _beside_files(folder, scale)


def _large(folder: Path, scale: Scale) -> Generator[Trial]:
    mountpoint, rounds, files = folder / "mount", scale.rounds, scale.entries
    with running_home(folder / "home") as home:
        store_entries(home, files)
        title = f"Listing of {files:,} files through the mount"
        if can_drop_caches():
            sides = [_side(walk, files, partial(_walk_cold, walk, files, mountpoint, home)) for walk in WALKS]
            sides.append(Side("mounting", partial(_mount, home, mountpoint), 1, "mounts"))
            yield Trial(f"{title}, cold", sides, rounds)
        with mounted(home, mountpoint) as mount:
            sides = [
                _side(walk, files, partial(_walk_again, walk, files, mountpoint, mount)) for walk in WALKS
            ]
            yield Trial(f"{title}, warm", sides, rounds)
        yield _commands(home, mountpoint, files, rounds)


def _commands(home: Home, mountpoint: Path, files: int, rounds: int) -> Trial:
    """Commands of dlcmd from their start to their end."""
    ways: dict[str, Callable[[], Run]] = {
        "mount, the first": partial(_first_mount, home, mountpoint),
        "mount": partial(_mount_by_command, home, mountpoint),
        **{name: partial(_command, home, *command) for name, command in COMMANDS.items()},
    }
    sides = [_side(f"dlcmd {name}", files, way) for name, way in ways.items()]
    return Trial(f"{files:,} files by whole commands", sides, rounds)


def _beside_files(folder: Path, scale: Scale) -> Generator[Trial]:
    mountpoint, rounds = folder / "mount", scale.rounds
    tree = make_tree(folder / "source", scale.small_files, SMALL_FILE_BYTES)
    local, files = filesystem_type(folder), tree.files
    with running_home(folder / "source-home") as home:
        store_tree(home, tree.folder, tree.size_bytes)
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


def _mount(home: Home, mountpoint: Path) -> Run:
    """Until the mount is ready, with a cached snapshot."""
    drop_caches()
    with ExitStack() as stack:
        return measure(lambda: stack.enter_context(mounted(home, mountpoint)))


def _first_mount(home: Home, mountpoint: Path) -> Run:
    home.stop_server()
    for kept in ("state", "cache"):
        shutil.rmtree(home.folder / kept)
    return _mount_by_command(home, mountpoint)


def _mount_by_command(home: Home, mountpoint: Path) -> Run:
    """Until the mount is ready. The server runs."""
    with home.dataset() as dataset:
        dataset.create()
        server = {"server": [home.server_process()]}
        run = measure(lambda: dlcmd(home, "mount", f"{SCHEME}{DATASET}", str(mountpoint)), server)
    dlcmd(home, "umount", str(mountpoint))
    return run


def _command(home: Home, verb: str, *options: str) -> Run:
    with home.dataset():  # its connection keeps the server
        return measure(lambda: dlcmd(home, verb, *options, f"{SCHEME}{DATASET}"))
