"""The cipher of a dataset: its data key, and the keys that follow from it. No I/O."""

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from dieselfs.encryption.names import NameCipher

DATA_KEY_BYTES = 32
KEY_ID_BYTES = 16


def key_id_of(data_key: bytes) -> bytes:
    """Names a data key, and says nothing about it."""
    return HKDFExpand(SHA256(), KEY_ID_BYTES, b"dieselfs key id 1").derive(data_key)


@dataclass(frozen=True, eq=False)
class DatasetCipher:
    """The data key of a dataset, and what follows from it."""

    data_key: bytes = field(repr=False)
    key_id: bytes = field(init=False)
    names: NameCipher = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names_key = HKDFExpand(SHA256(), 64, b"dieselfs names 1").derive(self.data_key)
        object.__setattr__(self, "key_id", key_id_of(self.data_key))
        object.__setattr__(self, "names", NameCipher(names_key))

    def proof_key(self, digest: bytes) -> bytes:
        """Hides what proofs of use state of one generation, of whose signed snapshot this is the digest. It opens
        nothing of the dataset: 32 bytes.
        """
        return HKDFExpand(SHA256(), 32, b"dieselfs proof 1" + digest).derive(self.data_key)
