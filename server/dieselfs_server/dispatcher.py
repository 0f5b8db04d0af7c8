"""Answers the calls of authenticated clients, one at a time on each connection, with the handlers."""

import logging
from typing import Any

import trio

from dieselfs.errors import DieselfsError, InvalidInput, ProtocolError, Unavailable
from dieselfs.records import DatasetRecord
from dieselfs.rpc import records
from dieselfs.rpc.messages import decode_call, encode_refusal, encode_reply, thrift
from dieselfs.rpc.serving.connection import ClientConnection
from dieselfs.rpc.serving.handshake import Identity
from dieselfs_server.handlers import HANDLERS
from dieselfs_server.service import Call, Reply, Service
from dieselfs_server.users import Caller, UserStore

log = logging.getLogger(__name__)

_STRUCTS = {
    DatasetRecord: thrift.DatasetInfo,
    records.FsckReport: thrift.FsckReport,
    records.KeyRecord: thrift.KeyInfo,
    records.PinRecord: thrift.PinInfo,
    records.Problem: thrift.Problem,
    records.PurgeReport: thrift.PurgeReport,
    records.RebuildReport: thrift.RebuildReport,
    records.RemoteEntry: thrift.EntryInfo,
    records.ServerStatus: thrift.StatusInfo,
    records.TagRecord: thrift.TagInfo,
    records.UserRecord: thrift.UserInfo,
}


class Dispatcher:
    def __init__(self, service: Service) -> None:
        self._service = service

    @property
    def keys(self) -> UserStore:
        return self._service.users

    async def answer(self, connection: ClientConnection, caller: Identity, message: bytes) -> None:
        """Answer one call. An exception, also a cancellation, ends the connection."""
        user = Caller(caller.name, caller.key_id, caller.is_trusted)
        method, sequence, arguments = decode_call(message)
        if method in ("hello", "prove"):
            raise ProtocolError("a second handshake")
        call = Call(self._service, user, method, arguments)
        try:
            try:
                length = await call.bulk_length()
            except InvalidInput:
                raise ProtocolError(f"bulk of {arguments.bulk_length} bytes") from None
            except DieselfsError:
                await connection.discard_bulk(arguments.bulk_length)
                raise
            if length:
                call.bulk = await connection.receive_bulk(length)
            self._service.requests.value += 1
            reply = await HANDLERS[method](call)
        except ProtocolError:
            raise
        except DieselfsError as error:
            await connection.send(encode_refusal(method, sequence, error))
        except (trio.TooSlowError, trio.BrokenResourceError):
            raise
        except Exception:
            log.exception("%s of user %s failed with an internal error", method, user.name)
            fault = Unavailable(
                f"{method} failed with an internal error of the server; its log has the details"
            )
            await connection.send(encode_refusal(method, sequence, fault))
        else:
            await _send(connection, method, sequence, reply if isinstance(reply, Reply) else Reply(reply))


async def _send(connection: ClientConnection, method: str, sequence: int, reply: Reply) -> None:
    if reply.file is None:
        await connection.send(encode_reply(method, sequence, as_struct(reply.value)), reply.bulk)
        return
    with reply.file as file:
        message = encode_reply(method, sequence, reply.value)
        await connection.send_with_file(message, file.descriptor, file.length)


def as_struct(value: Any) -> Any:
    """A record as its Thrift struct, also in a list, and in a tuple of another record; any other value as it is."""
    if isinstance(value, list | tuple):
        return [as_struct(each) for each in value]
    kind = _STRUCTS.get(type(value))
    if kind is None:
        return value
    columns = {name: getattr(value, name) for name in value.__slots__}
    return kind(**{name: as_struct(v) if isinstance(v, tuple) else v for name, v in columns.items()})
