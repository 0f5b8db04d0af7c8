"""The roll of a job: its members, each with a lease, among the notes of the dataset. Blocks.

Members renew their leases again and again and hear what changed; how often, the roll says, so that a large job asks
the servers no more often than a small one. The *head* of the roll has what all agree on, and a version that rises with
every change. It also says when the first lease may end: only then are all of them looked at.

A job of one name and another secret is another job. Its roll is gone when its last lease is.
"""

import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dieselfs.cache.member import Member
from dieselfs.cache.roll import Roll
from dieselfs.cache.secret import SEAL_BYTES
from dieselfs.errors import AlreadyExists, InvalidInput
from dieselfs.limits import (
    JOB_INTERVAL_S_MIN,
    JOB_LEASE_INTERVALS,
    JOB_LEASE_S_MIN,
    JOB_MESSAGES_PER_S,
    JOB_NODES_MAX,
    JOBS_MAX,
)
from dieselfs.meta.records import NoteChange
from dieselfs_server.leases import Lease, until_done
from dieselfs_server.metadata.interface import MetadataStore

FOLDER = "jobs/"
DIGEST_BYTES = 32

_HEAD = struct.Struct(f"<qqqq{DIGEST_BYTES}s")


@dataclass(frozen=True, slots=True)
class Application:
    """What a member says whenever it asks: who it is, what it reads, which version of the roll it knows (0: none)."""

    sealed: bytes
    node: str
    generation: int
    digest: bytes
    known_version: int


@dataclass(frozen=True, slots=True)
class Head:
    """Before `due_ns` no lease ends. Until `settles_ns`, members keep the roll that they know."""

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
    """After how long a member of a job of this size asks again."""
    return max(JOB_INTERVAL_S_MIN, members / JOB_MESSAGES_PER_S)


def lease_ns(members: int) -> int:
    return int(max(JOB_LEASE_S_MIN, JOB_LEASE_INTERVALS * interval_s(members)) * 10**9)


Leases = Mapping[str, Lease]
"""By node."""


def admitted(
    head: Head | None, leases: Leases, application: Application, now_ns: int
) -> tuple[Head, dict[str, Lease]]:
    """The roll with this member on it, and without those whose leases have ended.

    Raises AlreadyExists if the others read another snapshot, or if the node has a new master; InvalidInput if there are
    too many members.
    """
    own = leases.get(application.node)
    others = {node: lease for node, lease in leases.items() if node != application.node}
    live = {node: lease for node, lease in others.items() if lease.expires_ns > now_ns}
    if head is not None and live and head.digest != application.digest:
        raise AlreadyExists(
            f"the job reads generation {head.generation}, and node {application.node} has generation "
            f"{application.generation}: all nodes of a job read the same one; name it, as a tag or with --generation"
        )
    if application.known_version and own is not None and own.expires_ns > now_ns:
        _check_master(own, application)
    if len(live) >= JOB_NODES_MAX:
        raise InvalidInput(f"the job has {len(live)} nodes already, and cannot have more")
    lease = Lease(now_ns + lease_ns(len(live) + 1), application.sealed)
    admitted_leases = {**live, application.node: lease}
    due_ns = min(each.expires_ns for each in admitted_leases.values())
    common = (len(admitted_leases), application.generation, application.digest)
    is_known = own is not None and own.value == application.sealed
    if head is not None and is_known and len(live) == len(others):
        return replace(head, due_ns=due_ns), admitted_leases
    version = max(head.version + 1 if head else now_ns, application.known_version + 1)
    settles_ns = head.settles_ns if head else 0
    # Most members do not die at one moment: the servers were away, or have lost the roll. Those who come back do not
    # believe meanwhile that they are alone. In a large job they come one after the other: each prolongs it.
    is_doubtful = head is None or len(others) - len(live) > len(live)
    is_back = now_ns < settles_ns and (own is None or own.expires_ns <= now_ns)
    if application.known_version and (is_doubtful or is_back):
        settles_ns = max(settles_ns, lease.expires_ns)
    return Head(due_ns, version, settles_ns, *common), admitted_leases


def _check_master(own: Lease, application: Application) -> None:
    present, caller = (Member.of(sealed[SEAL_BYTES:]) for sealed in (own.value, application.sealed))
    if present.incarnation != caller.incarnation:
        raise AlreadyExists(
            f"node {caller.node} of the job has a new master, rank {present.rank} at {present.address}; "
            "if that is another machine, give each its own name (--job-node)"
        )


def dismissed(head: Head, leases: Leases, node: str) -> tuple[Head | None, dict[str, Lease]]:
    """The roll without a member that leaves. Without its last member there is none."""
    left = {other: lease for other, lease in leases.items() if other != node}
    return (replace(head, version=head.version + 1, members=len(left)) if left else None), left


class JobRoll:
    """The roll of one job. Every method raises NotFound if the dataset is gone, and Unavailable."""

    def __init__(self, metadata: MetadataStore, dataset_id: bytes, job: str, fingerprint: bytes) -> None:
        self._metadata = metadata
        self._dataset_id = dataset_id
        self._name = f"the roll of job {job}"
        self._folder = f"{FOLDER}{job}/{fingerprint.hex()}/"  # which is also the name of the head

    def renew(self, application: Application, now_ns: int) -> Roll | None:
        """What nearly every call is: the lease goes on, and nothing has changed. None if it is not so simple."""
        name = self._folder + application.node
        head_note, own_note = self._metadata.notes(self._dataset_id, [self._folder, name])
        if head_note is None or own_note is None:
            return None
        head, own = Head.of(head_note), Lease.of(own_note)
        if own.value != application.sealed or head.digest != application.digest or head.due_ns <= now_ns:
            return None
        lease = Lease(now_ns + lease_ns(head.members), application.sealed)
        if not self._metadata.change_notes(self._dataset_id, [NoteChange(name, own_note, lease.note())]):
            return None
        if _is_up_to_date(head, application, now_ns):
            return _roll_for(application, head, {}, now_ns)
        head_now, leases = self._parsed(self._metadata.notes_below(self._dataset_id, self._folder))
        return None if head_now is None else _roll_for(application, head_now, leases, now_ns)

    def admit(self, application: Application, now_ns: int) -> Roll:
        """Put a member on the roll, or renew its lease, and take those off whose leases have ended.

        Raises as `admitted`, and InvalidInput if the dataset has too many jobs.
        """

        told: list[Roll] = []

        def attempt() -> bool:
            before = self._metadata.notes_below(self._dataset_id, self._folder)
            if not before:
                self._make_room(now_ns)
            head, leases = admitted(*self._parsed(before), application, now_ns)
            told[:] = [_roll_for(application, head, leases, now_ns)]
            return self._swap(before, head, leases)

        until_done(attempt, self._name)
        return told[0]

    def dismiss(self, sealed: bytes, node: str) -> None:
        """Take a member off the roll; without error if it is not on it, or if its node has another master."""

        def attempt() -> bool:
            before = self._metadata.notes_below(self._dataset_id, self._folder)
            head, leases = self._parsed(before)
            if head is None or node not in leases or leases[node].value != sealed:
                return True
            return self._swap(before, *dismissed(head, leases, node))

        until_done(attempt, self._name)

    def _parsed(self, notes: Mapping[str, bytes]) -> tuple[Head | None, dict[str, Lease]]:
        head = notes.get(self._folder)
        leases = {
            name.removeprefix(self._folder): Lease.of(note)
            for name, note in notes.items()
            if name != self._folder
        }
        return (None if head is None else Head.of(head)), leases

    def _swap(self, before: Mapping[str, bytes], head: Head | None, leases: Leases) -> bool:
        after = {self._folder + node: lease.note() for node, lease in leases.items()}
        if head is not None:
            after[self._folder] = head.note()
        names = sorted(before.keys() | after.keys())
        changes = [NoteChange(name, before.get(name), after.get(name)) for name in names]
        changed = [change for change in changes if change.expected != change.value]
        return self._metadata.change_notes(self._dataset_id, changed)

    def _make_room(self, now_ns: int) -> None:
        """A new job begins: remove what is left of jobs that ended without a word. Raises InvalidInput."""
        jobs: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        for name, note in self._metadata.notes_below(self._dataset_id, FOLDER).items():
            jobs[name.rpartition("/")[0]][name] = note
        for job, notes in list(jobs.items()):
            if all(Lease.of(note).expires_ns <= now_ns for note in notes.values()):
                gone = [NoteChange(name, note, None) for name, note in notes.items()]
                self._metadata.change_notes(self._dataset_id, gone)  # not done: it has just come back
                del jobs[job]
        if len(jobs) >= JOBS_MAX:
            raise InvalidInput(f"{len(jobs)} jobs read this dataset just now, and no more can")


def _roll_for(application: Application, head: Head, leases: Leases, now_ns: int) -> Roll:
    """What this member is told."""
    if _is_up_to_date(head, application, now_ns):
        return Roll(application.known_version, interval_s(head.members), None)
    members = tuple(leases[node].value for node in sorted(leases))
    return Roll(head.version, interval_s(head.members), members)


def _is_up_to_date(head: Head, application: Application, now_ns: int) -> bool:
    is_settling = now_ns < head.settles_ns and application.known_version > 0
    return is_settling or head.version == application.known_version
