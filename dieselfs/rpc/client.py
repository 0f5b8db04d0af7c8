"""The server as an object with typed methods. This module opens sockets.

Thread-safe: each call takes its own connection from a pool. Fork-safe: a child never touches its parent's connections.
"""

from dieselfs.rpc.account_calls import AccountCalls
from dieselfs.rpc.content_calls import ContentCalls
from dieselfs.rpc.maintenance_calls import MaintenanceCalls


class ServerClient(ContentCalls, MaintenanceCalls, AccountCalls):
    """Calls a server, or one of several over the same stores. Every method raises Unavailable, ProtocolError,
    AccessDenied, and the errors in its docstring.

    Every call is bounded. Each wait for bytes ends after 30 s; that of a read, if there is another server, after 12 s,
    and after 2 s if the machine is gone. A reply takes at most 60 s, and longer only while the server sends signs of
    life: 10 min for a snapshot that is built, 24 h for maintenance. Bulk bytes move at 64 KiB/s at least. A failed call
    is repeated on the next server, once for each, until 60 s have passed; a read is repeated for 25 s. A call that must
    not run twice moves to another server only if it could not connect.
    """
