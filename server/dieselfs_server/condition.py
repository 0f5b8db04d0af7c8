"""The checks of a server for `dlcmd doctor`: its stores and their disks, TLS, and etcd. This module writes a record to
the store, reads `/sys`, and opens connections.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from dieselfs.errors import DieselfsError
from dieselfs.etcd.client import Etcd
from dieselfs.etcd.keys import CONFIG_PREFIX
from dieselfs.limits import CHUNK_TARGET_BYTES, KIB
from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
from dieselfs.settings.table import OFF
from dieselfs.units import count, format_duration, format_size
from dieselfs_server.access.accounts import Accounts
from dieselfs_server.access.identity import LiveIdentity
from dieselfs_server.access.users import UserStore
from dieselfs_server.admission.room import Room, reserve_bytes
from dieselfs_server.datasets.references import References
from dieselfs_server.maintenance import history
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.settings import RegistrySettings
from dieselfs_server.store.interface import ObjectStore

DEVICES = Path("/sys/dev/block")
"""The block devices by number; partitions are folders in that of their disk."""


class DiskReads(NamedTuple):
    """Of a disk: the file with the kernel's read-ahead, what it has, and the largest request, in bytes."""

    setting: Path
    read_ahead_bytes: int
    request_bytes: int


def disk_reads(folder: str, devices: Path = DEVICES) -> DiskReads | None:
    """Of the disk that `folder` is on. None for a file system without one, such as NFS, or if it is unknown."""
    try:
        device = os.stat(folder).st_dev
        place = (devices / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        queue = next(each / "queue" for each in (place, place.parent) if (each / "queue").is_dir())
        lengths = (int((queue / name).read_text()) * KIB for name in ("read_ahead_kb", "max_sectors_kb"))
        return DiskReads(queue / "read_ahead_kb", *lengths)
    except (OSError, ValueError, StopIteration):
        return None


SLOW_STORE_S = 2.0
"""A write, a read and a removal of a small record that take longer are worth a warning."""
STEP_BYTES_MIN = 512 * KIB
"""The kernel reads a chunk in steps of its read-ahead or of the largest request, whichever is larger. It waits for one
before the next, so smaller ones are slow on disks behind a network.
"""
EXPIRY_S = 30 * 24 * 3600
"""A certificate or a key that expires earlier is worth a warning."""
FREE_SHARE_MIN = 0.05
"""Of a disk; with less free, it is worth a warning."""
FILL_SHARE = 0.8
"""A quota that is fuller is worth a warning."""
BACKUP_AGE_MAX_S = 3 * 24 * 3600
"""Where copies are made, an older last one is worth a warning."""
NAMED_MAX = 3
"""Quotas and keys in one line."""


def checks(
    store: ObjectStore, metadata: MetadataStore, others: Sequence[Callable[[], CheckRecord]]
) -> tuple[CheckRecord, ...]:
    """All checks. One that cannot be made is a failure."""
    found = [object_store(store)]
    try:
        found += metadata.condition()
    except DieselfsError as error:
        found.append(CheckRecord("metadata", FAILURE, str(error), "see the log of the server"))
    return (*found, *(check() for check in others))


def object_store(store: ObjectStore, clock: Callable[[], float] = time.monotonic) -> CheckRecord:
    """Write a record of a new name, read it, and remove it."""
    name, content = f"doctor-{secrets.token_hex(8)}", secrets.token_bytes(64)
    began_s = clock()
    step = "written"
    try:
        store.put_record(name, content)
        step = "read"
        found = store.get_record(name)
        step = "removed"
        store.delete_record(name)
        is_left = store.get_record(name) is not None
        step, left = "listed", len(References(store).remains())
    except DieselfsError as error:
        return CheckRecord(
            "store",
            FAILURE,
            f"a record cannot be {step}: {error}",
            "give the server the rights to read, write and delete in the store",
        )
    if found != content or is_left:
        what = "is not what was written" if found != content else "is still there after its removal"
        return CheckRecord(
            "store", FAILURE, f"a record {what}", "use a store that is consistent, without a cache before it"
        )
    took_s = clock() - began_s
    text = f"wrote, read and removed a record in {took_s * 1000:,.1f} ms"
    if left:
        text += f"; chunks of {count(left, 'removed dataset')} stay, as copies use their bytes"
    if took_s > SLOW_STORE_S:
        return CheckRecord("store", WARNING, text, "look at the network to the store, and at its load")
    return CheckRecord("store", OK, text)


def disk(folder: str, devices: Path = DEVICES) -> CheckRecord:
    """How the kernel reads chunks in `folder`."""
    reads = disk_reads(folder, devices)
    if reads is None:
        return CheckRecord("disk", OK, f"{folder}: its read-ahead is not known")
    step_bytes = max(reads.read_ahead_bytes, reads.request_bytes)
    text = f"{folder}: read-ahead of {format_size(reads.read_ahead_bytes)}"
    fix = f"as root: echo {CHUNK_TARGET_BYTES // KIB} > {reads.setting}"
    if reads.read_ahead_bytes == 0:
        return CheckRecord("disk", WARNING, f"{text}: each page of 4 KiB is a request of its own", fix)
    if step_bytes < STEP_BYTES_MIN:
        steps = count(CHUNK_TARGET_BYTES // step_bytes, "step")
        return CheckRecord("disk", WARNING, f"{text}: a chunk is read in {steps}, one after the other", fix)
    return CheckRecord("disk", OK, f"{text}, requests of {format_size(reads.request_bytes)}")


def identity(known: LiveIdentity) -> CheckRecord:
    """Whether this server signs with the identity of the store."""
    if known.trouble:
        return CheckRecord(
            "identity", FAILURE, known.trouble, "give this server the key, as the others have it"
        )
    return CheckRecord("identity", OK, f"the one of the store, {known.current.pin.hex()[:16]}")


def tls(setting: str, certificate: str | None, now_s: float) -> CheckRecord:
    """Of a server that listens on TCP. `certificate`: the file, None for the one of the store's identity."""
    if setting == OFF:
        text = "off: anyone on the network path can read and change everything"
        return CheckRecord("tls", WARNING, text, "set tls = on for the server, and for its clients")
    if certificate is None:
        return CheckRecord("tls", OK, "the certificate of the store's identity, which does not expire")
    from cryptography import x509  # by servers with a certificate alone

    try:
        ends = x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        return CheckRecord("tls", FAILURE, f"{certificate}: {error}", "set tls_certificate to a PEM file")
    left_s = (ends - datetime.fromtimestamp(now_s, UTC)).total_seconds()
    text = f"the certificate {certificate} is valid until {ends:%Y-%m-%d}"
    fix = "renew it; the server reads the new files by itself"
    if left_s <= 0:
        return CheckRecord("tls", FAILURE, f"the certificate {certificate} expired on {ends:%Y-%m-%d}", fix)
    return CheckRecord("tls", WARNING, text, fix) if left_s < EXPIRY_S else CheckRecord("tls", OK, text)


def limits(
    room: Room,
    quotas: Callable[[], Sequence[tuple[tuple[str, str], float]]],
    users: UserStore,
    now_s: Callable[[], float],
) -> tuple[Callable[[], CheckRecord], ...]:
    """The checks of what runs out. `quotas`: account and kind of each, with the share that is used."""
    return (
        lambda: disk_room(room),
        lambda: _asked("quotas", lambda: quota_room(quotas())),
        lambda: keys(users.current(), now_s()),
    )


def _asked(name: str, check: Callable[[], CheckRecord]) -> CheckRecord:
    try:
        return check()
    except DieselfsError as error:
        return CheckRecord(name, FAILURE, str(error), "see the log of the server")


def disk_room(room: Room) -> CheckRecord:
    """The free bytes of the disks that the server writes to."""
    disks = {disk: folder for folder, disk in room.disks()}
    text = ", ".join(
        f"{format_size(disk.free_bytes)} of {format_size(disk.total_bytes)} free at {folder}"
        for disk, folder in disks.items()
    )
    fix = "delete files (dlcmd rm), free their room (dlcmd purge), or enlarge the disk"
    if any(disk.free_bytes < reserve_bytes(disk) for disk in disks):
        return CheckRecord("room", FAILURE, f"no more files are stored: {text}", fix)
    if any(
        disk.free_bytes < max(FREE_SHARE_MIN * disk.total_bytes, 2 * reserve_bytes(disk)) for disk in disks
    ):
        return CheckRecord("room", WARNING, text, fix)
    return CheckRecord("room", OK, text or "the store says nothing about its room")


def quota_room(quotas: Sequence[tuple[tuple[str, str], float]]) -> CheckRecord:
    """How full the quotas are."""
    full = [f"{kind} of {account}: {share:.0%}" for (account, kind), share in quotas if share >= FILL_SHARE]
    if full:
        fix = "raise them (dlcmd quota set), or let their owners delete files"
        return CheckRecord("quotas", WARNING, _first("nearly full", full), fix)
    return CheckRecord("quotas", OK, f"{count(len(quotas), 'limit')}, each below {FILL_SHARE:.0%}")


def keys(accounts: Accounts, now_s: float) -> CheckRecord:
    """The users whose last key expires soon: tokens, and keys that have a successor, expire as they should."""
    soon = []
    for user, found in accounts.users.items():
        lasting = [key.expires_s or math.inf for key in found.keys.values() if not key.grants]
        end_s = max(lasting, default=0.0)
        if now_s < end_s < now_s + EXPIRY_S:
            soon.append((end_s, f"that of {user} on {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d}"))
    if soon:
        text = _first("the last key expires soon", [named for _, named in sorted(soon)])
        return CheckRecord("keys", WARNING, text, "the user makes another one: dlcmd user rotate")
    return CheckRecord("keys", OK, f"no last key of a user expires within {EXPIRY_S // 86400} days")


def maintenance(store: ObjectStore, now_s: float) -> CheckRecord:
    """When the data were last copied, checked and purged. Copies that were made once should be made on."""
    return _asked("maintenance", lambda: _maintenance(history.last_times_s(store), now_s))


def _maintenance(last_s: Mapping[str, int], now_s: float) -> CheckRecord:
    text = ", ".join(
        f"last {job} {format_duration(max(now_s - last_s[kind], 0))} ago"
        if kind in last_s
        else f"no {job} yet"
        for kind, job in history.KINDS.items()
    )
    copied_s = last_s.get(history.BACKUP, now_s)
    if now_s - copied_s > BACKUP_AGE_MAX_S:
        fix = "look at the timer dieselfs-backup: see 'Back up' in docs/guide/recovery.md"
        return CheckRecord("maintenance", WARNING, text, fix)
    return CheckRecord("maintenance", OK, text)


def _first(what: str, found: Sequence[str]) -> str:
    more = f", and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return f"{what}: {', '.join(found[:NAMED_MAX])}{more}"


def etcd(registry: RegistrySettings) -> CheckRecord:
    """Whether etcd answers, and who may change it."""
    try:
        Etcd(registry.etcd, registry.access).values(CONFIG_PREFIX)
    except DieselfsError as error:
        text = f"{error}; running servers and clients still work, new ones cannot start"
        return CheckRecord("etcd", FAILURE, text, "start etcd, or look at the network to it")
    if danger := registry.danger():
        return CheckRecord(
            "etcd", WARNING, f"{registry.etcd} {danger}", "see 'etcd' in docs/guide/several-servers.md"
        )
    return CheckRecord("etcd", OK, f"{registry.etcd} answers")
