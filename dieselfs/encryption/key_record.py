"""The record of a dataset's key: the data key, wrapped for each of its recipients. This module draws
random numbers.

    dieselfs-keys 1 KEY_ID
    x25519 NAME PUBLIC EPHEMERAL WRAPPED
    argon2id NAME MEMORY_KIB PASSES SALT WRAPPED

Each line but the first is a recipient: a public key (X25519, HKDF-SHA256), or a passphrase (Argon2id). Both give a key
of AES-256-GCM that wraps the data key. The name of a member of a group is `GROUP/NAME`. Nothing of a dataset is
written again when recipients change: only this record is. After `dlcmd erase`, the record is
`dieselfs-keys 1 erased SECONDS`.
"""

import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dieselfs.encryption.cipher import DATA_KEY_BYTES, KEY_ID_BYTES, key_id_of
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import KEY_RECORD_BYTES_MAX, KIB

X25519, ARGON2ID = "x25519", "argon2id"
ARGON2_MEMORY_KIB, ARGON2_PASSES, ARGON2_LANES = 64 * KIB, 3, 4
"""RFC 9106, the second recommended choice: 64 MiB."""
ARGON2_MEMORY_KIB_MAX, ARGON2_PASSES_MAX = 1024 * KIB, 16
"""A server must not make a client take more."""

RECIPIENTS_MAX = 1024

_HEAD = "dieselfs-keys 1"
_ERASED = re.compile(rf"{_HEAD} erased (\d{{1,12}})")
_NAME = r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}"
NAME = re.compile(rf"{_NAME}(?:/{_NAME})?")
_RECIPIENT = re.compile(rf"dieselfs-recipient ({_NAME}) (\S{{43}})")
_INFO = b"dieselfs wrap 1"
_NONCE = bytes(12)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str, length: int) -> bytes:
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        data = b""
    if len(data) != length:
        raise Damaged(f"{text[:50]!r} are not {length} bytes in base64url")
    return data


@dataclass(frozen=True, slots=True)
class PublicRecipient:
    """A name, and an X25519 public key. As text, one line: `dieselfs-recipient NAME KEY`."""

    name: str
    public_key: bytes

    @classmethod
    def parse(cls, text: str) -> "PublicRecipient":
        """Raises InvalidInput."""
        match = _RECIPIENT.fullmatch(text.strip())
        if match is None:
            raise InvalidInput(f"{text[:60]!r} is no recipient; 'dlcmd key show' prints one of its user")
        try:
            return cls(match[1], _bytes(match[2], 32))
        except Damaged as error:
            raise InvalidInput(str(error)) from None

    def __str__(self) -> str:
        return f"dieselfs-recipient {self.name} {_text(self.public_key)}"


@dataclass(frozen=True, slots=True)
class Wrap:
    """A line of the record: a recipient, with the wrapped data key. `numbers` and `values` depend on the kind."""

    kind: str
    name: str
    numbers: tuple[int, ...]
    values: tuple[bytes, ...]

    def line(self) -> str:
        return " ".join([self.kind, self.name, *map(str, self.numbers), *map(_text, self.values)])

    def is_for(self, public_key: bytes) -> bool:
        return self.kind == X25519 and self.values[0] == public_key


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """`erased_s`: when the key was destroyed, in seconds since 1970; then there is nothing else."""

    key_id: bytes
    wraps: tuple[Wrap, ...] = ()
    erased_s: int = 0

    @classmethod
    def decode(cls, content: bytes) -> "KeyRecord":
        """Raises Damaged."""
        if len(content) > KEY_RECORD_BYTES_MAX:
            raise Damaged(f"a record of keys of {len(content)} bytes, limit {KEY_RECORD_BYTES_MAX}")
        try:
            first, *lines = content.decode("ascii").splitlines() or [""]
            if (match := _ERASED.fullmatch(first)) and not lines:
                return cls(b"", erased_s=int(match[1]))
            head, _, key_id = first.rpartition(" ")
            if head != _HEAD or len(lines) > RECIPIENTS_MAX:
                raise Damaged("its first line is unknown, or it has too many recipients")
            return cls(bytes.fromhex(key_id), tuple(map(_wrap_of, lines)))
        except (Damaged, ValueError) as error:
            raise Damaged(f"the record of the keys is invalid: {error}") from None

    def encode(self) -> bytes:
        if self.erased_s:
            return f"{_HEAD} erased {self.erased_s}\n".encode()
        lines = [f"{_HEAD} {self.key_id.hex()}", *(wrap.line() for wrap in self.wraps)]
        return "".join(f"{line}\n" for line in lines).encode()

    def without(self, name: str) -> "KeyRecord":
        """Without the recipients of this name, or of the members of the group of this name."""
        kept = [wrap for wrap in self.wraps if wrap.name != name and not wrap.name.startswith(f"{name}/")]
        return replace(self, wraps=tuple(kept))

    def with_wraps(self, wraps: Sequence[Wrap]) -> "KeyRecord":
        """With these recipients, which replace those of their names. Raises InvalidInput beyond RECIPIENTS_MAX."""
        names = {wrap.name for wrap in wraps}
        kept = [wrap for wrap in self.wraps if wrap.name not in names]
        if len(kept) + len(wraps) > RECIPIENTS_MAX:
            raise InvalidInput(f"the key of a dataset has {RECIPIENTS_MAX} recipients at most")
        return replace(self, wraps=(*kept, *wraps))


def _wrap_of(line: str) -> Wrap:
    kind, name, *rest = line.split(" ")
    shape = {X25519: (0, [32, 32]), ARGON2ID: (2, [16])}.get(kind)
    if shape is None or not NAME.fullmatch(name):
        raise Damaged(f"recipient {line[:60]!r}")
    numbers, lengths = shape
    if len(rest) != numbers + len(lengths) + 1:
        raise Damaged(f"recipient {name} has {len(rest)} values")
    lengths = [*lengths, DATA_KEY_BYTES + 16]
    values = tuple(map(_bytes, rest[numbers:], lengths))
    return Wrap(kind, name, tuple(map(int, rest[:numbers])), values)


# -- wrapping ----------------------------------------------------------------------------------------------


def _context(dataset_id: bytes, key_id: bytes, kind: str) -> bytes:
    """What a wrapped key is bound to."""
    return b" ".join([_INFO, dataset_id, key_id, kind.encode()])


def _shared_key(secret: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    return HKDF(SHA256(), 32, ephemeral + recipient, _INFO).derive(secret)


def wrap_for(
    data_key: bytes, dataset_id: bytes, recipient: PublicRecipient, group: str = "", ephemeral: bytes = b""
) -> Wrap:
    """Wrap a data key for a user, as a member of a group if there is one. `ephemeral`: a private key; for tests."""
    private = X25519PrivateKey.from_private_bytes(ephemeral or os.urandom(32))
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(recipient.public_key))
    except ValueError:
        raise InvalidInput(f"the key of recipient {recipient.name} is no public key") from None
    public = private.public_key().public_bytes_raw()
    key_id = key_id_of(data_key)
    context = _context(dataset_id, key_id, X25519)
    wrapped = AESGCM(_shared_key(secret, public, recipient.public_key)).encrypt(_NONCE, data_key, context)
    name = f"{group}/{recipient.name}" if group else recipient.name
    return Wrap(X25519, name, (), (recipient.public_key, public, wrapped))


def unwrap(wrap: Wrap, private_key: bytes, dataset_id: bytes, key_id: bytes) -> bytes:
    """The data key, with the private key of the recipient. Raises Damaged if it was wrapped for something else."""
    public, ephemeral, wrapped = wrap.values
    try:
        private = X25519PrivateKey.from_private_bytes(private_key)
        secret = private.exchange(X25519PublicKey.from_public_bytes(ephemeral))
    except ValueError:
        raise Damaged(f"the key wrapped for {wrap.name} is invalid") from None
    return _unwrapped(wrap, _shared_key(secret, ephemeral, public), wrapped, dataset_id, key_id)


def _unwrapped(wrap: Wrap, key: bytes, wrapped: bytes, dataset_id: bytes, key_id: bytes) -> bytes:
    try:
        data_key = AESGCM(key).decrypt(_NONCE, wrapped, _context(dataset_id, key_id, wrap.kind))
    except InvalidTag:
        raise Damaged(
            f"the key wrapped for {wrap.name} does not open: it is for another dataset or key"
        ) from None
    if key_id_of(data_key) != key_id:
        raise Damaged(f"the key wrapped for {wrap.name} is not the one that the record names")
    return data_key


def _passphrase_key(passphrase: bytes, salt: bytes, memory_kib: int, passes: int) -> bytes:
    if not (8 * ARGON2_LANES <= memory_kib <= ARGON2_MEMORY_KIB_MAX and 0 < passes <= ARGON2_PASSES_MAX):
        raise Damaged(f"Argon2id with {memory_kib} KiB and {passes} passes is out of range")
    derived: bytes = Argon2id(
        salt=salt, length=32, iterations=passes, lanes=ARGON2_LANES, memory_cost=memory_kib
    ).derive(passphrase)
    return derived


def wrap_by_passphrase(
    data_key: bytes,
    dataset_id: bytes,
    name: str,
    passphrase: bytes,
    salt: bytes = b"",
    memory_kib: int = ARGON2_MEMORY_KIB,
) -> Wrap:
    """Wrap a data key by a passphrase. `salt`, `memory_kib`: for tests."""
    salt = salt or os.urandom(16)
    key = _passphrase_key(passphrase, salt, memory_kib, ARGON2_PASSES)
    context = _context(dataset_id, key_id_of(data_key), ARGON2ID)
    wrapped = AESGCM(key).encrypt(_NONCE, data_key, context)
    return Wrap(ARGON2ID, name, (memory_kib, ARGON2_PASSES), (salt, wrapped))


def unwrap_by_passphrase(wrap: Wrap, passphrase: bytes, dataset_id: bytes, key_id: bytes) -> bytes:
    """Raises Damaged if the passphrase is another one."""
    salt, wrapped = wrap.values
    key = _passphrase_key(passphrase, salt, *wrap.numbers)
    return _unwrapped(wrap, key, wrapped, dataset_id, key_id)


assert KEY_ID_BYTES == 16
