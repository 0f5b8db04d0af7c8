"""The handlers of the calls of `dieselfs.thrift`: a class for each group of calls, with the parts that it needs.

A handler has the name of its method. It returns the value of the reply, also as a record that `dispatcher.py` turns
into a Thrift struct, or a `Reply` with bulk bytes. A DieselfsError that it raises is sent to the caller as a refusal.
If a handler is cancelled, a worker thread that is storing a chunk still finishes.
"""

from collections.abc import Awaitable, Callable, Mapping

from dieselfs.rpc.methods import SERVER_METHODS
from dieselfs_server.call import Call

Handlers = Mapping[str, Callable[[Call], Awaitable[object]]]


def handlers_of(*groups: object) -> Handlers:
    """The handlers of all calls, by method."""
    found = [
        (method, getattr(group, method))
        for group in groups
        for method in vars(type(group)).keys() & SERVER_METHODS
    ]
    assert sorted(method for method, _ in found) == sorted(SERVER_METHODS - {"hello", "prove"}), (
        "one handler for each"
    )
    return dict(found)
