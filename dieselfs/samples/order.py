"""What datasets and samplers agree on: the order of an epoch, as indices of samples. No I/O.

A sampler works with every dataset that is `Ordered`, and with every order that is a `SampleOrder`. `PlanOrder` is the
order of samples that are files, made from a plan.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Keys, Nodes, Numbers, Positions
from dieselfs.samples.source import Progress, SampleSource
from dieselfs.shuffle.assignment import HomesOf
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.opportunistic import ServedLog
from dieselfs.shuffle.order import Layout, name_of, nodes_of
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot


class SampleOrder(Protocol):
    """The order of one epoch: positions 0 to `len(order) - 1`, each with the index of a sample.

    It is a function of the samples and of `spec` alone: the same for all ranks, and in each process that makes it. An
    index may come several times, or not at all.
    """

    @property
    def spec(self) -> PlanSpec:
        """Seed, epoch, group size and skips."""
        ...

    def __len__(self) -> int: ...

    def indices(self, positions: Positions) -> Numbers:
        """The samples at positions: shape (n,), as `positions`. Called once per epoch, with those of one rank."""
        ...

    def homes_of(self, nodes: Sequence[str]) -> HomesOf:
        """For local assignments, the homes of positions among these nodes: `shuffle.assignment`."""
        ...

    def with_spec(self, spec: PlanSpec) -> Self:
        """The order of the same samples with another spec, whose folder is ignored. Raises InvalidInput."""
        ...

    def cursor(self, position: int) -> Cursor:
        """The cursor of a job that has read everything before `position`."""
        ...

    def check_cursor(self, cursor: Cursor) -> None:
        """Raises InvalidInput if a cursor is of other samples, or beyond the end. This order has the cursor's spec."""
        ...

    def declare(self, reader: ReaderSpec) -> Progress | None:
        """Announce that a reader starts, so that its files are prefetched. Raises OSError, DieselfsError.

        Returns what is to be called with the position that the reader has reached, before each step; None if nothing
        is. Each worker process with an order of its own calls this; `reader` says which it is.
        """
        ...


@runtime_checkable
class Ordered(Protocol):
    """A dataset with an order of its samples, which have the indices 0 to `len(dataset) - 1`. It pickles."""

    def __len__(self) -> int: ...

    def order(self, spec: PlanSpec) -> SampleOrder:
        """The order of an epoch. The folder of `spec` is ignored: a dataset knows its own. Raises InvalidInput."""
        ...

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> "Ordered":
        """Some of the samples; sample i of the result is sample `indices[i]`. Raises IndexError."""
        ...

    def expect_plan(self) -> None:
        """Announce that all reads follow an order, in this process and in its workers."""
        ...


class SamplePlaces:
    """Samples that are files below `folder` of a source. `nodes`: shape (n,), the file that gives each sample its place
    in an order. Several samples may have the same file.
    """

    def __init__(self, source: SampleSource, folder: bytes, nodes: npt.NDArray[np.uint32]) -> None:
        self.source, self.folder, self.nodes = source, folder, nodes

    @property
    def snapshot(self) -> Snapshot:
        return self.source.snapshot

    def __len__(self) -> int:
        return len(self.nodes)

    def order(self, spec: PlanSpec) -> "PlanOrder":
        names = SampleNames(self.nodes)
        layout = Layout.of(self.snapshot, self.folder).select(names.names)
        return PlanOrder(Plan(self.snapshot, replace(spec, folder=self.folder), layout), names, self.source)

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> Ordered:
        return SamplePlaces(self.source, self.folder, self.nodes[np.asarray(indices, np.int64)])

    def reads(self, indices: Numbers) -> Iterator[tuple[SampleSource, Numbers, Nodes]]:
        """What reading these samples, shape (n,), reads: by source, the place of each file in `indices`, ascending, and
        its node; both of shape (files,).
        """
        yield self.source, np.arange(len(indices)), self.nodes[indices]

    def expect_plan(self) -> None:
        self.source.expect_plan()


class Names(Protocol):
    """The names of samples in a layout."""

    def samples(self, names: npt.NDArray[Any]) -> Numbers:
        """The index of the sample with each name; the same shape."""
        ...


class SampleNames:
    """The name of each sample in a selection (`shuffle.order.name_of`), and back. Samples of one file are numbered in
    the order of their indices. `nodes`: shape (n,).
    """

    def __init__(self, nodes: npt.NDArray[np.uint32]) -> None:
        self._samples: Numbers = np.argsort(nodes, kind="stable")
        at_node = nodes[self._samples]
        counts = np.bincount(nodes)
        self._starts: Numbers = np.cumsum(counts) - counts
        self.names: Keys = np.sort(name_of(at_node, np.arange(len(nodes)) - self._starts[at_node]))
        """Shape (n,), ascending."""

    def samples(self, names: npt.NDArray[Any]) -> Numbers:
        """The index of the sample with each name; the same shape. About 10 ms for a million."""
        occurrences = names.astype(np.uint64) >> np.uint64(32)
        return self._samples[self._starts[nodes_of(names)] + occurrences.astype(np.int64)]


class PlanOrder:
    """The order of samples that are files: that of a plan, whose layout is a selection of their names."""

    def __init__(self, plan: Plan, names: Names, source: SampleSource) -> None:
        self.plan = plan
        self._names, self._source = names, source

    @property
    def spec(self) -> PlanSpec:
        return self.plan.spec

    @property
    def takes_lists(self) -> bool:
        return self._source.takes_lists

    def __len__(self) -> int:
        return len(self.plan)

    def indices(self, positions: Positions) -> Numbers:
        return self.samples(self.plan.names_at(positions))

    def samples(self, names: npt.NDArray[Any]) -> Numbers:
        """The index of the sample with each name: see `SampleNames`."""
        return self._names.samples(names)

    def drawn(self, reader: ReaderSpec) -> ServedLog:
        """The part of a rank in the opportunistic order, as its source draws it."""
        return self._source.drawn(self.plan, reader)

    def homes_of(self, nodes: Sequence[str]) -> HomesOf:
        return self.plan.homes_of(nodes)

    def with_spec(self, spec: PlanSpec) -> "PlanOrder":
        spec = replace(spec, folder=self.spec.folder)
        plan = Plan(self.plan.snapshot, spec, self.plan.layout)
        return PlanOrder(plan, self._names, self._source)

    def cursor(self, position: int) -> Cursor:
        return self.plan.cursor(position)

    def check_cursor(self, cursor: Cursor) -> None:
        self.plan.check_cursor(cursor)

    def declare(self, reader: ReaderSpec) -> Progress | None:
        """A mount knows the orders of folders, but no selections. There, the whole folder is declared instead, from the
        group of the start on, for all ranks together: its groups have the same chunks.
        """
        plan = self.plan
        if self._source.orders_selections or not plan.layout.selection:
            return self._source.declare(Share(plan, reader))
        if reader.start < len(plan) and not reader.worker:
            whole = Plan(plan.snapshot, replace(plan.spec, skips=NO_SKIPS))
            group = plan.group_of(reader.start)
            self._source.declare(whole.share(start=int(whole.group_bounds()[group])))
        return None
