"""Listing through the mount: `ls -lR`, `ls -R` and `find`, cold and warm, beside the same on the local file system.

Cold: a new mount, and the kernel's caches dropped on both sides. Warm: after the same command on the same mount.
"""

import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.figures import Run, Scale, Side, Trial
from bench.forms import SMALL_FILE_BYTES, can_drop_caches, drop_caches, filesystem_type, make_tree
from bench.homes import Home, mounted, running_home, store_entries, store_tree
from bench.stopwatch import measure

# $1 is the folder, $2 the number of files in it.
WALKS = {
    "ls -lR": 'exec ls -lR "$1" >/dev/null',
    "ls -R": 'exec ls -R "$1" >/dev/null',
    "find -type f | wc -l": 'test "$(find "$1" -type f | wc -l)" = "$2"',
}


def listing(folder: Path, scale: Scale) -> Generator[Trial]:
    mountpoint, rounds, files = folder / "mount", scale.rounds, scale.entries
    with running_home(folder / "home") as home:
        store_entries(home, files)
        title = f"Listing of {files:,} files through the mount"
        if can_drop_caches():
            sides = [_side(walk, _walk_new_mount, walk, home, mountpoint, files) for walk in WALKS]
            sides.append(Side("mounting", partial(_mount, home, mountpoint), 1, "mounts"))
            yield Trial(f"{title}, cold", sides, rounds)
        with mounted(home, mountpoint) as mount:
            for walk in WALKS:
                _walk(walk, mountpoint, files)
            sides = [_side(walk, _walk, walk, mountpoint, files, mount) for walk in WALKS]
            yield Trial(f"{title}, warm", sides, rounds)
    tree = make_tree(folder / "source", scale.small_files, SMALL_FILE_BYTES)
    local, source, files = filesystem_type(folder), tree.folder, tree.files
    with running_home(folder / "source-home") as home:
        store_tree(home, source, tree.size_bytes)
        for walk in WALKS:
            title = f"{walk} of {files:,} files"
            if can_drop_caches():
                ours = _side("mount", _walk_new_mount, walk, home, mountpoint, files)
                yield Trial(
                    f"{title}, cold", [ours, _side(local, _walk_cold, walk, source, files)], rounds, local
                )
            with mounted(home, mountpoint) as mount:
                for place in (mountpoint, source):
                    _walk(walk, place, files)
                ours = _side("mount", _walk, walk, mountpoint, files, mount)
                yield Trial(f"{title}, warm", [ours, _side(local, _walk, walk, source, files)], rounds, local)


def _side(name: str, way: Callable[..., Run], walk: str, *arguments: Home | Path | int) -> Side:
    files = next(each for each in arguments if isinstance(each, int))
    return Side(name, partial(way, walk, *arguments), files, "files")


def _walk(walk: str, folder: Path, files: int, daemon: int | None = None) -> Run:
    command = ["sh", "-c", WALKS[walk], "sh", str(folder), str(files)]
    run = partial(subprocess.run, command, env={**os.environ, "LC_ALL": "C"}, check=True)
    return measure(run, {"daemon": [daemon]} if daemon is not None else {})


def _walk_cold(walk: str, folder: Path, files: int) -> Run:
    drop_caches()
    return _walk(walk, folder, files)


def _walk_new_mount(walk: str, home: Home, mountpoint: Path, files: int) -> Run:
    with mounted(home, mountpoint) as mount:
        drop_caches()
        return _walk(walk, mountpoint, files, mount)


def _mount(home: Home, mountpoint: Path) -> Run:
    """Until the mount is ready, with a cached snapshot."""
    drop_caches()
    with ExitStack() as stack:
        return measure(lambda: stack.enter_context(mounted(home, mountpoint)))
