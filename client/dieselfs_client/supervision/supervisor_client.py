"""A daemon's client of its supervisor. This module uses the socket between them, and starts the next supervisor.

The daemon sends heartbeats, and descriptors that must outlive it, by name. The supervisor answers each heartbeat, and
sends orders. When it ends, its keeper is at the other end of the socket. Once the mount was ready, a daemon whose
supervisor and keeper both end, or hang, starts another supervisor, which adopts it.
"""

import logging
import os
import signal
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from enum import StrEnum

import trio

from dieselfs.chunk.segment import Segment
from dieselfs.errors import DieselfsError
from dieselfs.snapshot.reader import Snapshot
from dieselfs_client.supervision.adoption import SUPERVISOR, ZYGOTE, is_entrusted, start_supervisor
from dieselfs_client.supervision.control_channel import (
    CHUNK,
    SNAPSHOT,
    ControlChannel,
    Message,
    close_all,
    receive_inheritance,
)
from dieselfs_client.supervision.status import MemoryFile

BEAT_INTERVAL_S = 1.0
UNANSWERED_MAX = 10
"""A supervisor that leaves this many heartbeats in a row unanswered hangs, and is killed."""
RESTART_PAUSE_S, RESTART_PAUSE_MAX_S = 0.05, 5.0
"""The pause before the second start of a supervisor in a row; it doubles with each one that never answered."""

_log = logging.getLogger(__name__)


class Command(StrEnum):
    STOP = "stop"
    """Unmount, and end; the second time, at once. Also sent by `orders` when the supervisor has ended, unless this
    daemon can start another one.
    """
    YIELD = "yield"
    """End without unmounting: another daemon takes over."""


class SupervisorClient:
    """Made by a standby daemon: waits until the daemon must serve, and has received the kept descriptors.

    - `inherited`: descriptors of an earlier daemon, by name; the code that takes one closes it
    - `is_clean`: that daemon left no request unanswered
    - `process`: the supervisor

    Raises ConnectionError if the supervisor has ended. Then used from one trio thread.
    """

    def __init__(self, control_channel: ControlChannel) -> None:
        self._control_channel = control_channel
        self.inherited, how = receive_inheritance(control_channel)
        self.is_clean = how == "clean"
        self.process = control_channel.maker
        # For the next supervisor. What the supervisor has entrusted belongs to this object; what the daemon keeps is
        # open as long as its owner lives, which the second of the pair may be.
        names = [name for name in self.inherited if is_entrusted(name) or name == SNAPSHOT]
        self._entrusted = {name: self.inherited.pop(name) for name in names}
        self._kept: dict[str, tuple[int, object]] = {
            name: (descriptor, None) for name, descriptor in self.inherited.items()
        }
        self._facts: dict[str, str] = {}
        self._unanswered = self._keeper = 0
        self._started: list[int] = []  # supervisors that this process must reap
        self._starts_in_vain = 0
        # Word, argument, and descriptor; None for a descriptor that is kept, which is looked up when it is sent.
        self._unsent: deque[tuple[str, str, int | None]] = deque()
        self._has_unsent = trio.Event()

    def detach(self) -> None:
        """Close all descriptors, in a child of the daemon: some keep the mount alive."""
        self._control_channel.close()
        close_all(self.inherited)
        close_all(self._entrusted)

    def tell(self, word: str, about: str = "", descriptor: int | None = None, owner: object = None) -> None:
        """Send one of the words of a daemon, as listed in `control_channel.py`; queue it if the channel is full.

        `keep`: the descriptor stays open until `drop`; a reference to `owner` is held until then. The supervisor holds
        a bounded number of descriptors and closes the others. If it is slow and this process has no free descriptor,
        `keep` is not sent.
        """
        if word == "keep" and descriptor is not None:
            self._kept[about] = descriptor, owner
        elif word == "drop":
            self._kept.pop(about, None)
        elif word != "clean":
            self._facts[word] = about
        if not self._unsent and self._is_sent(word, about, descriptor):
            return
        if descriptor is not None:
            try:
                descriptor = os.dup(descriptor)
            except OSError as error:  # no descriptor is left
                _log.warning("%s will not be handed over on restart: %s", about, error.strerror)
                return
        self._queue(word, about, descriptor)

    def memory_file(self, name: str, content: bytes = b"") -> MemoryFile:
        """A file that outlives this daemon: that of the previous one, or a new one with this content."""
        inherited = self.inherited.pop(name, None)
        file = MemoryFile(f"dieselfs-{name}", inherited)
        if inherited is None:
            file.write(content)
            self.tell("keep", name, file.descriptor)
        return file

    def tell_last(self, word: str, about: str = "") -> None:
        """As `tell`, before the daemon ends: waits for room on the channel, for SEND_TIMEOUT_S at most."""
        with suppress(OSError):
            self._control_channel.send_patiently(word, about)

    def _queue(self, word: str, about: str, descriptor: int | None) -> None:
        self._unsent.append((word, about, descriptor))
        self._has_unsent.set()

    def _is_sent(self, word: str, about: str, descriptor: int | None) -> bool:
        """Send it; False if the channel has no room."""
        try:
            self._control_channel.send(word, about, descriptor)
        except BlockingIOError:
            return False
        except OSError:  # the supervisor has ended, which `orders` notices
            pass
        return True

    async def beat(self) -> None:
        """Send heartbeats of this thread, until cancelled. Kills a supervisor that does not answer them, and its
        keeper, which has not replaced it.
        """
        while True:
            if not self._unsent:
                self._is_sent("beat", "", None)
            self._unanswered += 1
            if self._unanswered > UNANSWERED_MAX and self.was_ready:
                _log.warning("supervisor %d does not answer; killing it", self.process)
                self._unanswered = 0
                for process in filter(None, (self.process, self._keeper)):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                self._keeper = 0
            self._reap()
            await trio.sleep(BEAT_INTERVAL_S)

    async def flush(self) -> None:
        """Send queued messages in their order, until cancelled."""
        while True:
            await self._has_unsent.wait()
            while self._unsent:
                word, about, descriptor = self._unsent[0]
                is_own = word != "keep" or descriptor is not None
                if not is_own and about not in self._kept:  # dropped in the meantime
                    self._unsent.popleft()
                    continue
                if not self._is_sent(word, about, descriptor if is_own else self._kept[about][0]):
                    with suppress(trio.ClosedResourceError):  # the supervisor has been replaced
                        await trio.lowlevel.wait_writable(self._control_channel)
                    continue
                self._unsent.popleft()
                if descriptor is not None:
                    os.close(descriptor)
            self._has_unsent = trio.Event()

    async def orders(self) -> AsyncGenerator[Command, None]:
        """The orders as they arrive. When the supervisor ends, another one is started; STOP if that is impossible."""
        while True:
            await trio.lowlevel.wait_readable(self._control_channel)
            try:
                message = self._control_channel.receive()
            except BlockingIOError:
                continue
            if message is not None:
                self._unanswered = self._starts_in_vain = 0
                if message.word in list(Command):
                    yield Command(message.word)
                else:
                    self._take(message)
            elif self.was_ready:
                await self._replace_supervisor()
            else:
                break
        yield Command.STOP
        await trio.sleep_forever()

    # -- the next supervisor -------------------------------------------------------------------------------

    @property
    def was_ready(self) -> bool:
        """Whether the mount was ready once. Since then, this daemon can start another supervisor."""
        return SUPERVISOR in self._entrusted

    def _take(self, message: Message) -> None:
        """Hold what the supervisor entrusts to this daemon, and note who it is."""
        name, descriptor = message.about, message.descriptor
        if message.word == "beat" and name:
            self.process, self._keeper = map(int, name.split())
        if message.word == "go":  # its keeper has replaced it
            self._tell_again()
        if descriptor is None:
            return
        if message.word != "keep" or not (is_entrusted(name) or name == SNAPSHOT):
            os.close(descriptor)
            return
        for old in [each for each in self._entrusted if _kind(each) == _kind(name)]:  # there is one zygote
            os.close(self._entrusted.pop(old))
        self._entrusted[name] = descriptor

    async def _replace_supervisor(self) -> None:
        if self._starts_in_vain:
            await trio.sleep(min(RESTART_PAUSE_S * 2**self._starts_in_vain, RESTART_PAUSE_MAX_S))
        self._starts_in_vain += 1
        self._unanswered = self._keeper = 0
        _log.warning("supervisor %d is gone; starting another one", self.process)
        ours, theirs = ControlChannel.pair()
        trio.lowlevel.notify_closing(self._control_channel)
        self._control_channel.close()
        self._control_channel = ours
        for _, _, descriptor in self._unsent:
            if descriptor is not None:
                os.close(descriptor)
        self._unsent.clear()
        with theirs:
            self._bequeath()
            try:
                self.process = start_supervisor(self._entrusted[SUPERVISOR], theirs)
            except OSError as error:  # the closed channel is noticed again, after a pause
                _log.warning("cannot start a supervisor: %s", error.strerror)
            else:
                self._started.append(self.process)

    def _bequeath(self) -> None:
        """Put all that the next supervisor needs into the channel, chunks last and as there is room."""
        for name, descriptor in self._entrusted.items():
            self._is_sent("keep", name, descriptor)
        chunks = [name for name in self._kept if name.startswith(CHUNK)]
        for name, (descriptor, _) in self._kept.items():
            if not name.startswith(CHUNK):
                self._is_sent("keep", name, descriptor)
        self._is_sent("go", "", None)
        self._is_sent("born", str(os.getpid()), None)
        for word, about in self._facts.items():
            self._is_sent(word, about, None)
        for name in chunks:
            self._queue("keep", name, None)

    def _tell_again(self) -> None:
        """What the last supervisor has heard may be lost."""
        for name in self._kept:
            self._queue("keep", name, None)
        self._queue("born", str(os.getpid()), None)
        for word, about in self._facts.items():
            self._queue(word, about, None)

    def _reap(self) -> None:
        for process in [*self._started]:
            with suppress(ChildProcessError):
                if os.waitpid(process, os.WNOHANG)[0] == 0:
                    continue
            self._started.remove(process)


def _kind(name: str) -> str:
    return ZYGOTE if name.startswith(ZYGOTE) else name


_log = logging.getLogger(__name__)


class HandoverChunks:
    """Hands the pinned chunks of a mount's daemon over to the next one, as descriptors, which the supervisor holds.

    After a crash or an upgrade the node has the same chunks in memory, and fetches none of them again. Their bytes were
    verified before, and are sealed. Used from one trio thread.
    """

    def __init__(self, supervisor_client: SupervisorClient, snapshot: Snapshot) -> None:
        """Takes the chunks of the previous daemon out of `supervisor_client.inherited`."""
        self._supervisor_client = supervisor_client
        self._snapshot = snapshot
        # Names have the digest: in another snapshot the same number is another chunk.
        self._prefix = f"{CHUNK}{snapshot.digest.hex()}-"
        names = [name for name in supervisor_client.inherited if name.startswith(CHUNK)]
        self._left = {name: supervisor_client.inherited.pop(name) for name in names}

    def take(self) -> Iterator[tuple[int, Segment]]:
        """The chunks of the previous daemon, each once. The caller passes each to `keep` again, or to `drop`."""
        while self._left:
            name, descriptor = self._left.popitem()
            if not name.startswith(self._prefix):
                self._refuse(name, descriptor)
                continue
            chunk = int(name.removeprefix(self._prefix))
            try:
                segment = Segment.adopt(descriptor, self._snapshot.chunk_payload_length(chunk))
            except DieselfsError as error:
                _log.warning(
                    "cannot take over a chunk of the previous daemon, which is fetched again: %s", error
                )
                self.drop(chunk)
                continue
            yield chunk, segment

    def renounce(self) -> None:
        """Drop all chunks of the previous daemon: another process is the node master."""
        while self._left:
            self._refuse(*self._left.popitem())

    def keep(self, chunk: int, segment: Segment) -> None:
        """Keep a chunk for the next daemon."""
        self._supervisor_client.tell("keep", f"{self._prefix}{chunk}", segment.descriptor, segment)

    def drop(self, chunk: int) -> None:
        """Stop keeping a chunk."""
        self._supervisor_client.tell("drop", f"{self._prefix}{chunk}")

    def _refuse(self, name: str, descriptor: int) -> None:
        os.close(descriptor)
        self._supervisor_client.tell("drop", name)
