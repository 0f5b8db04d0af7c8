"""Where the private key of the servers is, if not in the object store. This module reads and writes a file."""

from pathlib import Path

from dieselfs.errors import Damaged, InvalidInput, os_errors_as
from dieselfs.net.private_file import read_private_file, write_private_file
from dieselfs_server.access.identity import Identity, KeyPlace

FILE_BYTES_MAX = 4096


class KeyFile:
    """A private file with a line for each key: the present one and, while it is replaced, the next one."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()

    def __str__(self) -> str:
        return str(self._path)

    def _read(self) -> list[Identity]:
        if not self._path.exists():
            return []
        content = read_private_file(self._path, FILE_BYTES_MAX, "server identity")
        try:
            return [Identity.decode(line) for line in content.splitlines(keepends=True)]
        except Damaged:
            raise InvalidInput(
                f"server identity {self._path} is not a file that dieselfs-server has written: copy that of another "
                "server, or restore it"
            ) from None

    def _write(self, identities: list[Identity]) -> None:
        with os_errors_as(InvalidInput, f"cannot write the server identity {self._path}"):
            write_private_file(self._path, b"".join(each.encode() for each in identities))

    def find(self, public_key: bytes) -> Identity | None:
        return next((each for each in self._read() if public_key in (b"", each.public_key)), None)

    def add(self, identity: Identity) -> None:
        if identity not in (known := self._read()):
            self._write([*known, identity])

    def generate(self) -> Identity:
        made = Identity.generate()
        self.add(made)
        return made

    def remove(self, public_key: bytes) -> None:
        known = self._read()
        if left := [each for each in known if each.public_key != public_key]:
            self._write(left)


def open_keys(setting: str | None) -> KeyPlace | None:
    """The place that the setting `server_identity` names; None: the object store. Raises InvalidInput, Unavailable."""
    if not setting:
        return None
    if not setting.startswith("pkcs11:"):
        return KeyFile(setting)
    from dieselfs_server.access.token import Token  # an extra

    return Token(setting)
