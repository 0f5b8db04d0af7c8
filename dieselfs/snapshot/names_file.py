"""The plain names of a generation of an encrypted dataset, in a file for those who ask about a proof of use without the
key of the dataset (docs/reference/proof.md). This module opens files.
"""

import os
import re
from typing import TYPE_CHECKING, NamedTuple, Self

from dieselfs.errors import InvalidInput, NotFound, os_errors_as
from dieselfs.net.private_file import write_private_file
from dieselfs.snapshot.derived import signed_of
from dieselfs.snapshot.reader import Snapshot

if TYPE_CHECKING:
    from dieselfs.encryption.cipher import DatasetCipher

_HEAD = re.compile(rb"dieselfs-names 1 ([0-9a-f]{64})\n")
_HEAD_BYTES = len("dieselfs-names 1 \n") + 64


class NamesFile(NamedTuple):
    """`key`: `DatasetCipher.proof_key` of the generation; `snapshot`: with plain names."""

    key: bytes
    snapshot: Snapshot

    @classmethod
    def of(cls, plain: Snapshot, cipher: "DatasetCipher | None") -> Self:
        """Of a stored snapshot with plain names. Raises InvalidInput for one of a dataset that is not encrypted."""
        if cipher is None or not plain.header.is_encrypted:
            raise InvalidInput(
                f"{plain.dataset} is not encrypted: its snapshot has the names; leave out --names"
            )
        return cls(cipher.proof_key(signed_of(plain).digest), plain)

    def save(self, path: str | os.PathLike[str]) -> None:
        """With mode 0600; atomic. Raises NotFound, AccessDenied, StorageFull and others, if it cannot be written."""
        with os_errors_as(NotFound, path):
            head = f"dieselfs-names 1 {self.key.hex()}\n".encode()
            write_private_file(path, head + self.snapshot.content)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self | None:
        """None for a file that does not begin as one. Raises NotFound, Damaged."""
        with os_errors_as(NotFound, path), open(path, "rb") as file:
            head = _HEAD.fullmatch(file.read(_HEAD_BYTES))
            content = file.read() if head else b""
        return None if head is None else cls(bytes.fromhex(head[1].decode()), Snapshot(content, str(path)))
