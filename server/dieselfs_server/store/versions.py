"""A record that several servers change, and of which no change is lost: each version is a record of the object store,
and of several servers that create the same version, one succeeds. Blocks.
"""

from dieselfs.errors import Unavailable
from dieselfs_server.store.interface import ObjectStore

READ_TRIES_MAX = 64


class VersionedRecord:
    """`prefix` begins the names of the versions; the newest counts. `kept`: a change that is as many versions late
    cannot create a version that was removed. `is_secret`: older versions are emptied.
    """

    def __init__(self, store: ObjectStore, prefix: str, kept: int, is_secret: bool = False) -> None:
        self._store, self._prefix, self._kept, self._is_secret = store, prefix, kept, is_secret

    def newest(self) -> tuple[int, bytes]:
        """Number and content of the newest version; 0 and nothing without one. Raises Unavailable if it changes all the
        time.
        """
        for _ in range(READ_TRIES_MAX):
            names = self._store.list_records(self._prefix)
            if not names:
                return 0, b""
            content = self._store.get_record(names[-1])
            if content or (content is not None and not self._is_secret):  # else there is a newer one by now
                return int(names[-1].removeprefix(self._prefix)), content
        raise Unavailable(
            f"record {self._prefix}* of the object store changes too fast to be read; try again"
        )

    def replace(self, number: int, content: bytes) -> bool:
        """Store the version that follows `number`, durably; False if there is one, with another content."""
        name = f"{self._prefix}{number + 1:020}"  # names sort by version
        if not self._store.create_record(name, content) and self._store.get_record(name) != content:
            return False
        names = self._store.list_records(self._prefix)
        for old in names[: -self._kept]:
            self._store.delete_record(old)
        for old in names[-self._kept : -1] if self._is_secret else ():
            if self._store.get_record(old):
                self._store.put_record(old, b"")
        return True

    def remove(self) -> None:
        """Remove all versions, the newest last."""
        for name in self._store.list_records(self._prefix):
            self._store.delete_record(name)
