"""Real servers for tests: those of the laboratory."""

from dieselfs.rpc.client import ServerClient
from lab.ports import free_port
from lab.server import RunningServer, running_server, running_servers, start_server

__all__ = ["RunningServer", "free_port", "running_server", "running_servers", "start_server"]


def receive_payload(
    client: ServerClient, dataset: str, chunk_id: bytes, destination: memoryview, is_sent: bool = False
) -> None:
    """Receive the payload of a chunk into memory of its length."""
    client.payload_in_parts(dataset, chunk_id, len(destination), lambda: iter((destination,)), is_sent)
