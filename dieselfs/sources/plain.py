"""Which source of bytes a dataset has. What decrypts is imported for an encrypted dataset alone: with `cryptography`,
it takes 4 MB. What keeps chunks on the disk of the node, 0.4 MB, is imported where there is such a disk.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dieselfs.errors import Damaged
from dieselfs.rpc.client import ServerClient
from dieselfs.snapshot.reader import Snapshot
from dieselfs.sources.interface import Source
from dieselfs.sources.server import ServerSource
from dieselfs.telemetry.registry import Registry

if TYPE_CHECKING:
    from dieselfs.encryption.cipher import DatasetCipher
    from dieselfs.sources.decrypted import DecryptedSource


def node_source(
    client: ServerClient,
    snapshot: Snapshot,
    disk: str | None,
    disk_size_bytes: int = 0,
    metrics: Registry | None = None,
    processes: int = 1,
    opens_ahead: bool = True,
) -> ServerSource:
    """The source of a snapshot's bytes: with the folder `disk`, a `DiskSource`; otherwise servers alone. `opens_ahead`:
    see `ServerSource`; not for a job, of which each chunk leaves the servers once.
    """
    if not disk:
        return ServerSource(client, snapshot, metrics, opens_ahead)
    from dieselfs.sources.disk import DiskSource

    return DiskSource(client, snapshot, disk, disk_size_bytes, metrics, processes)


def readable(source: ServerSource, client: ServerClient) -> ServerSource:
    """A source of plain bytes over `source`: itself, unless the dataset is encrypted. The key is asked for at the first
    use.
    """
    snapshot = source.snapshot
    if not snapshot.header.is_encrypted:
        return source
    from dieselfs.sources.decrypted import DecryptedServerSource, Decryption

    def cipher() -> "DatasetCipher":
        found = client.known_cipher(snapshot.dataset)
        if found is None:
            raise Damaged(f"dl://{snapshot.dataset} was encrypted, and is not any more")
        return found

    return DecryptedServerSource(source, Decryption(snapshot, cipher))


def decrypted(inner: Callable[[], Source], reader: ServerSource) -> "DecryptedSource | None":
    """A source of plain bytes over the nodes of a job; None if the dataset is not encrypted. `reader`: the source of
    other chunks.
    """
    if not reader.snapshot.header.is_encrypted:
        return None
    from dieselfs.sources.decrypted import DecryptedServerSource, DecryptedSource

    assert isinstance(reader, DecryptedServerSource)
    return DecryptedSource(inner, reader.decryption, reader.snapshot)
