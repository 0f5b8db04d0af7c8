"""Leases: notes of a dataset that expire, by the server's clock. Blocks.

Readers have pins on generations, and a purge keeps the chunks that these need. A maintenance job excludes others on all
servers of a store by a lease that its server renews. A server whose clock is more than LEASE_S behind cannot exclude
others; one whose clock was ahead excludes them until they have seen its lease unchanged for LEASE_S. The lease of a
change of a mirror ends in this way, or CLOCK_MARGIN_S after its time: clocks that differ by less do not matter there.

The membership list of a job has a lease for each member. Members renew their leases periodically, and receive changes.
The list has the interval, so that all members of a large job together send as few requests as those of a small one. The
*head* of the list has the common state, and a version that rises with every change. It also has the time when the first
lease can expire: leases are checked only then.

Jobs of one name with different secrets are different jobs. A job's list is removed with its last lease.
"""

import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from dieselfs.cluster.member import Member
from dieselfs.errors import AlreadyExists, InvalidInput, Unavailable
from dieselfs.limits import (
    JOB_INTERVAL_S_MIN,
    JOB_LEASE_INTERVALS,
    JOB_LEASE_S_MIN,
    JOB_MESSAGES_PER_S,
    JOB_NODES_MAX,
    JOBS_MAX,
    SEAL_BYTES,
)
from dieselfs.records import NoteChange
from dieselfs.rpc.members import MembershipList, have_same_snapshot
from dieselfs_server.access.accounts import Right
from dieselfs_server.metadata.interface import MetadataStore

NOTE_TRIES_MAX = 256
"""Tries to change notes that others change at the same time. With each lost try, another change was made."""

_EXPIRES = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Lease:
    """`expires_ns` is since 1970."""

    expires_ns: int
    value: bytes

    def note(self) -> bytes:
        return _EXPIRES.pack(self.expires_ns) + self.value

    @classmethod
    def of(cls, note: bytes) -> "Lease":
        (expires_ns,) = _EXPIRES.unpack_from(note)
        return cls(expires_ns, note[_EXPIRES.size :])


def until_done(attempt: Callable[[], bool], what: str) -> None:
    """Retry `attempt`, a change of notes, until it succeeds. Raises Unavailable after NOTE_TRIES_MAX attempts."""
    for _ in range(NOTE_TRIES_MAX):
        if attempt():
            return
    raise Unavailable(f"{what} is changed by too many clients at once; try again")


PINS_FOLDER = "pins/"
PINS_PER_USER_MAX = 4096
"""Pins of one user on one dataset: each mount has one."""

_GENERATION = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Pin:
    """`updated_ns`, since 1970, is the time of the pinned generation."""

    holder: str
    generation: int
    updated_ns: int
    expires_ns: int

    def note(self) -> bytes:
        return Lease(self.expires_ns, _GENERATION.pack(self.generation, self.updated_ns)).note()

    @classmethod
    def of(cls, holder: str, note: bytes) -> "Pin":
        lease = Lease.of(note)
        generation, updated_ns = _GENERATION.unpack(lease.value)
        return cls(holder, generation, updated_ns, lease.expires_ns)


def pin_change(pin: Pin) -> NoteChange:
    """The note of the first pin of a holder."""
    return NoteChange(PINS_FOLDER + pin.holder, None, pin.note())


def put_pin(metadata: MetadataStore, dataset_id: bytes, pin: Pin) -> None:
    """Store a pin, instead of an earlier one of the same holder. Raises NotFound."""
    _write(metadata, dataset_id, pin.holder, pin.note())


def put_pin_of(metadata: MetadataStore, dataset_id: bytes, user: str, pin: Pin, now_ns: int) -> None:
    """As `put_pin`, for a pin whose holder begins with `USER/`. Raises InvalidInput for too many of one user."""
    prefix = f"{user}/"
    if metadata.notes(dataset_id, [PINS_FOLDER + pin.holder]) == [None]:
        found = len(metadata.notes_below(dataset_id, PINS_FOLDER + prefix))
        if found >= PINS_PER_USER_MAX:  # perhaps with expired ones
            found = sum(each.holder.startswith(prefix) for each in live_pins(metadata, dataset_id, now_ns))
        if found >= PINS_PER_USER_MAX:
            raise InvalidInput(
                f"user {user} has {found} pins on this dataset, the limit; end some, or wait until they expire"
            )
    put_pin(metadata, dataset_id, pin)


def remove_pin(metadata: MetadataStore, dataset_id: bytes, holder: str) -> None:
    """Remove a pin, if there is one. Raises NotFound if there is no such dataset."""
    _write(metadata, dataset_id, holder, None)


def _write(metadata: MetadataStore, dataset_id: bytes, holder: str, note: bytes | None) -> None:
    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [PINS_FOLDER + holder])
        return metadata.change_notes(dataset_id, [NoteChange(PINS_FOLDER + holder, present, note)])

    until_done(attempt, f"the pin of {holder!r}")


def shown_pins(pins: Iterable[Pin], user: str, right: Right) -> list[Pin]:
    """What a user with this right may see. Holders name users, machines and folders, so readers see only their own."""
    return [pin for pin in pins if right >= Right.WRITE or pin.holder.startswith(f"{user}/")]


def live_pins(metadata: MetadataStore, dataset_id: bytes, now_ns: int) -> list[Pin]:
    """The pins that have not expired at `now_ns`, ordered by holder. Removes expired ones. Raises NotFound."""
    found: list[Pin] = []
    expired: list[NoteChange] = []
    for name, note in metadata.notes_below(dataset_id, PINS_FOLDER).items():
        pin = Pin.of(name.removeprefix(PINS_FOLDER), note)
        if pin.expires_ns > now_ns:
            found.append(pin)
        else:
            expired.append(NoteChange(name, note, None))
    if expired:
        # If one was renewed meanwhile, all stay until the next call.
        metadata.change_notes(dataset_id, expired)
    return found


NOTE = "maintenance"
LEASE_S = 120
"""After a crash of its server, a job excludes others for at most this long."""
RENEWAL_S = 20.0
CLOCK_MARGIN_S = 3600
"""The lease of a change of a mirror ends this long after it expires, also by a server that has not seen it before."""


class Excluded(Unavailable):
    """Another job has the lease."""


class SeenLeases:
    """Since when a server has seen the leases of others unchanged: one that is not renewed for LEASE_S has ended, even
    if the clock of its server was ahead, so that it would expire as much later. Of one kind of jobs; thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[bytes, tuple[bytes, float]] = {}  # by dataset ID

    def is_stale(self, dataset_id: bytes, note: bytes) -> bool:
        """Whether a lease, the content of its note, has ended."""
        now_s = self._clock()
        seen = self._seen.get(dataset_id)
        if seen is None or seen[0] != note:
            seen = self._seen[dataset_id] = note, now_s
        return now_s - seen[1] >= LEASE_S


def take_lease(
    metadata: MetadataStore,
    dataset_id: bytes,
    holder: str,
    now_ns: int,
    note: str = NOTE,
    seen: SeenLeases | None = None,
    may_expire: bool = True,
    is_renewal: bool = False,
) -> None:
    """Take the lease, or renew it. `holder`: the job and its server, not the same for two jobs. `note`: of which kind
    of jobs one runs at a time. `seen`: by which the lease of another server ends before it expires. Without
    `may_expire`, it expires CLOCK_MARGIN_S later. `is_renewal`: take it from nobody, and only if it is not gone.

    Raises Excluded, which names the other holder, or for a renewal of a lease that is gone; NotFound without metadata
    of the dataset, and Unavailable.
    """

    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [note])
        if present is None and is_renewal:
            raise Excluded(f"{holder} has lost its lease; try again")
        if present is not None and (other := Lease.of(present)).value != holder.encode():
            end_ns = other.expires_ns + (0 if may_expire else CLOCK_MARGIN_S * 10**9)
            has_ended = end_ns <= now_ns or (seen is not None and seen.is_stale(dataset_id, present))
            if is_renewal or not has_ended:
                raise Excluded(
                    f"{other.value.decode('utf-8', 'replace')} is running on another server; "
                    "try again when it has ended"
                )
        lease = Lease(now_ns + LEASE_S * 10**9, holder.encode())
        return metadata.change_notes(dataset_id, [NoteChange(note, present, lease.note())])

    until_done(attempt, "the lease of maintenance")


def end_lease(metadata: MetadataStore, dataset_id: bytes, holder: str, note: str = NOTE) -> None:
    """Remove the lease, unless another job has it now. Raises NotFound."""

    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [note])
        if present is None or Lease.of(present).value != holder.encode():
            return True
        return metadata.change_notes(dataset_id, [NoteChange(note, present, None)])

    until_done(attempt, "the lease of maintenance")


PROGRESS_FOLDER = "job-progress/"
PROGRESS_S = 600
"""What a node has told about itself is kept for this long."""
PROGRESS_NODES_MAX = 512
"""Of a dataset. What further nodes tell is not kept."""


def put_progress(
    metadata: MetadataStore, dataset_id: bytes, member: str, user: str, progress: bytes, now_ns: int
) -> None:
    """Keep what a node tells, in place of the last; `member`: its name behind JOBS_FOLDER. A lost race is no loss: the
    next one comes. Removes those that have expired when there is a new node; keeps PROGRESS_NODES_MAX.
    """
    name = PROGRESS_FOLDER + member
    (present,) = metadata.notes(dataset_id, [name])
    lease = Lease(now_ns + PROGRESS_S * 10**9, user.encode() + b"\n" + progress)
    changes = [NoteChange(name, present, lease.note())]
    if present is None:
        found = metadata.notes_below(dataset_id, PROGRESS_FOLDER)
        expired = [old for old, note in found.items() if Lease.of(note).expires_ns <= now_ns]
        if len(found) - len(expired) >= PROGRESS_NODES_MAX:
            return
        changes += [NoteChange(old, found[old], None) for old in expired]
    metadata.change_notes(dataset_id, changes)


def remove_progress(metadata: MetadataStore, dataset_id: bytes, member: str) -> None:
    """Remove what a node has told. A lost race is no loss: it expires."""
    name = PROGRESS_FOLDER + member
    (present,) = metadata.notes(dataset_id, [name])
    if present is not None:
        metadata.change_notes(dataset_id, [NoteChange(name, present, None)])


def progress_of(
    metadata: MetadataStore, dataset_id: bytes, now_ns: int
) -> dict[str, tuple[str, bytes, float]]:
    """By the name of the member behind JOBS_FOLDER: user, what it has told, and how long ago in seconds."""
    found = {}
    for name, note in metadata.notes_below(dataset_id, PROGRESS_FOLDER).items():
        lease = Lease.of(note)
        if lease.expires_ns > now_ns:
            user, _, progress = lease.value.partition(b"\n")
            age_s = PROGRESS_S - (lease.expires_ns - now_ns) / 1e9
            found[name.removeprefix(PROGRESS_FOLDER)] = (
                user.decode("utf-8", "replace"),
                progress,
                max(age_s, 0.0),
            )
    return found


JOBS_FOLDER = "jobs/"
DIGEST_BYTES = 32

_HEAD = struct.Struct(f"<qqqq{DIGEST_BYTES}s")


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A member's sealed record, the snapshot that it reads, and the version of the list that it knows (0: none)."""

    sealed: bytes
    node: str
    generation: int
    digest: bytes
    known_version: int


@dataclass(frozen=True, slots=True)
class Head:
    """No lease expires before `due_ns`. Until `settles_ns`, members keep the list that they know."""

    due_ns: int
    version: int
    settles_ns: int
    members: int
    generation: int
    digest: bytes

    def note(self) -> bytes:
        fields = (self.version, self.settles_ns, self.members, self.generation, self.digest)
        return Lease(self.due_ns, _HEAD.pack(*fields)).note()

    @classmethod
    def of(cls, note: bytes) -> "Head":
        lease = Lease.of(note)
        version, settles_ns, members, generation, digest = _HEAD.unpack(lease.value)
        return cls(lease.expires_ns, version, settles_ns, members, generation, digest)


def interval_s(members: int) -> float:
    """The interval between requests of a member of a job of this size."""
    return max(JOB_INTERVAL_S_MIN, members / JOB_MESSAGES_PER_S)


def lease_ns(members: int) -> int:
    return int(max(JOB_LEASE_S_MIN, JOB_LEASE_INTERVALS * interval_s(members)) * 10**9)


Leases = Mapping[str, Lease]
"""By node."""


def with_member(
    head: Head | None, leases: Leases, request: JoinRequest, now_ns: int
) -> tuple[Head, dict[str, Lease]]:
    """The list with this member, and without expired ones.

    Raises AlreadyExists if the job reads another snapshot, or in another default order, or if the node has a new
    master; InvalidInput if there are too many members.
    """
    own = leases.get(request.node)
    others = {node: lease for node, lease in leases.items() if node != request.node}
    live = {node: lease for node, lease in others.items() if lease.expires_ns > now_ns}
    if head is not None and live and head.digest != request.digest:
        raise _differing(head, request)
    if request.known_version and own is not None and own.expires_ns > now_ns:
        _check_master(own, request)
    if len(live) >= JOB_NODES_MAX:
        raise InvalidInput(f"the job has {len(live)} nodes already, which is the limit")
    lease = Lease(now_ns + lease_ns(len(live) + 1), request.sealed)
    admitted_leases = {**live, request.node: lease}
    due_ns = min(each.expires_ns for each in admitted_leases.values())
    common = (len(admitted_leases), request.generation, request.digest)
    is_known = own is not None and own.value == request.sealed
    is_newest = head is not None and request.known_version <= head.version  # else a part of the notes is lost
    if head is not None and is_known and is_newest and len(live) == len(others):
        return replace(head, due_ns=due_ns), admitted_leases
    # By the clock, so that none comes back that a store has forgotten: a member may know it, with another list.
    version = max(now_ns, head.version + 1 if head else 0, request.known_version + 1)
    settles_ns = head.settles_ns if head else 0
    # If most leases have expired at once, the servers were away or have lost the list; the members still run. Until all
    # have renewed, each keeps the list it knows. In a large job they return one by one: each extends this time.
    is_doubtful = head is None or len(others) - len(live) > len(live)
    is_back = now_ns < settles_ns and (own is None or own.expires_ns <= now_ns)
    if request.known_version and (is_doubtful or is_back):
        settles_ns = max(settles_ns, lease.expires_ns)
    return Head(due_ns, version, settles_ns, *common), admitted_leases


def _differing(head: Head, request: JoinRequest) -> AlreadyExists:
    if have_same_snapshot(head.digest, request.digest):
        return AlreadyExists(
            f"node {request.node} has another version of dieselfs than the other nodes of the job, with another "
            "default order of files; install one version on all nodes"
        )
    return AlreadyExists(
        f"the job reads generation {head.generation}, and node {request.node} has generation "
        f"{request.generation}; set one generation for all nodes, with a tag or --generation"
    )


def _check_master(own: Lease, request: JoinRequest) -> None:
    present, caller = (Member.of(sealed[SEAL_BYTES:]) for sealed in (own.value, request.sealed))
    if present.incarnation != caller.incarnation:
        raise AlreadyExists(
            f"node {caller.node} of the job has a new master, rank {present.rank} at {present.address}; "
            "if that is another machine, give each its own name (--job-node)"
        )


def without_member(head: Head, leases: Leases, node: str) -> tuple[Head | None, dict[str, Lease]]:
    """The list without one member; without the last member there is no head."""
    left = {other: lease for other, lease in leases.items() if other != node}
    return (replace(head, version=head.version + 1, members=len(left)) if left else None), left


class JobMembers:
    """The membership list of one job. Every method raises NotFound if the dataset is gone, and Unavailable."""

    def __init__(self, metadata: MetadataStore, dataset_id: bytes, job: str, fingerprint: bytes) -> None:
        self._metadata = metadata
        self.dataset_id = dataset_id
        self._name = f"the membership list of job {job}"
        self._folder = f"{JOBS_FOLDER}{job}/{fingerprint.hex()}/"  # also the name of the head

    def renew(self, request: JoinRequest, now_ns: int) -> MembershipList | None:
        """The common case: extend the lease, without other changes. None if the caller must call `admit`."""
        name = self._folder + request.node
        head_note, own_note = self._metadata.notes(self.dataset_id, [self._folder, name])
        if head_note is None or own_note is None:
            return None
        head, own = Head.of(head_note), Lease.of(own_note)
        if own.value != request.sealed or head.digest != request.digest or head.due_ns <= now_ns:
            return None
        if head.version < request.known_version:  # a part of the notes is lost
            return None
        lease = Lease(now_ns + lease_ns(head.members), request.sealed)
        if not self._metadata.change_notes(self.dataset_id, [NoteChange(name, own_note, lease.note())]):
            return None
        if _is_up_to_date(head, request, now_ns):
            return _answer(request, head, {}, now_ns)
        head_now, leases = self._parsed(self._metadata.notes_below(self.dataset_id, self._folder))
        return None if head_now is None else _answer(request, head_now, leases, now_ns)

    def admit(self, request: JoinRequest, now_ns: int) -> MembershipList:
        """Add a member or renew its lease, and remove expired members.

        Raises as `with_member`, and InvalidInput if the dataset has too many jobs.
        """

        answers: list[MembershipList] = []

        def attempt() -> bool:
            before = self._metadata.notes_below(self.dataset_id, self._folder)
            if not before:
                self._make_room(now_ns)
            head, leases = with_member(*self._parsed(before), request, now_ns)
            answers[:] = [_answer(request, head, leases, now_ns)]
            return self._swap(before, head, leases)

        until_done(attempt, self._name)
        return answers[0]

    def remove(self, sealed: bytes, node: str) -> None:
        """Remove a member, if it is in the list with this sealed record."""

        def attempt() -> bool:
            before = self._metadata.notes_below(self.dataset_id, self._folder)
            head, leases = self._parsed(before)
            if head is None or node not in leases or leases[node].value != sealed:
                return True
            return self._swap(before, *without_member(head, leases, node))

        until_done(attempt, self._name)

    def _parsed(self, notes: Mapping[str, bytes]) -> tuple[Head | None, dict[str, Lease]]:
        head = notes.get(self._folder)
        leases = {name.removeprefix(self._folder): Lease.of(note) for name, note in notes.items()}
        leases.pop("", None)  # the head
        return (None if head is None else Head.of(head)), leases

    def _swap(self, before: Mapping[str, bytes], head: Head | None, leases: Leases) -> bool:
        after = {self._folder + node: lease.note() for node, lease in leases.items()}
        if head is not None:
            after[self._folder] = head.note()
        names = sorted(before.keys() | after.keys())
        changes = [NoteChange(name, before.get(name), after.get(name)) for name in names]
        changed = [change for change in changes if change.expected != change.value]
        return self._metadata.change_notes(self.dataset_id, changed)

    def _make_room(self, now_ns: int) -> None:
        """Remove jobs whose leases have all expired, before a new job. Raises InvalidInput if there are too many."""
        jobs: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        for name, note in self._metadata.notes_below(self.dataset_id, JOBS_FOLDER).items():
            jobs[name.rpartition("/")[0]][name] = note
        for job, notes in list(jobs.items()):
            if all(Lease.of(note).expires_ns <= now_ns for note in notes.values()):
                gone = [NoteChange(name, note, None) for name, note in notes.items()]
                # Fails if the job has just renewed a lease.
                self._metadata.change_notes(self.dataset_id, gone)
                del jobs[job]
        if len(jobs) >= JOBS_MAX:
            raise InvalidInput(f"{len(jobs)} jobs read this dataset already, which is the limit")


def _answer(request: JoinRequest, head: Head, leases: Leases, now_ns: int) -> MembershipList:
    if _is_up_to_date(head, request, now_ns):
        return MembershipList(request.known_version, interval_s(head.members), None)
    members = tuple(leases[node].value for node in sorted(leases))
    return MembershipList(head.version, interval_s(head.members), members)


def _is_up_to_date(head: Head, request: JoinRequest, now_ns: int) -> bool:
    is_settling = now_ns < head.settles_ns and request.known_version > 0
    return is_settling or head.version == request.known_version
