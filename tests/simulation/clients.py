"""Gives the library of clients the virtual network, and each simulated process its own chunk IDs."""

from collections.abc import Sequence
from typing import Any

from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.net.address import Address
from dieselfs.rpc import connection, server_connections
from dieselfs.transfer import sender
from tests.simulation.clock import now_s
from tests.simulation.green import current_process, park
from tests.simulation.network import ClientSocket, Network

_networks: list[Network] = []


def use(network: Network) -> None:
    """Clients of this run connect here."""
    _networks[:] = [network]


def _open_socket(address: Address, timeout_s: float = 10.0) -> Any:
    return _networks[0].connect(address, timeout_s)


def first_to_answer(connections: Sequence[Any], timeout_s: float) -> int | None:
    """As `connection.first_to_answer`, which polls descriptors."""
    sockets: list[ClientSocket] = [getattr(each, "_socket", each) for each in connections]
    until_s = now_s() + max(timeout_s, 0.0)
    while True:
        for place, each in enumerate(sockets):
            if each.is_readable:
                return place
        if not park([each.arriving.changed for each in sockets], until_s):
            return None


class _Ids:
    """The source of the present process, in the place of that of a real one."""

    def next(self) -> bytes:
        process = current_process()
        assert process is not None
        source: ChunkIdSource = process.parts.setdefault("ids", ChunkIdSource())
        return source.next()


def install() -> None:
    replaced = (
        (server_connections, "first_to_answer", first_to_answer),
        (connection, "open_socket", _open_socket),
    )
    for module, name, value in replaced:
        setattr(module, name, value)
    sender._IDS = _Ids()  # type: ignore[assignment]  # stands in for a source
