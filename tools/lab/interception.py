"""A transparent proxy between one host and a port of another."""

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
    """Until the end of the block, new connections from `source` to this port of `target` go through a proxy.

    One at a time for each source.
    """
    with ExitStack() as stack:
        with source.inside():
            listening = stack.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_IP, socket.IP_TRANSPARENT, 1)  # the address is another host's
            listening.bind((target.address, port))
            listening.listen()
        with target.inside():
            proxy = stack.enter_context(proxy_at(listening, (target.address, port)))
        _redirect(source, target, port)
        stack.callback(_restore, source)
        yield proxy


def _redirect(source: Host, target: Host, port: int) -> None:
    """Route packets from `source` to this port to the local host."""
    route = ["local", target.address, "dev", "lo", "src", source.address, "table", _TABLE]
    whither = ["to", target.address, "ipproto", "tcp", "dport", str(port)]
    with source.inside():
        command("ip", "route", "replace", *route)
        # The rule for local addresses is the first in a new namespace; this one must precede it.
        if source.run(["ip", "rule", "show", "pref", "0"]):
            command("ip", "rule", "add", "pref", _LOCAL_PREFERENCE, "lookup", "local")
            command("ip", "rule", "delete", "pref", "0")
        command("ip", "rule", "add", "pref", _PREFERENCE, *whither, "lookup", _TABLE)


def _restore(source: Host) -> None:
    with source.inside():
        command("ip", "rule", "delete", "pref", _PREFERENCE)
