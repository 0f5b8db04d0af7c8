"""Opens the object store of a URL, with limits and retries.

`STORES` is the registry: a new store is its module and one row. `dieselfs/bucket/url.py` has the kinds of buckets.
"""

import os
import random
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from dieselfs.bucket.client import BUCKET_TIMEOUT_S
from dieselfs.bucket.url import FORMS as BUCKET_FORMS
from dieselfs.errors import InvalidInput
from dieselfs.limits import REQUEST_TIMEOUT_S
from dieselfs.net.address import path_of, split
from dieselfs.telemetry.registry import Registry
from dieselfs.units import parse_size
from dieselfs_server.store.bucket import BucketStore, check_exclusive
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.large_reads import LargeReads
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.rados import RadosStore
from dieselfs_server.store.rados_pool import OPERATION_TIMEOUT_S
from dieselfs_server.store.tiered import TieredStore
from dieselfs_server.store.wrapper import Bounds, LimitedStore, RetryingStore, RetryPolicy, open_marked

_ATTEMPT_S_MAX = max(OPERATION_TIMEOUT_S, BUCKET_TIMEOUT_S)
assert RetryPolicy().duration_s_max + Bounds().wait_s_max + _ATTEMPT_S_MAX < REQUEST_TIMEOUT_S
"""A store that hangs is reported to the client before the request of the client times out."""

FAST_WAIT_S_MAX = 0.5
"""Timeout of a call that waits for the fast tier; the slow one then serves it."""


class StoreKind(NamedTuple):
    """A row of the registry."""

    form: str
    """The URL, for messages."""
    open: Callable[[str, bool], ObjectStore]
    """Gets the URL, and whether the store is new."""
    check: Callable[[ObjectStore, str], None] | None = None
    """Raises InvalidInput for a store, by its URL, that lacks what writers need."""
    is_new: bool = False
    """Whether each start makes a new store."""
    is_folder: bool = False
    """Whether the path of the URL is a folder of a local file system."""


STORES: Mapping[str, StoreKind] = {
    "posix": StoreKind("posix:///PATH", PosixStore.open, is_folder=True),
    "rados": StoreKind("rados://POOL?conf=FILE&user=client.NAME", RadosStore.open),
    **{kind: StoreKind(form, BucketStore.open, check_exclusive) for kind, form in BUCKET_FORMS.items()},
    "memory": StoreKind("memory:", MemoryStore.open, is_new=True),
}
"""By the scheme of the URL. Two stores make a tiered one."""

TIERED_FORM = "tiered:fast=URL,slow=URL,size=200GiB"
_TIER_OPTIONS = ("fast", "slow", "size")


def open_store(
    url: str,
    is_new: bool,
    bounds: Bounds | None = None,
    metrics: Registry | None = None,
    large_reads: LargeReads | None = None,
) -> ObjectStore:
    """The object store at `url`; each backend has its own limits and retries. `is_new` creates a missing marker.
    `bounds` and `large_reads`: the limits, except those of the fast one of two stores. `metrics`: gets retries, and
    what tiers do.

    Raises InvalidInput for an invalid URL, Unavailable or NotFound if the store cannot be used or has no marker.
    """
    scheme = split(url).scheme
    if scheme == "tiered":
        fast_url, slow_url, size_bytes = tier_options(url)
        # No retries: what the fast tier cannot serve at once, the slow one serves. It may be lost at any time, so it
        # always counts as new; its marker stops copies to a folder whose file system is unmounted later.
        fast = LimitedStore(_kind_of(fast_url).open(fast_url, True), Bounds(wait_s_max=FAST_WAIT_S_MAX))
        with ExitStack() as opened:
            opened.callback(fast.close)
            marked = open_marked(fast, fast_url, is_new=True)
            slow = _guarded(slow_url, is_new, bounds, metrics, large_reads)
            opened.pop_all()
        return TieredStore(marked, slow, size_bytes, metrics=metrics)
    return _guarded(url, is_new, bounds, metrics, large_reads)


def open_unmarked(url: str) -> ObjectStore:
    """The durable store at `url`, with or without its marker: to put lost records back. Raises as `open_store`."""
    durable_url = tier_options(url)[1] if split(url).scheme == "tiered" else url
    return _patient(_kind_of(durable_url).open(durable_url, False), None)


def folders(url: str) -> list[str]:
    """The folders of local file systems in which the store at `url` keeps its chunks; none for others."""
    if split(url).scheme == "tiered":
        return [folder for each in tier_options(url)[:2] for folder in folders(each)]
    return [path_of(url)] if _kind_of(url).is_folder else []


_PARALLEL = frozenset(
    (
        *("lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "glusterfs", "wekafs", "panfs", "pvfs2"),
        *("fuse.ceph-fuse", "fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.orangefs"),
    )
)
"""File systems over many disks: they serve many large reads at a time."""


def is_one_disk(url: str) -> bool:
    """Whether the durable store at `url` is a folder of a file system that is not known to be parallel."""
    durable_url = tier_options(url)[1] if split(url).scheme == "tiered" else url
    return any(file_system_of(folder) not in _PARALLEL for folder in folders(durable_url))


def file_system_of(folder: str) -> str:
    """The type of the file system of a folder, as in /proc/self/mountinfo; empty if it has no line there."""
    number = os.stat(folder).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ", 3)[2] == device:
            return after.split(" ", 1)[0]
    return ""


def _patient(
    backend: ObjectStore,
    bounds: Bounds | None,
    metrics: Registry | None = None,
    large_reads: LargeReads | None = None,
) -> ObjectStore:
    # Retries outside of the limits: a call that waits for its retry holds no token.
    limited = LimitedStore(backend, bounds or Bounds(), large_reads)
    return RetryingStore(limited, RetryPolicy(), random.Random(), metrics=metrics)


def _guarded(
    url: str, is_new: bool, bounds: Bounds | None, metrics: Registry | None, large_reads: LargeReads | None
) -> ObjectStore:
    kind = _kind_of(url)
    store = _patient(kind.open(url, is_new), bounds, metrics, large_reads)
    with ExitStack() as opened:
        opened.callback(store.close)
        marked = open_marked(store, url, is_new or kind.is_new, kind.is_folder)
        if kind.check is not None:
            kind.check(marked, url)
        opened.pop_all()
    return marked


def _kind_of(url: str) -> StoreKind:
    kind = STORES.get(split(url).scheme)
    if kind is None:
        forms = (*(kind.form for kind in STORES.values()), TIERED_FORM)
        raise InvalidInput(f"store {url!r}: unknown kind of store; use {', '.join(forms)}")
    return kind


def tier_options(url: str) -> tuple[str, str, int]:
    """The URLs of the fast and the slow store of a `tiered:` URL, and the capacity of the fast one in bytes.

    URLs may contain commas. Raises InvalidInput unless each option is given once.
    """
    texts = re.split(rf",(?=(?:{'|'.join(_TIER_OPTIONS)})=)", url.removeprefix("tiered:"))
    pairs = [(name, value) for name, _, value in (text.partition("=") for text in texts)]
    if sorted(name for name, _ in pairs) != sorted(_TIER_OPTIONS):
        raise InvalidInput(f"store {url!r}: give each option once: {TIERED_FORM}")
    options = dict(pairs)
    try:
        size_bytes = parse_size(options["size"])
    except InvalidInput as error:
        raise InvalidInput(f"store {url!r}: size: {error}") from None
    if size_bytes == 0:
        raise InvalidInput(f"store {url!r}: size must be more than 0, for example 200GiB")
    return options["fast"], options["slow"], size_bytes
