"""Stored things as listings show them, known from the server or from a snapshot."""

import stat
from pathlib import Path

import numpy as np
import pytest

from dieselfs.chunk.format import Op
from dieselfs.names import split_path
from dieselfs.rpc.records import RemoteEntry
from dieselfs_tools.cli.output import Output
from dieselfs_tools.transfers.entries import Entry
from tests.support.dataset import pack_tree

TIME_NS = 1_600_000_000_000_000_007


def test_server_and_snapshot_tell_the_same(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"abc")
    (tmp_path / "l").symlink_to("d/f")
    snapshot = pack_tree(tmp_path).snapshot
    for path, op, target in ((b"d", Op.DIRECTORY, b""), (b"d/f", Op.FILE, b""), (b"l", Op.SYMLINK, b"d/f")):
        found = snapshot.stat(snapshot.require(path))
        size = found.size if op == Op.FILE else 0
        mode = stat.S_IMODE(found.mode)
        remote = RemoteEntry(split_path(path)[1], int(op), mode, found.mtime_ns, size, target)
        assert Entry.of_server(path, remote) == Entry.of_snapshot(snapshot, snapshot.require(path))


def test_entries_of_many_nodes_are_those_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_tools.transfers.entries.BLOCK_ENTRIES", 2)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_bytes(b"abc")
    (tmp_path / "d" / "l").symlink_to("f")
    (tmp_path / "e").write_bytes(b"")
    snapshot = pack_tree(tmp_path).snapshot
    nodes = np.arange(len(snapshot))
    each = [Entry.of_snapshot(snapshot, node) for node in nodes.tolist()]
    assert [*Entry.of_nodes(snapshot, nodes)] == each
    below = [snapshot.require(path) for path in (b"d/f", b"d/l")]
    assert [entry.path for entry in Entry.of_nodes(snapshot, np.array(below), 2)] == [b"f", b"l"]


def test_a_line_is_made_for_people() -> None:
    entry = Entry(b"d/f\n\xff", stat.S_IFREG | 0o640, 4096, TIME_NS)
    assert entry.line(Output(), b"f\n\xff", is_long=False) == "f\\n\\xff"
    line = entry.line(Output(), b"f", is_long=True)
    assert line.startswith("-rw-r-----   4.0 KiB 2020-09-1") and line.endswith(" f")
    folder = Entry(b"d", stat.S_IFDIR | 0o755, 0, TIME_NS)
    assert folder.line(Output(), b"d", is_long=False) == "d/"
    link = Entry(b"l", stat.S_IFLNK | 0o777, 3, TIME_NS, b"a\tb")
    assert link.line(Output(is_exact=True), b"l", is_long=True).endswith(" l -> a\\tb")


def test_fields_are_made_for_programs() -> None:
    link = Entry(b"l", stat.S_IFLNK | 0o777, 1, TIME_NS, b"\xff")
    assert link.fields() == {
        "path": "l",
        "kind": "link",
        "size": 1,
        "mode": "0777",
        "mtime_ns": TIME_NS,
        "target": "\\xff",
        "target_bytes": "/w==",
    }
