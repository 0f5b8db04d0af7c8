"""The identity of servers is replaced: who has both pins notices nothing, and tags stay."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, Unavailable
from dieselfs.net.auth import Key, read_key_file
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.identity import announce_identity, next_identity, store_identity
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore, replace_identity
from dieselfs_server.store.memory import MemoryStore
from tests.support.server import RunningServer, running_server
from tests.support.snapshots import SAMPLE, snapshot_bytes


def new_identity(server: RunningServer, what: str) -> str:
    folder = server.folder
    command = [
        *(sys.executable, "-m", "dieselfs_server.main", "--new-identity", what),
        *("--store", f"posix://{folder}/chunks", "--metadata", f"sqlite://{folder}/metadata.db"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def write_key(path: Path, key: Key) -> None:
    path.write_text(key.text())
    path.chmod(0o600)


def test_a_key_file_has_one_pin_or_two() -> None:
    one, two = Key.generate("ann", b"1" * 32), Key.generate("ann", b"1" * 32, b"2" * 32)
    for key in (one, two):
        assert Key.parse(key.text(), "file") == key
    assert one.pins == (b"1" * 32,) and two.pins == (b"1" * 32, b"2" * 32)
    with pytest.raises(AccessDenied, match="second pin"):
        Key.parse(two.text()[:-2] + "A\n", "file")


def test_without_an_announced_identity_nothing_is_replaced() -> None:
    store = MemoryStore()
    before = store_identity(store)
    with pytest.raises(InvalidInput, match="announce"):
        replace_identity(store, pause=lambda _: None)
    assert announce_identity(store) == announce_identity(store) != before
    assert store_identity(store) == before


def test_tags_are_signed_again_also_after_an_interruption() -> None:
    store = MemoryStore()
    old = store_identity(store)
    snapshot = Snapshot(signed(snapshot_bytes(SAMPLE), old), "snapshot")
    dataset_id = snapshot.header.dataset_id
    for name in ("v1", "v2"):
        TagStore(store, old).add(snapshot, name)
    new = announce_identity(store)
    (first, second) = store.list_records("tag-")
    forged = store.get_record(first) or b""
    store.put_record(second, bytes(64) + forged[64:])
    with pytest.raises(Damaged):
        replace_identity(
            store, pause=lambda _: None
        )  # the first tag is signed again, the second one nobody has signed
    assert store_identity(store) == old
    store.delete_record(second)
    assert replace_identity(store, pause=lambda _: None) == (new, 1)
    assert store_identity(store) == new and next_identity(store) is None
    found = TagStore(store, new).get(snapshot.dataset, dataset_id, "v1")
    assert found.digest == snapshot.digest and found.header.signer == new.public_key


def test_clients_with_both_pins_read_before_and_after(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        file, old_file = server.user("ann", all_datasets="admin"), tmp_path / "old.key"
        write_key(old_file, read_key_file(file))
        assert "next identity" in new_identity(server, "announce")
        with closing(server.client(file)) as client:
            key = client.add_key("ann")
        assert len(key.pins) == 2
        write_key(file, key)
        settings = replace(server.settings(file), cache=tmp_path / "cache")
        data = Dataset(settings, "data", must_exist=False)
        data.put("a", b"1")
        data.flush()
        data.refresh()
        data.client.put_tag("data", "v1", 0)
        data._end()
    assert "signed 1 tags again" in new_identity(server, "use")
    with running_server(tmp_path / "server") as server:
        data = Dataset(replace(settings, server=server.tcp), "data")
        assert data.get("a") == b"1"
        data.put("b", b"2")
        data.flush()
        data.refresh()
        assert sorted(data.files()) == ["a", "b"]
        assert data.client.add_key("ann").pins == (key.next_pin,)
        assert [tag.name for tag in data.client.tags("data")] == ["v1"]
        data._end()
        with closing(server.client(old_file)) as client, pytest.raises(Unavailable, match="another key"):
            client.datasets()
