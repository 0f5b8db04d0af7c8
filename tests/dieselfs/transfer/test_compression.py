"""A compressed dataset: the same bytes in every way of reading, and the frames alone on the network."""

import os
from collections.abc import Iterator
from contextlib import closing
from copy import copy
from pathlib import Path

import pytest

from dieselfs.chunk.frames import Compression
from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged
from dieselfs.net.address import parse_address
from dieselfs.net.auth import read_key_file
from dieselfs.rpc.connection import Connection, connected
from dieselfs.sources.server import ServerSource
from dieselfs.transfer.upload import TreeUpload, walk_source
from tests.support.server import RunningServer, receive_payload
from tests.support.strangers import pinned

FILES = {b"%03d" % n: b"record %d of a text\n" % n * (n * 40 + 1) for n in range(150)} | {
    b"noise": os.urandom(70_000),
    b"large": b"line of a large text\n" * 100_000,
}


@pytest.fixture(scope="module")
def compressed(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    source = tmp_path_factory.mktemp("source")
    for name, content in FILES.items():
        (source / os.fsdecode(name)).write_bytes(content)
    with closing(Dataset(server.settings(), "compressed", must_exist=False)) as data:
        run = TreeUpload(data.client, data.create(), None, chunk_bytes=1 << 20, compression=Compression(5))
        report = run.run(lambda failed: walk_source(os.fsencode(source), b"", failed))
        assert not report.failures and report.done_bytes == sum(map(len, FILES.values()))
        assert 70_000 < report.sent_bytes < report.done_bytes / 10
        data.refresh()
        yield data


def test_a_chunk_without_bytes_has_none_that_shrink(compressed: Dataset, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing").touch()
    run = TreeUpload(compressed.client, compressed.create(), None, compression=Compression(5))
    assert run.run(lambda failed: walk_source(os.fsencode(tmp_path), b"bare", failed)).done_files == 3


def test_every_file_by_every_way(compressed: Dataset) -> None:
    data, names = compressed, list(FILES)
    assert dict(zip(names, map(bytes, data.get_many(names)), strict=True)) == FILES
    assert {name: data.get(name) for name in names} == FILES
    assert (
        dict(zip(names, map(bytes, data.get_many(data.shuffle(seed=1, epoch=0))), strict=False)).keys()
        == FILES.keys()
    )
    source = ServerSource(data.client, data.snapshot)
    for chunk in range(data.snapshot.chunk_count):
        payload = bytes(source.fetch_chunk(chunk))
        assert bytes(source.fetch_segment(chunk).view) == payload
        blocks = -(-len(payload) // 16384)
        assert bytes(source.fetch_blocks(chunk, blocks // 2, blocks)) == payload[blocks // 2 * 16384 :]


def test_the_library_compresses_what_is_put(server: RunningServer) -> None:
    with Dataset(server.settings(), "put-compressed", must_exist=False, compress="zstd:5") as data:
        data.put("text", FILES[b"large"])
        data.flush()
        objects = Path(server.folder, "chunks", data.record().dataset_id.hex()).rglob("*")
        assert sum(each.stat().st_size for each in objects if each.is_file()) < len(FILES[b"large"]) / 10
        data.refresh()
        with copy(data) as again:  # by its state, as spawned processes have it
            assert again.get("text") == FILES[b"large"]
            assert again.__getstate__()["compress"] == "zstd:5"


def test_the_network_has_the_frames_and_old_clients_get_plain_bytes(
    compressed: Dataset, server: RunningServer
) -> None:
    snapshot, key_file = compressed.snapshot, server.user("remote", compressed="read")
    key, address = read_key_file(key_file), parse_address(server.tcp)
    direct = Connection(connected(address, pinned(key)), address, key)
    with closing(server.client(key_file)) as client, closing(direct) as connection:
        for chunk in range(snapshot.chunk_count):
            chunk_id, length = snapshot.chunk_id(chunk), snapshot.chunk_payload_length(chunk)
            receive_payload(client, "compressed", chunk_id, memoryview(plain := bytearray(length)))
            asked: dict[str, object] = {"dataset": "compressed", "chunk_id": chunk_id}
            _, sent = connection.call("get_payload", asked, bulk_bytes_max=length)
            assert sent == plain
            reply, packed = connection.call(
                "get_payload", asked | {"takes_frames": True}, bulk_bytes_max=length
            )
            assert packed is not None and len(packed) == reply.bulk_length < length
            with pytest.raises(Damaged):
                receive_payload(client, "compressed", chunk_id, memoryview(bytearray(length - 1)))
