"""Calls of a server, without their meaning: arguments in, the reply out. This module opens sockets."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from dieselfs.limits import REQUEST_TIMEOUT_S
from dieselfs.rpc.connection import Connection
from dieselfs.rpc.methods import METHODS, READER
from dieselfs.rpc.records import CopyProgress
from dieselfs.rpc.server_connections import ServerConnections
from dieselfs.rpc.wire import Buffer

Progressed = Callable[[CopyProgress], object]
"""Called about once a second while a server works, with what it has done."""

_T = TypeVar("_T")


class Calls(ServerConnections):
    """What the groups of methods of `ServerClient` have in common."""

    def _call(
        self,
        method: str,
        *,
        bulk: Sequence[Buffer] = (),
        timeout_s: float = REQUEST_TIMEOUT_S,
        bulk_bytes_max: int = 0,
        progressed: Progressed | None = None,
        destination: Callable[[Any], Iterator[memoryview]] | None = None,
        **arguments: object,
    ) -> tuple[Any, bytearray | None]:
        """The reply, and the bulk bytes behind it. Options: see `Connection.call`."""
        row = METHODS[method]
        ask = None
        if row.urgency == READER:

            def ask(connection: Connection, wait_s: float) -> None:
                connection.ask(method, arguments, wait_s)

        return self._with_connection(
            lambda connection, wait_s: connection.call(
                method,
                arguments,
                bulk,
                wait_s,
                destination,
                work_s=row.work.limit_s,
                bulk_bytes_max=bulk_bytes_max,
                progressed=progressed,
            ),
            row,
            timeout_s,
            ask,
            bulk_bytes_max,
        )

    def _value(self, method: str, **options: Any) -> Any:
        """The reply alone."""
        return self._call(method, **options)[0]

    def _record(self, kind: Callable[..., _T], method: str, **options: Any) -> _T:
        return copied(kind, self._value(method, **options))

    def _records(self, kind: Callable[..., _T], method: str, **options: Any) -> list[_T]:
        return [copied(kind, info) for info in self._value(method, **options)]


def copied(kind: Callable[..., _T], struct: Any, **converted: object) -> _T:
    """A record from a Thrift struct with the same fields; other names are a TypeError."""
    return kind(**{name: getattr(struct, name) for _, name, *_ in struct.thrift_spec.values()} | converted)
