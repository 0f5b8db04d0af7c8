"""Several datasets in one order with one cursor, each as often as its weight says. No I/O of its own."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers, Positions, distinct
from dieselfs.errors import InvalidInput
from dieselfs.samples.order import Ordered, SampleOrder
from dieselfs.samples.sample_set import read_items
from dieselfs.samples.source import Progress, SampleSource
from dieselfs.shuffle.assignment import HomesOf
from dieselfs.shuffle.cursor import DIGEST_CHARACTERS, Cursor
from dieselfs.shuffle.mixture import counts_of, interleave, numbers_of, seed_of
from dieselfs.shuffle.policies import MIXTURE, policy_of
from dieselfs.shuffle.skips import NO_SKIPS
from dieselfs.shuffle.spec import DEFAULT_POLICY, SEED_MAX, PlanSpec, ReaderSpec

DECLARED_AGAIN_MIN = 1024
"""Samples of a dataset whose later passes in an epoch are declared. Smaller ones stay in memory after the first."""


class Mixture:
    """Datasets one after the other: the indices of the second follow those of the first. `weights`: how often each is
    read, in proportion; None: each sample once per epoch. `epoch_samples`: samples of an epoch, by default as many as
    there are.

    A dataset begins its next pass, in another order, when all its samples have been read, also in the middle of an
    epoch, and continues in the next epoch where it was. So all samples of a dataset are read equally often.
    """

    def __init__(
        self,
        datasets: Sequence[Ordered],
        weights: Sequence[float] | None = None,
        epoch_samples: int | None = None,
        places: Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        """`places`: for each dataset, the index here of each of its samples. Raises InvalidInput."""
        self._parts, self._weights = [*datasets], None if weights is None else [*weights]
        self.counts = counts_of([len(part) for part in self._parts], self._weights, epoch_samples)
        """Samples of each dataset in an epoch."""
        ends = np.cumsum([len(part) for part in self._parts]).tolist()
        self._firsts = [0, *ends[:-1]]
        self._places = places
        self._total: int = ends[-1]

    def __len__(self) -> int:
        return self._total

    def order(self, spec: PlanSpec) -> "MixedOrder":
        orders = [part.order(PlanSpec(group_chunks=spec.group_chunks)) for part in self._parts]
        return MixedOrder(self, orders, spec)

    def index_of(self, part: int, indices: Numbers) -> Numbers:
        """The indices here of samples of a part: shape (n,)."""
        if self._places is None:
            moved: Numbers = indices + self._firsts[part]
            return moved
        found: Numbers = np.asarray(self._places[part], np.int64)[indices]
        return found

    def split(self, indices: Any) -> tuple[Numbers, Numbers]:
        """The part of each sample, and its index in the part; both of shape (n,). Raises IndexError."""
        wanted = np.asarray(indices, np.int64)
        wanted = np.where(wanted < 0, wanted + len(self), wanted)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < len(self):
            raise IndexError(f"there are {len(self)} samples")
        parts = np.searchsorted(self._firsts, wanted, side="right") - 1
        return parts, wanted - np.asarray(self._firsts)[parts]

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> "Mixture":
        """Datasets of which nothing is left are left out; the weights of the others stay."""
        wanted: npt.NDArray[np.integer] = np.asarray(indices, np.int64)
        if self._places is not None:
            wanted = self._one_after_the_other()[wanted]
        parts, inside = self.split(wanted)
        used = distinct(parts).tolist()
        if not used:
            raise InvalidInput("the subset of the mixture is empty")
        return Mixture(
            [self._parts[part].subset(inside[parts == part]) for part in used],
            None if self._weights is None else [self._weights[part] for part in used],
            places=[np.flatnonzero(parts == part) for part in used],
        )

    def reads(self, indices: Numbers) -> Iterator[tuple[SampleSource, Numbers, Nodes]]:
        """As that of `SamplePlaces`, of all parts that have one."""
        if self._places is not None:
            indices = self._one_after_the_other()[indices]
        parts, inside = self.split(indices)
        for part in distinct(parts).tolist():
            mine = np.flatnonzero(parts == part)
            for source, places, nodes in getattr(self._parts[part], "reads", lambda _: ())(inside[mine]):
                yield source, mine[places], nodes

    def _one_after_the_other(self) -> Numbers:
        """For each index here its index if the parts followed each other."""
        assert self._places is not None
        back = np.empty(len(self), np.int64)
        back[np.concatenate([np.asarray(one, np.int64) for one in self._places])] = np.arange(len(self))
        return back

    def expect_plan(self) -> None:
        for part in self._parts:
            part.expect_plan()


class MixedSamples(Mixture):
    """A mixture to read: item i is that of the dataset that has it."""

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float] | None = None,
        epoch_samples: int | None = None,
        orders: Sequence[Ordered] | None = None,
    ) -> None:
        """`orders`: the datasets as samplers use them, if they are no `Ordered` themselves. Raises InvalidInput."""
        super().__init__(datasets if orders is None else orders, weights, epoch_samples)
        self.datasets = [*datasets]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Many items at once; each dataset reads its own together. Raises IndexError, and what the datasets raise."""
        parts, inside = self.split(indices)
        items: list[Any] = [None] * len(parts)
        for part in distinct(parts).tolist():
            mine = np.flatnonzero(parts == part).tolist()
            for place, item in zip(mine, read_items(self.datasets[part], inside[mine].tolist()), strict=True):
                items[place] = item
        return items

    def close(self) -> None:
        """Close all datasets that can be closed."""
        for dataset in self.datasets:
            if hasattr(dataset, "close"):
                dataset.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MixedOrder:
    """The order of one epoch of a mixture. `orders`: one of each part, of any epoch."""

    is_listed = True

    def __init__(self, mixture: Mixture, orders: Sequence[SampleOrder], spec: PlanSpec) -> None:
        self.spec = replace(spec, folder=b"", policy=MIXTURE)
        self._mixture, self._orders = mixture, orders
        self._total = sum(mixture.counts)
        if spec.skips.end > self._total:
            raise InvalidInput(
                f"cannot skip position {spec.skips.end - 1}: the epoch has {self._total}, counted from 0"
            )
        self._sources = interleave(mixture.counts, spec.seed, spec.epoch)
        self._numbers = numbers_of(self._sources, mixture.counts)

    def __len__(self) -> int:
        return self._total - len(self.spec.skips)

    def indices(self, positions: Positions) -> Numbers:
        def of_part(part: int, order: SampleOrder, places: Positions) -> Numbers:
            return self._mixture.index_of(part, order.indices(places))

        return self._by_part(positions, of_part)

    def homes_of(self, nodes: Sequence[str]) -> HomesOf:
        def of_part(_: int, order: SampleOrder, places: Positions) -> Numbers:
            return order.homes_of(nodes)(places)

        return lambda positions: self._by_part(positions, of_part)

    def _by_part(
        self, positions: Positions, found_by: Callable[[int, SampleOrder, Positions], Numbers]
    ) -> Numbers:
        """A number of each position, shape (n,), from the orders of the parts and the places in them."""
        whole = self.spec.skips.whole(positions)
        sources, numbers = self._sources[whole], self._numbers[whole]
        found = np.empty(len(whole), np.int64)
        for part in distinct(sources).tolist():
            mine = np.flatnonzero(sources == part)
            first_pass, places = self._passes(part, numbers[mine])
            for number in distinct(places // (length := self._length(part))).tolist():
                is_in = places // length == number
                order = self._order_of(part, first_pass + number)
                found[mine[is_in]] = found_by(part, order, places[is_in] % length)
        return found

    def _passes(self, part: int, numbers: Numbers) -> tuple[int, Numbers]:
        """The pass over the part in which the epoch begins, and the places counted from the begin of that pass."""
        first_pass, place = divmod(self.spec.epoch * self._mixture.counts[part], self._length(part))
        return first_pass, numbers + place

    def _length(self, part: int) -> int:
        return len(self._orders[part])

    def _order_of(self, part: int, epoch: int) -> SampleOrder:
        seed, epoch = seed_of(self.spec.seed, part), epoch % (SEED_MAX + 1)
        spec = replace(self.spec, seed=seed, epoch=epoch, skips=NO_SKIPS, policy=DEFAULT_POLICY)
        return self._orders[part].with_spec(spec)

    def with_spec(self, spec: PlanSpec) -> "MixedOrder":
        return MixedOrder(self._mixture, self._orders, spec)

    def cursor(self, position: int) -> Cursor:
        self._check(position)
        return Cursor(self._digest(), self.spec, position)

    def check_cursor(self, cursor: Cursor) -> None:
        if cursor.spec.policy != MIXTURE or cursor.snapshot != self._digest():
            of, own = policy_of(cursor.spec).kind, policy_of(self.spec).kind
            raise InvalidInput(
                f"the cursor is of {of} {cursor.snapshot}, not of {own} {self._digest()}: mix the same "
                "generations (or tags) of the same datasets, in the same order, with the same weights"
            )
        self._check(cursor.position)

    def _check(self, position: int) -> None:
        if not 0 <= position <= len(self):
            raise InvalidInput(
                f"there is no position {position}: the mixture has {len(self)}, counted from 0"
            )

    def _digest(self) -> str:
        parts = zip(self._orders, self._mixture.counts, strict=True)
        text = " ".join(f"{order.cursor(0).snapshot} {count}" for order, count in parts)
        return sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]

    def declare(self, reader: ReaderSpec) -> Progress | None:
        """Each part is declared for all ranks together: now in the pass that it is in at the start, and later each pass
        that it begins, a step before. Not parts that the library reads, which follows lists.
        """
        if reader.start >= len(self) or reader.worker:
            return None
        start = int(self.spec.skips.whole(reader.start))
        later: list[_Pass] = []
        for part, order in enumerate(self._orders):
            if getattr(order, "takes_lists", False):
                continue
            found = self._passes_ahead(part, start)
            for now in found[:1]:
                self._declare_part(now)
            later += found[1:]
        waiting = deque(sorted(later))
        ahead = 2 * (reader.batch or reader.world)

        def reached(position: int) -> None:
            while waiting and waiting[0].position < position + ahead:
                self._declare_part(waiting.popleft())

        return reached if waiting else None

    def _passes_ahead(self, part: int, start: int) -> list["_Pass"]:
        """The passes over a part from a position of the whole order on."""
        ahead = np.flatnonzero(self._sources[start:] == part) + start
        if not len(ahead):
            return []
        length = self._length(part)
        first_pass, places = self._passes(part, self._numbers[ahead])
        begins = np.flatnonzero(places % length == 0).tolist() if length >= DECLARED_AGAIN_MIN else []
        found = []
        for begin in dict.fromkeys([0, *begins]):
            number, place = divmod(int(places[begin]), length)
            position = int(self.spec.skips.left_before(int(ahead[begin])))
            found.append(_Pass(position, part, first_pass + number, place))
        return found

    def _declare_part(self, of: "_Pass") -> None:
        self._order_of(of.part, of.number).declare(ReaderSpec(start=of.place))


class _Pass(NamedTuple):
    """The pass `number` over a part is read from its `place` on, from a position of the mixture on."""

    position: int
    part: int
    number: int
    place: int
