"""What readers see when bytes do not come: an error in time, for the file concerned, and never a mount that dies."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dieselfs.errors import Unavailable
from dieselfs.limits import READ_TIMEOUT_S
from dieselfs.settings.table import IMAGE, PYFUSE3
from dieselfs.sources.interface import Arrival, Wanted
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.options import MountOptions
from tests.support.dataset import MemoryChunkSource, PackedDataset, TreeEntry, pack_entries
from tests.support.mounted import mounted, serve_what_is_open

CHUNK_BYTES = 64 << 10
FILE_BYTES = 16 << 10
FILES = 12
"""Four files to a chunk: three chunks."""

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    entries = [
        TreeEntry(b"%02d" % number, 0o100644, 0, bytes([number]) * FILE_BYTES) for number in range(FILES)
    ]
    return pack_entries(entries, chunk_bytes=CHUNK_BYTES)


class Switch:
    """A file that is there while the switch is on: works across processes, also when one is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def is_on(self) -> bool:
        return self._path.exists()

    def on(self) -> None:
        self._path.touch()

    def off(self) -> None:
        self._path.unlink(missing_ok=True)


class SwitchedSource:
    """The chunks of a dataset, of which chunk 1 fails or hangs as long as a switch is on."""

    def __init__(self, source: MemoryChunkSource, folder: Path) -> None:
        self._source = source
        self.fails = Switch(folder / "fails")
        self.hangs = Switch(folder / "hangs")
        self.is_hanging = Switch(folder / "is hanging")

    def fetch_chunk(self, chunk: int) -> bytes:
        if chunk == 1 and self.fails.is_on:
            raise Unavailable("the server is gone")
        while chunk == 1 and self.hangs.is_on:
            self.is_hanging.on()
            time.sleep(0.01)
        return self._source.fetch_chunk(chunk)

    def fetch_chunk_into(self, chunk: int, destination: memoryview) -> None:
        destination[:] = self.fetch_chunk(chunk)

    def fetch_many(self, wanted: Wanted) -> Iterator[Arrival]:
        return self._source.fetch_many(wanted)

    def fetch_blocks(self, chunk: int, first: int, end: int) -> memoryview:
        return self._source.fetch_blocks(chunk, first, end)

    def together(self, chunks: Iterable[int]) -> list[list[int]]:
        return self._source.together(chunks)


@pytest.fixture
def source(packed: PackedDataset, tmp_path: Path) -> Iterator[SwitchedSource]:
    source = SwitchedSource(packed.source(), tmp_path)
    yield source
    source.hangs.off()


def content(number: int) -> bytes:
    return bytes([number]) * FILE_BYTES


def read(mountpoint: Path, number: int) -> bytes:
    return (mountpoint / f"{number:02}").read_bytes()


def read_error(mountpoint: Path, number: int) -> int | None:
    with pytest.raises(OSError) as caught:
        read(mountpoint, number)
    return caught.value.errno


def read_sooner_or_later(mountpoint: Path, number: int) -> bytes:
    """A failure is remembered for a moment."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        with suppress(OSError):
            return read(mountpoint, number)
    return read(mountpoint, number)


def test_a_source_that_fails(
    options: MountOptions, packed: PackedDataset, source: SwitchedSource, tmp_path: Path
) -> None:
    source.fails.on()
    with mounted(packed, tmp_path, source, options) as running:
        assert read_error(running.path, 4) == errno.EIO
        assert read(running.path, 0) == content(0)
        assert read(running.path, 8) == content(8)
        assert "04: the server is gone" in running.log()
        assert "\t04\tthe server is gone\n" in (running.path / ".dieselfs/errors").read_text()
        source.fails.off()
        assert read_sooner_or_later(running.path, 4) == content(4)


def test_a_source_that_hangs(
    options: MountOptions, packed: PackedDataset, source: SwitchedSource, tmp_path: Path
) -> None:
    source.hangs.on()
    timeout_s = 3.0
    with mounted(packed, tmp_path, source, replace(options, timeout_s=timeout_s)) as running:
        began_s = time.monotonic()
        assert read_error(running.path, 5) == errno.EIO
        took_s = time.monotonic() - began_s
        assert timeout_s - 0.1 < took_s < 2 * timeout_s - 0.1, "one limit, although the kernel asks twice"
        assert read(running.path, 0) == content(0)
        assert "did not arrive within 3 s" in running.log()
        assert "did not arrive within 3 s" in (running.path / ".dieselfs/errors").read_text()
        source.hangs.off()
        assert read_sooner_or_later(running.path, 5) == content(5)


def test_others_are_served_while_one_waits(
    options: MountOptions, packed: PackedDataset, source: SwitchedSource, tmp_path: Path
) -> None:
    source.hangs.on()
    with mounted(packed, tmp_path, source, options) as running, ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(read, running.path, number) for number in (4, 5, 6)]
        assert [read(running.path, number) for number in (0, 1, 8, 9)] == [content(n) for n in (0, 1, 8, 9)]
        assert os.listdir(running.path) == [f"{number:02}" for number in range(FILES)]
        assert options.view == IMAGE or os.statvfs(running.path).f_files == FILES + 1
        assert not any(reader.done() for reader in waiting)
        source.hangs.off()
        assert [reader.result(60) for reader in waiting] == [content(4), content(5), content(6)]


@pytest.mark.parametrize("how", ["read", "mmap", "direct"])
def test_a_reader_who_waits_can_be_interrupted(
    options: MountOptions, packed: PackedDataset, source: SwitchedSource, tmp_path: Path, how: str
) -> None:
    if how == "direct" and options.driver == PYFUSE3:
        pytest.skip(
            "libfuse has the kernel send direct reads in the background, where nobody can interrupt them"
        )
    if how == "direct" and options.view == IMAGE:
        pytest.skip("Linux has no direct reads for EROFS in a file")
    source.hangs.on()
    code = """
import mmap, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
descriptor = os.open(sys.argv[1], os.O_RDONLY | (os.O_DIRECT if sys.argv[2] == "direct" else 0))
print("reading", flush=True)
if sys.argv[2] == "mmap":
    mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)[0]
else:
    os.preadv(descriptor, [mmap.mmap(-1, 4096)], 0)
"""
    with mounted(packed, tmp_path, source, options) as running:
        reader = subprocess.Popen(
            [sys.executable, "-c", code, str(running.path / "04"), how], stdout=subprocess.PIPE
        )
        with reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"reading\n"
            wait_until_asleep(reader.pid)
            reader.send_signal(signal.SIGINT)
            assert reader.wait(READ_TIMEOUT_S / 2) == -signal.SIGINT
        assert read(running.path, 0) == content(0)
        source.hangs.off()
        assert read(running.path, 4) == content(4)


def test_a_daemon_with_a_hanging_source_ends(
    options: MountOptions, packed: PackedDataset, source: SwitchedSource, tmp_path: Path
) -> None:
    source.hangs.on()
    for_an_hour = partial(serve_what_is_open, 3600.0)
    with mounted(packed, tmp_path, source, options, for_an_hour) as running, ThreadPoolExecutor(1) as pool:
        error = pool.submit(read_error, running.path, 4)
        while not source.is_hanging.is_on:
            time.sleep(0.01)
        running.send(signal.SIGTERM)
        while mount_at(str(running.path)) is not None:
            time.sleep(0.01)
        running.send(signal.SIGTERM)
        assert running.wait() == 0
        assert error.result(60) in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


def wait_until_asleep(process: int) -> None:
    """Until a process waits inside the kernel for FUSE, or for a page."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if state in ("S", "D"):
            return
    raise AssertionError("the reader does not wait")


def test_damage_in_a_chunk_touches_only_its_file(
    options: MountOptions, packed: PackedDataset, tmp_path: Path
) -> None:
    source = packed.source()
    source.payloads[1][FILE_BYTES + 7] ^= 0x10
    with mounted(packed, tmp_path, source, options) as running:
        assert read_error(running.path, 5) == errno.EIO
        for number in range(FILES):
            if number != 5:
                assert read(running.path, number) == content(number)
        assert read_error(running.path, 5) == errno.EIO
        log = running.log()
        assert source.chunk_names[1] in log
        assert source.chunk_names[0] not in log and source.chunk_names[2] not in log
        assert "05: chunk" in log


def break_lookup() -> None:
    """Plant a bug: looking up `bug` divides by zero."""
    from dieselfs_client.mount.reading.core import MountCore

    lookup = MountCore.lookup

    def broken(self: MountCore, folder: int, name: bytes) -> int:
        return 1 // 0 if name == b"bug" else lookup(self, folder, name)

    MountCore.lookup = broken  # type: ignore[method-assign]  # this is what planting a bug means


def test_a_bug_costs_one_request(options: MountOptions, packed: PackedDataset, tmp_path: Path) -> None:
    if options.view == IMAGE:
        pytest.skip("the kernel looks names up without the daemon")
    with mounted(packed, tmp_path, options=options, sabotage=break_lookup) as running:
        with pytest.raises(OSError) as caught:
            (running.path / "bug").stat()
        assert caught.value.errno == errno.EIO
        assert read(running.path, 0) == content(0)
        assert "ZeroDivisionError" in running.log()


def test_a_large_file_is_read_ahead(options: MountOptions, tmp_path: Path) -> None:
    """Read in order, a chunk is there before it is asked for; read in disorder, nothing else is fetched."""
    if options.view == IMAGE:
        pytest.skip("Linux has no direct reads for EROFS in a file")
    data = os.urandom(64 * CHUNK_BYTES)
    packed = pack_entries([TreeEntry(b"big", 0o100644, 0, data)], chunk_bytes=CHUNK_BYTES)
    with mounted(packed, tmp_path, options=options, sabotage=log_fetches) as running:
        descriptor = os.open(running.path / "big", os.O_RDONLY | os.O_DIRECT)
        try:
            buffer = bytearray(2 * 4096)
            aligned = memoryview(buffer)[:4096]
            for chunk in (40, 20):
                fetched_before = fetched(running.log())
                os.preadv(descriptor, [aligned], chunk * CHUNK_BYTES)
                assert fetched(running.log()) - fetched_before == {chunk}
            for chunk in (0, 1):
                os.preadv(descriptor, [bytearray(CHUNK_BYTES)], chunk * CHUNK_BYTES)
            deadline_s = time.monotonic() + 60
            while not {2, 3, 4} <= fetched(running.log()) and time.monotonic() < deadline_s:
                pass
            assert {2, 3, 4} <= fetched(running.log())
        finally:
            os.close(descriptor)


def log_fetches() -> None:
    import logging

    fetch = MemoryChunkSource.fetch_chunk

    def logged(self: MemoryChunkSource, chunk: int) -> bytes:
        logging.getLogger("source").info("fetched %d", chunk)
        return fetch(self, chunk)

    MemoryChunkSource.fetch_chunk = logged  # type: ignore[method-assign]  # only in the process that serves


def fetched(log: str) -> set[int]:
    return {int(line.rpartition(" ")[2]) for line in log.splitlines() if " fetched " in line}
