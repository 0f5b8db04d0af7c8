"""Snapshots kept on this machine: fetched once, checked, never replaced by an older state, never by another's."""

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from dieselfs.errors import Damaged, DieselfsError, NotFound, StorageFull
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.records import RemoteSnapshot, TagRecord
from dieselfs.snapshot.builder import build_snapshot
from dieselfs.snapshot.delta import delta_between
from dieselfs.snapshot.delta_format import Delta, encode_delta
from dieselfs.snapshot.derived import stored_subtree
from dieselfs.snapshot.encoding import with_signature
from dieselfs.snapshot.freshness import Statement
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.saved import NEWEST_FILE, STATEMENT_SUFFIX, load_snapshot, save_snapshot
from dieselfs.snapshot.store import GENERATIONS_KEPT, SIGNER_FILE, SnapshotStore
from dieselfs_server.access.identity import Identity
from dieselfs_server.datasets.snapshots import signed
from tests.support.identity import IDENTITY, OTHER_IDENTITY
from tests.support.snapshots import DATASET_ID, SAMPLE, Tree, entry_table, file_of

SECOND_NS = 1_000_000_000


def content_of(
    generation: int, tree: Tree = SAMPLE, dataset_id: bytes | None = None, identity: Identity = IDENTITY
) -> bytearray:
    table = entry_table(tree)
    record = table.dataset._replace(generation=generation, updated_ns=generation * SECOND_NS)
    if dataset_id is not None:
        record = record._replace(dataset_id=dataset_id)
    return bytearray(signed(build_snapshot(replace(table, dataset=record)), identity))


def offer_of(content: bytearray) -> RemoteSnapshot:
    snapshot = Snapshot(bytes(content), "offer")
    return RemoteSnapshot(snapshot.generation, snapshot.header.updated_ns, snapshot.digest, content)


@dataclass
class OfferingServer:
    """Stands for a server that offers just what a test says, which a real one would not."""

    offer: RemoteSnapshot
    known_digests: list[bytes] = field(default_factory=list)
    servers_pins: tuple[bytes, ...] = ()
    deltas: list[Delta] = field(default_factory=list)
    bases: list[bytes] = field(default_factory=list)

    def snapshot(
        self,
        dataset: str,
        generation: int,
        known_digest: bytes,
        tag: str,
        bases: bytes,
        parts: Callable[[int], Iterator[memoryview]],
    ) -> RemoteSnapshot:
        offer = self.offer_for(known_digest, bases)
        if not offer.content:
            return offer
        at = 0
        for part in parts(len(offer.content)):
            part[:] = offer.content[at : at + len(part)]
            at += len(part)
        return offer._replace(content=bytearray())

    def offer_for(self, known_digest: bytes, bases: bytes) -> RemoteSnapshot:
        self.known_digests.append(known_digest)
        self.bases.append(bases)
        for delta in self.deltas:
            if delta.base_digest in bases:
                return self.offer._replace(
                    content=bytearray(encode_delta(delta)), base_digest=delta.base_digest
                )
        return self.offer._replace(content=None) if known_digest == self.offer.digest else self.offer

    def cipher(self, _dataset: DatasetRecord) -> None:
        """It has no encrypted datasets."""

    def client(self) -> ServerClient:
        return cast(ServerClient, self)


def record_at(generation: int) -> DatasetRecord:
    return entry_table(SAMPLE).dataset._replace(generation=generation, updated_ns=generation * SECOND_NS)


def stated(
    offer: RemoteSnapshot, identity: Identity = IDENTITY, age_s: float = 0.0, dataset_id: bytes = DATASET_ID
) -> RemoteSnapshot:
    """The offer with a statement of freshness."""
    state = offer.generation, offer.updated_ns, offer.digest
    made = Statement("pets", dataset_id, *state, int(time.time() - age_s), 86_400, identity.public_key)
    return offer._replace(statement=replace(made, signature=identity.sign(made.message())).encode())


def offered(cache: SnapshotStore, offer: RemoteSnapshot, generation: int = 0) -> Snapshot:
    return cache.get(OfferingServer(offer).client(), record_at(offer.generation), generation)


def files(folder: Path) -> list[Path]:
    notes = SIGNER_FILE, NEWEST_FILE
    return [path for path in folder.rglob("*") if path.is_file() and path.name not in notes]


def test_a_snapshot_is_fetched_once(tmp_path: Path) -> None:
    server = OfferingServer(offer_of(content_of(7)))
    for _ in range(3):
        snapshot = SnapshotStore(tmp_path).get(server.client(), record_at(7))
        assert (snapshot.digest, snapshot.generation) == (server.offer.digest, 7)
    assert server.known_digests == [b"", server.offer.digest, server.offer.digest]


def test_a_generation_that_is_here_is_not_fetched_when_it_is_asked_for_by_number(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    server = OfferingServer(offer_of(content_of(7)))
    assert cache.get(server.client(), record_at(9), 7).generation == 7
    assert server.known_digests == [server.offer.digest]
    counted_anew = OfferingServer(offer_of(content_of(7, {})))  # after a great loss
    assert cache.get(counted_anew.client(), record_at(9), 7).digest == counted_anew.offer.digest


def test_files_are_private_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    offered(SnapshotStore(tmp_path / "cache"), offer_of(content_of(7)))
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_damage_on_the_way_is_mended_by_asking_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = OfferingServer(offer_of(content_of(7)))
    offers = [server.offer._replace(content=content_of(7)[:-1] + b"\1"), server.offer]
    monkeypatch.setattr(server, "offer_for", lambda *_: offers.pop(0))
    assert SnapshotStore(tmp_path).get(server.client(), record_at(7)).digest == server.offer.digest
    assert offers == []


def test_the_newest_generations_are_kept(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    for generation in range(1, GENERATIONS_KEPT + 4):
        assert offered(cache, offer_of(content_of(generation))).generation == generation
    pinned = sorted(Snapshot.open(path).generation for path in files(tmp_path))
    assert pinned == list(range(4, GENERATIONS_KEPT + 4))


def test_an_older_state_is_refused_unless_asked_for_by_number(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    with pytest.raises(Damaged, match=r"older snapshot of pets \(generation 6\).*\(generation 7\)"):
        offered(cache, offer_of(content_of(6)))
    assert offered(cache, offer_of(content_of(6)), generation=6).generation == 6


def test_the_newest_state_is_remembered_when_its_snapshot_is_removed(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    cache.remove(offered(cache, stated(offer_of(content_of(7)))))
    assert cache.stored() == []
    with pytest.raises(Damaged, match=r"older snapshot of pets \(generation 6\).*\(generation 7\)"):
        offered(cache, stated(offer_of(content_of(6))))


def test_a_smaller_generation_with_a_newer_time_is_refused(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    table = entry_table(SAMPLE)
    record = table.dataset._replace(generation=6, updated_ns=8 * SECOND_NS)
    later = offer_of(bytearray(signed(build_snapshot(replace(table, dataset=record)), IDENTITY)))
    with pytest.raises(Damaged, match=r"older snapshot of pets \(generation 6\).*\(generation 7\)"):
        offered(cache, later)
    assert offered(SnapshotStore(tmp_path, is_older_allowed=True), later).generation == 6
    assert offered(cache, later).generation == 6  # once is enough


@pytest.mark.parametrize(
    ("offer", "said"),
    [
        pytest.param(stated(offer_of(content_of(7)), OTHER_IDENTITY), "other servers", id="others"),
        pytest.param(stated(offer_of(content_of(7)), dataset_id=bytes(16)), "another one", id="dataset"),
        pytest.param(
            offer_of(content_of(7))._replace(statement=stated(offer_of(content_of(8))).statement),
            "another one",
            id="state",
        ),
        pytest.param(offer_of(content_of(7))._replace(statement=b"new\n"), "not a statement", id="text"),
    ],
)
def test_a_statement_of_something_else_is_refused(tmp_path: Path, offer: RemoteSnapshot, said: str) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, stated(offer_of(content_of(6))))
    with pytest.raises(Damaged, match=said):
        offered(cache, offer)


def test_with_a_limit_only_new_statements_count(tmp_path: Path) -> None:
    cache, new = SnapshotStore(tmp_path, max_age_s=300), offer_of(content_of(7))
    with pytest.raises(DieselfsError, match="no statement of freshness, which max_age asks for"):
        offered(cache, new)
    with pytest.raises(DieselfsError, match=r"was the newest 10 min \d s ago, and max_age allows 5 min 0 s"):
        offered(cache, stated(new, age_s=600))
    with pytest.raises(DieselfsError, match=r"ahead of the clock of this machine: set the clock"):
        offered(cache, stated(new, age_s=-600))
    assert offered(cache, stated(new, age_s=20)).generation == 7
    with pytest.raises(DieselfsError, match="was the newest 10 min"):  # also of a snapshot that is here
        offered(cache, stated(new, age_s=600))


def test_a_saved_snapshot_has_its_statement_beside_it(tmp_path: Path) -> None:
    limited = SnapshotStore(tmp_path / "limited", max_age_s=300)
    cache, path = SnapshotStore(tmp_path / "cache"), tmp_path / "saved"
    save_snapshot(offered(cache, stated(offer_of(content_of(7)), age_s=20)), path)
    assert limited.adopt(path).generation == 7
    save_snapshot(offered(cache, stated(offer_of(content_of(8)), age_s=600)), path)
    with pytest.raises(DieselfsError, match="was the newest 10 min"):
        limited.adopt(path)
    save_snapshot(offered(cache, offer_of(content_of(7)), generation=7), path)  # not the newest
    with pytest.raises(NotFound, match=r"no statement of freshness .*max_age asks for it"):
        limited.adopt(path)
    statement = Path(f"{path}{STATEMENT_SUFFIX}")
    statement.write_bytes(stated(offer_of(content_of(8))).statement)
    with pytest.raises(Damaged, match="about another snapshot"):
        limited.adopt(path)
    statement.write_bytes(stated(offer_of(content_of(7)), OTHER_IDENTITY).statement)
    with pytest.raises(Damaged, match="other servers"):
        limited.adopt(path)


def test_a_statement_from_elsewhere_shows_that_the_servers_were_set_back(tmp_path: Path) -> None:
    cache, path = SnapshotStore(tmp_path / "cache"), tmp_path / "statement"
    seven, pins = offer_of(content_of(7)), (IDENTITY.pin,)
    path.write_bytes(stated(seven, age_s=10**8).statement)
    kept = [TagRecord("", 7, 7 * SECOND_NS, 0, 0, seven.digest)]
    for generation in (7, 8):
        cache.check_statement(str(path), record_at(generation), kept, pins)
    with pytest.raises(
        Damaged, match=r"older state of pets \(generation 6\) than they stated in .*\(generation 7\)"
    ):
        cache.check_statement(str(path), record_at(6), [], pins)
    with pytest.raises(Damaged, match="generation 7 of pets is another one than stated"):
        cache.check_statement(str(path), record_at(8), [kept[0]._replace(digest=bytes(32))], pins)
    with pytest.raises(Damaged, match="another dataset"):
        cache.check_statement(str(path), record_at(7)._replace(dataset_id=bytes(16)), [], pins)
    path.write_bytes(stated(seven, OTHER_IDENTITY).statement)
    with pytest.raises(Damaged, match="other servers"):
        cache.check_statement(str(path), record_at(7), kept, pins)


def test_an_older_state_can_be_allowed(tmp_path: Path) -> None:
    offered(SnapshotStore(tmp_path), offer_of(content_of(7)))
    assert offered(SnapshotStore(tmp_path, is_older_allowed=True), offer_of(content_of(6))).generation == 6
    with pytest.raises(Damaged, match="DIESELFS_ALLOW_OLDER=yes"):
        offered(SnapshotStore(tmp_path), offer_of(content_of(6)))


def test_a_snapshot_of_other_servers_is_refused(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    forged = offer_of(content_of(8, {}, identity=OTHER_IDENTITY))
    with pytest.raises(Damaged, match=f"signed by other servers .* remove .*/{SIGNER_FILE}"):
        offered(cache, forged)
    assert [Snapshot.open(path).generation for path in files(tmp_path)] == [7]
    next(tmp_path.rglob(SIGNER_FILE)).unlink()
    assert offered(cache, forged).generation == 8


def test_a_snapshot_without_a_valid_signature_is_refused(tmp_path: Path) -> None:
    good = bytes(content_of(7))
    header = Snapshot(good, "good").header
    other = Snapshot(bytes(content_of(8)), "other").header
    for signer, signature in (
        (bytes(32), bytes(64)),
        (header.signer, bytes(64)),
        (header.signer, other.signature),
        (OTHER_IDENTITY.public_key, header.signature),
    ):
        forged = bytearray(with_signature(good, header, signer, signature))
        with pytest.raises(Damaged, match="sign"):
            offered(SnapshotStore(tmp_path), offer_of(forged))
    assert files(tmp_path) == []


def test_an_older_state_that_says_it_is_new_is_refused(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    with pytest.raises(Damaged, match="another snapshot"):
        offered(cache, offer_of(content_of(6))._replace(updated_ns=8 * SECOND_NS, generation=8))


@pytest.mark.parametrize(
    "offer",
    [
        pytest.param(offer_of(content_of(7, dataset_id=bytes(16))), id="another dataset"),
        pytest.param(offer_of(content_of(7))._replace(digest=bytes(32)), id="another digest"),
        pytest.param(offer_of(content_of(7))._replace(content=content_of(7)[:-1]), id="cut short"),
        pytest.param(offer_of(content_of(7))._replace(content=content_of(7)[:-1] + b"\1"), id="damaged"),
        pytest.param(offer_of(content_of(7))._replace(content=bytearray()), id="empty"),
        pytest.param(offer_of(content_of(7))._replace(content=None), id="nothing"),
    ],
)
def test_what_is_not_what_the_server_says_is_not_kept(tmp_path: Path, offer: RemoteSnapshot) -> None:
    with pytest.raises(Damaged):
        offered(SnapshotStore(tmp_path), offer)
    assert files(tmp_path) == []


def test_a_file_that_was_damaged_here_is_fetched_again(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    (file,) = files(tmp_path)
    for damage in (b"", b"x" * 100, file.read_bytes()[:-1]):
        file.write_bytes(damage)
        assert offered(cache, offer_of(content_of(7))).generation == 7


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(StorageFull, match=r"cannot store the snapshot in .*: File too large"):
            offered(SnapshotStore(tmp_path), offer_of(content_of(7)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path) == []


def test_a_saved_snapshot_is_compared_with_the_server(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_bytes(content_of(7, {b"a": file_of()}))
    assert load_snapshot(path, record_at(7), False).find(b"a") > 0
    with pytest.raises(DieselfsError, match="is generation 7 of pets, which now has generation 8"):
        load_snapshot(path, record_at(8), False)
    assert load_snapshot(path, record_at(8), True).generation == 7
    with pytest.raises(DieselfsError, match="another dataset"):
        load_snapshot(path, record_at(7)._replace(dataset_id=bytes(16)), True)
    with pytest.raises(NotFound):
        load_snapshot(tmp_path / "none", record_at(7), False)
    path.write_bytes(content_of(7)[:-1] + b"\1")
    with pytest.raises(Damaged):
        load_snapshot(path, record_at(7), False)


def test_the_signer_is_the_one_that_the_key_file_names(tmp_path: Path) -> None:
    offer = offer_of(content_of(7))
    ours = OfferingServer(offer, servers_pins=(IDENTITY.pin,))
    assert SnapshotStore(tmp_path / "ours").get(ours.client(), record_at(7)).generation == 7
    others = OfferingServer(offer, servers_pins=(OTHER_IDENTITY.pin,))
    with pytest.raises(Damaged, match="other servers than those"):
        SnapshotStore(tmp_path / "others").get(others.client(), record_at(7))


MORE: Tree = {**SAMPLE, b"train/dog.txt": file_of((1, 40, 4))}


def delta_offer(base: bytearray, new: bytearray) -> OfferingServer:
    """A server that offers the new snapshot as a delta to those who have the base."""
    delta = delta_between(Snapshot(bytes(base), "base"), Snapshot(bytes(new), "new"))
    assert delta is not None
    return OfferingServer(offer_of(new), deltas=[delta])


def test_a_delta_is_applied_to_what_is_here(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    offered(cache, offer_of(content_of(7)))
    server = delta_offer(content_of(7), content_of(8, MORE))
    snapshot = cache.get(server.client(), record_at(8))
    assert snapshot.content == content_of(8, MORE)
    assert Path(snapshot.source).read_bytes() == content_of(8, MORE)
    assert len(server.bases) == 1


@pytest.mark.parametrize("spoilt", ["base", "digest", "signature"])
def test_a_delta_that_does_not_fit_is_followed_by_the_whole_snapshot(tmp_path: Path, spoilt: str) -> None:
    cache = SnapshotStore(tmp_path)
    path = Path(offered(cache, offer_of(content_of(7))).source)
    server = delta_offer(content_of(7), content_of(8, MORE))
    if spoilt == "base":
        damaged = bytearray(path.read_bytes())
        damaged[Snapshot.open(path).header.sections["mtimes_ns"].offset + 8] ^= 1
        path.write_bytes(damaged)
    elif spoilt == "digest":
        server.deltas = delta_offer(content_of(7), content_of(8)).deltas
    else:
        server.deltas = [replace(server.deltas[0], signature=bytes(64))]
    assert cache.get(server.client(), record_at(8)).content == content_of(8, MORE)
    assert [bool(bases) for bases in server.bases] == [True, False]


def test_the_snapshot_of_a_folder_is_made_once_and_goes_with_its_generation(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path)
    whole = offered(cache, offer_of(content_of(7)))
    part = stored_subtree(whole, b"train")
    assert (part.location, part.generation, part.find(b"cat.txt") > 0) == ("pets/train", 7, True)
    path = Path(part.source)
    made = path.stat()
    assert made.st_mode & 0o777 == 0o600
    assert stored_subtree(whole, b"train").source == part.source
    assert path.stat().st_mtime_ns == made.st_mtime_ns
    path.write_bytes(b"damaged")
    assert stored_subtree(whole, b"train").digest == part.digest
    assert stored_subtree(whole, b"test").digest != part.digest
    for generation in range(8, 8 + GENERATIONS_KEPT):
        offered(cache, offer_of(content_of(generation)))
    assert not list(tmp_path.rglob("*.subtree"))


def saved(folder: Path, content: bytearray) -> Path:
    """A snapshot in the place where the setting `snapshots` looks for it."""
    folder.mkdir(exist_ok=True)
    return Path(save_snapshot(Snapshot(bytes(content), "saved"), folder))


def test_the_newest_is_taken_from_the_shared_folder(tmp_path: Path) -> None:
    saved(tmp_path / "shared", content_of(7))
    server = OfferingServer(offer_of(content_of(7)))
    cache = SnapshotStore(tmp_path / "own", shared=tmp_path / "shared")
    snapshot = cache.get(server.client(), record_at(7))
    assert server.known_digests == [server.offer.digest]  # so the server sent nothing
    assert Path(snapshot.source).is_relative_to(tmp_path / "own")


def test_a_delta_brings_what_the_shared_folder_lacks(tmp_path: Path) -> None:
    saved(tmp_path / "shared", content_of(7))
    server = delta_offer(content_of(7), content_of(8, MORE))
    cache = SnapshotStore(tmp_path / "own", shared=tmp_path / "shared")
    assert cache.get(server.client(), record_at(8)).content == content_of(8, MORE)
    assert len(server.bases) == 1


@pytest.mark.parametrize("fault", ["damaged", "other signer", "cut short"])
def test_a_bad_file_in_the_shared_folder_is_not_used(tmp_path: Path, fault: str) -> None:
    own = SnapshotStore(tmp_path / "own", shared=tmp_path / "shared")
    offered(SnapshotStore(tmp_path / "own"), offer_of(content_of(6)))  # the signer is known
    path = saved(tmp_path / "shared", content_of(7))
    if fault == "other signer":
        path.write_bytes(content_of(7, identity=OTHER_IDENTITY))
    elif fault == "damaged":
        damaged = content_of(7)
        damaged[-1] ^= 1
        path.write_bytes(damaged)
    else:
        path.write_bytes(content_of(7)[:-1])
    server = OfferingServer(offer_of(content_of(7)))
    assert own.get(server.client(), record_at(7)).content == content_of(7)


def test_an_old_saved_snapshot_stays_while_it_is_used(tmp_path: Path) -> None:
    cache = SnapshotStore(tmp_path / "own")
    path = saved(tmp_path / "shared", content_of(1))
    for generation in range(2, 2 + GENERATIONS_KEPT):
        offered(cache, offer_of(content_of(generation)))
    assert cache.adopt(path).content == content_of(1)
    assert [one.generation for one in cache.stored()] == [5, 4, 3, 2, 1]
    assert SnapshotStore.remove(cache.stored()[-1]) == len(content_of(1))
    assert [one.generation for one in cache.stored()] == [5, 4, 3, 2]
