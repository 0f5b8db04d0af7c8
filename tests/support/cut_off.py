"""A server that receives a call and closes the connection without a reply, so the outcome of the call is unknown."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from dieselfs.rpc.messages import FRAME_HEADER_BYTES, encode_reply, frame, frame_length, thrift

_FRAME_BYTES_MAX = 1 << 20


@dataclass
class HangingUp:
    path: Path
    calls: int = 0

    def serve(self, listening: socket.socket) -> None:
        """Until the socket is shut down."""
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection:
                    _receive_message(connection)
                    challenge = thrift.Challenge(server_nonce=bytes(32), is_trusted=True)
                    connection.sendall(frame(encode_reply("hello", 1, challenge)))
                    _receive_message(connection)
                    self.calls += 1


def _receive_message(connection: socket.socket) -> None:
    header = connection.recv(FRAME_HEADER_BYTES, socket.MSG_WAITALL)
    connection.recv(frame_length(header, _FRAME_BYTES_MAX), socket.MSG_WAITALL)


@contextmanager
def server_that_hangs_up(path: Path) -> Iterator[HangingUp]:
    """It listens on a Unix socket at `path` until the end of the block."""
    server = HangingUp(path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = Thread(target=server.serve, args=(listening,))
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
