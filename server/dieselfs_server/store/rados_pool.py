"""One pool of a Ceph cluster, through librados: whole objects, ranges, and sorted keys in an object (its omap).

Only this module uses librados, which has no type annotations. A call that changes something returns when the change is
on all replicas in service. A read takes ANSWER_TIMEOUT_S at most, a change CHANGE_TIMEOUT_S; a call for LARGE_BYTES,
and a change beside one, OPERATION_TIMEOUT_S. The caller may set a shorter timeout. All methods block; thread-safe.

librados has one timeout, and one limit of bytes in flight, for all calls of a connection. So reads have a connection of
their own. All changes share the other one: an OSD applies what comes over one connection in its order, also a change
that was given up and the next one of the same object.
"""

import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

from dieselfs.errors import AlreadyExists, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.limits import LOST_MACHINE_REST_S, LOST_MACHINE_S, MIB

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 2.0
"""After this time without a reply of the cluster, a call raises Unavailable. It is not repeated, and the next calls of
the same read raise it at once (`wrapper.one_timeout`). librados takes whole seconds.
"""

CHANGE_TIMEOUT_S = 4.0
"""The same for a change: it waits for all replicas, and for those of a new pool."""

OPERATION_TIMEOUT_S = 10.0
"""The same for a call for LARGE_BYTES, and for changes while one is in flight: slow networks need it."""

LARGE_BYTES = 8 * MIB

AWAY_TIMEOUT_S = 1.0
"""The same after such a call, until one succeeds."""

LAGGY_S, LAGGY_LOOK_S = 0.5, 0.4
"""When a call has had no reply for LAGGY_S, librados asks the monitors for the disks that are in service now; it looks
every LAGGY_LOOK_S. By default it does so after 10 s, which no call here takes: a connection that only had calls for a
lost machine would never learn that others have taken its place.
"""

assert LAGGY_S + LAGGY_LOOK_S < AWAY_TIMEOUT_S
assert ANSWER_TIMEOUT_S + LOST_MACHINE_REST_S < LOST_MACHINE_S  # 2.0 + 0.2 = 2.2 s
assert all(
    limit_s.is_integer()
    for limit_s in (ANSWER_TIMEOUT_S, CHANGE_TIMEOUT_S, OPERATION_TIMEOUT_S, AWAY_TIMEOUT_S)
)

KEYS_PER_READ_MAX = 1000
STATS_AT_ONCE_MAX = 128

_DEBIAN_PACKAGES = "/usr/lib/python3/dist-packages"
_CAPACITY = (errno.ENOSPC, errno.EDQUOT)
_MARK = "."
"""A key that every object of keys has, so that a removed object is not created again by adding a key."""


def load_librados() -> Any:
    """The module `rados`. Debian installs it for its own Python only, so this import also looks in that folder.

    Raises InvalidInput, with the name of the package, if it is missing.
    """
    path = list(sys.path)
    sys.path.append(_DEBIAN_PACKAGES)
    try:
        return importlib.import_module("rados")
    except ImportError as error:
        raise InvalidInput(
            f"a rados:// store needs librados: install the package python3-rados ({error})"
        ) from None
    finally:
        sys.path[:] = path


class RadosPool:
    """A connection to the pool `pool`, as `user` (`client.NAME`), with the cluster's configuration file `conf`. All
    objects are in `namespace`.

    Raises NotFound if there is no such pool, InvalidInput if the configuration cannot be read, Unavailable if the
    cluster cannot be reached or refuses the user. Every method raises StorageFull when the pool (or the cluster) is
    full, and Unavailable when the cluster does not answer in time.
    """

    def __init__(
        self,
        pool: str,
        conf: str,
        user: str,
        namespace: str = "",
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        self._librados = load_librados()
        self._pool, self._namespace = pool, namespace
        self._operation_timeout_s = operation_timeout_s
        self._lock = Lock()  # guards the two below, and the limits in librados
        self._is_away = False
        self._large_calls = 0  # in flight
        self._clusters: list[Any] = []  # connected with the limits of `_limits_s`, in their order
        try:
            self._small_reads, self._others = [
                self._connect(conf, user, limit_s) for limit_s in self._limits_s()
            ]
        except BaseException:
            self._disconnect()
            raise

    def _connect(self, conf: str, user: str, limit_s: float) -> Any:
        """The objects of the pool, over a new connection."""
        timeouts = {
            "client_mount_timeout": f"{CONNECT_TIMEOUT_S:g}",
            "rados_mon_op_timeout": f"{self._operation_timeout_s:g}",
            "rados_osd_op_timeout": f"{limit_s:g}",
            "objecter_timeout": f"{LAGGY_S:g}",
            "objecter_tick_interval": f"{LAGGY_LOOK_S:g}",
        }
        try:
            cluster = self._librados.Rados(conffile=conf, name=user, conf=timeouts)
        except self._librados.Error as error:
            raise InvalidInput(f"cannot read the Ceph configuration {conf}: {_reason(error)}") from None
        self._clusters.append(cluster)
        with self._translated("connect", is_pool=True):
            cluster.connect()
            objects = cluster.open_ioctx(self._pool)
            objects.set_namespace(self._namespace)
            objects.set_osdmap_full_try()  # a full pool then refuses at once; by default calls wait
            return objects

    def close(self) -> None:
        """Close the connections. The pool cannot be used afterwards."""
        self._small_reads.close()
        self._others.close()
        self._disconnect()

    def _disconnect(self) -> None:
        for cluster in self._clusters:
            cluster.shutdown()

    def create(self, name: str, content: bytes, attributes: Sequence[tuple[str, bytes]] = ()) -> None:
        """Create an object with its attributes, atomically. Raises AlreadyExists."""

        def fill(operation: Any) -> None:
            operation.new(self._librados.LIBRADOS_CREATE_EXCLUSIVE)
            operation.write_full(content)
            for attribute, value in attributes:
                operation.set_xattr(attribute, value)

        self._change(name, fill, len(content))

    def replace(self, name: str, content: bytes) -> None:
        """Create or replace an object, atomically: readers see the old or the new content."""
        self._change(name, lambda operation: operation.write_full(content), len(content))

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes (at least 1) from `offset` on; fewer only at the end of the object. Raises NotFound."""
        with self._translated(name), self._moving(length):
            objects = self._others if length >= LARGE_BYTES else self._small_reads
            content: bytes = objects.read(name, length, offset)
            return content

    def size(self, name: str) -> int:
        """Length in bytes. Raises NotFound."""
        with self._translated(name):
            size, _ = self._small_reads.stat(name)
            return int(size)

    def attribute(self, name: str, attribute: str) -> bytes | None:
        """The value of an attribute, None if the object does not have it. Raises NotFound."""
        with self._translated(name):
            try:
                value: bytes = self._small_reads.get_xattr(name, attribute)
            except self._librados.NoData:
                return None
            return value

    def remove(self, name: str) -> None:
        """Remove an object; no error if there is none."""
        try:
            with self._translated(name):
                self._others.remove_object(name)
        except NotFound:
            return

    def existing(self, names: Sequence[str]) -> list[bool]:
        """Whether the object of each name exists; many concurrent requests."""
        found: list[bool] = []
        for start in range(0, len(names), STATS_AT_ONCE_MAX):
            with self._translated(names[start]):
                asked = [
                    self._small_reads.aio_stat(name, lambda completion, size, mtime: None)
                    for name in names[start : start + STATS_AT_ONCE_MAX]
                ]
                for completion in asked:
                    completion.wait_for_complete_and_cb()
                found += [self._is_there(completion.get_return_value()) for completion in asked]
        return found

    def _is_there(self, result: int) -> bool:
        if result not in (0, -errno.ENOENT):
            raise self._librados.OSError("stat", errno=-result)
        return result == 0

    def make_keys(self, name: str) -> None:
        """Create an object of keys, which is empty. No error if there is one."""

        def fill(operation: Any) -> None:
            operation.new(self._librados.LIBRADOS_CREATE_IDEMPOTENT)
            self._others.set_omap(operation, (_MARK,), (b"1",))

        self._change(name, fill)

    def add_key(self, name: str, key: str) -> None:
        """Add a key. Raises NotFound if there is no such object of keys, which this never creates."""

        def fill(operation: Any) -> None:
            operation.omap_cmp(_MARK, "1", self._librados.LIBRADOS_CMPXATTR_OP_EQ)
            self._others.set_omap(operation, (key,), (b"",))

        self._change(name, fill)

    def remove_keys(self, name: str, keys: Sequence[str]) -> None:
        """Remove keys, if they exist. Raises NotFound if there is no such object."""

        def fill(operation: Any) -> None:
            operation.omap_cmp(_MARK, "1", self._librados.LIBRADOS_CMPXATTR_OP_EQ)
            self._others.remove_omap_keys(operation, tuple(keys))

        self._change(name, fill)

    def keys(self, name: str, after: str = "") -> Iterator[str]:
        """The keys after `after`, sorted as bytes; none if there is no such object. Reads them on demand."""
        is_more = True
        while is_more:
            try:
                page = self._page(name, after)
            except NotFound:
                return
            yield from (key for key in page if key != _MARK)
            is_more = len(page) == KEYS_PER_READ_MAX
            after = page[-1] if page else after

    def _page(self, name: str, after: str) -> list[str]:
        with self._translated(name), self._librados.ReadOpCtx() as operation:
            rows, _ = self._small_reads.get_omap_keys(operation, after, KEYS_PER_READ_MAX)
            self._small_reads.operate_read_op(operation, name)
            return [key for key, _ in rows]

    def _change(self, name: str, fill: Callable[[Any], None], length: int = 0) -> None:
        with self._translated(name), self._moving(length), self._librados.WriteOpCtx() as operation:
            fill(operation)
            self._others.operate_write_op(operation, name)

    def _limits_s(self) -> tuple[float, float]:
        """How long a small read and any other call may take that begins now."""
        others_s = OPERATION_TIMEOUT_S if self._large_calls else CHANGE_TIMEOUT_S
        wanted_s = (AWAY_TIMEOUT_S, AWAY_TIMEOUT_S) if self._is_away else (ANSWER_TIMEOUT_S, others_s)
        return min(wanted_s[0], self._operation_timeout_s), min(wanted_s[1], self._operation_timeout_s)

    @contextmanager
    def _moving(self, length: int) -> Iterator[None]:
        """The call in this block writes or reads that number of bytes."""
        if length < LARGE_BYTES:
            yield
            return
        with self._changing_limits():
            self._large_calls += 1
        try:
            yield
        finally:
            with self._changing_limits():
                self._large_calls -= 1

    @contextmanager
    def _changing_limits(self) -> Iterator[None]:
        """Change the limits of calls from now on."""
        with self._lock:
            before_s = self._limits_s()
            yield
            limits = zip(self._clusters, self._limits_s(), before_s, strict=False)  # fewer while they connect
            for cluster, limit_s, former_s in limits:
                if limit_s != former_s:
                    cluster.conf_set("rados_osd_op_timeout", f"{limit_s:g}")

    @contextmanager
    def _translated(self, name: str, is_pool: bool = False) -> Iterator[None]:
        """Turn an error of librados into a DieselfsError with the object and the cause."""
        try:
            yield
            if self._is_away:
                with self._changing_limits():
                    self._is_away = False
        except self._librados.Error as error:
            number = getattr(error, "errno", None)
            if number == errno.ETIMEDOUT and not self._is_away:
                with self._changing_limits():
                    self._is_away = True
            where = f"object store: pool {self._pool}" + ("" if is_pool else f": {name}")
            if number in (errno.ENOENT, errno.ECANCELED):  # cancelled: its comparison with the mark failed
                raise NotFound(f"{where}: there is no such {'pool' if is_pool else 'object'}") from None
            if number == errno.EOPNOTSUPP:
                raise InvalidInput(
                    f"{where}: the pool has no keys, as it is erasure-coded; name a replicated pool for the store, and "
                    f"this one for its chunks: rados://POOL?chunks={self._pool}"
                ) from None
            if number == errno.EEXIST:
                raise AlreadyExists(f"{where}: already exists") from None
            failure = StorageFull if number in _CAPACITY else Unavailable
            raise failure(f"{where}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) else str(error)
