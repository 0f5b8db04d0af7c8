"""What a process and its forks count together, in one registry. This module maps memory.

Each process counts in a row of its own, so no update is lost, and none of a process that is killed. What is read is the
sum. A gauge has one place for all: what the last one has found.
"""

import mmap

from dieselfs.telemetry.registry import Family, Metric, Read, Registry

COLUMNS = 64
"""Limit of the numbers that are shared."""


class SharedRegistry(Registry):
    """Numbers declared before `seal` are shared with forks; later ones, histograms, and those with `read` are not."""

    def __init__(self, processes: int) -> None:
        """`processes`: how many count at the same time."""
        self.row = 0
        """Of this process. A fork takes another one before it counts, which may be that of a process that has ended."""
        self.cells = memoryview(mmap.mmap(-1, processes * COLUMNS * 8)).cast("q")
        self._columns = 0
        self._is_sealed = False
        super().__init__()

    def seal(self) -> None:
        """What is declared from now on is of this process alone."""
        self._is_sealed = True

    def _new(self, family: Family, read: Read | None) -> Metric:
        if self._is_sealed or read is not None:
            return super()._new(family, read)
        self._columns += 1
        assert self._columns <= COLUMNS
        return _SharedMetric(self, self._columns - 1, family.kind == "gauge")


class _SharedMetric(Metric):
    """`value`: of this process alone."""

    __slots__ = ("_column", "_is_gauge", "_registry")

    def __init__(self, registry: SharedRegistry, column: int, is_gauge: bool) -> None:
        self._registry, self._column, self._is_gauge = registry, column, is_gauge
        super().__init__()

    def reset(self) -> None:
        """No process begins at zero."""

    @property
    def value(self) -> int:
        return self._registry.cells[self._place]

    @value.setter
    def value(self, value: int) -> None:
        self._registry.cells[self._place] = value

    @property
    def _place(self) -> int:
        return self._column + (0 if self._is_gauge else COLUMNS * self._registry.row)

    def json(self) -> int:
        return self.value if self._is_gauge else sum(self._registry.cells[self._column :: COLUMNS])
