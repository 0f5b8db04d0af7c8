"""The URLs of sources on the web: what they may have, where a redirect leads, and which are below which. No I/O."""

import re
from ipaddress import IPv6Address, ip_address
from urllib.parse import SplitResult, unquote, urljoin

from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.net.address import split

WEB_SCHEMES = ("https://", "http://")
PORTS = {"https": 443, "http": 80}

_VISIBLE = re.compile(r"[!-~]+")
_UNSAFE = frozenset((".", ".."))


def is_web_url(text: str) -> bool:
    return text.startswith(WEB_SCHEMES)


def parse_web_url(url: str) -> SplitResult:
    """The parts of the URL of a file. Raises InvalidInput for one that could lead elsewhere, or that has a secret; the
    message does not repeat it.
    """
    parts = _parsed(url)
    if "?" in url or "#" in url:
        raise InvalidInput(
            f"{without_query(url)}: attach it without the query behind it, which all readers of the dataset would see; "
            "dlcmd import takes one"
        )
    if "" in unquote(parts.path)[1:].split("/"):
        raise InvalidInput(f"{url}: it is not the URL of a file: its path is empty, or has an empty part")
    return parts


def _parsed(url: str) -> SplitResult:
    parts = split(url)
    try:
        is_valid = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port
        is_valid = False
    if not is_valid or "@" in parts.netloc or not _VISIBLE.fullmatch(url):
        raise InvalidInput(
            f"{parts.scheme[:10]}://{parts.netloc.rpartition('@')[2]}: no URL of a file; write https://HOST/PATH, "
            "without a user or a password, and with %20 for a space"
        )
    # Clients resolve these parts, so the file would not be where its URL seems to be.
    path = unquote(parts.path)
    if "\\" in path or _UNSAFE & set(path.split("/")):
        raise InvalidInput(
            f"{without_query(url)}: it is not the URL of a file: its path has ., .. or a backslash"
        )
    return parts


def check_root(root: str) -> None:
    """Raise InvalidInput unless this can be a folder of files on the web: https://HOST/FOLDER, or https://HOST."""
    parse_web_url(root.rstrip("/") + "/file")


def is_below(url: str, root: str) -> bool:
    """Whether a file is on the host and in the folder of a root. Both have been parsed."""
    file, folder = split(url), split(root.rstrip("/"))
    return _host(file) == _host(folder) and file.path.startswith(folder.path + "/")


def _host(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]


def redirected(url: str, target: str) -> str:
    """The URL to which a server sends a client from `url`; it may have a query. Raises InvalidInput, and AccessDenied
    for a way out of TLS.
    """
    try:
        found = urljoin(url, target).partition("#")[0]
    except ValueError as error:
        raise InvalidInput(f"{without_query(url)}: it redirects to no URL ({error})") from None
    parts = _parsed(found)
    if url.startswith("https:") and parts.scheme != "https":
        raise AccessDenied(f"{without_query(url)}: it redirects to {without_query(found)}, without TLS")
    return found


def without_query(url: str) -> str:
    """For messages and rules: a query may be a secret."""
    return url.partition("#")[0].partition("?")[0]


def with_host(url: str, address: str) -> str:
    """The URL with an address in place of the name of the host."""
    parts = split(url)
    host = f"[{address}]" if ":" in address else address
    return parts._replace(netloc=host if parts.port is None else f"{host}:{parts.port}").geturl()


def is_address(host: str) -> bool:
    """Whether a host is an address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether an address can belong to anybody on the internet: neither to this machine nor to its own network."""
    found = ip_address(address)
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return found.is_global and not found.is_multicast


def http_time_ns(text: str | None) -> int:
    """The time of a header; 0 without one."""
    try:
        from email.utils import parsedate_to_datetime  # takes 5 ms, also of commands without such a file

        return int(parsedate_to_datetime(text or "").timestamp()) * 10**9
    except (ValueError, OverflowError):
        return 0
