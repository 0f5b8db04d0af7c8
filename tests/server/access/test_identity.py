"""The identity of the servers of a store."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dieselfs.errors import AccessDenied, Damaged
from dieselfs.net.auth import check_signature
from dieselfs_server.access.identity import IDENTITY_RECORD, Identity, store_identity
from dieselfs_server.store.memory import MemoryStore


def test_all_servers_of_a_store_have_one_identity() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: store_identity(store), range(8)))
    assert len({identity.pin for identity in found}) == 1
    assert store_identity(MemoryStore()).pin != found[0].pin


def test_a_signature_is_checked_against_the_pin() -> None:
    ours, other = Identity.generate(), Identity.generate()
    signature = ours.sign(b"content")
    check_signature(ours.pin, ours.public_key, b"content", signature, "snapshot")
    with pytest.raises(AccessDenied, match="snapshot: the signature"):
        check_signature(ours.pin, ours.public_key, b"altered", signature, "snapshot")
    with pytest.raises(AccessDenied, match="snapshot: signed by another server"):
        check_signature(ours.pin, other.public_key, b"content", other.sign(b"content"), "snapshot")


def test_a_damaged_record_is_no_reason_for_a_new_identity() -> None:
    store = MemoryStore()
    store_identity(store)
    store.put_record(IDENTITY_RECORD, b"dieselfs-identity 1 00 00\n")
    with pytest.raises(Damaged, match="identity"):
        store_identity(store)


def test_the_private_key_is_not_printed() -> None:
    identity = Identity.generate()
    assert identity.seed.hex() not in repr(identity) and repr(identity.seed) not in repr(identity)
