"""Users with keys try to exceed a quota at two server processes: with new datasets, as a group, and by copies."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.errors import AccessDenied, NotFound, StorageFull
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.limit_kinds import QuotaRecord
from dieselfs.rpc.records import CopyRequest, Existing
from lab.namespace import wait_for
from tests.support.metadata_chunks import chunk_id
from tests.support.server import running_servers

ROOM, CHUNKS, WRITERS = 7, 24, 6
DELETES = 1000
"""Added to the numbers of chunks of deletes."""
SIZE = 50_000


def put_file(client: ServerClient, dataset: DatasetRecord, number: int, is_deleted: bool = False) -> None:
    """Store a chunk with a file of this number, or the delete of it."""
    builder = ChunkBuilder()
    if is_deleted:
        builder.add_delete(b"%d" % (number - DELETES))
    else:
        builder.add_file(b"%d" % number, bytes(SIZE), 0o644, 0)
    first = client.reserve_versions(dataset.name, 1)
    identity = chunk_id(number, int(time.time()))
    parts = builder.seal().encode(identity, dataset.name, dataset.dataset_id, first)
    client.put_chunk(dataset.name, identity, [b"".join(parts)])


def fits(client: ServerClient, dataset: DatasetRecord, number: int) -> bool:
    try:
        put_file(client, dataset, number)
    except StorageFull:
        return False
    return True


def test_a_user_who_fills_new_datasets_at_another_server_stays_within_the_quota(tmp_path: Path) -> None:
    """The other server does not know yet that they belong to the user."""
    with running_servers(tmp_path, ("here", "there")) as servers, ExitStack() as stack:
        admin = stack.enter_context(closing(servers[0].client()))
        key_file = servers[0].user("ann", all_datasets="write")
        admin.set_quota(QuotaRecord("user:ann", files=ROOM))
        here, there = (stack.enter_context(closing(server.client(key_file))) for server in servers)
        stored = 0
        for number in range(4):
            there.usage()
            dataset = here.create_dataset(f"new-{number}")
            stored += sum(fits(there, dataset, 1 + each) for each in range(ROOM - 2))
        assert stored == ROOM == sum(one.files for one in there.usage() if one.kind == "dataset")


def test_a_group_fills_the_quota_of_the_owner_and_a_purge_gives_back(tmp_path: Path) -> None:
    with running_servers(tmp_path, ("here", "there")) as servers, ExitStack() as stack:
        admin = stack.enter_context(closing(servers[0].client()))
        keys = [servers[0].user("ann", hers="write"), servers[0].user("bob")]
        admin.add_members("team", ["bob"])
        admin.grant("group:team", "hers", "write")
        ann, bob = (
            stack.enter_context(closing(server.client(key)))
            for server, key in zip(servers, keys, strict=True)
        )
        dataset = ann.create_dataset("hers")
        put_file(ann, dataset, 1)
        (one,) = ann.usage("hers")
        quota = ROOM * one.stored_bytes + one.stored_bytes // 2
        admin.set_quota(QuotaRecord("user:ann", quota))
        with ThreadPoolExecutor(WRITERS) as threads:
            stored = list(threads.map(lambda n: fits((ann, bob)[n % 2], dataset, n), range(2, CHUNKS)))
        assert sum(stored) == ROOM - 1
        copy = CopyRequest("hers", b"1", "hers", b"copy", existing=Existing.REFUSE)
        with pytest.raises(StorageFull, match="over quota: user ann"):
            bob.copy_entries(copy)
        full = [number for number, is_stored in enumerate(stored, 2) if is_stored]
        for number in full[:3]:
            put_file(bob, dataset, number + DELETES, is_deleted=True)
        assert not fits(ann, dataset, CHUNKS + 1)
        admin.purge("hers", grace_s=0, is_dry_run=False)
        assert [fits(bob, dataset, CHUNKS + number) for number in range(2, 6)] == [True, True, True, False]
        admin.remove_key("ann")
        with pytest.raises((AccessDenied, NotFound)):
            put_file(ann, dataset, CHUNKS + 6)
        wait_for(lambda: fits(bob, dataset, CHUNKS + 7), "the dataset counts to nobody")
        (left,) = bob.usage("hers")
        assert left.owner == "" and left.stored_bytes > quota
