"""The handshake: nothing that a stranger sends is looked at before it has passed. Bounded in bytes and in
time.

A user who does not exist, a key that is gone, and a wrong proof get the same answers after the same work.
"""

import os
from typing import Any

import trio

from dieselfs.errors import AccessDenied, ProtocolError
from dieselfs.limits import HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S
from dieselfs.rpc import auth
from dieselfs.rpc.messages import PROTOCOL_VERSION, decode_call, encode_refusal, encode_reply, thrift
from dieselfs_server.connection import ClientConnection
from dieselfs_server.users import Caller, UserStore

LOCAL_USER = "local"


async def shake_hands(connection: ClientConnection, users: UserStore, is_trusted: bool) -> Caller | None:
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
            return Caller(LOCAL_USER, "", is_trusted=True)
        return await _ask_for_proof(connection, users, said, server_nonce)


def _other_version(version: int) -> ProtocolError:
    return ProtocolError(
        f"the client speaks protocol {version}, this server {PROTOCOL_VERSION}: upgrade the older one"
    )


async def _ask_for_proof(
    connection: ClientConnection, users: UserStore, hello: Any, server_nonce: bytes
) -> Caller | None:
    message = await connection.receive_message(HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S)
    if message is None:
        return None
    method, sequence, said = decode_call(message)
    if method != "prove":
        raise ProtocolError("the second call is not 'prove'")
    known = await trio.to_thread.run_sync(users.verifier, hello.user, hello.key_id)
    verifier = known or auth.Verifier.nobody(users.salt, hello.user, hello.key_id)
    transcript = auth.transcript(hello.user, hello.key_id, hello.client_nonce, server_nonce)
    if not auth.is_client_proof(verifier, transcript, said.proof) or known is None:
        refusal = AccessDenied(
            "this key is not known here: wrong key file, or the key was removed or has expired"
        )
        await connection.send(encode_refusal("prove", sequence, refusal))
        return None
    proof = auth.server_proof(verifier, transcript)
    await connection.send(encode_reply("prove", sequence, thrift.Welcome(proof=proof)))
    return Caller(hello.user, hello.key_id)
