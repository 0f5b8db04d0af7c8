"""Bytes of a connection move in steps, between which other tasks run."""

import socket

import pytest
import trio

from dieselfs.limits import MIB
from dieselfs.rpc.serving import connection as connection_module
from dieselfs.rpc.serving.connection import STEP_BYTES, ClientConnection

KERNEL_BYTES = 4 * MIB


class _Beside:
    """Counts the turns of another task."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            self.turns += 1


@pytest.mark.parametrize("step_s, is_taking_turns", [(0.0, True), (3600.0, False)])
async def test_a_sender_whose_kernel_takes_all_lets_others_have_turns(
    monkeypatch: pytest.MonkeyPatch, step_s: float, is_taking_turns: bool
) -> None:
    monkeypatch.setattr(connection_module, "STEP_S", step_s)
    near, far = trio.socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
    bulk_bytes = near.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
    with near, far:
        sender, beside = ClientConnection(trio.SocketStream(near)), _Beside()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beside.run)
            before = beside.turns
            await sender.send(b"reply", [bytes(bulk_bytes)])
            assert (beside.turns - before >= bulk_bytes // STEP_BYTES - 1) == is_taking_turns
            nursery.cancel_scope.cancel()
    assert sender.bulk_bytes_sent == bulk_bytes


async def test_received_bytes_are_taken_in_steps() -> None:
    near, far = trio.socket.socketpair()
    sizes: list[int] = []

    async def note(size: int) -> None:
        sizes.append(size)

    with near, far:
        for end in (near, far):
            for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, buffer, KERNEL_BYTES)
        receiver = ClientConnection(trio.SocketStream(near))
        content = bytes(range(256)) * (3 * MIB // 256)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.SocketStream(far).send_all, content)
            assert await receiver.receive_bulk(len(content), note) == content
    assert sum(sizes) == len(content) and max(sizes) <= STEP_BYTES
