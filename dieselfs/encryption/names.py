"""Encrypted names: AES-SIV (RFC 5297) of each part of a path, in base64url. No I/O.

The same path always has the same encrypted path, so a file is found, replaced and deleted by it. A part is bound to the
encrypted name of its folder, which is bound to that of its own: it opens nowhere else.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.limits import NAME_BYTES_MAX, PATH_BYTES_MAX
from dieselfs.names import printable, split_path

SIV_BYTES = 16
PLAIN_NAME_BYTES_MAX = NAME_BYTES_MAX * 3 // 4 - SIV_BYTES
"""Longest part of a path: 175 bytes, so that the encrypted one has 255 at most."""
PLAIN_TARGET_BYTES_MAX = PATH_BYTES_MAX * 3 // 4 - SIV_BYTES

_NAME, _TARGET = b"dieselfs name 1", b"dieselfs link 1"
_FOLDERS_KEPT = 65_536


class NameCipher:
    """Encrypts and decrypts the names of one dataset. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        """`key`: 64 bytes."""
        self._siv = AESSIV(key)
        self._folders: dict[bytes, bytes] = {b"": b""}  # plain to encrypted; changed in single steps

    def seal_name(self, name: bytes, folder: bytes) -> bytes:
        """`folder`: the encrypted name of the folder, its last part alone; empty for the root."""
        if len(name) > PLAIN_NAME_BYTES_MAX:
            raise InvalidInput(
                f"{printable(name[:80])}: a name in an encrypted dataset has {PLAIN_NAME_BYTES_MAX} bytes at most, "
                f"this one {len(name)}"
            )
        return _text(self._siv.encrypt(name, [_NAME, folder]))

    def open_name(self, name: bytes, folder: bytes) -> bytes:
        """Raises Damaged for a name that was not encrypted for this folder, or with another key."""
        return self._opened(name, _NAME, folder)

    def seal_path(self, path: bytes) -> bytes:
        """Raises InvalidInput if a part, or the encrypted path, is too long."""
        if not path:
            return b""
        sealed = self._seal_path(path)
        if len(sealed) > PATH_BYTES_MAX:
            raise InvalidInput(
                f"{printable(path[:200])}: the path is too long for an encrypted dataset: it would have "
                f"{len(sealed)} bytes, limit {PATH_BYTES_MAX}"
            )
        return sealed

    def _seal_path(self, path: bytes) -> bytes:
        folder, name = split_path(path)
        sealed = self._folders.get(folder)
        if sealed is None:
            parts: list[bytes] = []
            for part in folder.split(b"/"):  # not recursive: folders may be nested deeper than calls
                parts.append(self.seal_name(part, parts[-1] if parts else b""))
            sealed = b"/".join(parts)
            if len(self._folders) >= _FOLDERS_KEPT:
                self._folders = {b"": b""}
            self._folders[folder] = sealed
        return (sealed + b"/" if sealed else b"") + self.seal_name(name, split_path(sealed)[1])

    def seal_target(self, target: bytes, name: bytes) -> bytes:
        """The target of a link; `name`: the encrypted name of the link, its last part alone."""
        if len(target) > PLAIN_TARGET_BYTES_MAX:
            raise InvalidInput(
                f"a link in an encrypted dataset has a target of {PLAIN_TARGET_BYTES_MAX} bytes at most, this one "
                f"{len(target)}"
            )
        return _text(self._siv.encrypt(target, [_TARGET, name]))

    def open_target(self, target: bytes, name: bytes) -> bytes:
        """Raises Damaged as `open_name`."""
        return self._opened(target, _TARGET, name)

    def _opened(self, text: bytes, label: bytes, bound_to: bytes) -> bytes:
        try:
            return self._siv.decrypt(urlsafe_b64decode(text + b"=" * (-len(text) % 4)), [label, bound_to])
        except (InvalidTag, ValueError):
            raise Damaged(
                f"name {printable(text[:40])!r} is not encrypted with the key of the dataset"
            ) from None


def _text(sealed: bytes) -> bytes:
    return urlsafe_b64encode(sealed).rstrip(b"=")
