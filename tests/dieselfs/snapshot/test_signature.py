"""The signature of a snapshot: made by a server, checked by its readers."""

import pytest

from dieselfs.errors import Damaged
from dieselfs.snapshot.encoding import with_signature
from dieselfs.snapshot.format import PREAMBLE_BYTES, decode_snapshot_header
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.signature import UNSIGNED, check_snapshot_signature
from dieselfs_server.datasets.snapshots import check_signed, signed
from tests.support.identity import IDENTITY, OTHER_IDENTITY
from tests.support.snapshots import SAMPLE, SOURCE, snapshot_bytes

DATA = snapshot_bytes(SAMPLE)
SIGNED = signed(DATA, IDENTITY)


def test_a_signature_changes_only_the_preamble() -> None:
    header = decode_snapshot_header(SIGNED, len(SIGNED), SOURCE)
    check_snapshot_signature(header, SOURCE)
    assert header.signer == IDENTITY.public_key
    assert SIGNED[PREAMBLE_BYTES:] == DATA[PREAMBLE_BYTES:]
    assert Snapshot(SIGNED, SOURCE).digest == Snapshot(DATA, SOURCE).digest
    assert with_signature(SIGNED, header, UNSIGNED, bytes(64)) == DATA


def test_a_snapshot_without_a_signature_is_refused() -> None:
    with pytest.raises(Damaged, match="snapshot 7: the snapshot is not signed"):
        check_snapshot_signature(Snapshot(DATA, SOURCE).header, SOURCE)


def test_a_signature_of_other_bytes_is_refused() -> None:
    other = Snapshot(signed(snapshot_bytes({}), IDENTITY), SOURCE).header
    forged = with_signature(DATA, Snapshot(DATA, SOURCE).header, other.signer, other.signature)
    with pytest.raises(Damaged, match="snapshot 7: "):
        check_snapshot_signature(Snapshot(forged, SOURCE).header, SOURCE)


def test_a_server_takes_only_its_own() -> None:
    check_signed(Snapshot(SIGNED, SOURCE), IDENTITY)
    with pytest.raises(Damaged, match="not signed by the servers of this store"):
        check_signed(Snapshot(SIGNED, SOURCE), OTHER_IDENTITY)


def test_every_flipped_bit_of_the_signature_is_found() -> None:
    """Also if the checksum of the preamble is made right."""
    header = decode_snapshot_header(SIGNED, len(SIGNED), SOURCE)
    for bit in range(8 * len(header.signature)):
        signature = bytearray(header.signature)
        signature[bit // 8] ^= 1 << bit % 8
        forged = with_signature(SIGNED, header, header.signer, bytes(signature))
        with pytest.raises(Damaged):
            check_snapshot_signature(decode_snapshot_header(forged, len(forged), SOURCE), SOURCE)
