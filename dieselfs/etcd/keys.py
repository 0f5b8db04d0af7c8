"""The keys and values of dieselfs in etcd (`docs/guide/several-servers.md`). No I/O.

    /dieselfs/config/<name>         a setting of all servers, by its name in the TOML file; text
    /dieselfs/servers/<server ID>   a running server, with a lease:
                                    {"addresses": ["tcp://10.0.0.5:7070"], "version": "0.1.0"}

Values may be hostile: sizes are bounded, and only TCP addresses are used.
"""

from collections.abc import Mapping, Sequence

from dieselfs.errors import InvalidInput
from dieselfs.names import printable
from dieselfs.net.address import TcpAddress, parse_address

CONFIG_PREFIX = "/dieselfs/config/"
SERVERS_PREFIX = "/dieselfs/servers/"

VALUE_BYTES_MAX = 16 * 1024
VERSION_CHARACTERS_MAX = 40
ADDRESSES_MAX = 16
"""Addresses of one server."""
SERVERS_MAX = 1024
"""Addresses that a client uses."""


def server_id(addresses: Sequence[TcpAddress]) -> str:
    """The ID of a server: its first address, so a restarted server replaces its own entry."""
    return str(addresses[0]).removeprefix("tcp://")


def server_key(server_id: str) -> str:
    return SERVERS_PREFIX + server_id


def encode_server(addresses: Sequence[TcpAddress], version: str = "") -> bytes:
    import json

    return json.dumps({"addresses": [str(address) for address in addresses], "version": version}).encode()


def decode_server(value: bytes) -> list[TcpAddress]:
    """The addresses of one server. Raises InvalidInput for an invalid value."""
    import json  # not imported without etcd

    try:
        if len(value) > VALUE_BYTES_MAX:
            raise ValueError(f"{len(value)} bytes")
        texts = json.loads(value)["addresses"]
        addresses = [parse_address(str(text)) for text in texts[:ADDRESSES_MAX]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"invalid server entry ({error!r})") from None
    return [address for address in addresses if isinstance(address, TcpAddress)]


def decode_version(value: bytes) -> str:
    """The version of a server whose addresses are valid; empty if its entry has none."""
    import json

    version = json.loads(value).get("version", "")
    return (
        printable(version[:VERSION_CHARACTERS_MAX].encode("utf-8", "replace"))
        if isinstance(version, str)
        else ""
    )


def decode_servers(values: Mapping[str, bytes]) -> tuple[TcpAddress, ...]:
    """The addresses of all servers, in order of their keys; invalid entries are skipped."""
    addresses: dict[TcpAddress, None] = {}
    for _, value in sorted(values.items()):
        try:
            addresses |= dict.fromkeys(decode_server(value))
        except InvalidInput:
            continue
    return tuple(addresses)[:SERVERS_MAX]


def decode_settings(values: Mapping[str, bytes]) -> dict[str, str]:
    """Settings by their names. Raises InvalidInput for a value that is not text."""
    settings = {}
    for key, value in values.items():
        try:
            settings[key.removeprefix(CONFIG_PREFIX)] = value.decode()
        except UnicodeDecodeError:
            raise InvalidInput(f"etcd key {key}: its value is not text in UTF-8") from None
    return settings
