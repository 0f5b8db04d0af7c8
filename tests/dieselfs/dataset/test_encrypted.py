"""An encrypted dataset in the library, over a real server: read as any other, and nothing of it is in the store."""

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.chunk.source import AttachedSource
from dieselfs.dataset import Dataset, connect
from dieselfs.encryption.names import PLAIN_NAME_BYTES_MAX
from dieselfs.errors import AccessDenied, Damaged, DieselfsError, InvalidInput
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import CopyRequest
from dieselfs.settings import Settings
from dieselfs.sources.interface import Wanted
from dieselfs.sources.plain import node_source, readable
from tests.support.server import RunningServer

_NUMBERS = count()
LARGE = os.urandom(9_500_000)
FILES = {
    "train/cat/secret-name.jpg": b"secret-content" * 500,
    "train/dog.jpg": b"woof",
    "large.bin": LARGE,
    "empty": b"",
}


@pytest.fixture
def settings(server: RunningServer, tmp_path: Path) -> Settings:
    return replace(server.settings(), identity=str(tmp_path / "own" / "identity"), cache=tmp_path / "cache")


@pytest.fixture
def secret(settings: Settings) -> Iterator[Dataset]:
    """A dataset that is encrypted, with FILES, a link and an empty folder."""
    with Dataset(settings, f"secret-{next(_NUMBERS)}", must_exist=False) as dataset:
        dataset.client.encrypt(dataset.create())
        for path, content in FILES.items():
            dataset.put(path, content, mtime_ns=-1 if path == "empty" else 10**18)
        dataset.writer.put_link(b"link", b"train/dog.jpg")
        dataset.writer.put_folder(b"void")
        dataset.flush()
        yield dataset


def test_everything_is_read_as_it_was_put(secret: Dataset, settings: Settings) -> None:
    assert secret.ls() == ["empty", "large.bin", "link", "train", "void"]
    for path, content in FILES.items():
        assert secret.get(path) == content
        assert secret.stat(path).size == len(content)
    assert secret.get("link") == b"woof"
    with Dataset(settings, secret.name) as other:
        order = other.shuffle(seed=3)
        assert other.get_many(order) == [FILES[path] for path in order]
        assert other.get_range("large.bin", 60_000, 5_000_000) == LARGE[60_000:5_000_000]
        spawned = ForkingPickler.loads(ForkingPickler.dumps(other))
        assert spawned.get("train/dog.jpg") == b"woof"
        spawned.close()
    secret.delete("train/dog.jpg")
    secret.flush()
    assert not secret.exists("train/dog.jpg")
    assert secret.client.stat(secret.name, b"large.bin").size == len(LARGE)
    assert [entry.name for entry in secret.client.list_folder(secret.name, b"", b"link", 1)] == [b"train"]


def test_the_store_has_neither_names_nor_contents(secret: Dataset, server: RunningServer) -> None:
    stored = [
        path for path in (server.folder).rglob("*") if path.is_file() and "client-cache" not in str(path)
    ]
    for path in stored:
        content = path.read_bytes()
        for word in (b"secret-name", b"secret-content", LARGE[:16]):
            assert word not in content, path


@pytest.mark.parametrize("disk", ["", "disk"])
def test_blocks_and_extents_are_decrypted_at_their_places(
    secret: Dataset, settings: Settings, tmp_path: Path, disk: str
) -> None:
    snapshot, client = secret.snapshot, secret.client
    folder = str(tmp_path / disk) if disk else None
    source = readable(node_source(client, snapshot, folder, 1 << 26), client)
    extents = [extent for path in FILES for extent in snapshot.extents(snapshot.require(path.encode()))]
    for extent in extents:
        ((_, slices),) = next(source.fetch_many(Wanted({extent.chunk: [extent]}))).items()
        assert not isinstance(slices, DieselfsError)
        payload = source.fetch_chunk(extent.chunk)
        assert payload[extent.offset : extent.offset + extent.length] == slices[0]
    whole = snapshot.extents(snapshot.require(b"large.bin"))[1]
    payload = source.fetch_chunk(whole.chunk)
    first, end = whole.offset // 16384 + 3, whole.offset // 16384 + 9
    assert source.fetch_blocks(whole.chunk, first, end) == payload[first * 16384 : end * 16384]
    last = -(-(whole.offset + whole.length) // 16384)
    at = last * 16384 - 16384
    found = source.fetch_blocks(whole.chunk, last - 1, last)
    assert found[: whole.offset + whole.length - at] == payload[at : whole.offset + whole.length]
    source.close()
    if disk:
        kept = [path.read_bytes() for path in (tmp_path / disk).rglob("*") if path.is_file()]
        assert kept and not any(b"secret-content" in content for content in kept)


def test_what_was_moved_in_the_store_is_damage(secret: Dataset) -> None:
    """Signed or not: a snapshot that says of one file that it is another does not make it so."""
    snapshot, chunks = secret.snapshot, secret.chunks
    (dog,) = snapshot.extents(snapshot.require(b"train/dog.jpg"))
    (cat,) = snapshot.extents(snapshot.require(b"train/cat/secret-name.jpg"))
    assert chunks.fetch_extents(dog.chunk, [dog]) == [b"woof"]
    lied = cat._replace(length=dog.length, offset=dog.offset, place=65536, digest=dog.digest)
    with pytest.raises(Damaged, match=r"train/dog\.jpg"):
        chunks.fetch_extents(dog.chunk, [lied])


def test_nothing_is_stored_in_plain_text(secret: Dataset, settings: Settings) -> None:
    """Each way to write that does not encrypt is refused, whoever calls it."""
    client, record = secret.client, secret.record()
    builder = ChunkBuilder()
    builder.add_file(b"plain", b"text", 0o644, 1)
    chunk_id = ChunkIdSource().next()
    parts = builder.seal().encode(
        chunk_id, record.name, record.dataset_id, client.reserve_versions(record.name, 1)
    )
    for key_id in (b"", bytes(16)):
        with pytest.raises(InvalidInput, match="is encrypted: only clients with its key"):
            client.put_chunk(record.name, chunk_id, parts, key_id)
    with pytest.raises(InvalidInput, match="is encrypted"):
        client._value("write_file", dataset=record.name, path=b"p", content=b"text", mode=0o644, mtime_ns=1)
    for request in (
        CopyRequest(record.name, b"train", record.name, b"copy"),
        CopyRequest(record.name, b"", "other", b"copy"),
        CopyRequest("other", b"f", record.name, b"copy"),
    ):
        client_dataset(client, "other")
        with pytest.raises(InvalidInput, match="is encrypted, and servers do not have its key"):
            client.copy_entries(request)
    with pytest.raises(InvalidInput, match="is encrypted, and servers do not have its key"):
        secret.rename("large.bin", "larger.bin")
    attached = ChunkBuilder()
    attached.add_file(b"a", b"text", 0o644, 1, offset=0)
    sealed = attached.seal(b"text", AttachedSource(b"/etc/hosts", 100, "mtime_ns=1"))
    with pytest.raises(InvalidInput, match="attached source"), Dataset(settings, secret.name) as other:
        other.writer._sender.submit(sealed)
        other.flush()
    assert secret.record().generation == record.generation


def client_dataset(client: ServerClient, name: str) -> None:
    if name not in [record.name for record in client.datasets()]:
        client.create_dataset(name)


def test_a_dataset_with_plain_files_does_not_become_encrypted(settings: Settings) -> None:
    with Dataset(settings, "plain-first", must_exist=False) as dataset:
        dataset.put("f", b"text")
        dataset.flush()
        with pytest.raises(InvalidInput, match="has files that are not encrypted"):
            dataset.client.encrypt(dataset.record())


def test_who_has_no_key_reads_nothing(secret: Dataset, settings: Settings, tmp_path: Path) -> None:
    other = replace(settings, identity=str(tmp_path / "other" / "identity"))
    with Dataset(other, secret.name) as stranger:
        for read in (
            stranger.ls,
            lambda: stranger.client.stat(secret.name, b"empty"),
            lambda: stranger.put("p", b"x"),
        ):
            with pytest.raises(AccessDenied, match="its key is not wrapped for you"):
                read()


def test_names_that_are_too_long_are_refused_at_once(secret: Dataset) -> None:
    with pytest.raises(InvalidInput, match="at most"):
        secret.put("n" * (PLAIN_NAME_BYTES_MAX + 1), b"x")
    secret.put("n" * PLAIN_NAME_BYTES_MAX, b"x")
    secret.flush()
    assert secret.get("n" * PLAIN_NAME_BYTES_MAX) == b"x"


def test_saved_metadata_is_encrypted_and_read_with_the_key(
    secret: Dataset, settings: Settings, tmp_path: Path
) -> None:
    secret.save_meta(tmp_path / "saved")
    assert b"secret-name" not in (tmp_path / "saved").read_bytes()
    with Dataset(settings, secret.name) as other:
        other.load_meta(tmp_path / "saved")
        assert other.get("train/dog.jpg") == b"woof"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["saved", "saved.statement"]


def test_the_plain_snapshot_is_private_and_consistent(secret: Dataset) -> None:
    snapshot = secret.snapshot
    assert snapshot.header.is_encrypted
    snapshot.verify()
    assert os.stat(snapshot.source).st_mode & 0o777 == 0o600
    assert snapshot.header.total_bytes == sum(map(len, FILES.values()))
    assert np.array_equal(np.sort(snapshot.column("extent_lengths").astype(int))[-1:], [4 << 20])


def test_a_program_makes_an_encrypted_dataset(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_IDENTITY", settings.identity or "")
    monkeypatch.setenv("DIESELFS_CACHE", str(settings.cache))
    name = f"secret-{next(_NUMBERS)}"
    with connect(name, server=settings.server, create=True, encrypt=True) as data:
        data.put("f", b"text")
    with connect(name, server=settings.server) as data:
        assert data.snapshot.header.is_encrypted and data.get("f") == b"text"
        data.put("g", b"more")
    with connect(name, server=settings.server, encrypt=True) as data:
        assert data.get("g") == b"more"
        data.put("h", b"again")
    with connect("plain-files", server=settings.server, create=True) as data:
        data.put("f", b"text")
    with connect("plain-files", server=settings.server, encrypt=True) as data:
        spawned = ForkingPickler.loads(ForkingPickler.dumps(data))
        for each in (data, spawned):
            assert each.get("f") == b"text"
            with pytest.raises(InvalidInput, match="has files that are not encrypted"):
                each.put("g", b"secret")
        spawned.close()
