"""The keys of this user: a file with a private key or a passphrase, and the keys of datasets that were seen.
This module opens files.

A dataset that was once seen encrypted stays so for this user: a server that offers another key for it, or none, is not
believed, and nothing is written to it in plain text.
"""

import getpass
import hmac
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from dieselfs.encryption.cipher import DatasetCipher
from dieselfs.encryption.key_record import (
    ARGON2ID,
    KeyRecord,
    PublicRecipient,
    Wrap,
    unwrap,
    unwrap_by_passphrase,
    wrap_for,
)
from dieselfs.errors import AccessDenied, Damaged, InvalidInput, os_errors_as
from dieselfs.net.private_file import read_private_file, write_private_file

_IDENTITY_BYTES_MAX = 1024
_IDENTITY = re.compile(r"dieselfs-identity (\S{1,64}) (\S{43})\s*")
_NO_NAME = re.compile(r"[^A-Za-z0-9._@-]")


class Keyring:
    """`identity`: the file of the private key; `passphrase_file`: of a passphrase, or empty; `known`: a private folder
    with the key IDs of datasets.
    """

    def __init__(self, identity: Path, passphrase_file: str, known: Path) -> None:
        self._identity = identity
        self._passphrase_file = passphrase_file
        self._known = known

    # -- the identity ------------------------------------------------------------------------------------

    def recipient(self) -> PublicRecipient:
        """The public key of this user; the private one is made if there is none. Raises AccessDenied."""
        if not self._identity.exists():
            name = _NO_NAME.sub("-", getpass.getuser()).lstrip("-._@")[:64] or "user"
            secret = urlsafe_b64encode(os.urandom(32)).rstrip(b"=").decode()
            with os_errors_as(AccessDenied, f"cannot write identity {self._identity}"):
                self._identity.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_private_file(self._identity, f"dieselfs-identity {name} {secret}\n".encode())
        name, private = self._private()
        return PublicRecipient(name, private.public_key().public_bytes_raw())

    def _private(self) -> tuple[str, X25519PrivateKey]:
        text = read_private_file(self._identity, _IDENTITY_BYTES_MAX, "identity").decode("ascii", "replace")
        match = _IDENTITY.fullmatch(text)
        if match is None:
            raise AccessDenied(
                f"identity {self._identity} is not what dlcmd key has written; restore it from a copy"
            )
        return match[1], X25519PrivateKey.from_private_bytes(urlsafe_b64decode(match[2] + "="))

    def signing_key(self) -> Ed25519PrivateKey:
        """The key that signs for this user, made from the private key, of which it tells nothing. `recipient` makes
        that if there is none. Raises AccessDenied.
        """
        self.recipient()
        secret = self._private()[1].private_bytes_raw()
        return Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, b"dieselfs proof", "sha256"))

    # -- the keys of datasets ----------------------------------------------------------------------------

    def new_record(self, dataset_id: bytes) -> KeyRecord:
        """A new data key, wrapped for this user. Raises AccessDenied."""
        cipher = DatasetCipher(os.urandom(32))
        return KeyRecord(cipher.key_id, (wrap_for(cipher.data_key, dataset_id, self.recipient()),))

    def cipher(self, dataset: str, dataset_id: bytes, content: bytes) -> DatasetCipher | None:
        """The cipher of a dataset, from its record; None without a record: it is not encrypted.

        Raises AccessDenied if the key is not wrapped for this user, or was erased; Damaged for another record than the
        one that was seen before.
        """
        seen = self._seen(dataset_id)
        if not content:
            if seen:
                raise Damaged(
                    f"dl://{dataset} is encrypted, but the server has no record of its keys: it was lost, or the "
                    "server is not what it seems; restore the records of the store from a backup"
                )
            return None
        record = KeyRecord.decode(content)
        if record.erased_s:
            raise AccessDenied(f"dl://{dataset} cannot be read: its key was destroyed by dlcmd erase")
        if seen and seen != record.key_id:
            raise Damaged(
                f"dl://{dataset} has another key than before on this machine; if that is right, remove "
                f"{self._known / dataset_id.hex()}"
            )
        cipher = DatasetCipher(self._data_key(dataset, dataset_id, record))
        if not seen:
            self._note(dataset_id, cipher.key_id)
        return cipher

    def _data_key(self, dataset: str, dataset_id: bytes, record: KeyRecord) -> bytes:
        if self._identity.exists():
            private = self._private()[1]
            public = private.public_key().public_bytes_raw()
            for wrap in record.wraps:
                if wrap.is_for(public):
                    return unwrap(wrap, private.private_bytes_raw(), dataset_id, record.key_id)
        by_passphrase = [wrap for wrap in record.wraps if wrap.kind == ARGON2ID]
        if by_passphrase and self._passphrase_file:
            return self._unlocked(dataset, dataset_id, record, by_passphrase)
        also = "; or set DIESELFS_PASSPHRASE_FILE" if by_passphrase else ""
        raise AccessDenied(
            f"dl://{dataset} is encrypted, and its key is not wrapped for you: who has it can run dlcmd key add "
            f"dl://{dataset} FILE with what 'dlcmd key show' prints here{also}"
        )

    def _unlocked(self, dataset: str, dataset_id: bytes, record: KeyRecord, wraps: list[Wrap]) -> bytes:
        passphrase = self.passphrase()
        for wrap in wraps:
            try:
                return unwrap_by_passphrase(wrap, passphrase, dataset_id, record.key_id)
            except Damaged:
                continue
        raise AccessDenied(
            f"the passphrase in {self._passphrase_file} does not open the key of dl://{dataset}"
        )

    def passphrase(self) -> bytes:
        """The passphrase in the file, without the line end. Raises AccessDenied, InvalidInput."""
        if not self._passphrase_file:
            raise InvalidInput("give the file of the passphrase: DIESELFS_PASSPHRASE_FILE=FILE, mode 0600")
        content = read_private_file(self._passphrase_file, _IDENTITY_BYTES_MAX, "passphrase file")
        passphrase = content.rstrip(b"\r\n")
        if not passphrase:
            raise InvalidInput(f"passphrase file {self._passphrase_file} is empty")
        return passphrase

    # -- what was seen -----------------------------------------------------------------------------------

    def _seen(self, dataset_id: bytes) -> bytes:
        try:
            return bytes.fromhex((self._known / dataset_id.hex()).read_text("ascii").strip())
        except (FileNotFoundError, NotADirectoryError):
            return b""
        except (OSError, ValueError) as error:
            raise Damaged(f"{self._known / dataset_id.hex()}: {error}") from None

    def _note(self, dataset_id: bytes, key_id: bytes) -> None:
        with os_errors_as(AccessDenied, f"cannot write to {self._known}"):
            self._known.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private_file(self._known / dataset_id.hex(), f"{key_id.hex()}\n".encode())
