"""A node's membership in a job: registers, renews, learns of every change, and leaves at the end.

While the servers are away, the last list stands: peers find out by themselves who is dead, and a list that shrank
because nobody could be asked would only move chunks for nothing. So it does for a node that is put out of the job,
because its name is another's by now: it tries to come back. The transport is an argument, the clock is trio's.
"""

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import trio

from dieselfs.cache.member import Member, Terms
from dieselfs.cache.roll import Roll
from dieselfs.cache.secret import JobSecret
from dieselfs.errors import AccessDenied, AlreadyExists, DieselfsError, InvalidInput, Unavailable
from dieselfs.limits import JOB_AGAIN_S_MAX, JOB_INTERVAL_S_MIN, JOB_LEAVE_TIMEOUT_S
from dieselfs.rpc.client import ServerClient

JITTER = 0.2
"""Up to this part of an interval is left out, at random: members that began together do not ask together for ever."""

Members = tuple[Member, ...]

_log = logging.getLogger(__name__)


class RollServer(Protocol):
    async def join(self, sealed: bytes, known_version: int) -> Roll:
        """As `ServerClient.join_job`. If cancelled, the member may be on the roll, until its lease ends."""
        ...

    async def leave(self, sealed: bytes) -> None:
        """As `ServerClient.leave_job`. If cancelled, the member is off the roll at the latest when its lease ends."""
        ...


class RemoteRoll:
    """The roll that the servers keep; calls run in worker threads, which end by themselves if abandoned."""

    def __init__(self, client: ServerClient, terms: Terms, secret: JobSecret) -> None:
        self._client = client
        self._terms = terms
        self._fingerprint = secret.fingerprint()

    async def join(self, sealed: bytes, known_version: int) -> Roll:
        call = partial(self._client.join_job, self._terms, self._fingerprint, sealed, known_version)
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

    async def leave(self, sealed: bytes) -> None:
        call = partial(self._client.leave_job, self._terms, self._fingerprint, sealed)
        await trio.to_thread.run_sync(call, abandon_on_cancel=True)


@dataclass(frozen=True, slots=True)
class MembershipStatistics:
    """`asked` = `answered` + `unanswered`, but for a call under way. `strangers` were on the roll, not of the job.

    `out`: why this node is out of its job at the moment; empty if it is not.
    """

    asked: int = 0
    answered: int = 0
    unanswered: int = 0
    changes: int = 0
    strangers: int = 0
    out: str = ""


class Membership:
    """For one trio thread. Before the first answer, and if there never is one, this node is alone."""

    def __init__(
        self,
        roll: RollServer,
        secret: JobSecret,
        terms: Terms,
        me: Member,
        on_change: Callable[[Members], None] = lambda members: None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`on_change` gets every new list, ordered by node, from within `run`. `uniform` gives numbers from 0 to 1."""
        self._roll = roll
        self._secret = secret
        self._terms = terms
        self._on_change = on_change
        self._uniform = uniform
        # All below are changed only between checkpoints.
        self._me = me
        self._version = 0
        self._interval_s = JOB_INTERVAL_S_MIN
        self._members: Members = (me,)
        self._opened: dict[bytes, Member] = {}  # of the last roll, by what was sealed: so each is opened once
        self._changed = trio.Event()
        self._statistics = MembershipStatistics()
        self._is_away = False
        self._again_s = 0.0  # after which a node asks that is out of the job; 0: it is not

    @property
    def members(self) -> Members:
        """Ordered by node; this node is always among them."""
        return self._members

    def statistics(self) -> MembershipStatistics:
        return self._statistics

    def offer(self, memory_bytes: int) -> None:
        """Offer more memory, or less; the others hear of it within an interval of theirs."""
        self._me = replace(self._me, memory_bytes=memory_bytes)

    async def wait_for(self, nodes: int) -> None:
        """Until a server has said who is there, and so many nodes are, this one included."""
        while not self._version or len(self._members) < nodes:
            await self._changed.wait()

    async def run(self, is_going_on: bool = False) -> None:
        """Be a member until cancelled; then leave, and wait no longer than JOB_LEAVE_TIMEOUT_S for it.

        Raises what the server refuses the first call with, unless somebody reads through this node already
        (`is_going_on`). Whatever goes wrong later is logged, and tried again: after an interval; or if the node is put
        out of the job (AlreadyExists: it has a new master, or the others read another snapshot by now), after twice as
        long each time, up to JOB_AGAIN_S_MAX.
        """
        try:
            while True:
                await self._ask(is_going_on)
                await trio.sleep((self._again_s or self._interval_s) * (1 - JITTER * self._uniform()))
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(JOB_LEAVE_TIMEOUT_S):
                await self._leave()

    async def _ask(self, is_going_on: bool) -> None:
        self._count(asked=1)
        try:
            roll = await self._roll.join(self._secret.seal(self._me, self._terms), self._version)
        except DieselfsError as error:
            self._count(unanswered=1)
            if not self._version and not is_going_on and not isinstance(error, Unavailable):
                raise
            self._do_without(error)
            return
        self._go_on()
        self._count(answered=1)
        is_first, self._version, self._interval_s = not self._version, roll.version, roll.interval_s
        if roll.members is not None:
            self._take(roll.members)
        if is_first:
            self._wake()

    def _do_without(self, error: DieselfsError) -> None:
        """The last list of the nodes stands."""
        if isinstance(error, AlreadyExists):
            if not self._again_s:
                _log.warning("job %s: this node is out, and tries to come back: %s", self._terms.job, error)
            again_s = 2 * max(self._again_s, self._interval_s)
            self._again_s = min(again_s, max(self._interval_s, JOB_AGAIN_S_MAX))
            self._statistics = replace(self._statistics, out=str(error))
        elif not self._is_away:
            _log.warning("job %s: %s; the last list of its nodes stands", self._terms.job, error)
            self._is_away = True

    def _go_on(self) -> None:
        """A server has answered, and this node is a member."""
        if self._is_away:
            _log.info("job %s: the server answers again", self._terms.job)
        if self._again_s:
            _log.info("job %s: this node is back", self._terms.job)
        self._is_away, self._again_s = False, 0.0
        self._statistics = replace(self._statistics, out="")

    def _take(self, sealed: tuple[bytes, ...]) -> None:
        opened: dict[bytes, Member] = {}
        for each in sealed:
            try:
                opened[each] = self._opened.get(each) or self._secret.open(each, self._terms)
            except (AccessDenied, InvalidInput) as error:
                self._count(strangers=1)
                _log.warning("job %s: passed over on its roll: %s", self._terms.job, error)
        self._opened = opened
        by_node = {member.node: member for member in [*opened.values(), self._me]}
        members = tuple(by_node[node] for node in sorted(by_node))
        if members == self._members:
            return
        self._members = members
        self._count(changes=1)
        _log.info("job %s: %d nodes: %s", self._terms.job, len(members), ", ".join(sorted(by_node))[:1000])
        self._wake()
        self._on_change(members)

    def _wake(self) -> None:
        """Whoever waits looks again."""
        self._changed.set()
        self._changed = trio.Event()

    async def _leave(self) -> None:
        try:
            await self._roll.leave(self._secret.seal(self._me, self._terms))
        except DieselfsError as error:
            _log.info("job %s: left without a word (%s); the lease ends by itself", self._terms.job, error)

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self._statistics, name) + number for name, number in more.items()}
        self._statistics = replace(self._statistics, **counted)
