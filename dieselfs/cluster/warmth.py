"""Warmth: the loaded share of the chunks that memory can pin. No I/O."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Warmth:
    """`pinned_bytes` of `wanted_bytes` are pinned; chunks that are known to be damaged are not wanted."""

    pinned_bytes: int
    wanted_bytes: int
    damaged_chunks: int = 0

    @classmethod
    def of(
        cls,
        pinned_bytes: int,
        pinned_max_bytes: int,
        missing_bytes: npt.NDArray[np.integer],
        damaged_chunks: int,
    ) -> "Warmth":
        """The warmth of a memory that may pin `pinned_max_bytes`. `missing_bytes`: shape (n,), the lengths of the
        chunks that are not loaded. If none of them fits, the share is 1.
        """
        room_bytes = max(pinned_max_bytes - pinned_bytes, 0)
        fitting = missing_bytes[missing_bytes <= room_bytes]
        coming_bytes = min(int(fitting.sum(dtype=np.int64)), room_bytes)
        return cls(pinned_bytes, pinned_bytes + coming_bytes, damaged_chunks)

    @property
    def share(self) -> float:
        """From 0 to 1; 1 for a memory that can pin nothing."""
        return self.pinned_bytes / self.wanted_bytes if self.wanted_bytes else 1.0


def together(known: Collection[Warmth], unknown: int, dataset_bytes: int) -> Warmth:
    """The warmth of several memories. The unknown ones count as empty and as large as the average of the others, within
    the dataset. So the result is a lower bound.
    """
    wanted_bytes = sum(each.wanted_bytes for each in known)
    rest_bytes = max(dataset_bytes - wanted_bytes, 0)
    unknown_bytes = min(unknown * wanted_bytes // len(known), rest_bytes) if known else rest_bytes
    return Warmth(
        sum(each.pinned_bytes for each in known),
        wanted_bytes + unknown_bytes,
        sum(each.damaged_chunks for each in known),
    )
