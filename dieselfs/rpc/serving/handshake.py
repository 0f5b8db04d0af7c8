"""The handshake: nothing that a stranger sends is looked at before it has passed. This module waits for sockets, each
time for a bounded number of bytes and seconds.

A user who does not exist, a key that is gone, and a wrong proof get the same answers after the same work.
"""

import os
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from dieselfs.errors import AccessDenied, ProtocolError
from dieselfs.limits import HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S
from dieselfs.rpc import auth
from dieselfs.rpc.messages import PROTOCOL_VERSION, decode_call, encode_refusal, encode_reply, thrift
from dieselfs.rpc.serving.connection import ClientConnection

LOCAL_USER = "local"


class KeyRing(Protocol):
    """Whose keys are known. `salt`: random, so that nobody can tell who is not."""

    @property
    def salt(self) -> bytes: ...

    def verifier(self, name: str, key_id: str) -> auth.Verifier | None:
        """What proves that a caller is `name`, or None. Blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Who is at the other end of a connection. Trusted: the user who runs this process, on a Unix socket."""

    name: str
    key_id: str
    is_trusted: bool = False


async def shake_hands(connection: ClientConnection, keys: KeyRing, is_trusted: bool) -> Identity | None:
    """Find out who is calling; None if it is nobody we know, who has been told so (or who just hung up).

    `is_trusted`: the caller runs as our own user on a Unix socket. Raises ProtocolError for anything but a
    handshake, trio.TooSlowError after HANDSHAKE_TIMEOUT_S.
    """
    with trio.fail_after(HANDSHAKE_TIMEOUT_S):
        hello = await connection.receive_message(HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S)
        if hello is None:
            return None
        method, sequence, said = decode_call(hello)
        if method != "hello":
            raise ProtocolError("the first call is not 'hello'")
        if said.protocol_version != PROTOCOL_VERSION:
            await connection.send(encode_refusal("hello", sequence, _other_version(said.protocol_version)))
            return None
        is_known = is_trusted and not said.user
        server_nonce = os.urandom(auth.NONCE_BYTES)
        challenge = thrift.Challenge(server_nonce=server_nonce, is_trusted=is_known)
        await connection.send(encode_reply("hello", sequence, challenge))
        if is_known:
            return Identity(LOCAL_USER, "", is_trusted=True)
        return await _ask_for_proof(connection, keys, said, server_nonce)


def _other_version(version: int) -> ProtocolError:
    return ProtocolError(
        f"the client speaks protocol {version}, this server {PROTOCOL_VERSION}: upgrade the older one"
    )


async def _ask_for_proof(
    connection: ClientConnection, keys: KeyRing, hello: Any, server_nonce: bytes
) -> Identity | None:
    message = await connection.receive_message(HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S)
    if message is None:
        return None
    method, sequence, said = decode_call(message)
    if method != "prove":
        raise ProtocolError("the second call is not 'prove'")
    known = await trio.to_thread.run_sync(keys.verifier, hello.user, hello.key_id)
    verifier = known or auth.Verifier.nobody(keys.salt, hello.user, hello.key_id)
    transcript = auth.transcript(hello.user, hello.key_id, hello.client_nonce, server_nonce)
    if not auth.is_client_proof(verifier, transcript, said.proof) or known is None:
        refusal = AccessDenied(
            "this key is not known here: wrong key file, or the key was removed or has expired"
        )
        await connection.send(encode_refusal("prove", sequence, refusal))
        return None
    proof = auth.server_proof(verifier, transcript)
    await connection.send(encode_reply("prove", sequence, thrift.Welcome(proof=proof)))
    return Identity(hello.user, hello.key_id)
