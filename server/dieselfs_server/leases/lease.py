"""Leases: notes of a dataset that expire, by the server's clock. Blocks.

Readers have pins on generations, and a purge keeps the chunks that these need. A maintenance job excludes others on all
servers of a store by a lease that its server renews; servers whose clocks differ by more than LEASE_S can exclude each
other no longer. `job_members.py` has the members of jobs.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.records import NoteChange
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


FOLDER = "pins/"
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


def put_pin(metadata: MetadataStore, dataset_id: bytes, pin: Pin) -> None:
    """Store a pin, instead of an earlier one of the same holder. Raises NotFound."""
    _write(metadata, dataset_id, pin.holder, pin.note())


def put_pin_of(metadata: MetadataStore, dataset_id: bytes, user: str, pin: Pin, now_ns: int) -> None:
    """As `put_pin`, for a pin whose holder begins with `USER/`. Raises InvalidInput for too many of one user."""
    prefix = f"{user}/"
    if metadata.notes(dataset_id, [FOLDER + pin.holder]) == [None]:
        found = len(metadata.notes_below(dataset_id, FOLDER + prefix))
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
        (present,) = metadata.notes(dataset_id, [FOLDER + holder])
        return metadata.change_notes(dataset_id, [NoteChange(FOLDER + holder, present, note)])

    until_done(attempt, f"the pin of {holder!r}")


def shown_pins(pins: Iterable[Pin], user: str, right: Right) -> list[Pin]:
    """What a user with this right may see. Holders name users, machines and folders, so readers see only their own."""
    return [pin for pin in pins if right >= Right.WRITE or pin.holder.startswith(f"{user}/")]


def live_pins(metadata: MetadataStore, dataset_id: bytes, now_ns: int) -> list[Pin]:
    """The pins that have not expired at `now_ns`, ordered by holder. Removes expired ones. Raises NotFound."""
    found: list[Pin] = []
    expired: list[NoteChange] = []
    for name, note in metadata.notes_below(dataset_id, FOLDER).items():
        pin = Pin.of(name.removeprefix(FOLDER), note)
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


class Excluded(Unavailable):
    """Another job has the lease."""


def take_lease(metadata: MetadataStore, dataset_id: bytes, holder: str, now_ns: int) -> None:
    """Take the lease, or renew it. `holder`: the job and its server, not the same for two jobs.

    Raises Excluded, which names the other holder, NotFound without metadata of the dataset, and Unavailable.
    """

    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [NOTE])
        if present is not None:
            other = Lease.of(present)
            if other.expires_ns > now_ns and other.value != holder.encode():
                raise Excluded(
                    f"{other.value.decode('utf-8', 'replace')} is running on another server; "
                    "try again when it has ended"
                )
        lease = Lease(now_ns + LEASE_S * 10**9, holder.encode())
        return metadata.change_notes(dataset_id, [NoteChange(NOTE, present, lease.note())])

    until_done(attempt, "the lease of maintenance")


def end_lease(metadata: MetadataStore, dataset_id: bytes, holder: str) -> None:
    """Remove the lease, unless another job has it now. Raises NotFound."""

    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [NOTE])
        if present is None or Lease.of(present).value != holder.encode():
            return True
        return metadata.change_notes(dataset_id, [NoteChange(NOTE, present, None)])

    until_done(attempt, "the lease of maintenance")
