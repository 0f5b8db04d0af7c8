"""The handlers of the calls of `dieselfs.thrift`, one module for each group of calls.

A handler has the name of its method. It returns the value of the reply, also as a record that `dispatcher.py` turns
into a Thrift struct, or a `Reply` with bulk bytes. A DieselfsError that it raises is sent to the caller as a refusal.
If a handler is cancelled, a worker thread that is storing a chunk still finishes.
"""

from collections.abc import Awaitable, Callable

from dieselfs.rpc.methods import SERVER_METHODS
from dieselfs_server.handlers import accounts, administration, copying, leases, quotas, reading, writing
from dieselfs_server.service import Call

HANDLERS: dict[str, Callable[[Call], Awaitable[object]]] = {
    method: handler
    for module in (accounts, administration, copying, leases, quotas, reading, writing)
    for method, handler in vars(module).items()
    if method in SERVER_METHODS
}

assert HANDLERS.keys() == SERVER_METHODS - {"hello", "prove"}, "each call has one handler"
