"""The marker of an object store: the record that distinguishes a store that is away from one that is empty.

A folder whose file system is not mounted, and a pool that was created again, look like a store without datasets. A
server that believed this would drop metadata, refuse all users, and write chunks to the wrong disk. So each store has a
marker with a random ID. It is created once, by `--init`. It is checked at the start and before each call that lists or
changes something; a read that finds nothing is checked afterwards. A check is one small read (12 us on a local disk).
"""

import json
import secrets
from collections.abc import Callable, Iterator

from dieselfs.errors import Damaged, NotFound, Unavailable
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.wrapper import Arguments, Result, StoreWrapper

MARKER_RECORD = "store"
_FORMAT = 1
_ID_BYTES = 16

_CHECKED_BEFORE = frozenset(
    ("put", "delete", "delete_dataset", "put_record", "create_record", "delete_record", "list_records")
)


class MarkedStore(StoreWrapper):
    """An `ObjectStore` that raises Unavailable where `store` would be taken for empty although it is away."""

    def __init__(self, store: ObjectStore, store_id: str) -> None:
        super().__init__(store)
        self._store_id = store_id

    def check(self) -> None:
        """Raise Unavailable unless the store has the marker that it had at the start."""
        found = read_marker(self.store)
        if found is None:
            raise Unavailable(
                "the object store is away: its marker is missing; mount its file system or restore it "
                "(docs/guide/recovery.md)"
            )
        if found != self._store_id:
            raise Unavailable(
                f"the object store was replaced: its ID was {self._store_id}, now it is {found}; "
                "restart the server if that is right"
            )

    def _pass(self, call: Callable[[*Arguments], Result], *args: *Arguments) -> Result:
        if call.__name__ in _CHECKED_BEFORE:
            self.check()
        try:
            result = call(*args)
        except NotFound:
            self.check()
            raise
        if result is None and call.__name__ == "get_record":
            self.check()
        return result

    def list_chunks(self, dataset_id: bytes, since_s: int = 0) -> Iterator[bytes]:
        return self._checked(super().list_chunks(dataset_id, since_s))

    def list_datasets(self) -> Iterator[bytes]:
        return self._checked(super().list_datasets())

    def list_records(self, prefix: str) -> list[str]:
        return [name for name in super().list_records(prefix) if name != MARKER_RECORD]

    def _checked(self, listing: Iterator[bytes]) -> Iterator[bytes]:
        """`listing`; a store that goes away meanwhile raises Unavailable at its end, instead of a short list."""
        self.check()
        yield from listing
        self.check()


def open_marked(store: ObjectStore, name: str, is_new: bool) -> MarkedStore:
    """`store` with its marker, which is created if it is missing and `is_new`. `name` is for errors.

    Raises Unavailable if there is no marker, Damaged if it cannot be read.
    """
    store_id = read_marker(store)
    if store_id is None:
        if not is_new:
            raise Unavailable(missing(name))
        marker = {"format": _FORMAT, "id": secrets.token_hex(_ID_BYTES)}
        store.create_record(MARKER_RECORD, json.dumps(marker).encode())
        store_id = read_marker(store) or ""  # perhaps that of another server
    return MarkedStore(store, store_id)


def missing(name: str) -> str:
    """The error for a store without a marker."""
    return (
        f"object store {name}: it has no marker, so it may be away, not empty: mount its file system or restore it "
        "(docs/guide/recovery.md); if the store is new, start the server once with --init"
    )


def read_marker(store: ObjectStore) -> str | None:
    """The ID in the marker of a store; None without a marker. Raises Damaged."""
    content = store.get_record(MARKER_RECORD)
    if content is None:
        return None
    try:
        marker = json.loads(content)
        if marker["format"] != _FORMAT or not isinstance(marker["id"], str):
            raise ValueError(f"format {marker['format']!r}")
        return str(marker["id"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(
            f"the marker of the object store (record {MARKER_RECORD!r}) is invalid: {error!r}"
        ) from None
