"""Opens the object store that a URL names, with all that stands around it.

posix:///PATH
rados://POOL?conf=/etc/ceph/ceph.conf&user=client.dieselfs
tiered:fast=URL,slow=URL,size=200GiB
memory:
"""

import random
import re
from urllib.parse import parse_qsl, unquote, urlsplit

from dieselfs.errors import InvalidInput
from dieselfs.limits import REQUEST_TIMEOUT_S
from dieselfs.units import parse_size
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.limited import Bounds, LimitedStore
from dieselfs_server.store.memory import MemoryStore
from dieselfs_server.store.posix import PosixStore
from dieselfs_server.store.rados import RadosStore
from dieselfs_server.store.rados_pool import OPERATION_TIMEOUT_S, RadosPool
from dieselfs_server.store.retrying import RetryingStore, RetryPolicy
from dieselfs_server.store.tiered import TieredStore

DEFAULT_CEPH_CONF = "/etc/ceph/ceph.conf"
DEFAULT_CEPH_USER = "client.dieselfs"

assert RetryPolicy().duration_s_max + Bounds().wait_s_max + OPERATION_TIMEOUT_S < REQUEST_TIMEOUT_S
"""A client hears of a store that hangs before it gives the server up."""

FAST_WAIT_S_MAX = 0.5
"""Who has waited this long for the fast tier of a tiered store asks the slow one."""

_TIER_OPTIONS = ("fast", "slow", "size")


def open_store(url: str) -> ObjectStore:
    """The object store at `url`, each backend bounded and tried again on its own.

    Raises InvalidInput for a URL that is none, Unavailable or NotFound if the store cannot be used.
    """
    scheme = urlsplit(url).scheme
    if scheme == "tiered":
        fast_url, slow_url, size_bytes = tier_options(url)
        # What the fast tier cannot do at once, the slow one does: there is nothing to wait for.
        fast = LimitedStore(_open_backend(fast_url), Bounds(wait_s_max=FAST_WAIT_S_MAX))
        try:
            slow = _guarded(_open_backend(slow_url))
        except BaseException:
            fast.close()
            raise
        return TieredStore(fast, slow, size_bytes)
    return _guarded(_open_backend(url))


def _guarded(store: ObjectStore) -> ObjectStore:
    # A call that waits before it is tried again holds no place that others could use.
    return RetryingStore(LimitedStore(store, Bounds()), RetryPolicy(), random.Random())


def _open_backend(url: str) -> ObjectStore:
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    match parts.scheme:
        case "posix" if path:
            return PosixStore(path)
        case "memory":
            return MemoryStore()
        case "rados" if path:
            return RadosStore(RadosPool(path, *_ceph_options(url)))
    raise InvalidInput(
        f"store {url!r}: this version knows posix:///PATH, rados://POOL?conf=FILE&user=client.NAME, "
        "tiered:fast=URL,slow=URL,size=200GiB and memory:"
    )


def _ceph_options(url: str) -> tuple[str, str]:
    options = dict(parse_qsl(urlsplit(url).query))
    unknown = options.keys() - {"conf", "user"}
    if unknown:
        raise InvalidInput(f"store {url!r}: unknown option {min(unknown)!r}; there are conf and user")
    user = options.get("user", DEFAULT_CEPH_USER)
    if not user.startswith("client."):
        raise InvalidInput(f"store {url!r}: user {user!r} must be a Ceph client, such as {DEFAULT_CEPH_USER}")
    return options.get("conf", DEFAULT_CEPH_CONF), user


def tier_options(url: str) -> tuple[str, str, int]:
    """The URLs of the fast and of the slow store of a `tiered:` URL, and the bytes that the fast one may hold.

    URLs may hold commas. Raises InvalidInput unless each option is there once.
    """
    texts = re.split(rf",(?=(?:{'|'.join(_TIER_OPTIONS)})=)", url.removeprefix("tiered:"))
    pairs = [(name, value) for name, _, value in (text.partition("=") for text in texts)]
    if sorted(name for name, _ in pairs) != sorted(_TIER_OPTIONS):
        raise InvalidInput(f"store {url!r}: write tiered:fast=URL,slow=URL,size=200GiB")
    options = dict(pairs)
    try:
        size_bytes = parse_size(options["size"])
    except InvalidInput as error:
        raise InvalidInput(f"store {url!r}: size: {error}") from None
    if size_bytes == 0:
        raise InvalidInput(f"store {url!r}: size must be more than 0: write for example 200GiB")
    return options["fast"], options["slow"], size_bytes
