"""A proxy on the way from one host to a port of another, of which programs of the first know nothing."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lab.namespace import command
from lab.network import Host
from lab.tcp_proxy import TcpProxy, proxy_at

_PREFERENCE, _LOCAL_PREFERENCE = "10", "20"
_TABLE = "100"


@contextmanager
def intercepted(source: Host, target: Host, port: int) -> Iterator[TcpProxy]:
    """Until the end of the block, whoever connects from `source` to this port of `target` gets to a proxy.

    Connections that there are stay as they are. There can be one interception for each source at a time.
    """
    with ExitStack() as stack:
        with source.inside():
            listening = stack.enter_context(socket.socket())
            listening.setsockopt(
                socket.SOL_IP, socket.IP_TRANSPARENT, 1
            )  # it has the address of another host
            listening.bind((target.address, port))
            listening.listen()
        with target.inside():
            proxy = stack.enter_context(proxy_at(listening, (target.address, port)))
        _redirect(source, target, port)
        stack.callback(_restore, source)
        yield proxy


def _redirect(source: Host, target: Host, port: int) -> None:
    """Take what goes from `source` to this port for local."""
    route = ["local", target.address, "dev", "lo", "src", source.address, "table", _TABLE]
    whither = ["to", target.address, "ipproto", "tcp", "dport", str(port)]
    with source.inside():
        command("ip", "route", "replace", *route)
        # In a new namespace the rule for what is local comes first; ours must come before it.
        if source.run(["ip", "rule", "show", "pref", "0"]):
            command("ip", "rule", "add", "pref", _LOCAL_PREFERENCE, "lookup", "local")
            command("ip", "rule", "delete", "pref", "0")
        command("ip", "rule", "add", "pref", _PREFERENCE, *whither, "lookup", _TABLE)


def _restore(source: Host) -> None:
    with source.inside():
        command("ip", "rule", "delete", "pref", _PREFERENCE)
