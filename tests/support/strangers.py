"""Connections of strangers to a server: raw TCP, and TLS of the standard library that checks nothing."""

import socket
import ssl

from dieselfs.net.address import parse_address
from dieselfs.net.auth import Key
from dieselfs.net.sockets import open_socket
from dieselfs.net.tls import ClientTls, new_context

PATIENCE_S = 30.0


def raw_socket(address: str) -> socket.socket:
    """Bytes as they are, over TCP."""
    sock = open_socket(parse_address(address))
    sock.settimeout(PATIENCE_S)
    return sock


def tls_socket(address: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLSocket:
    """Inside TLS of this version."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = version
    sock = raw_socket(address)
    try:
        return context.wrap_socket(sock)
    except BaseException:
        sock.close()
        raise


def is_hung_up(sock: socket.socket) -> bool:
    """Wait until the other side has closed."""
    try:
        while sock.recv(65536):
            pass
    except (ConnectionError, ssl.SSLError):
        return True
    return True  # a timeout would have raised


def pinned(key: Key) -> ClientTls:
    """The TLS of a client with this key."""
    return ClientTls(new_context(ssl.PROTOCOL_TLS_CLIENT), pins=key.pins)
