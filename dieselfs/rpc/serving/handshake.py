"""The handshake: no other call is decoded before it has succeeded. This module waits for sockets, each time for a
bounded number of bytes and seconds.

An unknown user, a removed key, and a wrong proof get the same replies after the same work.
"""

import os
from dataclasses import dataclass
from typing import Any, Protocol

import trio

from dieselfs.errors import AccessDenied, DieselfsError, InvalidInput, ProtocolError, Unavailable
from dieselfs.limits import HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S, TOKEN_BYTES_MAX
from dieselfs.net import auth
from dieselfs.rpc.messages import (
    PROTOCOL_VERSION,
    connection_name,
    decode_call,
    encode_refusal,
    encode_reply,
    thrift,
)
from dieselfs.rpc.serving.connection import ClientConnection

LOCAL_USER = "local"
LEFT = "the client closed the connection at once"
"""A reason that is no attempt to log in: some look only whether anybody listens."""
GREETED = "the client named no user, and left after the first answer"
"""Another server looked whether this one answers (`check_answer`), which is no attempt either."""


class KeyRing(Protocol):
    """The known keys. `salt` is random: it makes unknown users indistinguishable from known ones."""

    @property
    def salt(self) -> bytes: ...

    def verifier(self, name: str, key_id: str) -> auth.Verifier | None:
        """The verifier of a key of user `name`; None if there is none. Blocks."""
        ...


class TokenLogins(Protocol):
    """What gives keys for tokens of an identity provider. `limiter`: of the threads that do."""

    @property
    def limiter(self) -> trio.CapacityLimiter: ...

    def log_in(self, token: bytes, key_id: str, verifier: auth.Verifier) -> tuple[str, int]:
        """The user of a token, who has the key from now on, and when it expires, in seconds since 1970. Blocks. Raises
        AccessDenied, InvalidInput, which the client may read; other errors are for the log.
        """
        ...


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a connection. Trusted: the user that runs this process, on a Unix socket."""

    name: str
    key_id: str
    is_trusted: bool = False


async def shake_hands(
    connection: ClientConnection,
    keys: KeyRing,
    role: str,
    is_trusted: bool,
    logins: TokenLogins | None = None,
) -> Identity | str:
    """Authenticate the caller. An unknown one gets a refusal; the reason for the log is returned.

    `role`: see `auth.transcript`. `is_trusted`: the caller runs as the user of this process, on a Unix socket.
    Raises ProtocolError for anything but a handshake, trio.TooSlowError after HANDSHAKE_TIMEOUT_S.
    """
    with trio.fail_after(HANDSHAKE_TIMEOUT_S):
        hello = await connection.receive_message(HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S)
        if hello is None:
            return LEFT
        method, sequence, arguments = decode_call(hello)
        if method != "hello":
            raise ProtocolError("the first call is not 'hello'")
        connection.name = connection_name(arguments.client_nonce)
        if arguments.protocol_version != PROTOCOL_VERSION:
            refusal = ProtocolError(
                f"the client has protocol {arguments.protocol_version}, this server {PROTOCOL_VERSION}: "
                "upgrade the older one"
            )
            await connection.send(encode_refusal("hello", sequence, refusal))
            return str(refusal)
        is_known = is_trusted and not arguments.user
        server_nonce = os.urandom(auth.NONCE_BYTES)
        challenge = thrift.Challenge(server_nonce=server_nonce, is_trusted=is_known)
        await connection.send(encode_reply("hello", sequence, challenge))
        if is_known:
            return Identity(LOCAL_USER, "", is_trusted=True)
        if arguments.user == auth.PROVIDER_MARK and logins is not None:
            return await _check_token(connection, logins, arguments)
        return await _check_proof(connection, keys, role, arguments, server_nonce)


async def _check_proof(
    connection: ClientConnection, keys: KeyRing, role: str, hello: Any, server_nonce: bytes
) -> Identity | str:
    message = await connection.receive_message(HANDSHAKE_FRAME_BYTES_MAX, HANDSHAKE_TIMEOUT_S)
    caller = f"user {hello.user[:80]!r}, key {hello.key_id[:80]!r}" if hello.user else "no user and key named"
    if message is None and not hello.user:
        return GREETED
    if message is None:
        return f"{caller}: the client closed the connection"
    method, sequence, arguments = decode_call(message)
    if method != "prove":
        raise ProtocolError("the second call is not 'prove'")
    try:
        known = await trio.to_thread.run_sync(keys.verifier, hello.user, hello.key_id)
    except DieselfsError as error:  # an unauthenticated client gets no reason
        away = Unavailable("the server cannot read its table of users now; its log has the reason")
        await connection.send(encode_refusal("prove", sequence, away))
        return f"{caller}: {error}"
    verifier = known or auth.Verifier.nobody(keys.salt, hello.user, hello.key_id)
    names, nonces = (hello.user, hello.key_id), (hello.client_nonce, server_nonce)
    transcript = auth.transcript(role, connection.channel, *names, *nonces)
    if not auth.is_client_proof(verifier, transcript, arguments.proof) or known is None:
        refusal = AccessDenied("unknown key: wrong key file, or the key was removed or has expired")
        await connection.send(encode_refusal("prove", sequence, refusal))
        return f"{caller}: {'wrong secret' if known else 'unknown, removed or expired'}"
    proof = auth.server_proof(verifier, transcript)
    await connection.send(encode_reply("prove", sequence, thrift.Welcome(proof=proof)))
    return Identity(hello.user, hello.key_id)


async def _check_token(connection: ClientConnection, logins: TokenLogins, hello: Any) -> Identity | str:
    limit_bytes = HANDSHAKE_FRAME_BYTES_MAX + TOKEN_BYTES_MAX
    message = await connection.receive_message(limit_bytes, HANDSHAKE_TIMEOUT_S)
    if message is None:
        return "a token: the client closed the connection"
    method, sequence, arguments = decode_call(message)
    if method != "prove":
        raise ProtocolError("the second call is not 'prove'")
    try:
        if connection.channel == auth.PLAIN_CHANNEL:
            raise AccessDenied("a token needs TLS")
        verifier = auth.check_verifier(arguments.verifier, arguments.server_key)
        named = arguments.token, hello.key_id, verifier
        user, expires_s = await trio.to_thread.run_sync(
            logins.log_in, *named, abandon_on_cancel=True, limiter=logins.limiter
        )
    except (AccessDenied, InvalidInput) as error:
        await connection.send(encode_refusal("prove", sequence, error))
        return str(error)
    except DieselfsError as error:  # as above
        away = Unavailable("the server cannot check tokens now; its log has the reason")
        await connection.send(encode_refusal("prove", sequence, away))
        return str(error)
    welcome = thrift.Welcome(proof=b"", user=user, expires_s=expires_s)
    await connection.send(encode_reply("prove", sequence, welcome))
    return Identity(user, hello.key_id)
