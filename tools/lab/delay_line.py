"""A link that delays every frame by the same time, whatever its protocol: two TAP devices and a process between them.

The kernel's netem is often missing. Frames may be as large as the kernel's segmentation makes them, so few are copied.
`python -m lab.delay_line` is the process; it ends with its namespace. Needs root.
"""

import ctypes
import os
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from fcntl import ioctl
from select import select

_TUN_SET_INTERFACE, _TUN_SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFORMATION, _FRAME_HEADER = 0x0002, 0x1000, 0x4000
_CHECKSUMS, _LONG_IPV4, _LONG_IPV6, _CONGESTION_BITS = 1, 2, 4, 8
_FRAME_BYTES_MAX = 70_000
_FRAMES_AT_ONCE = 64
"""Of one direction, before the other has its turn."""
_OWN_S = 70e-6
"""What a frame takes through an idle process of this kind, as measured; part of the delay."""
_SET_TIMER_SLACK = 29


def open_tap(device: str) -> int:
    """The descriptor of a new TAP device in this thread's network namespace; it lives as long as the descriptor.

    Frames carry the kernel's offload header, which another such device takes as it is. Raises OSError.
    """
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        flags = _TAP | _NO_PACKET_INFORMATION | _FRAME_HEADER
        ioctl(tap, _TUN_SET_INTERFACE, struct.pack("16sH22x", device.encode(), flags))
        ioctl(tap, _TUN_SET_OFFLOAD, _CHECKSUMS | _LONG_IPV4 | _LONG_IPV6 | _CONGESTION_BITS)
    except OSError:
        os.close(tap)
        raise
    return tap


def command(one: int, other: int, delay_s: float) -> list[str]:
    """Of the process between two descriptors, which it must inherit; `delay_s`: each way, about 70 µs at least."""
    held_s = max(delay_s - _OWN_S, 0.0)
    return [sys.executable, "-P", "-m", "lab.delay_line", str(one), str(other), str(held_s)]


def carry(one: int, other: int, delay_s: float) -> None:
    """Until a device is gone. Frames that the other device does not take are lost, as on a full wire."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {one: deque(), other: deque()}
    sinks = {one: other, other: one}
    while True:
        due_s = min((queue[0][0] for queue in waiting.values() if queue), default=None)
        wait_s = None if due_s is None else max(due_s - time.monotonic(), 0)
        readable, _, _ = select([one, other], [], [], wait_s)
        for source in readable:
            with suppress(BlockingIOError):
                for _ in range(_FRAMES_AT_ONCE):
                    frame = os.read(source, _FRAME_BYTES_MAX)
                    waiting[source].append((time.monotonic() + delay_s, frame))
        now_s = time.monotonic()
        for source, queue in waiting.items():
            while queue and queue[0][0] <= now_s:
                with suppress(OSError):
                    os.write(sinks[source], queue.popleft()[1])


def main() -> None:
    # Without it the kernel may wake a process 50 microseconds late.
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
    one, other, delay_s = sys.argv[1:]
    carry(int(one), int(other), float(delay_s))


if __name__ == "__main__":
    main()
