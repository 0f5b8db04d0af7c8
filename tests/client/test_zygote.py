"""How a zygote opens the dataset, and how a daemon that was forked begins and ends."""

import logging
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from dieselfs.errors import EXIT_BUG, EXIT_OK, DieselfsError, NotFound
from dieselfs_client import zygote
from dieselfs_client.daemon import forking
from dieselfs_client.library_pages import clean_data, clean_mappings, unmap_clean
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_client.supervision.control_channel import ControlChannel, Message
from dieselfs_client.supervision.supervisor_client import SupervisorClient

HEAVY = {
    "attr.validators",
    "_hashlib",
    "cryptography",
    "dieselfs.dataset",
    "dieselfs.sources.decrypted",
    "dieselfs_client.cluster.role",
    "idna",
    "numpy._typing",
    "numpy.linalg",
    "ssl",
    "trio._path",
    "trio._subprocess",
}
"""What a mount of a plain dataset, outside of jobs, does not use."""


def test_the_zygote_of_a_plain_mount_loads_nothing_that_others_use() -> None:
    loaded = f"import sys, dieselfs_client.zygote, dieselfs_client.daemon.forking; print(*{HEAVY} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


BARE = """
import dieselfs_client.bare_packages
import subprocess, sys
import numpy
import numpy.char, numpy.ctypeslib, numpy.fft, numpy.linalg, numpy.ma, numpy.polynomial, numpy.random, numpy.rec
assert numpy.linalg.inv(numpy.eye(1)).tolist() == [[1.0]] and numpy.ma.is_masked(numpy.ma.masked)
assert numpy.typing.NDArray[numpy.int64] | None
assert subprocess.check_output(["echo", "text"], text=True) == "text\\n"
import bz2, locale, lzma
assert locale.getlocale and bz2.compress and lzma.compress
"""


def test_what_is_not_imported_at_once_works_when_it_is_used() -> None:
    subprocess.run([sys.executable, "-c", BARE], check=True)


NEEDY = """
import sys
sys.path.insert(0, sys.argv[1])
from dieselfs_client import bare_packages as bare
found = bare._imported("needy", {"needy.part": bare._Hollow("needy.part")})
assert found.Child.whole and sys.modules["needy.part"].Base is found.Base
"""


def test_a_release_that_needs_what_is_left_out_is_imported_whole(tmp_path: Path) -> None:
    (tmp_path / "needy").mkdir()
    (tmp_path / "needy" / "__init__.py").write_text("from needy.part import Base\nclass Child(Base): pass\n")
    (tmp_path / "needy" / "part.py").write_text("class Base: whole = True\n")
    subprocess.run([sys.executable, "-c", NEEDY, str(tmp_path)], check=True)


def test_unmapped_files_are_read_again_and_keep_what_a_process_changed(tmp_path: Path) -> None:
    library = tmp_path / "a library"
    library.write_bytes(b"code" * 4096)
    with library.open("rb") as file:
        clean = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        changed = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    with clean, changed:
        changed[:1] = b"n"
        assert clean[-4:] == b"code"
        unmap_clean()
        smaps = Path("/proc/self/smaps").read_text()
        resident = re.findall(
            rf"(\S+) \S+ \S+ \S+ +{re.escape(str(library))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", smaps
        )
        assert [size == "0" for _, size in sorted(resident)] == [True, False]  # r--p, rw-p
        assert (clean[:4], changed[:4]) == (b"code", b"node")


def test_data_that_is_as_in_its_file_is_found_page_by_page(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.write_bytes(bytes(4 * mmap.PAGESIZE))
    with library.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    with data:
        data[mmap.PAGESIZE] = 1
        assert data[:: mmap.PAGESIZE] == b"\0\1\0\0"  # all pages are there
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(library) in line]
        first = int(lines[0].split("-")[0], 16)
        found = [(start - first, end - start) for start, end in clean_data(lines)]
        assert found == [(page * mmap.PAGESIZE, mmap.PAGESIZE) for page in (0, 2, 3)]
        assert [*clean_data([lines[0].replace("rw-p", "rw-s"), lines[0].split(" /")[0]])] == []


def mapped(permissions: str, anonymous: int, swap: int, path: str = "/lib/a library") -> list[str]:
    sizes = f"Size: 8 kB\nRss: 8 kB\nAnonymous: {anonymous} kB\nSwap: {swap} kB\nVmFlags: rd mr"
    return [f"1000-3000 {permissions} 0 fe:00 9 {path}", *sizes.splitlines()]


def test_what_a_process_changed_or_may_be_changing_is_not_unmapped() -> None:
    code = mapped("r-xp", 0, 0)
    assert [*clean_mappings(code, code[:1])] == [(0x1000, 0x3000)]
    assert [*clean_mappings(code, [])] == []  # a library that is being loaded
    kept = [mapped("r--p", 4, 0), mapped("r--p", 0, 4), mapped("rw-p", 0, 0), mapped("r--s", 0, 0)]
    kept += [mapped("r--p", 0, 0, path) for path in ("", "[vvar]")]
    lines = [*chain(*kept)]
    assert [*clean_mappings(lines, lines)] == []


def opened_apart(
    monkeypatch: pytest.MonkeyPatch, open_dataset: Callable[..., object]
) -> tuple[Callable[[], object], Callable[[], bytes]]:
    """What opens, and what was reported by then."""
    monkeypatch.setattr(zygote, "open_dataset", open_dataset)
    ours, theirs = os.pipe()

    def report(error: DieselfsError) -> None:
        os.write(theirs, str(error).encode())

    opened = zygote._opened_apart("pets", MountOptions(), report)
    os.close(theirs)

    def reported() -> bytes:
        with open(ours, "rb") as pipe:
            return pipe.read()

    return opened, reported


def test_a_child_gets_the_snapshot_which_the_zygote_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getpid()

    def open_dataset(dataset: str, options: MountOptions, path: str | None) -> object:
        if os.getpid() == mine:
            return dataset, path
        return SimpleNamespace(snapshot=SimpleNamespace(source="/cache/1.snapshot"))

    opened, reported = opened_apart(monkeypatch, open_dataset)
    assert (opened(), reported()) == (("pets", "/cache/1.snapshot"), b"")


def test_a_snapshot_that_the_cache_has_removed_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.getpid()

    def open_dataset(dataset: str, options: MountOptions, path: str | None) -> object:
        if os.getpid() != mine:
            return SimpleNamespace(snapshot=SimpleNamespace(source="/cache/1.snapshot"))
        if path is not None:
            raise NotFound(path)
        return "fetched"

    opened, _ = opened_apart(monkeypatch, open_dataset)
    assert opened() == "fetched"


def test_an_error_of_the_child_is_reported_once_and_ends_the_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_dataset(*_: object) -> object:
        raise NotFound("no pets")

    opened, reported = opened_apart(monkeypatch, open_dataset)
    with pytest.raises(SystemExit) as ended:
        opened()
    assert (ended.value.code, reported()) == (NotFound.exit_code, b"no pets")


def test_a_child_that_is_killed_ends_the_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_dataset(*_: object) -> object:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it is dead")

    opened, reported = opened_apart(monkeypatch, open_dataset)
    with pytest.raises(SystemExit) as ended:
        opened()
    assert (ended.value.code, reported()) == (EXIT_BUG, b"")


async def unused(supervisor_client: SupervisorClient) -> None:
    raise AssertionError("a daemon without a supervisor serves nothing")


def test_a_daemon_that_stands_by_ends_with_one_line_when_the_supervisor_is_gone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(code: int) -> NoReturn:
        raise SystemExit(code)

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    ours, theirs = ControlChannel.pair()
    ours.close()
    with theirs, caplog.at_level(logging.INFO), pytest.raises(SystemExit) as ended:
        forking._be_daemon(ControlChannel(theirs), unused, None)
    assert ended.value.code == EXIT_OK
    assert [(each.levelname, each.exc_info) for each in caplog.records] == [("INFO", None)]


def test_a_zygote_ends_without_a_traceback_when_the_supervisor_is_gone() -> None:
    ours, theirs = ControlChannel.pair()
    ours.close()
    with theirs:
        forking.fork_daemons(ControlChannel(theirs), unused, None)


def test_a_zygote_is_warm_for_each_supervisor() -> None:
    ours, theirs = ControlChannel.pair()
    memory = os.memfd_create("snapshot")
    before = len(os.listdir("/proc/self/fd"))
    with theirs:
        ours.send("keep", "snapshot", memory)
        ours.send("go")
        shutdown = socket.socket(fileno=os.dup(ours.fileno()))
        shutdown.shutdown(socket.SHUT_WR)
        forking.fork_daemons(ControlChannel(theirs), unused, None)
        shutdown.close()
        assert [ours.receive(), ours.receive()] == 2 * [Message("warm", "", None)]
        assert len(os.listdir("/proc/self/fd")) == before
    ours.close()
    os.close(memory)
