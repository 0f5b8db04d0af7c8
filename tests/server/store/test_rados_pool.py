"""A Ceph pool: what is refused, what is missing, and what happens when the cluster hangs or is full."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from dieselfs.errors import AlreadyExists, InvalidInput, NotFound, StorageFull, Unavailable
from dieselfs.limits import LOST_MACHINE_S
from dieselfs_server.store import rados_pool
from dieselfs_server.store.rados_pool import (
    ANSWER_TIMEOUT_S,
    AWAY_TIMEOUT_S,
    CHANGE_TIMEOUT_S,
    KEYS_PER_READ_MAX,
    LARGE_BYTES,
    OPERATION_TIMEOUT_S,
    RadosPool,
    load_librados,
)
from lab.ceph import CEPHX, NONE, USER, RunningCeph, running_ceph
from lab.namespace import wait_for
from tests.support.ceph import needs_ceph

pytestmark = needs_ceph

SHORT_S = 1.0
CHANGE_S = 40.0
"""A cluster notices within a few seconds that it is full, and that it no longer is."""

MARGIN_S = 8.0
"""A machine under load is slow; a timeout that does not work at all would be minutes."""


@pytest.fixture
def pool(ceph: RunningCeph) -> Iterator[RadosPool]:
    pool = RadosPool("data", ceph.conf, USER)
    yield pool
    for name in ("object", "keys", "other", "new"):
        pool.remove(name)
    pool.close()


@pytest.fixture
def impatient(ceph: RunningCeph) -> Iterator[RadosPool]:
    with closing(RadosPool("data", ceph.conf, USER, operation_timeout_s=SHORT_S)) as pool:
        yield pool


def test_an_object_is_created_once_and_replaced_whole(pool: RadosPool) -> None:
    pool.create("object", b"12345", [("of", b"five")])
    with pytest.raises(AlreadyExists):
        pool.create("object", b"1")
    assert (pool.read("object", 1, 3), pool.read("object", 3, 9), pool.size("object")) == (b"234", b"45", 5)
    assert (pool.attribute("object", "of"), pool.attribute("object", "other")) == (b"five", None)
    pool.replace("object", b"67")
    assert pool.read("object", 0, 9) == b"67"
    assert pool.existing(["other", "object", "keys"]) == [False, True, False]
    for _ in range(2):
        pool.remove("object")
    with pytest.raises(NotFound, match="pool data: object"):
        pool.read("object", 0, 1)


def test_keys_are_sorted_and_read_page_by_page(pool: RadosPool) -> None:
    with pytest.raises(NotFound):
        pool.add_key("keys", "a")
    assert list(pool.keys("keys")) == []
    for _ in range(2):
        pool.make_keys("keys")
    names = [f"{number:05}" for number in range(KEYS_PER_READ_MAX + 5)]
    for name in names[::-1]:
        pool.add_key("keys", name)
    assert list(pool.keys("keys")) == names
    assert list(pool.keys("keys", after=names[-3])) == names[-2:]
    pool.remove_keys("keys", [*names[1:], "nothing"])
    assert list(pool.keys("keys")) == names[:1]
    pool.replace("other", b"an object without keys")
    with pytest.raises(NotFound):
        pool.add_key("other", "a")


def test_a_hung_cluster_is_given_up_in_time(ceph: RunningCeph, pool: RadosPool, impatient: RadosPool) -> None:
    pool.replace("object", b"content")
    with ceph.hung():
        for call in (
            lambda: impatient.read("object", 0, 1),
            lambda: impatient.replace("object", b"later"),
            lambda: impatient.existing(["object"]),
        ):
            started_s = time.monotonic()
            with pytest.raises(Unavailable, match="pool data: object: Connection timed out"):
                call()
            assert time.monotonic() - started_s < SHORT_S + MARGIN_S
    assert pool.read("object", 0, 9) in (b"content", b"later")


@pytest.mark.parametrize("ceph", [NONE], indirect=True)  # 20 s of timeouts, in which nobody logs in
def test_later_calls_of_a_hung_cluster_are_given_up_sooner(ceph: RunningCeph) -> None:
    """The first one sooner if it moves little, also beside one that moves much."""
    pool = RadosPool("data", ceph.conf, USER)
    pool.replace("object", b"content")
    pool.replace("large", bytes(LARGE_BYTES))
    with ceph.hung():
        started_s = time.monotonic()
        with pytest.raises(Unavailable, match="Connection timed out"):
            pool.replace("object", b"content")
        assert time.monotonic() - started_s + 0.1 >= CHANGE_TIMEOUT_S
    assert pool.read("object", 0, 9) == b"content"
    for length, limit_s in ((9, ANSWER_TIMEOUT_S), (LARGE_BYTES, OPERATION_TIMEOUT_S), (9, ANSWER_TIMEOUT_S)):
        with ceph.hung():
            started_s = time.monotonic()
            with pytest.raises(Unavailable, match="Connection timed out"):
                pool.read("large", 0, length)
            assert limit_s <= time.monotonic() - started_s + 0.1 < limit_s + 3 * AWAY_TIMEOUT_S
        assert pool.read("object", 0, 9) == b"content"
    pool.close()
    pool = RadosPool("data", ceph.conf, USER, operation_timeout_s=4 * AWAY_TIMEOUT_S)
    with ceph.hung():
        for number in range(3):
            started_s = time.monotonic()
            with pytest.raises(Unavailable, match="Connection timed out"):
                pool.read("object", 0, 9)
            assert number == 0 or time.monotonic() - started_s < 3 * AWAY_TIMEOUT_S
    assert pool.read("object", 0, 9) == b"content"
    pool.close()


def test_a_read_beside_a_large_change_of_a_hung_cluster_is_given_up_as_soon_as_alone(
    ceph: RunningCeph, pool: RadosPool
) -> None:
    is_running = Event()

    class Attributes(list[tuple[str, bytes]]):
        """The pool asks for them when its limits are those of the change."""

        def __iter__(self) -> Iterator[tuple[str, bytes]]:
            is_running.set()
            return super().__iter__()

    pool.replace("other", b"content")
    with ThreadPoolExecutor(1) as other, ceph.hung():
        change = other.submit(pool.create, "new", bytes(LARGE_BYTES), Attributes())
        assert is_running.wait(MARGIN_S)
        started_s = time.monotonic()
        with pytest.raises(Unavailable, match="Connection timed out"):
            pool.read("other", 0, 9)
        assert time.monotonic() - started_s < LOST_MACHINE_S
        assert not change.done()
    change.result()
    assert (pool.size("new"), pool.read("other", 0, 9)) == (LARGE_BYTES, b"content")


def test_calls_find_the_disk_that_takes_over_from_a_lost_one(tmp_path: Path) -> None:
    """A connection whose calls all went to the lost one has nobody else to learn that from."""

    def primary(name: str) -> int:
        place = json.loads(ceph.command("osd", "map", "data", name, "--format", "json"))
        return int(place["acting_primary"])

    def is_found(pool: RadosPool, name: str) -> bool:
        with suppress(Unavailable):
            return pool.size(name) == len(b"content")
        return False

    with running_ceph(tmp_path / "ceph", osds=2) as ceph:
        # Else the other disk waits until the reads that the lost one may still answer have ended: 48 s.
        ceph.command("config", "set", "osd", "osd_pool_default_read_lease_ratio", "0.05")
        ceph.make_pool("data")
        ceph.command("osd", "pool", "set", "data", "size", "2")
        with closing(RadosPool("data", ceph.conf, USER)) as pool:
            name = next(name for name in map(str, count()) if primary(name) == 0)
            pool.create(name, b"content")
            with ceph.hung():
                with pytest.raises(Unavailable):
                    pool.size(name)
                ceph.command("osd", "down", "0")  # as its neighbours tell the monitors after a while
                wait_for(lambda: is_found(pool, name), "the other disk answers", CHANGE_S)


def test_what_cannot_be_opened_says_why(ceph: RunningCeph, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="pool nothing: there is no such pool"):
        RadosPool("nothing", ceph.conf, USER)
    missing = str(tmp_path / "no.conf")
    with pytest.raises(InvalidInput, match=missing):
        RadosPool("data", missing, USER)


def test_a_user_without_rights_is_refused(tmp_path: Path) -> None:
    with running_ceph(tmp_path / "ceph", CEPHX) as ceph:
        ceph.make_pool("data")
        ceph.make_pool("private")
        with pytest.raises(Unavailable, match=r"pool data: .* denied"):
            RadosPool("data", ceph.conf, "client.nobody")
        pool = RadosPool("private", ceph.conf, USER)
        try:
            for call in (lambda: pool.read("object", 0, 1), lambda: pool.replace("object", b"")):
                with pytest.raises(Unavailable, match="pool private: object: Operation not permitted"):
                    call()
        finally:
            pool.close()


def test_a_full_cluster_refuses_at_once_and_keeps_what_it_has(tmp_path: Path) -> None:
    deadline_s = time.monotonic() + CHANGE_S

    def in_time() -> bool:
        return time.monotonic() < deadline_s

    with running_ceph(tmp_path / "ceph", capacity_bytes=64 << 20) as ceph:
        ceph.make_pool("data")
        for threshold, ratio in (("nearfull", "0.3"), ("backfillfull", "0.4"), ("full", "0.5")):
            ceph.command("osd", f"set-{threshold}-ratio", ratio)
        pool = RadosPool("data", ceph.conf, USER)
        try:
            for number in range(40):
                pool.create(f"object {number}", bytes(1 << 20))
            with pytest.raises(StorageFull, match=r"pool data: other \d+: No space left on device"):
                for number in count():  # until the OSD has looked
                    assert in_time()
                    pool.create(f"other {number}", b"x")
            assert pool.size("object 0") == 1 << 20
            for number in range(40):
                pool.remove(f"object {number}")
            while in_time():  # and until it has looked again
                with suppress(StorageFull):
                    pool.create("another", b"")
                    break
            assert pool.size("another") == 0
        finally:
            pool.close()


def test_without_librados_the_message_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rados_pool, "_DEBIAN_PACKAGES", "/nowhere")
    monkeypatch.delitem(sys.modules, "rados", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "dist-packages" not in path])
    with pytest.raises(InvalidInput, match="install the package python3-rados"):
        load_librados()


def test_the_path_stays_as_it_was() -> None:
    before = list(sys.path)
    assert load_librados().__name__ == "rados"
    assert sys.path == before
