"""The signature of a snapshot: which server made it. No I/O.

The servers of a store sign with their identity key. What they sign is the digest, which covers all bytes behind the
preamble: name and ID of the dataset, generation, time, all paths, and the digests of all contents.
"""

from dieselfs.errors import Damaged
from dieselfs.net.auth import check_signed_by
from dieselfs.snapshot.format import SIGNATURE_BYTES, SIGNER_BYTES, SnapshotHeader

_CONTEXT = b"dieselfs snapshot\0"
"""Before the digest, so that a signature of something else is never one of a snapshot."""

UNSIGNED = bytes(SIGNER_BYTES)
"""The signer of a snapshot without signature."""


def message_of(digest: bytes) -> bytes:
    """The bytes that a server signs for a snapshot with this digest."""
    return _CONTEXT + digest


def check_snapshot_signature(header: SnapshotHeader, source: str) -> None:
    """Raise Damaged unless `header.signer` has signed the snapshot. The caller decides whether it trusts the signer."""
    if header.signer == UNSIGNED or header.signature == bytes(SIGNATURE_BYTES):
        raise Damaged(f"{source}: the snapshot is not signed by a server")
    check_signed_by(header.signer, message_of(header.digest), header.signature, source)
