"""Copies over a real server: who may, and what the audit log says."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, InvalidInput, NotFound
from dieselfs.rpc.records import CopyRequest
from tests.support.server import running_server


def test_a_copy_needs_read_and_write_and_a_move_write_twice(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        for name in ("seen", "own", "hidden"):
            with closing(Dataset(server.settings(), name, must_exist=False)) as data:
                data.put("f", name.encode())
        key = server.user("eve", seen="read", own="write")
        with closing(server.client(key)) as eve:
            assert eve.copy_entries(CopyRequest("seen", b"f", "own", b"copy")).copied == 1
            assert eve.copy_entries(CopyRequest("own", b"copy", "own", b"moved", is_move=True)).deleted == 1
            with pytest.raises(AccessDenied, match="may only read dataset seen"):
                eve.copy_entries(CopyRequest("seen", b"f", "own", b"taken", is_move=True))
            with pytest.raises(AccessDenied, match="may only read dataset seen"):
                eve.copy_entries(CopyRequest("own", b"f", "seen", b"f2"))
            for request in (
                CopyRequest("hidden", b"f", "own", b"x"),
                CopyRequest("own", b"f", "hidden", b"x"),
            ):
                with pytest.raises(NotFound, match="there is no dataset 'hidden'"):
                    eve.copy_entries(request._replace(is_dry_run=True))
            with pytest.raises(InvalidInput, match="no rule for existing files"):
                eve.copy_entries(CopyRequest("own", b"f", "own", b"x", existing=7))
            with pytest.raises(InvalidInput, match="a selection of 9 bytes"):
                eve.copy_entries(CopyRequest("own", b"f", "own", b"x", selection=bytes(9)))
        with closing(Dataset(server.settings(), "own")) as own:
            assert own.get("moved") == b"seen" and own.ls() == ["f", "moved"]
        lines = (server.folder / "state" / "audit.log").read_text().splitlines()
    copies = [entry for entry in map(json.loads, lines) if entry["event"] == "copy_entries"]
    assert [entry["outcome"] for entry in copies[:3]] == ["ok", "ok", "AccessDenied"]
    named = {
        name: copies[0][name] for name in ("user", "dataset", "path", "target", "target_path", "is_move")
    }
    assert named == {
        "user": "eve",
        "dataset": "seen",
        "path": "f",
        "target": "own",
        "target_path": "copy",
        "is_move": False,
    }
