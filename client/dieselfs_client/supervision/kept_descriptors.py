"""The descriptors that a supervisor keeps for the next daemon, by name. The supervisor imports this module, so this
module imports little.
"""

import os
import select

from dieselfs_client.supervision.control_channel import close_all

SNAPSHOT = "snapshot"
DEVICE = "device"
"""Names of descriptors. Zygotes get the first, daemons all others."""
CHUNK = "chunk-"
"""Prefix of the names of descriptors that hold memory. The supervisor closes them when another process killed a
daemon: the kernel does so when memory is short, and would kill the next process if no memory came free.
"""
DESCRIPTORS_MAX = 32_768
DESCRIPTORS_SPARE = 64
"""Descriptors of the process that are not for the daemons' use."""


class KeptDescriptors:
    """`descriptors`: by name, in the order in which they came; `count_max`: further ones are closed at once."""

    def __init__(self, count_max: int) -> None:
        self.descriptors: dict[str, int] = {}
        self._count_max = count_max

    def keep(self, name: str, descriptor: int) -> None:
        """Keep it in place of an earlier one of that name, or close it if there is no room."""
        if name in self.descriptors:
            os.close(self.descriptors[name])
        elif len(self.descriptors) >= self._count_max:  # the next daemon fetches the chunk again
            os.close(descriptor)
            return
        self.descriptors[name] = descriptor

    def drop(self, name: str) -> None:
        if name in self.descriptors:
            os.close(self.descriptors.pop(name))

    def drop_chunks(self) -> None:
        for name in [name for name in self.descriptors if name.startswith(CHUNK)]:
            self.drop(name)

    def close(self) -> None:
        close_all(self.descriptors)

    def for_daemon(self) -> dict[str, int]:
        return {name: descriptor for name, descriptor in self.descriptors.items() if name != SNAPSHOT}

    def for_zygote(self) -> dict[str, int]:
        return {name: descriptor for name, descriptor in self.descriptors.items() if name == SNAPSHOT}

    def has_requests(self) -> bool:
        """Whether the kernel has requests that no daemon has taken."""
        if DEVICE not in self.descriptors:
            return False
        poll = select.poll()
        poll.register(self.descriptors[DEVICE], select.POLLIN)
        return bool(poll.poll(0))
