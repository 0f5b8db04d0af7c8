"""What the readers of a rank will read in an epoch, and how far a process has come in it. This module maps memory.

The process with the sampler knows the list. The workers of a loader are other processes, which get it in shared memory.
Where they cannot open it, they do not know the list.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers
from dieselfs.samples.worker_times import SharedMemoryFile
from dieselfs.shuffle.listed import ListedPlan
from dieselfs.snapshot.reader import Snapshot

_HEAD_BYTES = 64
_VERSION, _STEPS, _NODES, _IS_TRACKED = range(4)


class Listed(NamedTuple):
    """The files of a rank. `nodes`: shape (files,), in order; `ends`: shape (steps,), of each step in `nodes`.

    `is_tracked`: readers follow their own reads, as nobody tells how far they have come.
    """

    nodes: Nodes
    ends: Numbers
    is_tracked: bool

    def of_worker(self, worker: int, workers: int) -> Nodes:
        """The files of the steps that one worker takes: `worker`, and each one `workers` later."""
        if workers == 1:
            return self.nodes
        lengths = np.diff(self.ends, prepend=0)
        own: Nodes = self.nodes[np.repeat(np.arange(len(self.ends)) % workers == worker, lengths)]
        return own


class ReadingList(SharedMemoryFile):
    """The newest list of one process, for others. Without a lock: a list that changes while it is read is left out."""

    NAME = "dieselfs-reading"
    MAPPED_BYTES = _HEAD_BYTES

    @cached_property
    def _head(self) -> Numbers:
        return np.frombuffer(self._memory, np.int64)

    @property
    def version(self) -> int:
        """Even; another one for each list, and 0 before the first. Odd while the list changes."""
        return int(self._head[_VERSION])

    @property
    def is_tracked(self) -> bool:
        """`Listed.is_tracked` of the newest list."""
        return bool(self._head[_IS_TRACKED])

    def publish(self, listed: Listed) -> None:
        """Replace the list; nothing happens in a process that did not make this object."""
        if self._owner != os.getpid():
            return
        head = self._head
        head[_VERSION] += 1
        content = listed.ends.astype(np.int64).tobytes() + listed.nodes.astype(np.uint32).tobytes()
        os.ftruncate(self._descriptor, _HEAD_BYTES + len(content))
        os.pwrite(self._descriptor, content, _HEAD_BYTES)
        head[_STEPS], head[_NODES], head[_IS_TRACKED] = len(listed.ends), len(listed.nodes), listed.is_tracked
        head[_VERSION] += 1

    def read(self) -> Listed | None:
        """The list; None if there is none, or if it is being changed."""
        version = self.version
        _, steps, nodes, is_tracked = self._head[:4].tolist()
        content = os.pread(self._descriptor, steps * 8 + nodes * 4, _HEAD_BYTES)
        if not version or version % 2 or self.version != version or len(content) < steps * 8 + nodes * 4:
            return None
        return Listed(
            np.frombuffer(content, np.uint32, nodes, steps * 8),
            np.frombuffer(content, np.int64, steps),
            bool(is_tracked),
        )


class Reading:
    """How far this process has come in a list of files. `nodes`: shape (n,); with `is_of_extents`, the numbers of
    extents, in the order in which each is needed for the first time.
    """

    def __init__(self, snapshot: Snapshot, nodes: Nodes, is_of_extents: bool = False) -> None:
        self.share = ListedPlan(snapshot, nodes.astype(np.int64), is_of_extents=is_of_extents).share()
        self._nodes, self._next = nodes, 0
        listed = nodes.tolist() if is_of_extents else []
        self._places = dict(zip(reversed(listed), range(len(listed) - 1, -1, -1), strict=True))

    def furthest(self, extents: Iterable[int]) -> int:
        """The number of the list up to which these extents lie."""
        return max((self._places.get(extent, -1) for extent in extents), default=-1) + 1

    def place(self, nodes: Sequence[int]) -> int | None:
        """The place in the list of a read of these files, by the first of them; None if it is not in the list."""
        if not len(nodes):
            return None
        place = self._next
        if place >= len(self._nodes) or self._nodes[place] != nodes[0]:
            # Threads, and loaders that resume, do not read in exact order; a file may come again.
            places = np.flatnonzero(self._nodes == np.uint32(nodes[0]))
            if not len(places):
                return None
            place = int(places[np.abs(places - place).argmin()])
        self._next = place + len(nodes)
        return place


def loader_worker() -> tuple[int, int] | None:
    """The number of this process among the workers of PyTorch's loader, and how many there are; None in others."""
    loaders: Any = sys.modules.get("torch.utils.data")  # a worker has imported it
    info = None if loaders is None else loaders.get_worker_info()
    return None if info is None else (int(info.id), int(info.num_workers))


def announce(
    dataset: Any, indices: Numbers, ends: npt.NDArray[np.integer], is_tracked: bool, worker: int, workers: int
) -> list[Callable[[int], None]]:
    """Tell the sources of a dataset what will be read. `indices`: shape (n,), samples in order; `ends`: shape (steps,),
    of each step in `indices`. Of several `workers`, this process reads the steps of one.

    Each call that is returned takes the number of the step that is handed out next. `is_tracked`: see `Listed`.
    """
    reads = getattr(dataset, "reads", None)
    by_source: dict[int, list[tuple[Any, Numbers, Nodes]]] = {}
    for found in [] if reads is None else reads(indices):
        if found[0].takes_lists:
            by_source.setdefault(id(found[0]), []).append(found)
    told = []
    for parts in by_source.values():
        places = np.concatenate([places for _, places, _ in parts])
        in_order = np.argsort(places, kind="stable")
        nodes = np.concatenate([nodes for _, _, nodes in parts])[in_order]
        of_source = np.searchsorted(places[in_order], ends).astype(np.int64)
        told.append(parts[0][0].announce(Listed(nodes, of_source, is_tracked), worker, workers))
    return told
