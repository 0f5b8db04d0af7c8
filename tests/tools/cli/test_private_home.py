"""A private home, and the end of its server."""

import os
import tempfile
from pathlib import Path

import pytest

import dieselfs
from dieselfs.process.embedded_server import log_path
from dieselfs.settings.table import EMBEDDED
from dieselfs_tools.cli.private_home import private_home, stop_server


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_home_and_server_are_gone_afterwards(tmp_path: Path) -> None:
    with private_home() as home:
        assert home.stat().st_mode & 0o077 == 0
        with dieselfs.connect("d", server=EMBEDDED, home=home, create=True) as data:
            data.put("a", b"1")
        stop_server(home)
        assert "the socket is gone" in log_path(home).read_text()
        with dieselfs.connect(
            "d", server=EMBEDDED, home=home
        ) as data:  # another server starts, over the same data
            assert data.get("a") == b"1"
    assert os.listdir(tmp_path) == []


def test_a_home_without_a_server_is_removed(tmp_path: Path) -> None:
    with private_home():
        pass
    assert os.listdir(tmp_path) == []
