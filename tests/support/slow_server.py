"""`dieselfs-server` whose store takes `SEEK_S` for each read, one after the other. For `running_server`."""

from typing import Any
from unittest.mock import patch

from dieselfs_server import assemble, main
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.opening import open_store
from lab.seeking_store import SeekingStore

SEEK_S = 0.05
BYTES_PER_S = 1e9


def _open(*arguments: Any) -> ObjectStore:
    return SeekingStore(open_store(*arguments), SEEK_S, BYTES_PER_S)


if __name__ == "__main__":
    with patch.object(assemble, "open_store", _open):
        main.main()
