"""Asks a warm process (`warm.py`) for a program. Also a program itself, which imports little:

    python -S -E warm_client.py ADDRESS MODULE ARGUMENTS...

It runs the program with its own standard streams, hands signals on, and ends as the program does. If it is killed, so
is the program.
"""

import json
import os
import signal
import socket
import sys


def ask(
    address: str, request: dict[str, object], targets: dict[int, int], others: list[int]
) -> tuple[int, socket.socket]:
    """The process ID of the new process, and the channel that tells its end. `targets`: the descriptors that it gets,
    each with its number there; `others`: namespaces.
    """
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.connect(address)
    body = json.dumps({**request, "targets": list(targets)}).encode("ascii")
    socket.send_fds(channel, [b"%8d" % len(body)], [*targets.values(), *others])
    channel.sendall(body)
    answer = b""
    while not answer.endswith(b"\n"):
        more = channel.recv(1)
        if not more:
            raise OSError(f"the warm process at {address} has ended")
        answer += more
    return int(answer), channel


def current_umask() -> int:
    """Read without changing it, which other threads would notice."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def main() -> None:
    address, module, *arguments = sys.argv[1:]
    request = {
        "module": module,
        "arguments": arguments,
        "command": [sys.executable, "-m", module, *arguments],
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": current_umask(),
        "is_bound": True,
    }
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    _, channel = ask(address, request, {0: 0, 1: 1, 2: 2}, [])

    def hand_on(number: int, _: object) -> None:
        channel.send(bytes([number]))

    for number in numbers:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    status = int(channel.recv(64) or b"9")
    if os.WIFSIGNALED(status):
        end = os.WTERMSIG(status)
        if end != signal.SIGKILL:
            signal.signal(end, signal.SIG_DFL)
        os.kill(os.getpid(), end)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
