"""Rights, datasets, the pure Thrift methods, users: every method over a real connection."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dieselfs.chunk.format import Op
from dieselfs.dataset import Dataset
from dieselfs.errors import AccessDenied, AlreadyExists, InvalidInput, NotFound
from dieselfs.limits import INLINE_FILE_BYTES_MAX, LISTING_ENTRIES_MAX, PATH_BYTES_MAX
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.methods import SERVER_METHODS
from dieselfs.snapshot.delta_format import decode_delta
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.memory import MemoryStore
from tests.support.own_service import own_service
from tests.support.server import RunningServer, receive_payload, running_server
from tests.support.snapshots import with_delta

PRIVATE = "private-data"


@pytest.fixture(scope="module")
def admin(server: RunningServer) -> Iterator[ServerClient]:
    client = server.client()
    client.create_dataset(PRIVATE)
    yield client
    client.close()


def as_user(server: RunningServer, name: str, **grants: str) -> ServerClient:
    return server.client(server.user(name, **grants))


def write(client: ServerClient, dataset: str, path: bytes, content: bytes) -> int:
    return int(
        client._value(  # the pure Thrift method, which the Python client does not need
            "write_file", dataset=dataset, path=path, content=content, mode=0o640, mtime_ns=5
        )
    )


def read(client: ServerClient, dataset: str, path: bytes) -> bytes:
    return bytes(client._value("read_file", dataset=dataset, path=path))


def test_a_client_with_an_older_generation_gets_a_delta(admin: ServerClient) -> None:
    admin.create_dataset("grows")
    for number in range(30):
        write(admin, "grows", b"file%d" % number, b"content")
    first = admin.snapshot("grows")
    base = Snapshot(bytes(first.content or b""), "first")
    write(admin, "grows", b"one more", b"content")
    sent = int(admin.status().metrics["snapshots.sent_deltas"])
    whole = admin.snapshot("grows")
    second = admin.snapshot("grows", bases=bytes(32) + base.digest)
    assert (first.base_digest, whole.base_digest, second.base_digest) == (b"", b"", base.digest)
    delta = decode_delta(second.content or b"", "delta")
    assert with_delta(base, delta) == bytes(whole.content or b"")
    assert admin.status().metrics["snapshots.sent_deltas"] == sent + 1
    with pytest.raises(InvalidInput, match="33 bytes are not the digests"):
        admin.snapshot("grows", bases=bytes(33))


def test_every_method_of_the_protocol_has_a_handler(tmp_path: Path) -> None:
    handlers = own_service(tmp_path, MemoryStore(), SqliteMetadata(":memory:")).handlers
    assert handlers.keys() == SERVER_METHODS - {"hello", "prove"}
    assert all(handler.__name__ == method for method, handler in handlers.items())


def test_files_by_pure_thrift(admin: ServerClient) -> None:
    write(admin, PRIVATE, b"folder/file", b"content")
    assert read(admin, PRIVATE, b"folder/file") == b"content"
    entry = admin.stat(PRIVATE, b"folder/file")
    assert (entry.name, entry.op, entry.mode, entry.mtime_ns, entry.size) == (b"file", Op.FILE, 0o640, 5, 7)
    assert admin.stat(PRIVATE, b"folder").op == Op.DIRECTORY
    assert [e.name for e in admin.list_folder(PRIVATE, b"", b"", 10)] == [b"folder"]
    assert [e.name for e in admin.list_folder(PRIVATE, b"folder", b"", 10)] == [b"file"]
    assert admin.list_folder(PRIVATE, b"folder", b"file", 10) == []
    with pytest.raises(NotFound):
        admin.stat(PRIVATE, b"nothing")
    with pytest.raises(NotFound):
        admin.list_folder(PRIVATE, b"nothing", b"", 10)
    with pytest.raises(InvalidInput, match="not a folder"):
        admin.list_folder(PRIVATE, b"folder/file", b"", 10)
    for path in (b"../x", b"/x", b"a//b", b"x\0"):
        with pytest.raises(InvalidInput):
            admin.stat(PRIVATE, path)
        with pytest.raises(InvalidInput):
            write(admin, PRIVATE, path, b"")


def test_a_folder_is_listed_page_by_page(admin: ServerClient) -> None:
    dataset = admin.create_dataset("pages").name
    names = [b"%02d" % n for n in range(25)]
    for name in names:
        write(admin, dataset, b"f/" + name, name)
    listed: list[bytes] = []
    while page := admin.list_folder(dataset, b"f", listed[-1] if listed else b"", 10):
        listed += [entry.name for entry in page]
    assert listed == names


def test_links_with_long_targets_are_listed_in_shorter_pages(server: RunningServer) -> None:
    names = [b"%04d" % n for n in range(LISTING_ENTRIES_MAX)]
    with Dataset(server.settings(), "long-links", must_exist=False) as data:
        for name in names:
            data.writer.put_link(b"f/" + name, b"x" * PATH_BYTES_MAX)
        data.flush()
        listed: list[bytes] = []
        while page := data.client.list_folder(
            data.name, b"f", listed[-1] if listed else b"", LISTING_ENTRIES_MAX
        ):
            assert len(page) < LISTING_ENTRIES_MAX
            listed += [entry.name for entry in page]
    assert listed == names


def test_large_content_does_not_fit_into_a_message(admin: ServerClient) -> None:
    with pytest.raises(InvalidInput):
        write(admin, PRIVATE, b"large", bytes(INLINE_FILE_BYTES_MAX + 1))
    write(admin, PRIVATE, b"large", bytes(INLINE_FILE_BYTES_MAX))
    assert len(read(admin, PRIVATE, b"large")) == INLINE_FILE_BYTES_MAX


def test_names_of_datasets(admin: ServerClient) -> None:
    with pytest.raises(AlreadyExists):
        admin.create_dataset(PRIVATE)
    for name in ("", "..", "a/b", "ä", "x" * 256, "-x"):
        with pytest.raises(InvalidInput):
            admin.create_dataset(name)
    with pytest.raises(NotFound):
        admin.dataset("no-such")
    with pytest.raises(InvalidInput, match="is not allowed"):
        admin.dataset("")


def test_a_dataset_that_one_may_not_see_looks_like_one_that_is_not_there(
    server: RunningServer, admin: ServerClient
) -> None:
    eve = as_user(server, "eve", public="read")
    said = []
    for name in (PRIVATE, "no-such-data"):
        for call in (
            lambda name=name: eve.dataset(name),
            lambda name=name: eve.snapshot(name),
            lambda name=name: receive_payload(eve, name, bytes(16), memoryview(bytearray(1))),
            lambda name=name: eve.drop_dataset(name),
            lambda name=name: eve.reserve_versions(name, 1),
            lambda name=name: eve.create_dataset(name),
            lambda name=name: eve.purge(name, 0, True),
            lambda name=name: eve.stat(name, b""),
            lambda name=name: eve.pending_file(name, b"x"),
            lambda name=name: read(eve, name, b"folder/file"),
            lambda name=name: write(eve, name, b"x", b""),
        ):
            with pytest.raises(NotFound) as caught:
                call()
            said.append(str(caught.value).replace(name, "NAME"))
    assert len(set(said)) == 1
    assert eve.datasets() == []
    eve.close()


def test_a_late_drop_leaves_a_dataset_that_was_made_again(admin: ServerClient) -> None:
    old = admin.create_dataset("again")
    admin.drop_dataset("again", old.dataset_id)
    new = admin.create_dataset("again")
    write(admin, "again", b"file", b"1")
    with pytest.raises(NotFound, match="another has been made under its name"):
        admin.drop_dataset("again", old.dataset_id)  # held back until now
    assert read(admin, "again", b"file") == b"1"
    admin.drop_dataset("again", new.dataset_id)
    admin.create_dataset("again")
    admin.drop_dataset("again")  # as an older client
    with pytest.raises(NotFound):
        admin.dataset("again")


def test_rights_include_each_other(server: RunningServer, admin: ServerClient) -> None:
    admin.create_dataset("graded")
    write(admin, "graded", b"file", b"1")
    reader = as_user(server, "reader", graded="read")
    writer = as_user(server, "writer", graded="write")
    owner = as_user(server, "owner", graded="admin")
    for client in (reader, writer, owner):
        assert read(client, "graded", b"file") == b"1"
        assert [dataset.name for dataset in client.datasets()] == ["graded"]
    with pytest.raises(AccessDenied, match="may only read"):
        write(reader, "graded", b"file", b"2")
    with pytest.raises(AccessDenied, match="may only read"):
        reader.put_chunk("graded", bytes(16), [b"x" * 3_000_000])
    assert read(reader, "graded", b"file") == b"1"  # the connection is still in step
    write(writer, "graded", b"file", b"2")
    with pytest.raises(AccessDenied, match="may only write"):
        writer.drop_dataset("graded")
    for client in (reader, writer, owner):
        for call in (client.groups, client.status, lambda client=client: client.add_key("x")):
            with pytest.raises(AccessDenied, match="administrator"):
                call()
    assert [[user.name for user in client.users()] for client in (reader, writer)] == [["reader"], ["writer"]]
    owner.drop_dataset("graded")
    for client in (reader, writer, owner):
        client.close()


def test_a_key_without_any_right_may_see_and_change_its_own_key_only(
    server: RunningServer, admin: ServerClient
) -> None:
    newcomer = as_user(server, "newcomer")
    calls: list[Callable[[ServerClient], object]] = [
        lambda client: client.lost_datasets(),
        lambda client: client.check_server(False),
        lambda client: client.open_page(0),
        lambda client: client.keep_page(0),
    ]
    for call in calls:
        with pytest.raises(AccessDenied, match="newcomer has no right on any dataset"):
            call(newcomer)
    assert newcomer.datasets() == []
    newcomer.add_key("newcomer")
    admin.grant("newcomer", PRIVATE, "read")
    assert newcomer.lost_datasets() == [] and newcomer.check_server(False).time_ns > 0
    newcomer.close()
    admin.remove_key("newcomer")


def test_a_removed_key_is_refused_on_an_open_connection(server: RunningServer, admin: ServerClient) -> None:
    leaver = as_user(server, "leaver", all_datasets="read")
    assert leaver.dataset(PRIVATE).name == PRIVATE
    (user,) = [user for user in admin.users() if user.name == "leaver"]
    assert user.grants == {"*": "read"}
    admin.remove_key("leaver", user.keys[0].key_id)
    with pytest.raises(AccessDenied, match="was removed or has expired"):
        leaver.dataset(PRIVATE)
    leaver.close()
    admin.remove_key("leaver")
    assert "leaver" not in [user.name for user in admin.users()]
    with pytest.raises(NotFound):
        admin.remove_key("leaver")
    with pytest.raises(InvalidInput, match="expired"):
        admin.add_key("leaver", int(time.time()) - 1)


def test_versions_rise_and_are_handed_out_once(admin: ServerClient) -> None:
    first = admin.reserve_versions(PRIVATE, 1000)
    assert admin.reserve_versions(PRIVATE, 1) >= first + 1000
    for count in (0, -1, 1 << 30):
        with pytest.raises(InvalidInput):
            admin.reserve_versions(PRIVATE, count)


def test_status_counts(admin: ServerClient) -> None:
    before = admin.status()
    admin.snapshot(PRIVATE)
    after = admin.status()
    assert after.metrics["rpc.requests"] == before.metrics["rpc.requests"] + 2
    assert after.metrics["rpc.connections"] >= 1 and after.store.startswith("posix://")


def test_what_is_given_of_chunks_is_counted_to_the_byte(admin: ServerClient) -> None:
    snapshot = Snapshot(bytes(admin.snapshot(PRIVATE).content or b""), "server")
    chunk_id, length_bytes = snapshot.chunk_id(0), snapshot.chunk_payload_length(0)
    before = admin.status().metrics["payloads.sent_bytes"]
    receive_payload(admin, PRIVATE, chunk_id, memoryview(bytearray(length_bytes)))
    assert admin.status().metrics["payloads.sent_bytes"] == before + length_bytes
    ranges = np.array([[0, 1], [1, length_bytes - 1]], np.uint32)
    admin.ranges(PRIVATE, chunk_id, ranges)
    admin.snapshot(PRIVATE)
    assert admin.status().metrics["payloads.sent_bytes"] == before + 2 * length_bytes


def test_an_admin_key_is_made_on_first_start(tmp_path: Path) -> None:

    key = tmp_path / "keys" / "admin.key"
    with running_server(tmp_path / "server", ["--admin-key", str(key)]) as server:
        assert key.stat().st_mode & 0o777 == 0o600
        client = server.client(key)
        assert [user.name for user in client.users()] == ["admin"]
        client.create_dataset("made")
        client.close()
    text = key.read_text()
    with running_server(tmp_path / "server", ["--admin-key", str(key)]) as server:
        assert key.read_text() == text
        client = server.client(key)
        assert [dataset.name for dataset in client.datasets()] == ["made"]
        client.close()
