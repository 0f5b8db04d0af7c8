"""Two server processes keep to one quota: also after all metadata was lost and made again, and if one is killed."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Event

from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import StorageFull, Unavailable
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.limit_kinds import QuotaRecord
from dieselfs_server.admission.quotas import Holds
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.redis.store import RedisMetadata
from dieselfs_server.store.posix import PosixStore
from tests.support.metadata_chunks import DATASET, Put, chunk_id, encode
from tests.support.redis import needs_redis, running_redis
from tests.support.server import RunningServer, running_server, running_servers

ROOM, CHUNKS, WRITERS = 7, 24, 6
SIZE = 50_000
BUSY_ROOM, BUSY_CHUNKS, BUSY_WRITERS = 40, 80, 8
"""Of the test that kills a server while all writers are busy."""
TIMEOUT_S = 60.0


def put(client: ServerClient, dataset_id: bytes, number: int) -> bool:
    """Store a chunk of one file; whether it fits."""
    identity = chunk_id(number)
    try:
        client.put_chunk(
            DATASET, identity, [encode([Put(b"f%03d" % number, number, size=SIZE)], identity, dataset_id)]
        )
    except StorageFull as error:
        assert "over quota: dataset pets has " in str(error)
        return False
    return True


def stored_bytes(server: RunningServer) -> int:
    with closing(server.client()) as client:
        (found,) = client.usage(DATASET)
    return found.stored_bytes


def test_two_servers_give_the_same_room_once(tmp_path: Path) -> None:
    with running_servers(tmp_path, ("here", "there")) as servers:
        clients = [server.client() for server in servers]
        dataset_id = clients[0].create_dataset(DATASET).dataset_id
        chunk_bytes = len(encode([Put(b"f001", 1, size=SIZE)], chunk_id(1), dataset_id))
        quota = ROOM * chunk_bytes + chunk_bytes // 2
        clients[0].set_quota(QuotaRecord(f"dataset:{DATASET}", quota))
        with ThreadPoolExecutor(WRITERS) as threads:
            stored = list(threads.map(lambda n: put(clients[n % 2], dataset_id, n), range(1, CHUNKS + 1)))
        assert sum(stored) == ROOM
        assert chunk_bytes * ROOM == stored_bytes(servers[0]) == stored_bytes(servers[1])
        for client in clients:
            client.close()
    (tmp_path / "here" / "metadata.db").unlink()
    for left in (tmp_path / "here").glob("metadata.db-*"):
        left.unlink()
    with running_server(tmp_path / "here") as server, closing(server.client()) as client:
        client.rebuild(DATASET)
        assert stored_bytes(server) == chunk_bytes * ROOM
        assert not put(client, dataset_id, CHUNKS + 1)
        client.drop_dataset(DATASET)
        dataset_id = client.create_dataset(DATASET).dataset_id
        assert put(client, dataset_id, CHUNKS + 2)


@contextmanager
def never_above(server: RunningServer, limit: int) -> Iterator[None]:
    """Asserts that no more bytes are stored at any moment."""
    is_over = Event()

    def watch() -> list[int]:
        seen = []
        while not is_over.is_set():
            seen.append(stored_bytes(server))
        return seen

    with ThreadPoolExecutor(1) as threads:
        watching = threads.submit(watch)
        try:
            yield
        finally:
            is_over.set()
        assert 0 < max(watching.result(TIMEOUT_S)) <= limit


def stop_with_holds(server: RunningServer, metadata: MetadataStore, chunks: set[str]) -> None:
    """Stop a server (SIGSTOP) at a moment at which it has a hold for one of `chunks`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        os.kill(server.process.pid, signal.SIGSTOP)
        held = {hold.chunk.rpartition("/")[0] for hold in Holds.decode(metadata.common_note("quota/")).held}
        if held & chunks:
            return
        os.kill(server.process.pid, signal.SIGCONT)
        assert time.monotonic() < deadline_s, "it stores nothing"


@needs_redis
def test_a_server_that_is_killed_takes_no_room_along(tmp_path: Path) -> None:
    """Writers are busy at two servers over one Redis. One server is killed while it has holds. Its writers
    then send the same chunks to the other.
    """
    with running_redis(tmp_path / "redis") as redis:
        url = f"redis://127.0.0.1:{redis.port}/0"
        with (
            running_servers(tmp_path, ("here", "there"), ["--metadata", url]) as (here, there),
            closing(RedisMetadata.open(url)) as metadata,
            closing(here.client()) as client,
            closing(there.client()) as other,
        ):
            dataset_id = client.create_dataset(DATASET).dataset_id
            chunk_bytes = len(encode([Put(b"f001", 1, size=SIZE)], chunk_id(1), dataset_id))
            quota = BUSY_ROOM * chunk_bytes + chunk_bytes // 2
            client.set_quota(QuotaRecord(f"dataset:{DATASET}", quota))

            def store(number: int) -> tuple[bool, bool]:
                """Whether the chunk fits, and whether the first server was lost meanwhile."""
                try:
                    return put(other if number % 2 else client, dataset_id, number), False
                except Unavailable:
                    return put(client, dataset_id, number), True

            odd = {f"{dataset_id.hex()}/{chunk_name(chunk_id(n))}" for n in range(1, BUSY_CHUNKS, 2)}
            with never_above(here, quota), ThreadPoolExecutor(BUSY_WRITERS) as threads:
                done = threads.map(store, range(1, BUSY_CHUNKS + 1))
                stop_with_holds(there, metadata, odd)
                there.kill()
                results = list(done)
            assert any(is_lost for _, is_lost in results)
            assert sum(fits for fits, _ in results) == BUSY_ROOM
            assert stored_bytes(here) == BUSY_ROOM * chunk_bytes
            kept = PosixStore(here.folder / "chunks").list_chunks(dataset_id)
            assert len(list(kept)) == BUSY_ROOM, "a refused chunk leaves nothing"
        options = (
            "--metadata",
            url,
            "--store",
            f"posix://{here.folder}/chunks",
            "--state",
            f"{tmp_path}/state",
        )
        with running_server(there.folder, options) as again, closing(again.client()) as client:
            assert stored_bytes(again) == BUSY_ROOM * chunk_bytes
            assert not put(client, dataset_id, BUSY_CHUNKS + 1)
