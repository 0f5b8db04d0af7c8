"""What a client does with encrypted datasets so that its callers see plain names: paths of calls are encrypted, and
entries of replies decrypted. This module opens files.

`cryptography` and what belongs to it are imported when the first encrypted dataset is met.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.names import split_path
from dieselfs.records import DatasetRecord, Op
from dieselfs.rpc.records import RemoteEntry
from dieselfs.settings.table import Settings

if TYPE_CHECKING:
    from dieselfs.encryption.cipher import DatasetCipher
    from dieselfs.encryption.keyring import Keyring


def keyring(settings: Settings) -> "Keyring":
    """The keys of this user."""
    from dieselfs.encryption.keyring import Keyring

    return Keyring(_identity(settings), settings.passphrase_file, known_folder(settings))


def _identity(settings: Settings) -> Path:
    return Path(settings.identity).expanduser() if settings.identity else settings.home / "identity"


def known_folder(settings: Settings) -> Path:
    """Key IDs of the encrypted datasets that this user has seen."""
    return _identity(settings).parent / "encrypted"


def cipher_of(settings: Settings, dataset: DatasetRecord, content: bytes) -> "DatasetCipher | None":
    """The cipher of a dataset, from the record of its keys; None without one. Raises AccessDenied, Damaged."""
    if not content and not (known_folder(settings) / dataset.dataset_id.hex()).exists():
        return None
    return keyring(settings).cipher(dataset.name, dataset.dataset_id, content)


def plain_entry(cipher: "DatasetCipher", entry: RemoteEntry, folder: bytes) -> RemoteEntry:
    """`folder`: the encrypted path of the folder that the entry is in. Raises Damaged."""
    from dieselfs.encryption.segments import plain_length

    name = cipher.names.open_name(entry.name, split_path(folder)[1]) if entry.name else b""
    target = cipher.names.open_target(entry.target, entry.name) if entry.target else b""
    size = plain_length(entry.size) if entry.op == Op.FILE else len(target)
    return entry._replace(name=name, target=target, size=size)
