"""Which source of plain bytes a dataset has. What decrypts is imported for an encrypted
dataset alone: with `cryptography`, it takes 4 MB.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dieselfs.errors import Damaged
from dieselfs.rpc.client import ServerClient
from dieselfs.sources.interface import Source
from dieselfs.sources.server import ServerSource

if TYPE_CHECKING:
    from dieselfs.encryption.cipher import DatasetCipher
    from dieselfs.sources.decrypted import DecryptedSource


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
