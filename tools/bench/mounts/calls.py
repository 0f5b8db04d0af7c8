"""System calls of readers on cached data: their time on a mount in each view and on the local file system, and the
requests of the kernel that they cost the daemon. This module calls the kernel.
"""

import ctypes
import fcntl
import json
import mmap
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench.harness.figures import Row, Scale
from bench.harness.forms import filesystem_type, make_tree, mounted_views, running_home, store_tree
from dieselfs.limits import MIB

FILE_BYTES = 1 * MIB
FILES = 8
CALLS = 400
"""Calls of one kind in a row."""
_AT_FDCWD, _AT_STATX_FORCE_SYNC, _STATX_BASIC = -100, 0x2000, 0x7FF
_libc = ctypes.CDLL(None, use_errno=True)

Call = Callable[[], object]


def calls(folder: Path, scale: Scale) -> Iterator[list[Row]]:
    """One table: a row for each call, with microseconds for each place, and requests for each call on the mounts."""
    tree = make_tree(folder / "source", FILES, FILE_BYTES)
    local = filesystem_type(folder)
    with running_home(folder / "home") as home, ExitStack() as stack:
        store_tree(home, tree.folder, tree.size_bytes)
        places = {local: tree.folder, **stack.enter_context(mounted_views(home, folder))}
        path = tree.paths()[0]
        sides = {name: Calls(place / path, stack) for name, place in places.items()}
        yield [_row(name, sides, places, scale.rounds) for name in sides[local].by_name]


class Calls:
    """The calls on one file, which has been read."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        name, folder = os.fspath(path), os.fspath(path.parent)
        encoded = name.encode()
        path.read_bytes()
        os.listdir(folder)
        file = os.open(name, os.O_RDONLY)
        stack.callback(os.close, file)
        out, null = os.open("/dev/null", os.O_WRONLY), os.memfd_create("out")
        stack.callback(os.close, out)
        stack.callback(os.close, null)
        readable, writable = os.pipe()
        stack.callback(os.close, readable)
        stack.callback(os.close, writable)
        fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, 1 << 16)
        statx = ctypes.create_string_buffer(256)
        buffer = bytearray(FILE_BYTES)

        def open_and_close() -> None:
            os.close(os.open(name, os.O_RDONLY))

        def python_open() -> None:
            with open(name, "rb") as opened:
                opened.read(4096)

        def refused(call: Call) -> Call:
            def run() -> None:
                with suppress(OSError):
                    call()

            return run

        def spliced() -> None:
            os.splice(file, writable, 1 << 14, offset_src=0)
            os.read(readable, 1 << 14)

        def mapped() -> None:
            with mmap.mmap(file, FILE_BYTES, prot=mmap.PROT_READ) as memory:
                memory[FILE_BYTES // 2]

        self.by_name: dict[str, Call] = {
            "open, close": open_and_close,
            "Python's open, read 4 KiB": python_open,
            "stat": lambda: os.stat(name),
            "fstat": lambda: os.fstat(file),
            "statx, AT_STATX_FORCE_SYNC": lambda: _libc.statx(
                _AT_FDCWD, encoded, _AT_STATX_FORCE_SYNC, _STATX_BASIC, statx
            ),
            "access": lambda: os.access(name, os.R_OK),
            "stat of a missing name": refused(lambda: os.stat(name + "-missing")),
            "ioctl TCGETS": lambda: os.isatty(file),
            "fstatvfs": lambda: os.fstatvfs(file),
            "lseek SEEK_DATA": lambda: os.lseek(file, 0, os.SEEK_DATA),
            "lseek SEEK_HOLE": lambda: os.lseek(file, 0, os.SEEK_HOLE),
            "listxattr": refused(lambda: os.listxattr(name)),
            "getxattr": refused(lambda: os.getxattr(name, "user.none")),
            "pread 4 KiB": lambda: os.pread(file, 4096, 0),
            "pread 1 MiB": lambda: os.preadv(file, [buffer], 0),
            "mmap, one page, munmap": mapped,
            "sendfile 64 KiB": lambda: os.sendfile(null, file, 0, 1 << 16),
            "splice 16 KiB": spliced,
            "posix_fadvise WILLNEED": lambda: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED),
            "listdir": lambda: os.listdir(folder),
        }


def _row(name: str, sides: dict[str, Calls], places: dict[str, Path], rounds: int) -> Row:
    """Rounds take turns, so that other work on the machine hits all places alike."""
    taken_us: dict[str, list[float]] = {place: [] for place in sides}
    for _ in range(rounds):
        for place, side in sides.items():
            taken_us[place].append(_duration_s(side.by_name[name]) / CALLS * 1e6)
    row: dict[str, Any] = {"call": name}
    for place in sides:
        row[f"{place}, us"] = statistics.median(taken_us[place]), "{:.2f}"
    for place, mountpoint in [*places.items()][1:]:
        row[f"{place}, requests"] = _requests(mountpoint, sides[place].by_name[name]), "{:.2f}"
    return row


def _duration_s(call: Call) -> float:
    began_s = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - began_s


def _requests(mountpoint: Path, call: Call) -> float:
    """The requests of one call."""
    before = _count(mountpoint)
    alone = _count(mountpoint) - before  # what it costs to look
    before = _count(mountpoint)
    for _ in range(CALLS):
        call()
    return max(_count(mountpoint) - before - alone, 0) / CALLS


def _count(mountpoint: Path) -> int:
    counted = json.loads((mountpoint / ".dieselfs" / "stats").read_bytes())["fuse"]["requests"]
    numbers: Sequence[int] = [*counted.values()] if isinstance(counted, dict) else [counted]
    return sum(numbers)
