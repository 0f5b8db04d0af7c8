"""A node's membership in a job: registers, renews its lease, follows changes of the list, and leaves at the end.

While servers are unavailable, the last list stays in use: peers detect failures themselves, and a shorter list would
only move chunks. The same holds for a node whose name another member holds; it retries. The clock is trio's.
"""

import logging
import random
import time
from collections.abc import Callable
from functools import partial

import trio

from dieselfs.cluster.member import Member
from dieselfs.cluster.secret import JobSecret, check_age
from dieselfs.errors import AccessDenied, AlreadyExists, DieselfsError, InvalidInput, Unavailable
from dieselfs.limits import JOB_INTERVAL_S_MIN
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.members import JobId, MembershipList
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry

JOB_LEAVE_TIMEOUT_S = 2.0
"""A member that leaves waits this long for a server to accept it; otherwise its lease expires."""
JOB_RETRY_S_MAX = 60.0
"""A member whose name another member holds retries after twice as long each time, up to this."""

JITTER = 0.2
"""Up to this share of an interval is skipped at random, so that requests of members that started together spread."""

Members = tuple[Member, ...]

_log = logging.getLogger(__name__)


class RemoteRegistry:
    """The membership list of the servers; calls run in worker threads, which end by themselves if abandoned: the member
    may then be registered until its lease expires.
    """

    def __init__(
        self, client: ServerClient, job_id: JobId, secret: JobSecret, progress: Callable[[], bytes] = bytes
    ) -> None:
        """`progress`: what this node tells about itself with a renewal; empty: nothing."""
        self._client = client
        self._progress = progress
        self._job_id = job_id
        self._fingerprint = secret.fingerprint()

    async def join(self, sealed: bytes, known_version: int) -> MembershipList:
        known = sealed, known_version, self._progress()
        call = partial(self._client.join_job, self._job_id, self._fingerprint, *known)
        return await trio.to_thread.run_sync(call, abandon_on_cancel=True)

    async def leave(self, sealed: bytes) -> None:
        call = partial(self._client.leave_job, self._job_id, self._fingerprint, sealed)
        await trio.to_thread.run_sync(call, abandon_on_cancel=True)


class Membership:
    """For one trio thread. Before the first reply, this node is the only member."""

    def __init__(
        self,
        registry: RemoteRegistry,
        secret: JobSecret,
        job_id: JobId,
        me: Member,
        on_change: Callable[[Members], None] = lambda members: None,
        uniform: Callable[[], float] = random.random,
        metrics: Registry | None = None,
    ) -> None:
        """`on_change` gets each new list, ordered by node, within `run`. `uniform`: random numbers from 0 to 1."""
        self._registry = registry
        self._secret = secret
        self._job_id = job_id
        self._on_change = on_change
        self._uniform = uniform
        # All below are changed only between checkpoints.
        self._me = me
        self._sealed = b""  # the record of the last request, with which servers compare that of `leave`
        self._version = 0
        self._interval_s = JOB_INTERVAL_S_MIN
        self.members: Members = (me,)
        """Ordered by node; this node is always among them."""
        self._opened: dict[bytes, Member] = {}  # by sealed record, of the last list: each is opened once
        self._changed = trio.Event()
        self._out = ""  # why this node is out of its job
        self.metrics = metrics = metrics or Registry()
        self._requests = metrics.counter("membership.requests", "Requests for the membership list.")
        self._answered = metrics.counter("membership.answered", "Requests that a server answered.")
        self._failed = metrics.counter("membership.failed", "Requests that no server answered.")
        self._changes = metrics.counter("membership.changes", "Changes of the membership list.")
        self._rejected = metrics.counter("membership.strangers", "List entries without the job's secret.")
        metrics.declare(catalogue.MEMBERSHIP_OUT, lambda: self._out)
        self._is_unavailable = False
        self._retry_s = 0.0  # interval of a node that is out of the job; 0: it is a member

    @property
    def has_joined(self) -> bool:
        """Whether a server has answered with a list."""
        return self._version != 0

    async def wait_for(self, nodes: int) -> None:
        """Wait for a first list from a server, and for this many nodes, including this one."""
        while not self.has_joined or len(self.members) < nodes:
            await self._changed.wait()

    async def run(self, is_resumed: bool = False) -> None:
        """Be a member until cancelled; then leave, within JOB_LEAVE_TIMEOUT_S.

        Raises the server's refusal of the first call, unless the node has readers already (`is_resumed`). Later errors
        are logged and retried after an interval. After AlreadyExists (the node has a new master, or the others read
        another snapshot), the interval doubles each time, up to JOB_RETRY_S_MAX.
        """
        try:
            while True:
                await self._request(is_resumed)
                await trio.sleep((self._retry_s or self._interval_s) * (1 - JITTER * self._uniform()))
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(JOB_LEAVE_TIMEOUT_S):
                await self._leave()

    async def _request(self, is_resumed: bool) -> None:
        self._requests.value += 1
        try:
            self._sealed = self._secret.seal(self._me, self._job_id)
            membership_list = await self._registry.join(self._sealed, self._version)
        except DieselfsError as error:
            self._failed.value += 1
            if not self._version and not is_resumed and not isinstance(error, Unavailable):
                raise
            self._on_failure(error)
            return
        self._on_answer()
        self._answered.value += 1
        is_first = not self._version
        self._interval_s = membership_list.interval_s
        if membership_list.members is not None:
            self._take(membership_list.members)
        self._version = membership_list.version  # last: other threads read `has_joined`
        if is_first:
            self._wake()

    def _on_failure(self, error: DieselfsError) -> None:
        """The last list stays in use."""
        if isinstance(error, AlreadyExists):
            if not self._out:
                _log.warning("job %s: this node is out, and will retry: %s", self._job_id.job, error)
            retry_s = 2 * max(self._retry_s, self._interval_s)
            self._retry_s = min(retry_s, max(self._interval_s, JOB_RETRY_S_MAX))
            self._out = str(error)
        elif not self._is_unavailable:
            _log.warning("job %s: %s; the last list of its nodes stays in use", self._job_id.job, error)
            self._is_unavailable = True

    def _on_answer(self) -> None:
        """A server has answered; this node is a member."""
        if self._is_unavailable:
            _log.info("job %s: the server answers again", self._job_id.job)
        if self._out:
            _log.info("job %s: this node is back", self._job_id.job)
        self._is_unavailable, self._retry_s, self._out = False, 0.0, ""

    def _take(self, sealed: tuple[bytes, ...]) -> None:
        opened: dict[bytes, Member] = {}
        now_s = time.time()
        for each in sealed:
            try:
                if each in self._opened:
                    check_age(each, now_s)
                opened[each] = self._opened.get(each) or self._secret.open(each, self._job_id, now_s)
            except (AccessDenied, InvalidInput) as error:
                self._rejected.value += 1
                _log.warning("job %s: ignored an entry of the membership list: %s", self._job_id.job, error)
        self._opened = opened
        by_node = {member.node: member for member in [*opened.values(), self._me]}
        members = tuple(by_node[node] for node in sorted(by_node))
        if members == self.members:
            return
        self.members = members
        self._changes.value += 1
        _log.info("job %s: %d nodes: %s", self._job_id.job, len(members), ", ".join(sorted(by_node))[:1000])
        self._wake()
        self._on_change(members)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _leave(self) -> None:
        try:
            await self._registry.leave(self._sealed)
        except DieselfsError as error:
            _log.info("job %s: could not deregister (%s); the lease will expire", self._job_id.job, error)
