"""A key and a certificate are replaced while a job reads: no read fails, and nothing old is in use afterwards."""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied
from dieselfs.limits import KIB
from dieselfs.net.auth import read_key_file
from lab.server import upload
from tests.support.certificates import make_certificate
from tests.support.job_mounts import job_mounts, stats_of
from tests.support.server import RunningServer, running_server

FILES = 600
FILE_BYTES = 20 * KIB
PAUSE_S = 0.1
"""Between reads, while a file is looked at once a second: 60 s for all files."""


@pytest.fixture
def contents() -> list[bytes]:
    chance = random.Random(8)
    return [chance.randbytes(FILE_BYTES) for _ in range(FILES)]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    folder = tmp_path / "certificate"
    folder.mkdir()
    return make_certificate(folder)


@pytest.fixture
def server(tmp_path: Path, certificate: tuple[Path, Path], contents: list[bytes]) -> Iterator[RunningServer]:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number, content in enumerate(contents):
        (tree / str(number)).write_bytes(content)
    pair = ("--tls-certificate", str(certificate[0]), "--tls-key", str(certificate[1]))
    with running_server(tmp_path / "server", pair) as running:
        with Dataset(running.settings(), "data", must_exist=False) as dataset:
            upload(dataset, tree, FILE_BYTES)  # each file is read from the server
        yield running


class _Reader:
    """Reads one file after the other, each for the first time, through each mount in turn."""

    def __init__(self, places: list[Path], contents: list[bytes]) -> None:
        self._places = places
        self._unread = list(enumerate(contents))

    def read(self, files: int) -> None:
        for _ in range(files):
            number, content = self._unread.pop()
            assert (self._places[number % len(self._places)] / str(number)).read_bytes() == content

    def read_until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            assert self._unread, "it did not happen in time"
            self.read(1)
            time.sleep(PAUSE_S)


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(path.name + ".new")
    aside.touch(0o600)
    aside.write_bytes(content)
    aside.replace(path)


def test_the_mounts_of_a_job_change_key_and_certificate_while_they_are_read(
    server: RunningServer,
    certificate: tuple[Path, Path],
    contents: list[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key_file, authority = server.user("ada", data="read"), tmp_path / "ca.pem"
    old_key, old_authority = read_key_file(key_file), certificate[0].read_bytes()
    authority.write_bytes(old_authority)
    (tmp_path / "job").mkdir()
    monkeypatch.setenv("DIESELFS_TLS_CA", str(authority))
    nodes = ["node-0", "node-1"]
    with job_mounts(server, "data", tmp_path / "job", nodes, key_file=str(key_file)) as places:
        reader = _Reader(places, contents)
        reader.read(20)

        (tmp_path / "renewed").mkdir()
        renewed = [
            path.read_bytes() for path in make_certificate(tmp_path / "renewed", "dieselfs test, renewed")
        ]
        _replace(authority, old_authority + renewed[0])  # both, until the server has changed
        for path, content in zip(certificate, renewed, strict=True):
            _replace(path, content)
        administrator = server.client()
        new_key = administrator.add_key("ada")
        _replace(key_file, new_key.text().encode())
        reader.read_until(lambda: _has_logged_in(server, new_key.key_id))
        reader.read_until(lambda: _is_renewed(server, key_file, authority))

        administrator.remove_key("ada", old_key.key_id)
        administrator.close()
        _replace(authority, renewed[0])
        reader.read_until(lambda: _is_refused(server, tmp_path, old_key.text(), authority))
        reader.read(20)
        for place in places:
            assert (place / ".dieselfs/errors").read_text() == ""
            assert stats_of(place)["job"]["members"] == nodes


def _has_logged_in(server: RunningServer, key_id: str) -> bool:
    audit = server.folder / "state" / "audit.log"
    return audit.exists() and any(
        "login" in line and key_id in line for line in audit.read_text().splitlines()
    )


def _is_renewed(server: RunningServer, key_file: Path, authority: Path) -> bool:
    """The server looks at its certificate when somebody connects, at most once a second."""
    with Dataset(server.settings(key_file, authority), "data"):
        return "was read again" in server.log()


def _is_refused(server: RunningServer, folder: Path, key: str, authority: Path) -> bool:
    stale = folder / "stale.key"
    _replace(stale, key.encode())
    try:
        with Dataset(server.settings(stale, authority), "data"):
            return False
    except AccessDenied:
        return True
    finally:
        os.unlink(stale)
