"""Addresses of host names, within a bound: the C library waits for name servers as long as it likes. This module runs
threads.
"""

import socket
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any

from dieselfs.forks import renew_after_fork

Found = list[tuple[Any, ...]]
"""As `socket.getaddrinfo` returns it, for streams."""

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class _LookUps:
    """Thread-safe, also after a fork. Callers who wait for one name share a thread; it ends with the answer, also when
    nobody waits any more.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # guards the one below
        self._asked: dict[tuple[str, int], Future[Found]] = {}
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The threads of the parent do not answer here."""
        self._lock, self._asked = Lock(), {}

    def ask(self, host: str, port: int) -> Future[Found]:
        name = host, port
        with self._lock:
            answer = self._asked.get(name)
            if answer is not None:
                return answer
            answer = self._asked[name] = Future()
        try:
            Thread(target=self._answer, args=(name, answer), name="host-name", daemon=True).start()
        except BaseException:
            self._end(name, answer)
            raise
        return answer

    def _answer(self, name: tuple[str, int], answer: Future[Found]) -> None:
        try:
            answer.set_result(socket.getaddrinfo(*name, type=socket.SOCK_STREAM))
        except BaseException as error:
            answer.set_exception(error)
        finally:
            self._end(name, answer)

    def _end(self, name: tuple[str, int], answer: Future[Found]) -> None:
        with self._lock:
            if self._asked.get(name) is answer:
                del self._asked[name]


_look_ups = _LookUps()


def addresses(host: str, port: int, timeout_s: float) -> Found:
    """The addresses of `host`, which may be one itself. Raises OSError, and TimeoutError after `timeout_s`."""
    try:
        with suppress(socket.gaierror):
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=_NUMERIC)
        return _look_ups.ask(host, port).result(timeout_s)
    except TimeoutError:
        raise TimeoutError(f"no name server has answered for {host} within {timeout_s:.0f} s") from None
    except RuntimeError as error:  # no thread can be started
        raise OSError(f"cannot look up {host}: {error}") from None
    except UnicodeError:
        raise OSError(f"{host[:80]!r} is no host name") from None
