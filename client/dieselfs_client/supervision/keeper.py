"""The keeper of a mount: a fork of its supervisor that holds what the next one needs, and becomes that.

This module forks, and kills a supervisor that hangs. The keeper holds copies of the supervisor's descriptors, also of
its ends of the channels to zygote and daemon. So neither of these notices that the supervisor has died: what they send
waits for the keeper. It runs no code of its own until then, and shares nearly all of its memory with the supervisor.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping

from dieselfs_client.supervision.adoption import Adopted, adopted_from
from dieselfs_client.supervision.child import Child
from dieselfs_client.supervision.control_channel import ControlChannel
from dieselfs_client.supervision.status import name_process

BEAT_INTERVAL_S = 1.0
SILENT_INTERVALS_MAX = 8
"""A supervisor that sends nothing for this many intervals hangs, and is killed. Fewer than its daemon waits for."""

Held = tuple[int, float]
"""A descriptor, and when its owner was made: a later one may have the same number."""


class Succession(BaseException):
    """Raised in the keeper when it must become the supervisor."""

    def __init__(self, adopted: Adopted) -> None:
        super().__init__()
        self.adopted = adopted


class Copies:
    """The descriptors of which another process has copies, by name."""

    def __init__(self) -> None:
        self._told: dict[str, Held] = {}

    def update(self, send: Callable[[str, str, int | None], object], wanted: Mapping[str, Held]) -> None:
        """Let it have copies of these, and no others. `send`: as that of `ControlChannel`, whose errors are raised."""
        for name in [name for name, held in self._told.items() if wanted.get(name) != held]:
            send("drop", name, None)
            del self._told[name]
        for name in wanted.keys() - self._told.keys():
            send("keep", name, wanted[name][0])
            self._told[name] = wanted[name]


class Keeper:
    """The keeper as its supervisor sees it. `child`: None while there is none."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self._copies = Copies()
        self._beat_s = 0.0

    @property
    def pid(self) -> int:
        return 0 if self.child is None else self.child.pid

    def check(self, now_s: float) -> bool:
        """Whether there is one; kills one that hangs."""
        child = self.child
        if child is not None and child.is_gone(now_s):
            child.close()
            self.child = None
        elif child is not None and (child.has_hung_up or child.is_hung(now_s, True)):
            child.kill(now_s)
        return self.child is not None

    def fork(self, now_s: float, wanted: Mapping[str, Held], let_go: Callable[[], None]) -> None:
        """Raises Succession, in the keeper alone and much later. `wanted`: as in `brief`; `let_go`: closes its copies
        of what the supervisor has open. Raises OSError.
        """
        ours, theirs = ControlChannel.pair()
        supervisor = os.getpid()
        try:
            self._copies = Copies()
            self._copies.update(ours.send, wanted)  # before it begins, so it never has less
            pid = os.fork()
        except OSError:
            ours.close()
            theirs.close()
            raise
        if pid:
            theirs.close()
            self.child = Child(ours, now_s, pid)
            return
        try:
            ours.close()
            let_go()
            name_process("dieselfs-keeper")
            held = _wait_for_end(ControlChannel(theirs), supervisor)
        except BaseException:
            os._exit(os.EX_SOFTWARE)  # never continue as a second supervisor
        raise Succession(adopted_from(held))

    def brief(self, now_s: float, wanted: Mapping[str, Held]) -> None:
        """Let it hold these descriptors, by name, and no others. One that takes no more messages is killed."""
        child = self.child
        if child is None or child.killed_s is not None:
            return
        try:
            self._copies.update(child.control_channel.send, wanted)
            if now_s - self._beat_s >= BEAT_INTERVAL_S:
                child.control_channel.send("beat")
                self._beat_s = now_s
        except OSError:
            child.kill(now_s)


def _wait_for_end(control_channel: ControlChannel, supervisor: int) -> dict[str, int]:
    """What the keeper holds when its supervisor has ended."""
    held: dict[str, int] = {}
    silent_intervals = 0
    while True:
        try:
            message = control_channel.receive_patiently(BEAT_INTERVAL_S)
        except TimeoutError:
            silent_intervals += 1  # counted, because a whole control group may be stopped for a while
            if silent_intervals > SILENT_INTERVALS_MAX:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
            continue
        if message is None:
            control_channel.close()
            return held
        silent_intervals = 0
        word, name, descriptor = message
        if word == "beat":
            with contextlib.suppress(OSError):  # it has ended
                control_channel.send("beat")
        elif word == "keep" and descriptor is not None:
            held[name] = descriptor
        elif name in held:
            os.close(held.pop(name))
