"""Listing through the mount: `ls -lR`, `ls -R` and `find`, cold and warm, beside the same on the local file system.

Cold: a new mount, and the kernel's caches dropped on both sides. Warm: after the same command on the same mount.
"""

import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.figures import Aim, Quantity, Run, Side, Trial
from bench.homes import Home, mounted, running_home, upload_entries, upload_tree
from bench.machine import filesystem_type
from bench.scale import Scale
from bench.snapshot import ENTRIES_PER_FOLDER
from bench.stopwatch import measure
from bench.trees import SMALL_FILE_BYTES, can_drop_caches, drop_caches, make_tree

LONG_LISTING = "ls -lR"
LONG_LISTING_AIM = Aim(Quantity.DURATION_S, 15)

# $1 is the folder, $2 the number of files in it.
WALKS = {
    LONG_LISTING: 'exec ls -lR "$1" >/dev/null',
    "ls -R": 'exec ls -R "$1" >/dev/null',
    "find -type f | wc -l": 'test "$(find "$1" -type f | wc -l)" = "$2"',
}


def listing(folder: Path, scale: Scale) -> Generator[Trial]:
    with running_home(folder / "home") as home:
        upload_entries(home, scale.entries, ENTRIES_PER_FOLDER)
        yield from _large(home, folder / "mount", scale)
    tree = make_tree(folder / "source", scale.small_files, SMALL_FILE_BYTES)
    with running_home(folder / "source-home") as home:
        upload_tree(home, tree)
        yield from _beside_source(home, folder / "mount", tree.folder, scale)


def _large(home: Home, mountpoint: Path, scale: Scale) -> Generator[Trial]:
    title, files = f"Listing of {scale.entries:,} files through the mount", scale.entries
    if can_drop_caches():
        sides = [
            _side(walk, partial(_walk_new_mount, walk, home, mountpoint, files), files) for walk in WALKS
        ]
        sides.append(Side("mounting", partial(_mount, home, mountpoint), 1, "mounts"))
        yield Trial(f"{title}, cold", sides, scale.rounds)
    with mounted(home, mountpoint) as mount:
        for walk in WALKS:
            _walk(walk, mountpoint, files)
        sides = [_side(walk, partial(_walk, walk, mountpoint, files, mount.process), files) for walk in WALKS]
        yield Trial(f"{title}, warm", sides, scale.rounds)


def _beside_source(home: Home, mountpoint: Path, source: Path, scale: Scale) -> Generator[Trial]:
    local, files = filesystem_type(source), scale.small_files
    for walk in WALKS:
        title = f"{walk} of {files:,} files"
        if can_drop_caches():
            sides = [
                Side("mount", partial(_walk_new_mount, walk, home, mountpoint, files), files, "files"),
                Side(local, partial(_walk_cold, walk, source, files), files, "files"),
            ]
            yield Trial(f"{title}, cold", sides, scale.rounds, base=local)
        with mounted(home, mountpoint) as mount:
            for folder in (mountpoint, source):
                _walk(walk, folder, files)
            sides = [
                Side("mount", partial(_walk, walk, mountpoint, files, mount.process), files, "files"),
                Side(local, partial(_walk, walk, source, files), files, "files"),
            ]
            yield Trial(f"{title}, warm", sides, scale.rounds, base=local)


def _side(walk: str, run: partial[Run], files: int) -> Side:
    return Side(walk, run, files, "files", aim=LONG_LISTING_AIM if walk == LONG_LISTING else None)


def _walk(walk: str, folder: Path, files: int, daemon: int | None = None) -> Run:
    command = ["sh", "-c", WALKS[walk], "sh", str(folder), str(files)]
    environment = {**os.environ, "LC_ALL": "C"}
    return measure(
        lambda: subprocess.run(command, env=environment, check=True),
        {"daemon": daemon} if daemon is not None else {},
    )


def _walk_cold(walk: str, folder: Path, files: int) -> Run:
    drop_caches()
    return _walk(walk, folder, files)


def _walk_new_mount(walk: str, home: Home, mountpoint: Path, files: int) -> Run:
    with mounted(home, mountpoint) as mount:
        drop_caches()
        return _walk(walk, mountpoint, files, mount.process)


def _mount(home: Home, mountpoint: Path) -> Run:
    """Until the mount can be used; the snapshot has been fetched before."""
    drop_caches()
    with ExitStack() as stack:
        return measure(lambda: stack.enter_context(mounted(home, mountpoint)))
