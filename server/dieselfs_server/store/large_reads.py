"""The limit of large reads of a store: of one process, or of all servers over one disk.

All servers change one note of the metadata store, which has the turns of each (`turns.py`). A thread renews those of
this process while reads need them. Where the note cannot be changed, the process has its own limit, as if it were the
only one: staggering makes reads faster, and nothing depends on it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread

from dieselfs.errors import DieselfsError
from dieselfs_server.store.turns import Holder, decoded, encoded, renewed

LARGE_READS_NOTE = "large-reads"
SLICE_S = 0.25
"""Some ten chunks of a single hard disk."""
RENEWAL_S = 0.1
POLL_S = 0.02
"""The interval between requests of a process that waits for a turn."""
LOST_S = 3.0
"""A holder that has not renewed its turns for this long has died or is cut off."""
PATIENCE_S = 3.0
"""A read that has waited for this long begins within the limit of its process, whatever the others do."""
SILENCE_S = 0.3
"""After this time without a reply about the note, reads begin within the limit of their process."""
TRIES_MAX = 8


class SharedTurns:
    """The turns of one process in the note. For one thread.

    `read` and `swap` block, and may raise DieselfsError. `swap` gets the expected and the new value of the note, and
    returns False if it was not there, or if that is not known. `name`: no other process has it.
    """

    def __init__(
        self,
        read: Callable[[], bytes | None],
        swap: Callable[[bytes | None, bytes], bool],
        name: str,
        turns_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._swap = read, swap
        self._name, self.turns_max, self._clock = name, turns_max, clock
        self._seen: dict[str, tuple[int, float]] = {}  # the beat of each other, and since when it is the same
        self._since_s: float | None = None  # the time of the first turn of this slice

    def ask(self, reads: int, waiting: int) -> int:
        """How many reads this process may make now, as `renewed`; `turns_max` if the note cannot be changed."""
        for _ in range(TRIES_MAX):
            try:
                note = self._read()
                now_s = self._clock()
                is_over = self._since_s is not None and now_s - self._since_s >= SLICE_S
                found = self._living(decoded(note), now_s)
                after, turns = renewed(
                    found, self._name, reads, waiting, self.turns_max, is_slice_over=is_over
                )
                if not self._swap(note, encoded(after)):
                    continue
            except DieselfsError:
                return self.turns_max
            if not turns + reads:
                self._since_s = None
            elif self._since_s is None:
                self._since_s = now_s
            return turns
        return 0

    def _living(self, holders: list[Holder], now_s: float) -> list[Holder]:
        seen, self._seen = self._seen, {}
        for holder in holders:
            beat, since_s = seen.get(holder.name, (-1, now_s))
            self._seen[holder.name] = holder.beat, since_s if beat == holder.beat else now_s
        lost = {name for name, (_, since_s) in self._seen.items() if now_s - since_s >= LOST_S}
        return [holder for holder in holders if holder.name not in lost - {self._name}]


class LargeReads:
    """A limit of `count_max` large reads at a time; further ones wait.

    After `share`, it is the limit over all servers that share the note.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._changed = Condition()  # guards the others
        self._allowed = count_max
        self._reads = self._waiting = 0
        self._shared: SharedTurns | None = None
        self._is_renewing = False
        self._asked_s: float | None = None  # since when a reply about the note is waited for

    def acquire(self, *, timeout: float) -> bool:
        """Wait for a turn, to be returned by `release`; False if there was none within `timeout` seconds."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            if self._shared is not None and not self._is_renewing:
                with suppress(RuntimeError):  # no more threads: then reads wait for PATIENCE_S
                    Thread(target=self._renew, args=[self._shared], name="large-reads", daemon=True).start()
                    self._is_renewing = True
            is_allowed = self._waited(timeout) if self._shared is None else self._waited_for_turn(timeout)
            self._waiting -= 1
            self._reads += is_allowed
        return is_allowed

    def _waited(self, timeout_s: float) -> bool:
        return self._changed.wait_for(lambda: self._reads < self._allowed, timeout_s)

    def _waited_for_turn(self, timeout_s: float) -> bool:
        """As `_waited`; the limit of the process holds while the note is silent, and after PATIENCE_S."""
        began_s = time.monotonic()
        while (left_s := min(PATIENCE_S, timeout_s) - (time.monotonic() - began_s)) > 0:
            asked_s = self._asked_s
            if asked_s is not None and time.monotonic() - asked_s >= SILENCE_S:
                break
            if self._waited(min(SILENCE_S, left_s)):
                return True
        rest_s = timeout_s - (time.monotonic() - began_s)
        return self._changed.wait_for(lambda: self._reads < self._count_max, max(rest_s, 0))

    def release(self) -> None:
        with self._changed:
            self._reads -= 1
            self._changed.notify_all()

    def share(self, turns: SharedTurns) -> None:
        """Limit the reads together with all that share the note. Before the first read."""
        self._shared, self._allowed, self._count_max = turns, 0, turns.turns_max

    def _renew(self, turns: SharedTurns) -> None:
        try:
            self._renew_while_needed(turns)
        except BaseException:
            with self._changed:
                self._is_renewing, self._asked_s = False, None  # the next read begins again
            raise

    def _renew_while_needed(self, turns: SharedTurns) -> None:
        """Until no read needs a turn; the turns are returned then."""
        while True:
            with self._changed:
                reads, waiting = self._reads, self._waiting
                if not reads + waiting:
                    self._allowed = 0
                self._asked_s = time.monotonic()
            allowed = turns.ask(reads, waiting)
            with self._changed:
                self._asked_s = None
                if not reads + waiting:
                    if not self._waiting:
                        self._is_renewing = False
                        return
                    continue
                self._allowed = allowed
                self._changed.notify_all()
                if self._is_short():
                    self._changed.wait_for(lambda: not self._is_short(), POLL_S)
                else:
                    self._changed.wait_for(self._is_short, RENEWAL_S)

    def _is_short(self) -> bool:
        return self._waiting > 0 and self._reads >= self._allowed
