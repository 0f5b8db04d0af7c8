"""Two server processes keep to one quota, also after all metadata was lost and made again."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from dieselfs.errors import StorageFull
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import QuotaRecord
from tests.support.metadata_chunks import DATASET, Put, chunk_id, encode
from tests.support.server import RunningServer, running_server, running_servers

ROOM, CHUNKS, WRITERS = 7, 24, 6
SIZE = 50_000


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
