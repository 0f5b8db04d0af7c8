"""Objects that are reset in a forked child: threads and locks of the parent do not exist there. This module
registers a function that runs after each fork.
"""

import os
from typing import Protocol
from weakref import WeakSet


class _Forked(Protocol):
    def after_fork(self) -> None:
        """Called in a forked child, before any other code of it."""
        ...


_objects: WeakSet[_Forked] = WeakSet()
renew_after_fork = _objects.add
"""The method `after_fork` of this object is called in each forked child, as long as the object lives."""


def _after_fork() -> None:
    for each in list(_objects):
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)
