"""The identity in a token with PKCS#11, such as a hardware security module: its private key cannot be read there. This
module loads the token's library, and reads the file with its PIN.

    pkcs11:token=dieselfs;object=dieselfs?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=/etc/dieselfs/pin

The place is a URI of RFC 7512. The keys are pairs of Ed25519 with the label `object`; the one before and the next one
have the same label, and other key IDs. Both keys of a pair are in the token.
"""

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote

from dieselfs.errors import InvalidInput, Unavailable
from dieselfs.net.auth import PUBLIC_KEY_BYTES, pin_of
from dieselfs.net.private_file import read_private_file
from dieselfs_server.access.identity import Identity

if TYPE_CHECKING:
    import pkcs11

DEFAULT_LABEL = "dieselfs"
PIN_FILE_BYTES_MAX = 256
KEY_ID_BYTES = 16
_ED25519 = bytes.fromhex("06032b6570")
"""The curve as an object identifier in DER (RFC 8410)."""

_EXAMPLE = "pkcs11:token=NAME;object=NAME?module-path=/PATH/LIBRARY.so&pin-source=FILE"


def parse_uri(uri: str) -> dict[str, str]:
    """The attributes of a URI. Raises InvalidInput."""
    path, _, query = uri.removeprefix("pkcs11:").partition("?")
    pairs = [part.partition("=")[::2] for part in path.split(";") if part]
    values = {name: unquote(value) for name, value in pairs} | dict(parse_qsl(query))
    if "pin-value" in values:
        raise InvalidInput(
            "server_identity: a PIN is not part of a setting: write it to a private file, pin-source=FILE"
        )
    unknown = sorted(values.keys() - {"token", "serial", "object", "module-path", "pin-source"})
    missing = [name for name in ("module-path", "pin-source") if not values.get(name)]
    if not (values.get("token") or values.get("serial")):
        missing.append("token")
    if unknown or missing:
        what = f"unknown: {', '.join(unknown)}" if unknown else f"without {', '.join(missing)}"
        raise InvalidInput(f"server_identity {uri}: {what}; give {_EXAMPLE}")
    return values


class Token:
    """A `KeyPlace`. Thread-safe: one session, which is opened again once if the token has ended it."""

    def __init__(self, uri: str) -> None:
        """Raises InvalidInput, AccessDenied, Unavailable."""
        self._values = parse_uri(uri)
        self._label = self._values.get("object", DEFAULT_LABEL)
        self._lock = Lock()  # held while the session is used
        try:
            import pkcs11
        except ImportError:
            raise InvalidInput(
                "server_identity in a token needs: pip install '.[pkcs11]', in a checkout"
            ) from None
        self._pkcs11 = pkcs11
        self._session: pkcs11.Session | None = None
        self._use(lambda _: None)

    def __str__(self) -> str:
        return f"token {self._values.get('token') or self._values['serial']}"

    def _open(self) -> "pkcs11.Session":
        values = self._values
        pin = read_private_file(
            values["pin-source"].removeprefix("file://"), PIN_FILE_BYTES_MAX, "PIN of the token"
        )
        try:
            library = self._pkcs11.lib(values["module-path"])
        except Exception as error:  # of the dynamic linker, or of the library, which may raise anything
            raise InvalidInput(f"PKCS#11 library {values['module-path']}: {_reason(error)}") from None
        wanted = {
            "token_label": values.get("token"),
            "token_serial": values.get("serial", "").encode() or None,
        }
        found = library.get_token(**{name: value for name, value in wanted.items() if value})
        try:
            return found.open(user_pin=pin.decode("utf-8", "replace").rstrip("\r\n"), rw=True)
        except self._pkcs11.exceptions.UserAlreadyLoggedIn:  # a login is that of the process
            return found.open(rw=True)

    def _use(self, work: "Callable[[pkcs11.Session], Any]") -> Any:
        """What `work` returns with a session. Raises Unavailable, InvalidInput, AccessDenied."""
        errors = self._pkcs11.exceptions
        with self._lock:
            try:
                if self._session is not None:
                    try:
                        return work(self._session)
                    except errors.PKCS11Error:  # it was removed, or its daemon restarted
                        self._session = None
                self._session = self._open()
                return work(self._session)
            except errors.NoSuchToken:
                raise Unavailable(f"{self}: {self._values['module-path']} has no such token") from None
            except (errors.PinIncorrect, errors.PinLenRange, errors.PinInvalid, errors.PinLocked) as error:
                raise InvalidInput(f"{self}: the PIN is refused: {_reason(error)}") from None
            except errors.PKCS11Error as error:
                self._session = None
                raise Unavailable(f"{self}: {_reason(error)}") from None

    def _keys(self, session: "pkcs11.Session", kind: str) -> list[Any]:
        constants = self._pkcs11.constants
        wanted = {
            constants.Attribute.CLASS: constants.ObjectClass[kind],
            constants.Attribute.KEY_TYPE: self._pkcs11.KeyType.EC_EDWARDS,
            constants.Attribute.LABEL: self._label,
        }
        return list(session.get_objects(wanted))

    def find(self, public_key: bytes) -> Identity | None:
        found = self._use(lambda session: self._pair(session, public_key))
        return None if found is None else self._identity(found[0])

    def _pair(self, session: "pkcs11.Session", public_key: bytes) -> tuple[bytes, Any] | None:
        """The public key, and the private one in the token; of any pair if `public_key` is empty."""
        attribute = self._pkcs11.Attribute
        private = {key[attribute.ID]: key for key in self._keys(session, "PRIVATE_KEY")}
        for key in self._keys(session, "PUBLIC_KEY"):
            point = bytes(key[attribute.EC_POINT])[-PUBLIC_KEY_BYTES:]  # some wrap it in DER
            if public_key in (b"", point) and key[attribute.ID] in private:
                return point, private[key[attribute.ID]]
        return None

    def _identity(self, public_key: bytes) -> Identity:
        known: dict[pkcs11.Session, Any] = {}  # the private key by the session that has found it

        def work(session: "pkcs11.Session", message: bytes) -> bytes:
            if session not in known:
                known.clear()
                found = self._pair(session, public_key)
                if found is None:
                    raise Unavailable(f"{self} no longer has the key {pin_of(public_key).hex()[:16]}")
                known[session] = found[1]
            return bytes(known[session].sign(message, mechanism=self._pkcs11.Mechanism.EDDSA))

        return Identity(
            b"", public_key, lambda message: bytes(self._use(lambda session: work(session, message)))
        )

    def add(self, identity: Identity) -> None:
        """Import a key, as one that cannot be read again."""
        attribute, kinds = self._pkcs11.Attribute, self._pkcs11.ObjectClass
        common = {
            attribute.KEY_TYPE: self._pkcs11.KeyType.EC_EDWARDS,
            attribute.EC_PARAMS: _ED25519,
            attribute.TOKEN: True,
            attribute.LABEL: self._label,
            attribute.ID: identity.pin[:KEY_ID_BYTES],
        }
        private = {
            attribute.CLASS: kinds.PRIVATE_KEY,
            attribute.VALUE: identity.seed,
            attribute.PRIVATE: True,
            attribute.SENSITIVE: True,
            attribute.EXTRACTABLE: False,
            attribute.SIGN: True,
        }
        point = b"\x04" + bytes([PUBLIC_KEY_BYTES]) + identity.public_key
        public = {attribute.CLASS: kinds.PUBLIC_KEY, attribute.EC_POINT: point, attribute.VERIFY: True}

        def work(session: "pkcs11.Session") -> None:
            session.create_object({**common, **private})
            session.create_object({**common, **public})

        if self.find(identity.public_key) is None:
            self.remove(identity.public_key)  # one half, after an interruption
            self._use(work)

    def generate(self) -> Identity:
        attribute, mechanism = self._pkcs11.Attribute, self._pkcs11.Mechanism

        def work(session: "pkcs11.Session") -> bytes:
            curve = session.create_domain_parameters(
                self._pkcs11.KeyType.EC_EDWARDS, {attribute.EC_PARAMS: _ED25519}, local=True
            )
            public, private = curve.generate_keypair(
                mechanism=mechanism.EC_EDWARDS_KEY_PAIR_GEN, store=True, label=self._label
            )
            point = bytes(public[attribute.EC_POINT])[-PUBLIC_KEY_BYTES:]
            for each in (public, private):
                each[attribute.ID] = pin_of(point)[:KEY_ID_BYTES]
            return point

        return self._identity(self._use(work))

    def remove(self, public_key: bytes) -> None:
        key_id = pin_of(public_key)[:KEY_ID_BYTES]

        def work(session: "pkcs11.Session") -> None:
            for kind in ("PRIVATE_KEY", "PUBLIC_KEY"):
                for key in self._keys(session, kind):
                    if key[self._pkcs11.Attribute.ID] == key_id:
                        key.destroy()

        self._use(work)


def _reason(error: Exception) -> str:
    """The text of an error of the library, which often is its name alone."""
    return str(error) or type(error).__name__
