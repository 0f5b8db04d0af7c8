"""The object store goes away under a running server: requests are refused, and nothing is changed or created."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_UNAVAILABLE, Unavailable
from lab.namespace import wait_for
from tests.support.dlcmd import Dlcmd
from tests.support.server import running_server, start_server

VERB_S_MAX = 15.0
"""More than a store that hangs takes to fail, and the patience of a verb."""


@pytest.mark.parametrize("is_empty_folder", [False, True])
def test_a_store_that_is_away_is_never_taken_for_empty(tmp_path: Path, is_empty_folder: bool) -> None:
    with running_server(tmp_path / "server") as server:
        chunks, away = server.folder / "chunks", server.folder / "away"
        key = server.user("ada", all_datasets="admin")
        with contextlib.closing(Dataset(server.settings(), "data", must_exist=False)) as data:
            data.put("file", b"content")
            data.flush()
        chunks.rename(away)
        if is_empty_folder:
            chunks.mkdir()
        with contextlib.closing(server.client()) as client:
            for call in (
                lambda: client.rebuild("data"),
                lambda: client.fsck("data", is_deep=False, is_repair=True),
                lambda: client.purge("data", 0, False),
                lambda: client.drop_dataset("data"),
                lambda: client.tags("data"),
                lambda: client.put_tag("data", "v1"),
                lambda: client.add_key("eve"),
            ):
                with pytest.raises(Unavailable, match="away"):
                    call()
            assert client.dataset("data").files == 1
        with (
            pytest.raises(Unavailable, match="away"),
            contextlib.closing(Dataset(server.settings(), "data", must_exist=False)) as data,
        ):
            data.put("other", b"more")
            data.flush()
        assert chunks.exists() == is_empty_folder and not (is_empty_folder and list(chunks.iterdir()))

        server.stop()
        with pytest.raises(AssertionError, match="has no marker"):
            start_server(server.folder, is_new=False)
        assert chunks.exists() == is_empty_folder
        if is_empty_folder:
            chunks.rmdir()
        away.rename(chunks)
    again = start_server(tmp_path / "server", is_new=False)
    try:
        with contextlib.closing(Dataset(again.settings(key), "data", must_exist=False)) as data:
            assert data.get("file") == b"content"
    finally:
        again.stop()


def test_verbs_that_read_and_that_write_say_alike_and_soon_that_the_store_is_away(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        for name in ("f", "g"):
            (tmp_path / name).write_text(name)
        dlcmd("put", "f", "dl://data/")
        (server.folder / "chunks").rename(server.folder / "away")
        said = {}
        for words in (["put", "g", "dl://data/"], ["cat", "dl://data/f"]):
            began_s = time.monotonic()
            said[words[0]] = dlcmd(*words, exit_code=EXIT_UNAVAILABLE).stderr.strip()
            assert time.monotonic() - began_s < VERB_S_MAX
        assert "the object store is away: its marker is missing" in said["cat"]
        assert said["put"].startswith(said["cat"])


def test_a_new_store_is_made_ready_once_and_no_server_stays(tmp_path: Path) -> None:
    """`--init-only`, as the first start of a container; the second start finds the same store."""
    folder = tmp_path / "chunks"
    options = ["--store", f"posix://{folder}", "--metadata", f"sqlite://{tmp_path}/metadata.db"]
    options += ["--admin-key", str(tmp_path / "admin.key"), "--listen", f"unix:{tmp_path}/server.sock"]

    def start(*more: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "dieselfs_server.main", *options, *more]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    refused = start()
    assert refused.returncode == EXIT_UNAVAILABLE and not folder.exists()
    assert start("--init-only").returncode == 0
    stored = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    key = (tmp_path / "admin.key").read_bytes()
    assert stored and key
    assert start("--init-only").returncode == 0
    assert stored == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert (tmp_path / "admin.key").read_bytes() == key


def test_a_login_while_the_table_of_users_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        key = server.user("ada", data="read")
        (server.folder / "chunks").rename(server.folder / "away")

        def refusal() -> str:
            with contextlib.closing(server.client(key)) as client:
                try:
                    client.datasets()
                except Unavailable as error:
                    return str(error)
            return ""

        refused = "cannot read its table of users"
        wait_for(lambda: refused in refusal(), "the server has read its table of users again")
        assert refused in (said := refusal()) and "marker" not in said
        assert "marker is missing" in server.log()
