"""Encrypted datasets over real servers: two that change recipients at once, one that restarts, lost metadata."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from tests.support.dlcmd import Dlcmd
from tests.support.redis import needs_redis, running_redis
from tests.support.server import RunningServer, running_server, running_servers, start_server

ADMINS, FRIENDS_EACH = 2, 3


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=needs_redis)])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[RunningServer]]:
    with ExitStack() as stack:
        options: tuple[str, ...] = ()
        if request.param == "redis":
            redis = stack.enter_context(running_redis(tmp_path / "redis"))
            options = ("--metadata", f"redis://127.0.0.1:{redis.port}/0")
        yield stack.enter_context(running_servers(tmp_path, ["one", "two"], options))


def user(server: RunningServer, folder: Path) -> Dlcmd:
    folder.mkdir()
    return Dlcmd(folder / "home", folder, {"DIESELFS_SERVER": server.unix})


def test_of_two_administrators_no_change_of_recipients_is_lost(
    servers: list[RunningServer], tmp_path: Path
) -> None:
    first = user(servers[0], tmp_path / "first")
    (first.folder / "f").write_bytes(b"text")
    first("put", "--encrypt", first.folder / "f", "dl://mri/")
    second = Dlcmd(first.home, first.folder, {"DIESELFS_SERVER": servers[1].unix})
    (tmp_path / "friends").mkdir()
    public = user(servers[0], tmp_path / "friend")("key", "show").text.split()[2]
    files = []
    for number in range(ADMINS * FRIENDS_EACH):
        files.append(tmp_path / "friends" / f"{number}")
        files[-1].write_text(f"dieselfs-recipient friend{number} {public}\n")

    def add(admin: int) -> None:
        for number in range(FRIENDS_EACH):
            (first, second)[admin]("key", "add", "dl://mri", files[admin * FRIENDS_EACH + number])

    with ThreadPoolExecutor(ADMINS) as threads:
        list(threads.map(add, range(ADMINS)))
    names = [one["name"] for one in second("key", "ls", "--json", "dl://mri").objects]
    assert sorted(names)[: len(files)] == [f"friend{number}" for number in range(len(files))]

    def remove(admin: int) -> None:
        for number in range(FRIENDS_EACH):
            (first, second)[admin]("key", "rm", "dl://mri", f"friend{admin * FRIENDS_EACH + number}")

    with ThreadPoolExecutor(ADMINS) as threads:
        list(threads.map(remove, range(ADMINS)))
    assert len(first("key", "ls", "--json", "dl://mri").objects) == 1
    assert second("cat", "dl://mri/f").stdout == b"text"


def test_readers_and_writers_continue_after_the_restart_of_a_server(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    try:
        with Dataset(server.settings(), "mri", must_exist=False) as data:
            data.client.encrypt(data.create())
            data.put("before", b"1" * 100_000)
            data.flush()
            server.stop()
            with running_server(tmp_path):
                data.put("after", b"2" * 100_000)
                data.flush()
                assert data.get("before") == b"1" * 100_000 and data.get("after") == b"2" * 100_000
    finally:
        if server.process.poll() is None:
            server.stop()


def test_the_metadata_is_made_again_from_chunks_and_opens_with_the_key(tmp_path: Path) -> None:
    files = {f"scans/{number}.dcm": bytes([number]) * 70_000 for number in range(9)}
    with running_server(tmp_path) as server, Dataset(server.settings(), "mri", must_exist=False) as data:
        data.client.encrypt(data.create())
        for path, content in files.items():
            data.put(path, content)
        data.flush()
        data.delete("scans/3.dcm")
        data.flush()
    del files["scans/3.dcm"]
    for lost in tmp_path.glob("metadata.db*"):
        lost.unlink()
    with running_server(tmp_path) as server:
        client = server.client()
        assert client.lost_datasets() == ["mri"]
        client.rebuild("mri")
        client.close()
        shutil.rmtree(server.settings().cache)
        with Dataset(server.settings(), "mri") as data:
            assert {path: data.get(path) for path in data.files()} == files
            assert data.client.fsck("mri", is_deep=True, is_repair=False).problems == ()
            data.put("more", b"3")
            data.flush()
            assert data.get("more") == b"3"
