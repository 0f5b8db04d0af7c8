"""Opens the object store of a URL, with limits and retries.

posix:///PATH
rados://POOL?conf=/etc/ceph/ceph.conf&user=client.dieselfs
s3://BUCKET/PREFIX?endpoint=URL&region=NAME&profile=NAME, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX
tiered:fast=URL,slow=URL,size=200GiB
memory:
"""

import os
import random
import re
from contextlib import ExitStack
from urllib.parse import parse_qsl, unquote

from dieselfs.bucket.client import BUCKET_TIMEOUT_S, Bucket
from dieselfs.bucket.url import BucketUrl
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.limits import REQUEST_TIMEOUT_S
from dieselfs.net.urls import split
from dieselfs.telemetry.registry import Registry
from dieselfs.units import parse_size
from dieselfs_server.store.bucket import BucketStore, check_exclusive
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.limited import Bounds, LimitedStore
from dieselfs_server.store.marker import missing, open_marked
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.rados import RadosStore
from dieselfs_server.store.rados_pool import OPERATION_TIMEOUT_S, RadosPool
from dieselfs_server.store.retrying import RetryingStore, RetryPolicy
from dieselfs_server.store.tiered import TieredStore

DEFAULT_CEPH_CONF = "/etc/ceph/ceph.conf"
DEFAULT_CEPH_USER = "client.dieselfs"

_ATTEMPT_S_MAX = max(OPERATION_TIMEOUT_S, BUCKET_TIMEOUT_S)
assert RetryPolicy().duration_s_max + Bounds().wait_s_max + _ATTEMPT_S_MAX < REQUEST_TIMEOUT_S
"""A store that hangs is reported to the client before the request of the client times out."""

FAST_WAIT_S_MAX = 0.5
"""Timeout of a call that waits for the fast tier; the slow one then serves it."""

_TIER_OPTIONS = ("fast", "slow", "size")


def open_store(
    url: str, is_new: bool, bounds: Bounds | None = None, metrics: Registry | None = None
) -> ObjectStore:
    """The object store at `url`; each backend has its own limits and retries. `is_new` creates a missing marker.
    `bounds`: the limits, except those of the fast one of two stores. `metrics`: gets retries, and what tiers do.

    Raises InvalidInput for an invalid URL, Unavailable or NotFound if the store cannot be used or has no marker.
    """
    scheme = split(url).scheme
    if scheme == "tiered":
        fast_url, slow_url, size_bytes = tier_options(url)
        # No retries: what the fast tier cannot serve at once, the slow one serves. It may be lost at any time, so it
        # always counts as new; its marker stops copies to a folder whose file system is unmounted later.
        fast = LimitedStore(_open_backend(fast_url, is_new=True), Bounds(wait_s_max=FAST_WAIT_S_MAX))
        with ExitStack() as opened:
            opened.callback(fast.close)
            marked = open_marked(fast, fast_url, is_new=True)
            slow = _guarded(slow_url, is_new, bounds, metrics)
            opened.pop_all()
        return TieredStore(marked, slow, size_bytes, metrics=metrics)
    return _guarded(url, is_new, bounds, metrics)


def open_unmarked(url: str) -> ObjectStore:
    """The durable store at `url`, with or without its marker: to put lost records back. Raises as `open_store`."""
    durable_url = tier_options(url)[1] if split(url).scheme == "tiered" else url
    return _patient(_open_backend(durable_url, is_new=False), None)


def folders(url: str) -> list[str]:
    """The folders of local file systems in which the store at `url` keeps its chunks; none for others."""
    if split(url).scheme == "tiered":
        return [folder for each in tier_options(url)[:2] for folder in folders(each)]
    parts = split(url)
    return [unquote(parts.netloc + parts.path)] if parts.scheme == "posix" else []


def _patient(backend: ObjectStore, bounds: Bounds | None, metrics: Registry | None = None) -> ObjectStore:
    # Retries outside of the limits: a call that waits for its retry holds no token.
    limited = LimitedStore(backend, bounds or Bounds())
    return RetryingStore(limited, RetryPolicy(), random.Random(), metrics=metrics)


def _guarded(url: str, is_new: bool, bounds: Bounds | None, metrics: Registry | None) -> ObjectStore:
    backend = _open_backend(url, is_new)
    store = _patient(backend, bounds, metrics)
    with ExitStack() as opened:
        opened.callback(store.close)
        marked = open_marked(store, url, is_new or isinstance(backend, MemoryStore))
        if isinstance(backend, BucketStore):
            check_exclusive(marked, url)
        opened.pop_all()
    return marked


def _open_backend(url: str, is_new: bool) -> ObjectStore:
    parts = split(url)
    path = unquote(parts.netloc + parts.path)
    match parts.scheme:
        case "posix" if path:
            if not (is_new or os.path.isdir(path)):
                raise Unavailable(missing(url))
            return PosixStore(path)
        case "memory":
            return MemoryStore()
        case "rados" if path:
            return RadosStore(RadosPool(path, *_ceph_options(url)))
        case "s3" | "gs" | "az":
            return BucketStore(Bucket(BucketUrl.parse(url)))
    raise InvalidInput(
        f"store {url!r}: unknown kind of store; use posix:///PATH, rados://POOL?conf=FILE&user=client.NAME, "
        "s3://BUCKET/PREFIX?endpoint=URL, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, "
        "tiered:fast=URL,slow=URL,size=200GiB or memory:"
    )


def _ceph_options(url: str) -> tuple[str, str]:
    options = dict(parse_qsl(split(url).query))
    unknown = options.keys() - {"conf", "user"}
    if unknown:
        raise InvalidInput(f"store {url!r}: unknown option {min(unknown)!r}; use conf or user")
    user = options.get("user", DEFAULT_CEPH_USER)
    if not user.startswith("client."):
        raise InvalidInput(f"store {url!r}: user {user!r} must be a Ceph client, such as {DEFAULT_CEPH_USER}")
    return options.get("conf", DEFAULT_CEPH_CONF), user


def tier_options(url: str) -> tuple[str, str, int]:
    """The URLs of the fast and the slow store of a `tiered:` URL, and the capacity of the fast one in bytes.

    URLs may contain commas. Raises InvalidInput unless each option is given once.
    """
    texts = re.split(rf",(?=(?:{'|'.join(_TIER_OPTIONS)})=)", url.removeprefix("tiered:"))
    pairs = [(name, value) for name, _, value in (text.partition("=") for text in texts)]
    if sorted(name for name, _ in pairs) != sorted(_TIER_OPTIONS):
        raise InvalidInput(f"store {url!r}: give each option once: tiered:fast=URL,slow=URL,size=200GiB")
    options = dict(pairs)
    try:
        size_bytes = parse_size(options["size"])
    except InvalidInput as error:
        raise InvalidInput(f"store {url!r}: size: {error}") from None
    if size_bytes == 0:
        raise InvalidInput(f"store {url!r}: size must be more than 0, for example 200GiB")
    return options["fast"], options["slow"], size_bytes
