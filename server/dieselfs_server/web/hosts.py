"""Which names of this server a browser may use. No I/O.

A site that a browser visits can let its own name lead to this server (DNS rebinding), and read answers as its own. So a
name counts only if it is known as one of this server. Addresses cannot be changed in this way.
"""

from collections.abc import Collection
from ipaddress import ip_address

ALWAYS = frozenset(("localhost",))


def host_name(header: str) -> str:
    """The name or address in a `Host` header, in small letters; empty if it is malformed."""
    host, colon, port = header.rpartition(":")
    if not colon or header.endswith("]"):
        host, port = header, ""
    if port and not (port.isascii() and port.isdigit()):
        return ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host.lower().removesuffix(".")


def is_own(header: str, names: Collection[str]) -> bool:
    """Whether a `Host` header has an address, or one of `names`."""
    host = host_name(header)
    try:
        ip_address(host)
    except ValueError:
        return host in ALWAYS or host in names
    return True
