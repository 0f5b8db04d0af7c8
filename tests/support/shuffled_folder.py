"""A folder of samples without bytes, for samplers; a dataset whose items are its indices."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from dieselfs.arrays import Numbers
from dieselfs.samples.class_folders import find_samples
from dieselfs.samples.order import PlanOrder, SamplePlaces
from dieselfs.samples.source import SampleSource, drawn_ahead
from dieselfs.shuffle.opportunistic import ServedLog
from dieselfs.shuffle.plan import Plan, Share
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from tests.support.dataset import TreeEntry, pack_entries

CHUNK_BYTES = 100


class _Unread:
    """A source without bytes, like a mount, which records the declared shares."""

    orders_selections = takes_lists = False

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.declared: list[Share] = []

    def expect_plan(self) -> None:
        pass

    def distances(self) -> Numbers | None:
        """Nothing is in memory."""

    def drawn(self, plan: Plan, reader: ReaderSpec) -> ServedLog:
        return drawn_ahead(plan, reader, self.distances())

    def declare(self, share: Share) -> None:
        self.declared.append(share)


class ShuffledFolder(Dataset[int]):
    """The folder `train/` of a dataset, whose chunks also have files of `val/`: one for each ten samples.

    `others`: files of `train/` that are not samples. Records `declared` shares. Pickles as its arguments.
    """

    def __init__(self, samples: int, others: int = 0, classes: int = 3) -> None:
        self._arguments = samples, others, classes
        paths = [b"train/c%d/%04d.png" % (number % classes, number) for number in range(samples)]
        paths += [b"train/c0/%04d.txt" % number for number in range(others)]
        paths += [b"val/c%d/%04d.png" % (number % classes, number) for number in range(samples // 10)]
        paths.sort(key=lambda path: path[-8:])
        files = [TreeEntry(path, 0o100644, 0, b"x" * (len(path) % 7 + 9)) for path in paths]
        self._content = bytes(pack_entries(files, chunk_bytes=CHUNK_BYTES).snapshot.content)
        self.snapshot = Snapshot(self._content, "packed")
        self.folder = b"train"
        self.source = _Unread(self.snapshot)
        self.nodes = find_samples(self.snapshot, self.folder).nodes
        self.places = SamplePlaces(cast(SampleSource, self.source), self.folder, self.nodes)

    @property
    def declared(self) -> list[Share]:
        return self.source.declared

    def order(self, spec: PlanSpec) -> PlanOrder:
        return self.places.order(spec)

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> SamplePlaces:
        return cast(SamplePlaces, self.places.subset(indices))

    def expect_plan(self) -> None:
        self.places.expect_plan()

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: int) -> int:
        return index

    def __reduce__(self) -> tuple[Any, ...]:
        return ShuffledFolder, self._arguments
