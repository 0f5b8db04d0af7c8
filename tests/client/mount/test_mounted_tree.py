"""The mount as programs see it: through the kernel, over datasets packed from real trees."""

import ctypes
import errno
import json
import mmap
import os
import random
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from dieselfs.limits import MIB
from dieselfs.settings.table import FUSE, IMAGE, PYFUSE3
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.mount.reading.core import FOLDER_BLOCK_BYTES, IO_BLOCK_BYTES, STAT_BLOCK_BYTES
from tests.support.dataset import PackedDataset, TreeEntry, pack_entries, pack_tree
from tests.support.mounted import mounted
from tests.support.trees import ODD_NAMES, odd_tree

BIG_FILE_BYTES = 30 << 20
_libc = ctypes.CDLL(None, use_errno=True)
CROWD = [f"{'x' * (number % 50)}{number:06}" for number in range(30_000)]

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The odd tree, a file over several chunks, an array, and a database."""
    root = odd_tree(tmp_path_factory.mktemp("tree"))
    (root / "big").write_bytes(random.Random(1).randbytes(BIG_FILE_BYTES))
    np.arange(1 << 20, dtype=np.int32).tofile(root / "array")
    with sqlite3.connect(root / "numbers.db") as database:
        database.execute("create table squares (number integer primary key, square integer)")
        database.executemany("insert into squares values (?, ?)", ((i, i * i) for i in range(10_000)))
    database.close()
    return root


@pytest.fixture(scope="module")
def mount(tree: Path, options: MountOptions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted(pack_tree(tree), tmp_path_factory.mktemp("mounted"), options=options) as running:
        yield running.path


def assert_errno(code: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        call()
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[code]


def fallocate(descriptor: int, mode: int) -> None:
    """fallocate(2) of one block, with modes that `os.posix_fallocate` does not have."""
    start, length = ctypes.c_longlong(0), ctypes.c_longlong(4096)
    if _libc.fallocate(descriptor, mode, start, length):
        raise OSError(ctypes.get_errno(), "fallocate")


# -- the same as the source -------------------------------------------------------------------------------


def test_the_mount_is_the_tree(tree: Path, mount: Path) -> None:
    done = subprocess.run(
        ["diff", "--recursive", "--no-dereference", str(tree), str(mount)], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_name_is_listed_and_found(tree: Path, mount: Path) -> None:
    for folder, folders, files in os.walk(os.fsencode(tree)):
        there = os.path.join(os.fsencode(mount), os.path.relpath(folder, os.fsencode(tree)))
        assert sorted(os.listdir(there)) == sorted(folders + files)
        assert all(os.path.lexists(os.path.join(there, name)) for name in folders + files)
    assert sorted(os.listdir(os.fsencode(mount / "names"))) == sorted(ODD_NAMES)


def test_stat_says_what_the_source_says(tree: Path, mount: Path, options: MountOptions) -> None:
    inodes = set()
    for folder, folders, files in os.walk(os.fsencode(tree)):
        for name in [b".", *folders, *files]:
            path = os.path.join(folder, name)
            expected = os.lstat(path)
            seen = os.lstat(os.path.join(os.fsencode(mount), os.path.relpath(path, os.fsencode(tree))))
            assert (seen.st_mode, seen.st_mtime_ns) == (expected.st_mode, expected.st_mtime_ns), path
            assert (seen.st_uid, seen.st_gid) == (os.getuid(), os.getgid())
            if options.view != IMAGE:
                is_folder = stat.S_ISDIR(expected.st_mode)
                block_bytes = FOLDER_BLOCK_BYTES if is_folder else IO_BLOCK_BYTES
                assert (seen.st_nlink, seen.st_blksize) == (1, block_bytes)
            if not stat.S_ISDIR(expected.st_mode):
                assert seen.st_size == expected.st_size, path
                inodes.add(seen.st_ino)
            unit = IO_BLOCK_BYTES if options.view == IMAGE else STAT_BLOCK_BYTES
            assert seen.st_blocks == -(-seen.st_size // unit) * unit // STAT_BLOCK_BYTES
    assert len(inodes) > 2 * len(ODD_NAMES)
    assert options.view != FUSE or mount.stat().st_ino == 1


def test_a_listing_has_dots_types_and_inodes(mount: Path) -> None:
    names = subprocess.run(["ls", "-a", str(mount / "empty")], capture_output=True, check=True).stdout.split()
    assert names == [b".", b"..", b"emptier"]
    with os.scandir(mount / "links") as entries:
        for entry in entries:
            assert entry.is_symlink()
            assert entry.inode() == entry.stat(follow_symlinks=False).st_ino


def test_links_are_kept_as_links(mount: Path) -> None:
    assert os.readlink(os.fsencode(mount / "links/odd")) == b"\xff\n"
    assert (mount / "links/file").read_bytes() == (mount / "sizes/4096").read_bytes()
    assert_errno(errno.ENOENT, (mount / "links/dangling").read_bytes)
    assert_errno(errno.ELOOP, (mount / "links/itself").read_bytes)


def test_statfs_tells_the_true_totals(tree: Path, mount: Path, options: MountOptions) -> None:
    assert shutil.disk_usage(mount).free == 0
    if options.view == IMAGE:
        pytest.skip("EROFS tells the size of its image, and no number of files")
    paths = [Path(folder, name) for folder, _, files in os.walk(tree) for name in files]
    total_bytes = sum(path.lstat().st_size for path in paths if not path.is_symlink())
    entries = 1 + sum(len(folders) + len(files) for _, folders, files in os.walk(tree))
    seen = os.statvfs(mount)
    assert seen.f_blocks * seen.f_frsize == (total_bytes + 511) // 512 * 512
    assert (seen.f_files, seen.f_bfree, seen.f_bavail, seen.f_ffree, seen.f_namemax) == (
        entries,
        0,
        0,
        0,
        255,
    )


@pytest.fixture(scope="module")
def crowd() -> PackedDataset:
    return pack_entries(TreeEntry(b"crowd/" + name.encode(), 0o100644, 0, b"1") for name in CROWD)


def test_a_folder_with_many_thousand_files(
    options: MountOptions, crowd: PackedDataset, tmp_path: Path
) -> None:
    with mounted(crowd, tmp_path, options=options) as running:
        assert os.listdir(running.path / "crowd") == sorted(CROWD)
        assert sum(1 for entry in os.scandir(running.path / "crowd") if entry.is_file()) == len(CROWD)
        assert (running.path / "crowd" / CROWD[-1]).read_bytes() == b"1"


def test_a_folder_listed_in_small_steps(mount: Path) -> None:
    """`seekdir` goes back to any position that `telldir` told."""
    code = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
libc.telldir.restype = ctypes.c_long
libc.readdir.argtypes = libc.telldir.argtypes = [ctypes.c_void_p]
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
folder = libc.opendir(sys.argv[1].encode())
def names():
    found = []
    while entry := libc.readdir(folder):
        found.append(ctypes.string_at(entry + 19))
        positions.append(libc.telldir(folder))
    return found
positions = [libc.telldir(folder)]
everything, told = names(), list(positions)
assert len(everything) > 10
for index, position in enumerate(told):
    libc.seekdir(folder, position)
    assert names() == everything[index:], index
"""
    subprocess.run(["python3", "-c", code, str(mount / "names")], check=True)


# -- ways of reading --------------------------------------------------------------------------------------


def test_reads_at_any_place_give_exactly_what_is_there(tree: Path, mount: Path) -> None:
    expected = (tree / "big").read_bytes()
    chance = random.Random(2)
    with open(mount / "big", "rb", buffering=0) as file:
        for _ in range(300):
            offset, size = chance.randrange(BIG_FILE_BYTES + 5000), chance.choice((1, 4096, 70_000, 3 << 20))
            assert os.pread(file.fileno(), size, offset) == expected[offset : offset + size]


def test_mmap(tree: Path, mount: Path) -> None:
    array = np.memmap(mount / "array", np.int32, "r")
    assert int(array[777_777]) == 777_777
    assert np.array_equal(array, np.fromfile(tree / "array", np.int32))
    with open(mount / "big", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[5 << 20 : 6 << 20] == (tree / "big").read_bytes()[5 << 20 : 6 << 20]


@pytest.mark.parametrize("mode", ["immutable=1", "mode=ro"])
def test_a_database(mount: Path, mode: str) -> None:
    database = sqlite3.connect(f"file:{mount}/numbers.db?{mode}", uri=True)
    try:
        assert database.execute("select sum(square) from squares where number < 100").fetchone() == (328_350,)
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    finally:
        database.close()


def test_sendfile(tree: Path, mount: Path, tmp_path: Path) -> None:
    with open(mount / "big", "rb") as source, open(tmp_path / "copy", "wb") as to:
        while os.sendfile(to.fileno(), source.fileno(), None, 1 << 24):
            pass
    assert (tmp_path / "copy").read_bytes() == (tree / "big").read_bytes()


def test_direct_reads(tree: Path, mount: Path, options: MountOptions) -> None:
    if options.view == IMAGE:
        assert_errno(errno.EINVAL, lambda: os.open(mount / "big", os.O_RDONLY | os.O_DIRECT))
        pytest.skip("Linux has no direct reads for EROFS in a file")
    expected = (tree / "big").read_bytes()
    descriptor = os.open(mount / "big", os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 2 << 20)
        assert os.preadv(descriptor, [buffer], 3 << 20) == 2 << 20
        assert buffer[:] == expected[3 << 20 : 5 << 20]
        assert os.preadv(descriptor, [buffer], BIG_FILE_BYTES - 4096) == 4096
        assert os.preadv(descriptor, [buffer], BIG_FILE_BYTES) == 0
    finally:
        os.close(descriptor)


@pytest.fixture
def cramped(tree: Path, options: MountOptions, tmp_path: Path) -> Iterator[Path]:
    """A mount whose memory holds a part of `big`."""
    dataset = pack_entries([TreeEntry(b"big", 0o100644, 0, (tree / "big").read_bytes())])
    with mounted(dataset, tmp_path, options=replace(options, memory_bytes=20 << 20)) as running:
        yield running.path


def test_large_reads_of_all_kinds_after_reads_at_random_places_of_a_mapping(
    tree: Path, cramped: Path, options: MountOptions
) -> None:
    """Requests for more than a program asked for are refused meanwhile; no program sees that."""
    content, chance = (tree / "big").read_bytes(), random.Random(5)
    descriptor = os.open(cramped / "big", os.O_RDONLY)
    try:
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
            for offset in chance.choices(range(0, BIG_FILE_BYTES, 1 << 14), k=40):
                assert mapped[offset : offset + 5000] == content[offset : offset + 5000]
        for offset in chance.choices(range(0, BIG_FILE_BYTES - MIB, MIB), k=8):
            assert os.pread(descriptor, MIB, offset) == content[offset : offset + MIB]
    finally:
        os.close(descriptor)
    if options.view != IMAGE and options.driver != PYFUSE3:
        reads = json.loads((cramped / ".dieselfs/stats").read_bytes())["reads"]
        assert reads["refused_around"] > 0
    if options.view != IMAGE:  # which has no direct reads
        direct = os.open(cramped / "big", os.O_RDONLY | os.O_DIRECT)
        try:
            with mmap.mmap(-1, MIB) as room:
                for offset in chance.choices(range(0, BIG_FILE_BYTES - MIB, MIB), k=8):
                    assert os.preadv(direct, [room], offset) == MIB
                    assert room[:] == content[offset : offset + MIB]
        finally:
            os.close(direct)
    assert (cramped / "big").read_bytes() == content


def test_seeking_for_data_and_holes(mount: Path) -> None:
    with open(mount / "big", "rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == BIG_FILE_BYTES
        assert os.lseek(file.fileno(), 100, os.SEEK_DATA) == 100
        assert os.lseek(file.fileno(), 100, os.SEEK_HOLE) == BIG_FILE_BYTES


# -- what cannot be ---------------------------------------------------------------------------------------

CHANGES: dict[str, Callable[[Path], object]] = {
    "open to write": lambda m: os.open(m / "big", os.O_WRONLY),
    "open to read and write": lambda m: os.open(m / "big", os.O_RDWR),
    "open to append": lambda m: os.open(m / "big", os.O_WRONLY | os.O_APPEND),
    "open and truncate": lambda m: os.open(m / "big", os.O_WRONLY | os.O_TRUNC),
    "creat": lambda m: os.open(m / "new", os.O_CREAT | os.O_WRONLY),
    "create a temporary file": lambda m: os.open(m, os.O_TMPFILE | os.O_RDWR),
    "mkdir": lambda m: os.mkdir(m / "new"),
    "mknod": lambda m: os.mknod(m / "new"),
    "mkfifo": lambda m: os.mkfifo(m / "new"),
    "unlink": lambda m: os.unlink(m / "big"),
    "rmdir": lambda m: os.rmdir(m / "empty/emptier/emptiest"),
    "rename": lambda m: os.rename(m / "big", m / "bigger"),
    "link": lambda m: os.link(m / "big", m / "new"),
    "symlink": lambda m: os.symlink("big", m / "new"),
    "chmod": lambda m: os.chmod(m / "big", 0o600),
    "chown": lambda m: os.chown(m / "big", 1, 1),
    "truncate": lambda m: os.truncate(m / "big", 0),
    "utime": lambda m: os.utime(m / "big"),
    "setxattr": lambda m: os.setxattr(m / "big", "user.x", b"1"),
    "removexattr": lambda m: os.removexattr(m / "big", "user.x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_can_be_changed(mount: Path, change: str) -> None:
    assert_errno(errno.EROFS, lambda: CHANGES[change](mount))


FALLOCATE_MODES = {
    "allocate": 0,
    "keep the size": 1,
    "punch a hole": 3,
    "collapse": 8,
    "zero": 16,
    "insert": 32,
}
WRITES: dict[str, Callable[[int], object]] = {
    "write": lambda d: os.write(d, b"x"),
    "pwrite": lambda d: os.pwrite(d, b"x", 0),
    "pwritev": lambda d: os.pwritev(d, [b"x", b"y"], 4096),
    "posix_fallocate": lambda d: os.posix_fallocate(d, 0, 4096),
    "copy_file_range": lambda d: os.copy_file_range(d, d, 4096, 0, 8192),
    **{f"fallocate, {name}": partial(fallocate, mode=mode) for name, mode in FALLOCATE_MODES.items()},
}


@pytest.mark.parametrize("write", WRITES)
def test_a_file_that_is_open_to_read_takes_no_bytes(mount: Path, tree: Path, write: str) -> None:
    descriptor = os.open(mount / "sizes/131073", os.O_RDONLY)
    try:
        assert_errno(errno.EBADF, lambda: WRITES[write](descriptor))
        assert os.pread(descriptor, 1 << 18, 0) == (tree / "sizes/131073").read_bytes()
    finally:
        os.close(descriptor)


def test_a_file_that_is_open_to_read_keeps_its_size_and_is_not_mapped_to_write(mount: Path) -> None:
    descriptor = os.open(mount / "sizes/131073", os.O_RDONLY)
    try:
        assert_errno(errno.EINVAL, lambda: os.ftruncate(descriptor, 0))
        assert_errno(errno.EACCES, lambda: mmap.mmap(descriptor, 4096, mmap.MAP_SHARED))
        for change in (
            lambda: os.fchmod(descriptor, 0o600),
            lambda: os.fchown(descriptor, 1, 1),
            lambda: os.utime(descriptor),
        ):
            assert_errno(errno.EROFS, change)
        assert os.fstat(descriptor).st_size == 131_073
    finally:
        os.close(descriptor)


def test_what_does_not_exist(mount: Path, options: MountOptions) -> None:
    for _ in range(2):
        assert_errno(errno.ENOENT, (mount / "no-such-file").stat)
    assert_errno(errno.ENOTDIR, (mount / "big" / "below").stat)
    assert_errno(errno.ENOTDIR, lambda: os.listdir(mount / "big"))
    assert_errno(errno.EISDIR, (mount / "empty").read_bytes)
    assert_errno(errno.ENAMETOOLONG, (mount / ("n" * 256)).stat)
    assert_errno(errno.EINVAL, lambda: os.readlink(mount / "big"))
    if options.view == IMAGE:
        assert_errno(errno.ENODATA, lambda: os.getxattr(mount / "big", "user.x"))
        assert os.listxattr(mount / "big") == []
        return
    assert_errno(errno.ENOTSUP, lambda: os.getxattr(mount / "big", "user.x"))
    assert_errno(errno.ENOTSUP, lambda: os.listxattr(mount / "big"))
