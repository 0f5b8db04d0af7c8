"""Trees with difficult entries, and the comparison of trees."""

import os
import random
import stat
from collections.abc import Mapping
from pathlib import Path

from tests.support.dataset import TreeEntry

ODD_NAMES = (
    b"plain.txt",
    b"with space",
    b"new\nline",
    b"tab\tand\rreturn",
    b"\xff\xfe not UTF-8 \x80",
    b"-rf",
    b"*?[glob]",
    b"back\\slash",
    b"quote'\"`$(x)",
    b".hidden",
    b"...",
    "ünïcödé–漢字😀".encode(),
    b"n" * 255,
    b"\x01\x7f",
)


def odd_tree(root: Path) -> Path:
    """Unusual names, deep and empty folders, dangling links, modes, times, and files of many sizes."""
    chance = random.Random(20)
    top = os.fsencode(root)
    for folder in (b"names", b"folders", b"sizes", b"links", b"modes", b"empty/emptier/emptiest"):
        os.makedirs(os.path.join(top, folder))
    for name in ODD_NAMES:
        _write(os.path.join(top, b"names", name), name)
        os.mkdir(os.path.join(top, b"folders", name))
        _write(os.path.join(top, b"folders", name, name), name * 2)
    for size in (0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 131071, 131073, 1 << 20, (1 << 20) + 1):
        _write(os.path.join(top, b"sizes", b"%d" % size), chance.randbytes(size))
    deep = os.path.join(top, *[b"d%d" % level for level in range(60)])
    os.makedirs(deep)
    _write(os.path.join(deep, b"bottom"), b"far down")
    for name, target in (
        (b"file", b"../sizes/4096"),
        (b"folder", b"../folders"),
        (b"dangling", b"no/where"),
        (b"itself", b"itself"),
        (b"absolute", b"/etc/hostname"),
        (b"long", b"t" * 255),
        (b"odd", b"\xff\n"),
    ):
        os.symlink(target, os.path.join(top, b"links", name))
    for mode in (0o400, 0o600, 0o644, 0o755, 0o750):
        path = os.path.join(top, b"modes", b"%o" % mode)
        _write(path, b"mode")
        os.chmod(path, mode)
    for number, time_ns in enumerate((0, 1, 1_600_000_000_123_456_789, 4_000_000_000 * 10**9)):
        path = os.path.join(top, b"modes", b"time%d" % number)
        _write(path, b"time")
        os.utime(path, ns=(time_ns, time_ns))
    return root


def write_tree(entries: Mapping[bytes, TreeEntry], root: Path) -> None:
    """Write entries below the new folder `root`. Times come last, as writing into a folder changes its own."""
    root.mkdir(parents=True)
    for path in sorted(entries):
        entry, place = entries[path], os.path.join(os.fsencode(root), path)
        if stat.S_ISDIR(entry.mode):
            os.mkdir(place)
        elif stat.S_ISLNK(entry.mode):
            os.symlink(entry.content, place)
        else:
            _write(place, entry.content)
        if not stat.S_ISLNK(entry.mode):
            os.chmod(place, stat.S_IMODE(entry.mode))
    for path in sorted(entries, reverse=True):
        times = entries[path].mtime_ns, entries[path].mtime_ns
        os.utime(os.path.join(os.fsencode(root), path), ns=times, follow_symlinks=False)


def _write(path: bytes, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def described(root: Path) -> dict[bytes, tuple[int, int, bytes]]:
    """Mode, time and content of everything below a folder."""
    found = {}
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for path in (os.path.join(folder, name) for name in [*folders, *files]):
            status, content = os.lstat(path), b""
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[path[len(top) + 1 :]] = (status.st_mode, status.st_mtime_ns, content)
    return found
