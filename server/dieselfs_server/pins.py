"""Pins: who reads which generation of a dataset, so that no purge takes its chunks away. Blocks."""

import struct
from dataclasses import dataclass

from dieselfs.meta.records import NoteChange
from dieselfs_server.leases import Lease, until_done
from dieselfs_server.metadata.interface import MetadataStore

FOLDER = "pins/"

_GENERATION = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class Pin:
    """A reader who uses the snapshot of a generation (and when that was made, since 1970) until its lease expires."""

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
    """Keep a pin until it expires, in place of an earlier one of the same holder. Raises NotFound."""
    _write(metadata, dataset_id, pin.holder, pin.note())


def remove_pin(metadata: MetadataStore, dataset_id: bytes, holder: str) -> None:
    """Forget a pin. Without error if there is none. Raises NotFound if there is no such dataset."""
    _write(metadata, dataset_id, holder, None)


def _write(metadata: MetadataStore, dataset_id: bytes, holder: str, note: bytes | None) -> None:
    def attempt() -> bool:
        (present,) = metadata.notes(dataset_id, [FOLDER + holder])
        return metadata.change_notes(dataset_id, [NoteChange(FOLDER + holder, present, note)])

    until_done(attempt, f"the pin of {holder!r}")


def live_pins(metadata: MetadataStore, dataset_id: bytes, now_ns: int) -> list[Pin]:
    """The pins that have not expired at `now_ns`, ordered by holder; the others are removed. Raises NotFound."""
    found: list[Pin] = []
    expired: list[NoteChange] = []
    for name, note in metadata.notes_below(dataset_id, FOLDER).items():
        pin = Pin.of(name.removeprefix(FOLDER), note)
        if pin.expires_ns > now_ns:
            found.append(pin)
        else:
            expired.append(NoteChange(name, note, None))
    if expired:
        metadata.change_notes(dataset_id, expired)  # not done: one was renewed just now; they go next time
    return found
