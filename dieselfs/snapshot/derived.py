"""Snapshots that are made from a stored one, and stored beside it: with plain names, or of a folder. This module opens
files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.arrays import Numbers
from dieselfs.digests import digest_of
from dieselfs.errors import Damaged, NotFound
from dieselfs.snapshot.files import cannot_store, put_file
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import subtree_snapshot

if TYPE_CHECKING:
    from dieselfs.encryption.cipher import DatasetCipher


def stored_plain(snapshot: Snapshot, cipher: "DatasetCipher") -> Snapshot:
    """The snapshot of a stored one with plain names, beside which it is stored, privately, and removed.

    Raises Damaged for another key, and StorageFull.
    """
    if snapshot.header.is_encrypted:
        return snapshot
    path = Path(snapshot.source).with_suffix(f".{snapshot.digest.hex()[:16]}.plain")
    try:
        return Snapshot.open(path)
    except (NotFound, Damaged):
        pass
    from dieselfs.snapshot.plain import plain_snapshot  # with `cryptography`, for encrypted datasets alone

    made = Snapshot(plain_snapshot(snapshot, cipher), str(path))
    made.verify()
    _store(path, made.content)
    return Snapshot.open(path)


def signed_of(plain: Snapshot) -> Snapshot:
    """The signed snapshot, with encrypted names, of which a stored one with plain names was made. Raises NotFound,
    Damaged.
    """
    return Snapshot.open(Path(plain.source).with_suffix("").with_suffix(".snapshot"))


def stored_subtree(
    snapshot: Snapshot, folder: bytes, where: str = "", select: Callable[[], Numbers] | None = None
) -> Snapshot:
    """The snapshot of a folder of a stored snapshot, beside which it is stored and removed. `select`: called for the
    files that the expression `where` selects, unless the snapshot of the selection is stored already.

    Raises PathNotFound, InvalidInput if the path is no folder, and StorageFull.
    """
    beside = Path(snapshot.source)
    named = folder + b"\0" + where.encode(errors="surrogatepass") if where else folder
    path = beside.with_suffix(f".{digest_of(named).hex()[:16]}.subtree")
    try:
        found = Snapshot.open(path, folder)
        found.verify()
        return found
    except (NotFound, Damaged):
        pass
    _store(path, subtree_snapshot(snapshot, folder, None if select is None else select()))
    return Snapshot.open(path, folder)


def _store(path: Path, content: bytes | memoryview) -> None:
    try:
        put_file(path, content)
    except OSError as error:
        raise cannot_store(path.parent, error) from None
