"""An order as a sampler of grain, JAX's data loader (docs/guide/frameworks.md). No I/O of its own.

The datasets of `dieselfs.samples` are grain's `RandomAccessDataSource` as they are.
"""

from functools import lru_cache

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.samples.order import Ordered, SampleOrder
from dieselfs.shuffle.cursor import Cursor
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec

try:
    from grain.python import RecordMetadata
except ImportError as error:
    raise ImportError(
        f"dieselfs.grain needs grain ({error}): in a checkout: pip install '.[grain]'"
    ) from None


class OrderSampler:
    """Grain's `Sampler` of several epochs: record i is position `i % n` of epoch `i // n`, for n positions an epoch.

        grain.python.DataLoader(data_source=samples, sampler=OrderSampler(samples, epochs=90, seed=1),
            shard_options=grain.python.ShardByJaxProcess(), worker_count=8, operations=[grain.python.Batch(256)])

    Grain keeps the position (`iterator.get_state()`), and refuses that of another order, since `repr` names it. It
    distributes records to processes, the next to the next one. `cursor` gives the position for another tool.
    """

    def __init__(self, samples: Ordered, epochs: int, seed: int = 0, group_chunks: int | None = None) -> None:
        """Raises InvalidInput."""
        if epochs < 1:
            raise InvalidInput(f"epochs is {epochs}: give the number of epochs to read, from 1")
        self.samples, self.epochs = samples, epochs
        self.spec = PlanSpec(seed, 0, group_chunks)
        self._open()
        samples.expect_plan()

    def _open(self) -> None:
        self._order: SampleOrder = self.samples.order(self.spec)
        self._indices = lru_cache(2)(self._indices_of)

    def _indices_of(self, epoch: int) -> Numbers:
        order = self._at(epoch)
        return order.indices(np.arange(len(order)))

    def _at(self, epoch: int) -> SampleOrder:
        return self._order.with_spec(PlanSpec(self.spec.seed, epoch, self.spec.group_chunks))

    def __len__(self) -> int:
        return self.epochs * len(self._order)

    def __getitem__(self, index: int) -> RecordMetadata:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} records")
        epoch, position = divmod(index, len(self._order))
        rng = np.random.Generator(np.random.Philox(key=[self.spec.seed, index]))
        return RecordMetadata(index, int(self._indices(epoch)[position]), rng)

    def cursor(self, index: int) -> Cursor:
        """The cursor of a job that has read all records before `index`."""
        epoch, position = divmod(index, len(self._order))
        return self._at(epoch).cursor(position)

    def declare(self, index: int = 0) -> None:
        """Announce that reading starts at a record, so that a mount prefetches the rest of its epoch. Once per node and
        epoch. Raises OSError, DieselfsError.
        """
        epoch, position = divmod(index, len(self._order))
        progress = self._at(epoch).declare(ReaderSpec(start=position))
        if progress is not None:
            progress(position)

    def __repr__(self) -> str:
        return f"OrderSampler({str(self._order.cursor(0))!r}, epochs={self.epochs})"

    def __getstate__(self) -> dict[str, object]:
        return {"samples": self.samples, "epochs": self.epochs, "spec": self.spec}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._open()
