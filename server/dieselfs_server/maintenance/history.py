"""When the data of a store were last copied, checked and purged. This module reads and writes a record of the store.

The record is for people alone. Of two changes at the same time, one may be lost.
"""

import logging

import msgpack

from dieselfs.errors import DieselfsError
from dieselfs_server.store.interface import ObjectStore

HISTORY_RECORD = "maintenance-history"
BACKUP, FSCK, PURGE = "backup", "fsck", "purge"
KINDS = {BACKUP: "backup", FSCK: "fsck of a dataset", PURGE: "purge of a dataset"}
"""With what each is called."""
_TIME_S_MAX = 1 << 40

log = logging.getLogger(__name__)


def note(store: ObjectStore, kind: str, now_s: float) -> None:
    """Note that a job of a kind of KINDS has ended. Blocks; an error goes to the log, as the job itself is done."""
    try:
        times_s = {**last_times_s(store), kind: int(now_s)}
        store.put_record(HISTORY_RECORD, msgpack.packb(times_s))
    except DieselfsError as error:
        log.warning("the time of this %s is not noted: %s", kind, error)


def last_times_s(store: ObjectStore) -> dict[str, int]:
    """Seconds since 1970 of the last job of each kind that has run; of a record of another form, none. Blocks.

    Raises Unavailable.
    """
    content = store.get_record(HISTORY_RECORD)
    try:
        found = msgpack.unpackb(content or b"\x80")
    except (ValueError, msgpack.UnpackException):
        return {}
    if not isinstance(found, dict):
        return {}
    times_s = ((kind, found.get(kind)) for kind in KINDS)
    return {kind: time_s for kind, time_s in times_s if isinstance(time_s, int) and 0 <= time_s < _TIME_S_MAX}
