"""Proofs: their text, what they answer, and that no change of one goes unnoticed."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.opportunistic import Parts, log_ahead, served
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.proof import Proof, Read, Reading, cursors_in, furthest, reads_of, whole_epochs
from dieselfs.shuffle.run_log import RunLog
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.names_file import NamesFile
from dieselfs.snapshot.plain import plain_snapshot
from dieselfs.snapshot.reader import Snapshot
from dieselfs_server.datasets.snapshots import signed
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.documents import REPOSITORY
from tests.support.identity import IDENTITY

SAMPLES = REPOSITORY / "tests/samples/proof"
FILES, BATCH = 50, 8
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))


@cache
def snapshot_of(files: int = FILES) -> Snapshot:
    entries = [TreeEntry(b"train/%02d.png" % number, 0o100644, 0, b"x" * 9) for number in range(files)]
    entries.append(TreeEntry(b"val/0.png", 0o100644, 0, b"x"))
    return Snapshot(
        signed(bytes(pack_entries(entries, chunk_bytes=100).snapshot.content), IDENTITY), "packed"
    )


def plan(epoch: int = 0, skips: Iterable[range] = ()) -> Plan:
    return Plan(snapshot_of(), PlanSpec(1, epoch, 2, Skips(skips), b"train"))


def made(*reads: Cursor | Read) -> Proof:
    found = [read if isinstance(read, Read) else Read(read) for read in reads]
    key = KEY.public_key().public_bytes_raw()
    header = snapshot_of().header
    return Proof.of(header, b"train", BATCH, found, 1_790_000_000, "anna", key).signed(KEY.sign)


READS = (plan(0).cursor(FILES), plan(1, [range(8, 24)]).cursor(20))
PROOF = made(*READS)
CONTENT = PROOF.encode()


def test_a_proof_answers_when_a_file_was_read() -> None:
    proof = Proof.decode(CONTENT, "run.proof")
    assert proof == PROOF
    plans = proof.plans(snapshot_of(), {})
    whole = [snapshot_of().path(int(node)) for node in plan(1).nodes()]
    left = whole[:8] + whole[24:]
    first = [snapshot_of().path(int(node)) for node in plan(0).nodes()]
    for path in first:
        expected = [Reading(1, 0, place := first.index(path), place // BATCH)]
        if path in left[:20]:
            expected.append(Reading(1, 1, place := left.index(path), place // BATCH))
        assert proof.readings(plans, path) == expected
    assert proof.readings(plans, b"val/0.png") == proof.readings(plans, b"none") == []
    with pytest.raises(InvalidInput, match="is not generation"):
        proof.plans(snapshot_of(FILES + 1), {})


@cache
def run_of(world: int = 2) -> RunLog:
    """Ranks that have drawn epoch 0, of two chunks at a time."""
    logs = [log_ahead(plan(), ReaderSpec(rank, world), None, 2) for rank in range(world)]
    return RunLog(BATCH, tuple(logs))


def test_an_opportunistic_order_is_proved_with_its_log() -> None:
    """The positions are those that the sampler served, which is given the same log."""
    content = b"\x8c" + str(run_of()).encode() + b"u."
    assert RunLog.first_in(content[1:]) == run_of()
    assert RunLog.first_in(json.dumps(str(run_of())).encode()[1:]) == run_of()
    with pytest.raises(InvalidInput, match="truncated or changed"):
        RunLog.first_in(content[1:-5])
    cursors = plan(0).cursor(FILES - 10), plan(1).cursor(5)
    reads = furthest(reads_of(cursors, [run_of()]))
    assert [bool(read.log) for read in reads] == [True, False]
    proof = Proof.decode(made(*reads).encode(), "run.proof")
    assert proof.encode().startswith(b"dieselfs-proof 2\n") and proof.reads == (*reads,)
    first, second = draws(run_of(), 0), draws(run_of(), 1)
    half = BATCH // 2  # of a step; the last one has two files
    steps = [first[step : step + half] + second[step : step + half] for step in range(0, FILES // 2, half)]
    plans = proof.plans(snapshot_of(), {run_of().digest: run_of()})
    for position, node in enumerate(node for step in steps for node in step):
        found = [one for one in proof.readings(plans, snapshot_of().path(node)) if one.epoch == 0]
        assert found == ([Reading(1, 0, position, position // BATCH)] if position < FILES - 10 else [])
    with pytest.raises(InvalidInput, match=f"give --log FILE.* SHA-256 {run_of().digest.hex()}"):
        proof.plans(snapshot_of(), {run_of(1).digest: run_of(1)})
    with pytest.raises(InvalidInput, match="two opportunistic orders of epoch 0"):
        reads_of(cursors, [run_of(), run_of(1)])
    forged = made(Read(plan(1).cursor(5), run_of().digest))  # the log of another epoch
    with pytest.raises(InvalidInput, match="the log is of another order"):
        forged.plans(snapshot_of(), {run_of().digest: run_of()})


def draws(run: RunLog, rank: int) -> list[int]:
    parts = Parts.of(plan(), ReaderSpec(rank, len(run.logs)))
    return [*map(int, served(parts, run.logs[rank]).nodes)]


def test_the_samples() -> None:
    """Other versions must read what this one has written, and write the same."""
    content = (SAMPLES / "run.proof").read_bytes()
    proof = Proof.decode(content, "run.proof")
    assert replace(proof, signature=b"").signed(KEY.sign).encode() == content
    plans = proof.plans(Snapshot.open(SAMPLES / "packed.snapshot"), {})
    assert proof.readings(plans, b"train/07.png") == [Reading(1, 0, 31, 3)]
    assert [one.epoch for one in proof.readings(plans, b"train/11.png")] == [0, 1]

    content = (SAMPLES / "served.proof").read_bytes()
    proof = Proof.decode(content, "served.proof")
    assert replace(proof, signature=b"").signed(KEY.sign).encode() == content
    run = RunLog.parse((SAMPLES / "served.log").read_text())
    plans = proof.plans(Snapshot.open(SAMPLES / "packed.snapshot"), {run.digest: run})
    assert proof.readings(plans, b"train/07.png") == [Reading(1, 0, 14, 1)]

    content = (SAMPLES / "encrypted.proof").read_bytes()
    proof = Proof.decode(content, "encrypted.proof")
    assert replace(proof, signature=b"").signed(KEY.sign).encode() == content
    names = NamesFile.open(SAMPLES / "encrypted.names")
    assert names is not None and names.key == CIPHER.proof_key(proof.digest)
    plans = proof.plans(names, {})
    assert proof.readings(plans, b"train/07.png") == [Reading(1, 0, 26, 3)]
    assert proof.readings(plans, b"train/05.png") == []


@given(st.data())
def test_no_change_goes_unnoticed(data: st.DataObject) -> None:
    content = data.draw(st.sampled_from([CONTENT, encrypted_proof().encode()]))
    place = data.draw(st.integers(0, len(content) - 1))
    removed = data.draw(st.integers(0, 40))
    changed = content[:place] + data.draw(st.binary(max_size=40)) + content[place + removed :]
    if changed != content:
        with pytest.raises(Damaged, match=r"^here: "):
            Proof.decode(changed, "here")


@pytest.mark.parametrize(
    "forged",
    [
        replace(PROOF, generation=PROOF.generation + 1),
        replace(PROOF, reads=PROOF.reads[:1]),
        replace(PROOF, reads=PROOF.reads[::-1]),
        replace(PROOF, reads=(Read(READS[0], bytes(32)), *PROOF.reads[1:])),
        replace(PROOF, batch=9),
        replace(PROOF, folder=b"val"),
        replace(PROOF, stated_s=0),
        replace(PROOF, signer="ben"),
        replace(PROOF, public_key=IDENTITY.public_key),
        replace(PROOF, digest=bytes(32)).signed(KEY.sign),  # the servers have not signed that
        replace(PROOF, server=PROOF.public_key).signed(KEY.sign),
    ],
)
def test_what_was_not_signed_is_refused(forged: Proof) -> None:
    with pytest.raises(Damaged, match="here: "):
        Proof.decode(forged.encode(), "here")


def test_a_signer_who_names_another_generation_is_found_with_the_snapshot() -> None:
    proof = Proof.decode(replace(PROOF, generation=PROOF.generation + 1).signed(KEY.sign).encode(), "here")
    with pytest.raises(Damaged, match="another name or generation"):
        proof.plans(snapshot_of(), {})


CIPHER = DatasetCipher(bytes(range(32)))


@cache
def encrypted(files: int = FILES) -> tuple[Snapshot, Snapshot]:
    """As the servers sign it, and with plain names."""
    paths = [*(b"train/%02d.png" % number for number in range(files)), b"val/0.png"]
    sealed = b"x" * (9 + 32)  # one segment, and its trailer
    entries = [TreeEntry(CIPHER.names.seal_path(path), 0o100644, 0, sealed) for path in paths]
    content = signed(bytes(pack_entries(entries, chunk_bytes=410).snapshot.content), IDENTITY)
    snapshot = Snapshot(content, "encrypted")
    return snapshot, Snapshot(plain_snapshot(snapshot, CIPHER), "plain")


def names_of(files: int = FILES) -> NamesFile:
    snapshot, plain = encrypted(files)
    return NamesFile(CIPHER.proof_key(snapshot.digest), plain)


def hidden(*reads: Read, folder: bytes = b"train", files: int = FILES) -> Proof:
    snapshot, plain = encrypted(files)
    key = KEY.public_key().public_bytes_raw()
    made = Proof.of(snapshot.header, folder, BATCH, reads, 1_790_000_000, "anna", key)
    return made.hidden(names_of(files).key, plain.digest).signed(KEY.sign)


def encrypted_plan(epoch: int) -> Plan:
    return Plan(encrypted()[1], PlanSpec(1, epoch, folder=b"train"))


def encrypted_run() -> RunLog:
    return RunLog(BATCH, (log_ahead(encrypted_plan(1), ReaderSpec(0, 1), None, 2),))


def encrypted_proof() -> Proof:
    """Epoch 0 to its end, and 20 positions of an opportunistic order of epoch 1."""
    return hidden(
        Read(encrypted_plan(0).cursor(FILES)), Read(encrypted_plan(1).cursor(20), encrypted_run().digest)
    )


def test_a_proof_of_an_encrypted_dataset_answers_with_the_names(tmp_path: Path) -> None:
    content = encrypted_proof().encode()
    assert content.startswith(b"dieselfs-proof 3\n") and b"folder" not in content
    proof = Proof.decode(content, "run.proof")
    assert proof == encrypted_proof()
    path = tmp_path / "scans.names"
    names_of().save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    names = NamesFile.open(path)
    assert names is not None and names.snapshot.digest == encrypted()[1].digest
    run = encrypted_run()
    plans = proof.plans(names, {run.digest: run})
    order = [encrypted()[1].path(int(node)) for node in encrypted_plan(0).nodes()]
    drawn = [encrypted()[1].path(int(node)) for node in served_nodes(run)]
    for place, name in enumerate(order):
        later = drawn.index(name)
        expected = [Reading(1, 0, place, place // BATCH)]
        expected += [Reading(1, 1, later, later // BATCH)] if later < 20 else []
        assert proof.readings(plans, name) == expected
    assert proof.readings(plans, b"val/0.png") == []
    assert proof.plans(encrypted()[0], {}) == []  # what the servers have signed is right, and has no names
    with pytest.raises(InvalidInput, match=r"give --log FILE.* whose log has the HMAC [0-9a-f]{64}"):
        proof.plans(names, {})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damaged):
        NamesFile.open(path)
    path.write_bytes(b"text")
    assert NamesFile.open(path) is None
    with pytest.raises(NotFound):
        NamesFile.open(tmp_path / "none")


def served_nodes(run: RunLog) -> list[int]:
    return [*map(int, served(Parts.of(encrypted_plan(1), ReaderSpec(0, 1)), run.logs[0]).nodes)]


def test_nothing_in_a_proof_of_an_encrypted_dataset_confirms_guessed_names() -> None:
    """Whoever guesses all plain names has the plain snapshot, its digest and its cursors, but not the key."""
    text = encrypted_proof().encode().decode()
    plain, cursor, run = encrypted()[1], encrypted_plan(0).cursor(FILES), encrypted_run()
    for guessed in (plain.digest.hex()[:16], cursor.snapshot[:16], run.digest.hex()[:16], "train", "png"):
        assert guessed not in text
    other = DatasetCipher(bytes(32)).proof_key(encrypted()[0].digest)
    with pytest.raises(InvalidInput, match="has not the names that the proof is about"):
        encrypted_proof().plans(NamesFile(other, plain), {run.digest: run})
    later = CIPHER.proof_key(encrypted(FILES + 1)[0].digest)  # of another generation: it opens no other
    assert later != names_of().key


def test_other_names_and_another_folder_are_found() -> None:
    run = encrypted_run()
    with pytest.raises(InvalidInput, match="has not the names that the proof is about"):
        encrypted_proof().plans(names_of(FILES + 1), {run.digest: run})
    with pytest.raises(InvalidInput, match="is not generation"):
        encrypted_proof().plans(encrypted(FILES + 1)[0], {})
    with pytest.raises(InvalidInput, match="has not the names"):
        PROOF.plans(names_of(), {})
    beyond = hidden(Read(encrypted_plan(0).cursor(FILES)), folder=b"val")  # which has one file
    with pytest.raises(InvalidInput, match="no position 50"):
        beyond.plans(names_of(), {})
    cursor = replace(encrypted_proof().reads[0].cursor, snapshot="0" * 24)
    forged = replace(encrypted_proof(), reads=(Read(cursor),)).signed(KEY.sign)
    with pytest.raises(Damaged, match="not written as a proof is"):
        Proof.decode(forged.encode(), "here")


def test_cursors_are_found_in_any_content() -> None:
    cursors = [plan(0).cursor(7), plan(0).cursor(30), *READS]
    content = b"\x8cord" + b"\x00d".join(str(cursor).encode() for cursor in cursors) + b"0.order2.text"
    assert [*cursors_in(content)] == cursors
    wrong = str(READS[0]).replace("p50", "p49").encode()
    assert [*cursors_in(wrong)] == []
    assert furthest(map(Read, [*cursors, plan(2).cursor(0)])) == [*map(Read, READS)]


def test_whole_epochs_have_the_skips_that_are_known() -> None:
    newest = plan(3).cursor(10)
    known = [plan(1, [range(8, 24)]).cursor(20), newest]
    whole = [*whole_epochs(0, newest, plan(), known)]
    assert [(one.spec.epoch, one.position) for one in whole] == [(0, FILES), (1, FILES - 16), (2, FILES)]
    assert len(furthest(map(Read, [*known, *whole]))) == 4
    with pytest.raises(InvalidInput, match="epochs in one proof"):
        [*whole_epochs(0, plan(5000).cursor(1), plan(), [])]
    with pytest.raises(InvalidInput, match="1 to 4096 orders"):
        made()


@pytest.mark.parametrize("name", [b"\xff", b"\x1b[31m"], ids=["no ASCII", "control"])
@pytest.mark.parametrize("field", [b"signer ", b"dataset ", b"folder /"])
def test_only_printable_ascii_is_a_proof(field: bytes, name: bytes) -> None:
    with pytest.raises(Damaged, match="not a proof of this version"):
        Proof.decode(CONTENT.replace(field, field + name), "run.proof")
