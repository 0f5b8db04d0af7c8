"""What `dlcmd doctor` and the web page tell of the servers of a cluster. No I/O."""

from collections.abc import Mapping

from dieselfs import __version__
from dieselfs.rpc.records import FAILURE, OK, WARNING, CheckRecord
from dieselfs.units import count


def unreachable(text: str) -> CheckRecord:
    """Of a server on the list that does not answer."""
    return CheckRecord("server", FAILURE, text, "start it, or remove it from the list of servers")


def versions(by_server: Mapping[str, str]) -> CheckRecord:
    """The versions of servers, and of this program."""
    others = {server: version for server, version in by_server.items() if version != __version__}
    if not others:
        return CheckRecord("versions", OK, f"{__version__} here and on {count(len(by_server), 'server')}")
    listed = ", ".join(f"{server} has {version}" for server, version in others.items())
    return CheckRecord("versions", WARNING, f"this is {__version__}, {listed}", "upgrade the older ones")
