"""A daemon that sends the replies of a test to readers, valid or not, from its own thread."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Thread

from dieselfs.cluster.node_messages import Hello, Message, Unknown, Welcome, decode, encode

Answer = Callable[[socket.socket, int, Message | Unknown], object]
"""Sends a reply, or nothing, or closes the connection; called with each request and its number."""


class ScriptedDaemon:
    """`answer` may be changed at any time. `conversations` counts accepted connections."""

    def __init__(self, listener: socket.socket, answer: Answer) -> None:
        self.answer = answer
        self.conversations = 0
        self._listener = listener
        self._open: list[socket.socket] = []
        self._lock = Lock()
        self._threads = [Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with self._lock:
                    self.conversations += 1
                    self._open.append(connection)
                self._threads.append(Thread(target=self._converse, args=(connection,)))
                self._threads[-1].start()

    def _converse(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while packet := connection.recv(4096):
                self.answer(connection, *decode(packet))

    def drop(self) -> None:
        """Close all connections, as after the death of a daemon; new ones are accepted."""
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.drop()
        for thread in self._threads:
            thread.join()


def greeting(then: Answer) -> Answer:
    """Answer each greeting with a welcome, and each other request by `then`."""

    def answer(connection: socket.socket, number: int, request: Message | Unknown) -> None:
        if isinstance(request, Hello):
            connection.send(encode(number, Welcome()))
        else:
            then(connection, number, request)

    return answer


@contextmanager
def scripted_daemon(path: Path, answer: Answer) -> Iterator[ScriptedDaemon]:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        daemon = ScriptedDaemon(listener, answer)
        try:
            yield daemon
        finally:
            daemon.stop()
            path.unlink()
