"""A server on a Unix socket that does not do what it should: refuses, hangs, closes, or sends single bytes."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.net.sockets import reachable_path
from dieselfs.rpc.messages import (
    FRAME_HEADER_BYTES,
    decode_call,
    encode_refusal,
    encode_reply,
    frame,
    frame_length,
    thrift,
)
from dieselfs.rpc.methods import SERVER_METHODS

TROUBLES = ("refuses", "says-unavailable", "closes", "hangs", "drips", "hangs-at-once", "drips-at-once")

_DRIP_S = 0.5
_FRAME_BYTES_MAX = 1 << 30


class _Troublemaker:
    def __init__(self, trouble: str) -> None:
        self._trouble = trouble
        self.is_over = threading.Event()

    def serve(self, listener: socket.socket) -> None:
        while not self.is_over.is_set():
            with suppress(OSError):
                client, _ = listener.accept()
                threading.Thread(target=self._serve_client, args=(client,), daemon=True).start()

    def _serve_client(self, client: socket.socket) -> None:
        with client, suppress(OSError, DieselfsError):
            if self._trouble.endswith("-at-once"):
                self._misbehave(client, "hello", 1)
                return
            method, sequence = _call(client)
            challenge = thrift.Challenge(server_nonce=bytes(32), is_trusted=True)
            client.sendall(frame(encode_reply(method, sequence, challenge)))
            while True:
                self._misbehave(client, *_call(client))

    def _misbehave(self, client: socket.socket, method: str, sequence: int) -> None:
        if self._trouble == "says-unavailable":
            refusal = Unavailable("the metadata is away")
            client.sendall(frame(encode_refusal(method, sequence, refusal)))
        elif self._trouble == "closes":
            raise OSError
        elif self._trouble.startswith("hangs"):
            self.is_over.wait()
        else:
            message = frame(encode_refusal(method, sequence, Unavailable("x" * 1000)))
            for byte in message[:FRAME_HEADER_BYTES] + message[FRAME_HEADER_BYTES:]:
                client.sendall(bytes([byte]))
                if self.is_over.wait(_DRIP_S):
                    return


def _call(client: socket.socket) -> tuple[str, int]:
    """The next call; its bulk bytes are not read."""
    header = client.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    if len(header) < FRAME_HEADER_BYTES:
        raise OSError
    message = client.recv(frame_length(header, _FRAME_BYTES_MAX), socket.MSG_WAITALL)
    method, sequence, _ = decode_call(message, SERVER_METHODS)
    return method, sequence


@contextmanager
def troublemaker(folder: Path, trouble: str) -> Iterator[str]:
    """The address of a server that is in `trouble`, until the end of the block."""
    path = folder / "server.sock"
    if trouble == "refuses":  # nobody listens
        yield f"unix:{path}"
        return
    server = _Troublemaker(trouble)
    with socket.socket(socket.AF_UNIX) as listener:
        with reachable_path(str(path)) as name:
            listener.bind(name)
        listener.listen(128)
        listener.settimeout(0.2)
        thread = threading.Thread(target=server.serve, args=(listener,))
        thread.start()
        try:
            yield f"unix:{path}"
        finally:
            server.is_over.set()
            thread.join()
