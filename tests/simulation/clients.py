"""Gives the library of clients the virtual network, and each simulated process its own chunk IDs."""

from typing import Any

from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.net.address import Address
from dieselfs.rpc import connection
from dieselfs.transfer import sender
from tests.simulation.green import current_process
from tests.simulation.network import Network

_networks: list[Network] = []


def use(network: Network) -> None:
    """Clients of this run connect here."""
    _networks[:] = [network]


def _open_socket(address: Address, timeout_s: float = 10.0) -> Any:
    return _networks[0].connect(address, timeout_s)


class _Ids:
    """The source of the present process, in the place of that of a real one."""

    def next(self) -> bytes:
        process = current_process()
        assert process is not None
        source: ChunkIdSource = process.parts.setdefault("ids", ChunkIdSource())
        return source.next()


def install() -> None:
    setattr(connection, "open_socket", _open_socket)  # noqa: B010  # mypy takes the assignment for a mistake
    sender._IDS = _Ids()  # type: ignore[assignment]  # stands in for a source
