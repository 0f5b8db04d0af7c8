"""Mirrors: a crash at each step, two rounds at a time, and a promotion that is interrupted."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from dieselfs.chunk.builder import ChunkBuilder, SealedChunk
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.errors import Damaged, DieselfsError, InvalidInput, StorageFull, Unavailable
from dieselfs.limits import MIB
from dieselfs.records import DatasetRecord, FileRecord
from dieselfs.rpc.messages import thrift
from dieselfs.rpc.records import MirrorRecord, RebuildReport
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.access.accounts import Caller
from dieselfs_server.admission.room import Disk, Room
from dieselfs_server.call import Call
from dieselfs_server.datasets.commit import catch_up_dataset, commit_chunk, read_chunk
from dieselfs_server.datasets.mirrors import LEASE, Mirrors, unapplied
from dieselfs_server.datasets.snapshots import signed
from dieselfs_server.datasets.tags import TagStore
from dieselfs_server.handlers.mirrors import MirrorCalls
from dieselfs_server.leases.lease import CLOCK_MARGIN_S, LEASE_S, SeenLeases, take_lease
from dieselfs_server.maintenance.purge import purge
from dieselfs_server.metadata.interface import MetadataStore
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.service import Service
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.memory import MemoryStore
from tests.support.dlcmd import wait_until
from tests.support.identity import IDENTITY, OTHER_IDENTITY
from tests.support.own_service import TRUSTED, call, own_service, parts_of

NAME, DATASET, ORIGIN = "data", bytes(range(16)), "site:data"
NOW_S = 1_800_000_000
CHANGES = ("put_record", "create_record", "delete_record", "apply", "forget_chunk", "change_notes")


class Crash(BaseException):
    """The process has ended."""


class Watched:
    """A store that calls `before` with the name of each method that is called."""

    def __init__(self, inner: object, before: Callable[[str], None]) -> None:
        self._inner, self._before = inner, before

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self._before(name)
            return getattr(self._inner, name)(*arguments, **options)

        return called


class Site:
    """The stores of a site with the dataset."""

    def __init__(self, first_counter: int = 1) -> None:
        self.store, self.metadata = MemoryStore(), SqliteMetadata(":memory:")
        self.metadata.create_dataset(NAME, DATASET)
        self.now_s = NOW_S
        self.ids = ChunkIdSource(clock=lambda: NOW_S, first_counter=first_counter)

    @property
    def dataset(self) -> DatasetRecord:
        return self.metadata.dataset(NAME)

    def write(self, path: bytes, deleted: Iterable[bytes] = ()) -> Snapshot:
        """Write a file, and delete others; returns the new generation."""
        builder, chunk_id = ChunkBuilder(), self.ids.next()
        builder.add_file(path, path * 100, 0o644, 0)
        for each in deleted:
            builder.add_delete(each)
        version = self.metadata.reserve_versions(DATASET, 10, NOW_S * 10**9)
        self.put(self.metadata, builder.seal(), chunk_id, version)
        content = signed(build_snapshot(self.metadata.entry_table(DATASET)), OTHER_IDENTITY)
        return Snapshot(content, "the origin")

    def put(self, metadata: MetadataStore, sealed: SealedChunk, chunk_id: bytes, version: int = 1) -> None:
        data = b"".join(sealed.encode(chunk_id, NAME, DATASET, version))
        commit_chunk(self.store, metadata, DATASET, chunk_id, data, NOW_S * 10**9)

    def bring(self, origin: "Site", snapshot: Snapshot) -> None:
        """Store the chunks of a generation of the origin."""
        for chunk_id in map(snapshot.chunk_id, range(snapshot.chunk_count)):
            payload = bytes(read_chunk(origin.store, DATASET, chunk_id)[2])
            self.put(self.metadata, SealedChunk((), b"", payload), chunk_id)

    def mirrors(self, before: Callable[[str], None] = lambda _: None, ahead_s: int = 0) -> Mirrors:
        """Those of a server; `ahead_s`: of its clock."""
        store = cast(ObjectStore, Watched(self.store, before))
        metadata = cast(MetadataStore, Watched(self.metadata, before))
        tags = TagStore(store, IDENTITY)
        return Mirrors(store, metadata, tags, lambda: self.now_s, lambda: (self.now_s + ahead_s) * 10**9)

    def round(self, mirrors: Mirrors, snapshot: Snapshot) -> MirrorRecord:
        mirrors.note_seen(self.dataset, ORIGIN, snapshot.generation)
        content = bytes(snapshot.content)
        mirrors.keep_part(self.dataset, 0, content[:1000])
        return mirrors.show(self.dataset, 1, content[1000:])


def pair() -> tuple[Site, Site]:
    """An origin, and its mirror."""
    origin, here = Site(), Site(1000)
    here.mirrors().note_seen(here.dataset, ORIGIN, 1)
    return origin, here


def shown(site: Site) -> bytes:
    """The digest of what a server that starts now shows."""
    found = site.mirrors().snapshot(site.dataset)
    assert found is not None
    found.verify()
    return found.digest


def test_a_crash_at_each_step_shows_a_whole_generation() -> None:
    for steps in count():
        origin, here = pair()
        first = origin.write(b"a")
        here.bring(origin, first)
        here.round(here.mirrors(), first)
        second = origin.write(b"b", deleted=[b"a"])
        here.bring(origin, second)
        left = [steps]

        def before(name: str, left: list[int] = left) -> None:
            if name in CHANGES:
                if not left[0]:
                    raise Crash
                left[0] -= 1

        try:
            done = here.round(here.mirrors(before), second)
        except Crash:
            assert shown(here) in (first.digest, second.digest)
            other = here.mirrors()
            with suppress(Unavailable):  # if it has left its lease
                here.round(other, second)
            here.now_s += LEASE_S
            done = here.round(other, second)
        assert (
            done.generation
            == done.newest
            == second.generation
            == here.mirrors().shown(here.dataset).generation
        )
        assert shown(here) == second.digest
        end_ns = (NOW_S + 2 * LEASE_S) * 10**9
        purge(here.store, here.metadata, here.dataset, TagStore(here.store, IDENTITY), end_ns, 0, False)
        assert list(here.store.list_chunks(DATASET)) == [second.chunk_id(0)]
        assert not here.store.list_records("mirrored-")
        if left[0]:
            break
    assert steps > 8


def test_of_two_rounds_at_a_time_one_is_refused() -> None:
    origin, here = pair()
    first, second = origin.write(b"a"), origin.write(b"b")
    here.bring(origin, second)
    refusals: list[str] = []

    def other(snapshot: Snapshot) -> None:
        try:
            here.round(here.mirrors(), snapshot)
        except Unavailable as error:
            refusals.append(str(error))

    busy = here.mirrors(lambda name: other(second) if name == "put_record" else None)
    busy.note_seen(here.dataset, ORIGIN, first.generation)
    assert len(refusals) == 1 and "a change of the mirror data" in refusals[0]
    here.round(here.mirrors(), first)
    waiting = [second]
    late = here.mirrors(lambda name: other(waiting.pop()) if name == "get_range" and waiting else None)
    third = origin.write(b"c")
    here.bring(origin, third)
    with pytest.raises(Unavailable, match="another round of the mirror data"):
        here.round(late, third)
    assert shown(here) == second.digest
    with pytest.raises(InvalidInput, match="is older than"):
        here.round(here.mirrors(), first)
    here.round(here.mirrors(), third)
    assert shown(here) == third.digest


def test_the_lease_of_a_round_begins_after_its_checks() -> None:
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    refusals: list[str] = []

    def before(name: str) -> None:
        if name == "get_range":  # the first check of a chunk takes long
            here.now_s += LEASE_S + 1
        elif name == "put_record" and here.now_s > NOW_S:
            with pytest.raises(Unavailable, match="a change of the mirror data"):
                here.mirrors().note_seen(here.dataset, ORIGIN, first.generation)
            refusals.append(name)

    here.round(here.mirrors(before), first)
    assert len(refusals) == 2 and shown(here) == first.digest


DAY_S = 86_400
APART_S = CLOCK_MARGIN_S // 2


@pytest.mark.parametrize("ahead_s", [-APART_S, 0, APART_S, DAY_S])
@pytest.mark.parametrize("other_ahead_s", [-DAY_S, -APART_S, 0, APART_S])
def test_a_lease_ends_when_it_is_unchanged_whatever_clocks_say(ahead_s: int, other_ahead_s: int) -> None:
    """And none ends before, within the margin of clocks: another server has not seen it for its time."""
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    other, refused_s = here.mirrors(ahead_s=other_ahead_s), list[int]()

    def ask(name: str) -> None:
        if refused_s:
            raise Crash
        if name == "put_record":  # the lease is taken
            for _ in range(2):
                with pytest.raises(Unavailable, match="a change of the mirror data"):
                    other.note_seen(here.dataset, ORIGIN, first.generation)
                refused_s.append(here.now_s)
                here.now_s += LEASE_S - 1
            raise Crash

    with pytest.raises(Crash):
        here.mirrors(ask, ahead_s).note_seen(here.dataset, ORIGIN, first.generation)
    assert refused_s == [NOW_S, NOW_S + LEASE_S - 1]
    assert here.round(other, first).generation == first.generation


def test_servers_that_start_for_each_round_end_a_lease_by_the_clock() -> None:
    """None has seen it before."""
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    take_lease(here.metadata, DATASET, "a change of the mirror data (crashed)", NOW_S * 10**9, LEASE)
    end_s = NOW_S + LEASE_S + CLOCK_MARGIN_S
    for here.now_s in (NOW_S, NOW_S + LEASE_S, end_s - 1):
        with pytest.raises(Unavailable, match="a change of the mirror data"):
            here.round(here.mirrors(), first)
    here.now_s = end_s
    assert here.round(here.mirrors(), first).generation == first.generation


def test_a_change_that_takes_long_keeps_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dieselfs_server.datasets.mirrors.RENEWAL_S", 0.01)
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    other, refusals = here.mirrors(), list[str]()

    def is_renewed(seen: list[bytes | None]) -> bool:
        return here.metadata.notes(DATASET, [LEASE]) != seen

    def refused(name: str) -> None:
        if name == "put_record" and not refusals:
            for _ in range(3):
                with pytest.raises(Unavailable, match="a change of the mirror data"):
                    other.note_seen(here.dataset, ORIGIN, first.generation)
                refusals.append(name)
                seen = here.metadata.notes(DATASET, [LEASE])
                here.now_s += LEASE_S - 1
                wait_until(partial(is_renewed, seen))

    here.mirrors(refused).note_seen(here.dataset, ORIGIN, first.generation)
    assert len(refusals) == 3
    assert other.note_seen(here.dataset, ORIGIN, first.generation).newest == first.generation


@pytest.mark.parametrize(
    ("stopped_at", "calls"), [("check_settled", 1), ("check_settled", 2), ("replace", 1)]
)
def test_a_round_that_has_lost_its_lease_writes_nothing_more(
    monkeypatch: pytest.MonkeyPatch, stopped_at: str, calls: int
) -> None:
    """Its server was stopped as it noted a generation, or showed it; another one shows the next meanwhile."""
    origin, here = pair()
    first, second = origin.write(b"a"), origin.write(b"b")
    here.bring(origin, second)
    late, other, left = here.mirrors(), here.mirrors(), [calls]
    owner = late._tags if stopped_at == "replace" else late
    whole = getattr(owner, stopped_at)

    def stopped(*arguments: Any) -> None:
        whole(*arguments)
        left[0] -= 1
        if not left[0]:
            with pytest.raises(Unavailable, match="a change of the mirror data"):
                here.round(other, second)
            here.now_s += LEASE_S
            here.round(other, second)

    monkeypatch.setattr(owner, stopped_at, stopped)
    with pytest.raises(Unavailable, match="has lost its lease; try again"):
        here.round(late, first)
    assert here.mirrors().shown(here.dataset).generation == second.generation
    assert shown(here) == second.digest


def test_the_last_part_of_a_snapshot_may_be_repeated() -> None:
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    done = here.round(here.mirrors(), first)
    last = bytes(first.content)[1000:]
    assert here.mirrors().show(here.dataset, 1, last) == done
    with pytest.raises(Unavailable, match="a part of the snapshot is missing"):
        here.mirrors().show(here.dataset, 1, bytes(len(last)))


def test_parts_of_a_round_that_has_not_ended_go_with_the_next() -> None:
    _, here = pair()
    for part in (0, 1, 2, 0):
        here.mirrors().keep_part(here.dataset, part, b"part")
    assert len(here.store.list_records("mirrored-")) == 1


def test_a_snapshot_for_which_there_is_no_room_is_refused_at_its_first_part(tmp_path: Path) -> None:
    _, here = pair()
    service = own_service(tmp_path, here.store, here.metadata)
    free_bytes = [4 * MIB]
    room = Room(["/store"], lambda _: Disk(4 * MIB, free_bytes[0]))  # of which a quarter is the reserve
    parts_of(service, "put_mirror").room = room

    def send(part: int) -> None:
        struct = thrift.put_mirror_args(dataset=NAME, part=part, parts=4)
        sent = Call(service.access, TRUSTED, "put_mirror", struct, bulk=bytearray(MIB))
        trio.run(service.handlers["put_mirror"], sent)

    with pytest.raises(StorageFull, match=r"mirror dl://data needs 4\.0 MiB"):
        send(0)
    assert not here.store.list_records("mirrored-")
    send(1)
    free_bytes[0] = 2 * MIB
    with pytest.raises(StorageFull):
        send(2)
    assert len(here.store.list_records("mirrored-")) == 1


def test_nothing_is_applied_before_the_end_of_a_promotion() -> None:
    origin, here = pair()
    first = origin.write(b"a")
    here.bring(origin, first)
    here.round(mirrors := here.mirrors(), first)
    found, snapshot = mirrors.begin_promotion(here.dataset)
    assert snapshot is not None and snapshot.digest == found.digest == first.digest
    builder = ChunkBuilder()
    builder.add_file(b"a", b"1", 0o644, 0)
    here.put(unapplied(here.metadata, DATASET, 0), builder.seal(), here.ids.next())
    started = here.store, here.metadata, here.dataset, NOW_S * 10**9, 0
    assert catch_up_dataset(*started) == (0, None)
    assert shown(here) == first.digest
    with pytest.raises(InvalidInput, match="is being promoted"):
        here.round(here.mirrors(), first)
    with pytest.raises(InvalidInput, match="is being promoted"):
        mirrors.check_settled(DATASET, NAME)
    mirrors.note_stored(here.dataset)
    assert catch_up_dataset(*started) == (1, None)
    mirrors.end_promotion(NAME, DATASET, RebuildReport(1, 1, 1, 1, ()))
    assert not mirrors.is_mirror(here.dataset) and here.dataset.files == 1


class AllEnded(SeenLeases):
    def is_stale(self, dataset_id: bytes, note: bytes) -> bool:
        return True


class Promotion:
    """A mirror of two chunks, with the files a and b, and a server that promotes it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("dieselfs_server.datasets.referring_copy.REFERENCE_BYTES_MIN", 1)
        self.monkeypatch = monkeypatch
        self.origin, self.here = pair()
        self.origin.write(b"a")
        self.snapshot = self.origin.write(b"b")
        self.here.bring(self.origin, self.snapshot)
        self.here.round(self.here.mirrors(), self.snapshot)
        self.service = own_service(folder, self.here.store, self.here.metadata)
        self.catch_up()

    def catch_up(self) -> None:
        catch_up_dataset(self.here.store, self.here.metadata, self.here.dataset, NOW_S * 10**9, 0)

    def promote(self) -> None:
        call(self.service, "promote_mirror", dataset=NAME)

    def other_server(self, folder: Path) -> Service:
        """One by whose clocks all leases have ended."""
        service = own_service(folder, self.here.store, self.here.metadata)
        parts = parts_of(service, "promote_mirror")
        ahead_ns = (LEASE_S + 1) * 10**9
        parts._jobs._now_ns = parts.mirrors._time_ns = lambda: time.time_ns() + ahead_ns
        parts.mirrors._seen = AllEnded()
        return service

    def rebuild(self, is_forced: bool) -> None:
        call(self.service, "rebuild", dataset=NAME, since_s=-1, is_forced=is_forced)

    def interrupt(self, method: str, after: int = 0) -> None:
        """Promote until the method of a store or of the mirrors was called `after` times."""
        owner, left = MemoryStore if method == "put" else Mirrors, [after]
        whole = getattr(owner, method)

        def called(*arguments: Any) -> Any:
            if not left[0]:
                raise StorageFull("no room")
            left[0] -= 1
            return whole(*arguments)

        with self.monkeypatch.context() as patch, pytest.raises(StorageFull):
            patch.setattr(owner, method, called)
            self.promote()

    def files(self) -> set[bytes]:
        found = self.here.metadata.list_folder(DATASET, b"", b"", 10)
        return {record.path for record in found}

    def is_mirror(self) -> bool:
        return self.here.mirrors().is_mirror(self.here.dataset)


@pytest.fixture
def promotion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Promotion:
    """Each of its chunks is an object, so that it can be interrupted between them."""
    monkeypatch.setattr("dieselfs_server.datasets.referring_copy.BUNDLE_CHUNKS_MAX", 1)
    return Promotion(tmp_path, monkeypatch)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_part_of_a_promotion_is_never_applied(promotion: Promotion, is_lost: bool) -> None:
    chunks = len(list(promotion.here.store.list_chunks(DATASET)))
    promotion.interrupt("put", 1)
    assert len(list(promotion.here.store.list_chunks(DATASET))) == chunks + 1
    if is_lost:
        promotion.here.metadata.drop_dataset(DATASET)
        promotion.rebuild(is_forced=False)
    promotion.rebuild(is_forced=True)
    assert promotion.files() == set() and shown(promotion.here) == promotion.snapshot.digest
    promotion.promote()
    assert promotion.files() == {b"a", b"b"} and not promotion.is_mirror()


@pytest.mark.parametrize("is_set_back", [False, True])
def test_a_promotion_that_is_repeated_keeps_what_was_written_since(
    promotion: Promotion, is_set_back: bool
) -> None:
    here = promotion.here
    promotion.interrupt("end_promotion")
    assert promotion.files() == {b"a", b"b"}
    here.write(b"c", deleted=[b"a", b"b"])
    if is_set_back:
        here.metadata.drop_dataset(DATASET)
        here.metadata.create_dataset(NAME, DATASET)
        promotion.catch_up()
        assert promotion.files() == {b"c"}
    else:
        here.write(b"d", deleted=[b"c"])
        here.write(b"e", deleted=[b"d", b"e"])
    left = promotion.files()
    promotion.promote()
    assert promotion.files() == left and not promotion.is_mirror()
    with pytest.raises(InvalidInput, match="is not a mirror"):
        promotion.promote()


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_promotion_that_lacks_files_ends_when_they_are_back_or_forgotten(
    promotion: Promotion, is_forgotten: bool
) -> None:
    store, lost = promotion.here.store, promotion.snapshot.chunk_id(0)
    promotion.interrupt("note_stored")
    promotion.here.mirrors().note_stored(promotion.here.dataset)
    content = store.get_range(DATASET, lost, 0, store.size(DATASET, lost))
    store.delete(DATASET, lost)
    with pytest.raises(Damaged, match=r"has 1 of the 2 files of the mirror.*dlcmd rebuild --force dl://data"):
        promotion.promote()
    assert store.list_records("mirror-") and store.list_records("promotes-")
    if is_forgotten:
        promotion.rebuild(is_forced=True)
        left = promotion.files()
        assert len(left) == 1 and left < {b"a", b"b"}
        promotion.here.write(b"c")
        assert promotion.files() == left | {b"c"}
    else:
        store.put(DATASET, lost, [content])
        promotion.promote()
        assert promotion.files() == {b"a", b"b"}
    assert not store.list_records("mirror-") and not store.list_records("promotes-")
    assert not promotion.is_mirror()


def lag_of(calls: MirrorCalls) -> float | None:
    found = calls.metrics.collect({"mirrors.lag_s"})
    return next((value for _, _, value in found), None)


def test_a_user_without_rights_hides_no_lag(promotion: Promotion) -> None:
    service = promotion.service
    call(service, "keep_mirror", dataset=NAME, origin=ORIGIN, generation=1)
    asked = thrift.keep_mirror_args(dataset=NAME, origin=ORIGIN, generation=1)
    with pytest.raises(DieselfsError):
        trio.run(
            service.handlers["keep_mirror"], Call(service.access, Caller("eve", ""), "keep_mirror", asked)
        )
    assert lag_of(service.mirrors) is not None


def test_a_mirror_that_ends_while_the_lag_is_computed(promotion: Promotion) -> None:
    """A thread forgets it."""
    calls, now_s = promotion.service.mirrors, time.time()
    call(promotion.service, "keep_mirror", dataset=NAME, origin=ORIGIN, generation=1)
    calls._current_s["ended"] = 0

    def forgetting() -> float:
        calls._current_s.pop("ended", None)
        return now_s

    promotion.monkeypatch.setattr("dieselfs_server.handlers.mirrors.time.time", forgetting)
    assert lag_of(calls) is not None and [*calls._current_s] == [NAME]


@pytest.mark.parametrize("is_promoted", [False, True])
def test_a_mirror_that_has_ended_has_no_lag(promotion: Promotion, is_promoted: bool) -> None:
    """Another process has dropped, or promoted it."""
    calls = promotion.service.mirrors
    call(promotion.service, "keep_mirror", dataset=NAME, origin=ORIGIN, generation=1)
    lag = partial(lag_of, calls)
    assert lag() is not None
    calls.forget_ended()
    assert lag() is not None
    if is_promoted:
        Promotion.promote(promotion)
    else:
        promotion.here.mirrors().drop(DATASET)
        promotion.here.metadata.drop_dataset(DATASET)
    calls.forget_ended()
    assert lag() is None


class Failing:
    """A store that fails once, at its N-th call: before it, or after it, as if the answer were lost."""

    def __init__(self, inner: object, calls: int, is_done: bool) -> None:
        self._inner, self._is_done = inner, is_done
        self.left = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self._is_done:
                raise Unavailable("the store does not answer")
            result = getattr(self._inner, name)(*arguments, **options)
            if self.left == 0:
                raise Unavailable("the answer of the store is lost")
            return result

        return called


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("what", ["store", "metadata"])
def test_a_store_that_fails_once_at_each_step_of_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, is_done: bool
) -> None:
    """Whatever users write as soon as they may stays, and repeating the promotion ends it."""
    for steps in count(1):
        promotion = Promotion(tmp_path / f"{steps}", monkeypatch)
        here, expected = promotion.here, {b"a", b"b"}
        failing = Failing(getattr(here, what), steps, is_done)
        stores = {"store": here.store, "metadata": here.metadata, what: failing}
        service = own_service(tmp_path / f"{steps}-failing", **cast(Any, stores))
        failing.left = steps  # not at the calls of its start
        with suppress(Unavailable):
            call(service, "promote_mirror", dataset=NAME)
        if promotion.is_mirror():
            assert shown(here) == promotion.snapshot.digest and promotion.files() == set()
        else:
            assert promotion.files() == expected
            here.write(b"c", deleted=[b"a"])
            expected = {b"b", b"c"}
        with suppress(InvalidInput):  # it has ended, but for its answer
            call(promotion.other_server(tmp_path / f"{steps}-again"), "promote_mirror", dataset=NAME)
        promotion.rebuild(is_forced=False)
        assert promotion.files() == expected and not promotion.is_mirror()
        assert not here.store.list_records("mirror") and not here.store.list_records("tag-")
        if failing.left > 0:
            break
    assert steps > 20


def test_of_two_promotions_at_once_one_is_refused(promotion: Promotion, tmp_path: Path) -> None:
    other = own_service(tmp_path / "other", promotion.here.store, promotion.here.metadata)
    refused, put = [], MemoryStore.put

    def meanwhile(*arguments: Any) -> None:
        with pytest.raises(Unavailable, match=r"promotion of data .* is running on another server"):
            call(other, "promote_mirror", dataset=NAME)
        refused.append(arguments)
        put(*arguments)

    promotion.monkeypatch.setattr(MemoryStore, "put", meanwhile)
    promotion.promote()
    assert len(refused) == 2 and promotion.files() == {b"a", b"b"} and not promotion.is_mirror()


@pytest.mark.parametrize(
    "stopped_at", ["create_record", "put", "put_record", "begin_rebuild", "end_promotion"]
)
def test_a_promotion_that_has_lost_its_lease_takes_no_file_back(
    promotion: Promotion, tmp_path: Path, stopped_at: str
) -> None:
    """Its server was stopped; another one promotes the mirror, and users write."""
    here, other = promotion.here, promotion.other_server(tmp_path / "other")
    owners = {"begin_rebuild": SqliteMetadata, "end_promotion": Mirrors}
    owner, began = owners.get(stopped_at, MemoryStore), list[str]()
    written: list[FileRecord | None] = []
    whole = getattr(owner, stopped_at)

    def stopped(*arguments: Any) -> Any:
        is_here = stopped_at not in ("create_record", "put_record") or "promotes-" in arguments[1]
        if is_here and not began:
            began.append(stopped_at)
            call(other, "promote_mirror", dataset=NAME)
            here.write(b"c", deleted=[b"a"])
            here.write(b"b")
            written.append(here.metadata.lookup(DATASET, b"b"))
        return whole(*arguments)

    promotion.monkeypatch.setattr(owner, stopped_at, stopped)
    with suppress(DieselfsError):
        promotion.promote()
    assert began and promotion.files() == {b"b", b"c"}
    promotion.rebuild(is_forced=True)
    assert promotion.files() == {b"b", b"c"} and not promotion.is_mirror()
    assert [here.metadata.lookup(DATASET, b"b")] == written
