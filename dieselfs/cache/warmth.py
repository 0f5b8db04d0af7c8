"""How warm a memory is: how much is in it, of what it can keep. No I/O."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Warmth:
    """`kept_bytes` of `wanted_bytes` are in memory for good; chunks that are known to be damaged are not wanted."""

    kept_bytes: int
    wanted_bytes: int
    damaged_chunks: int = 0

    @classmethod
    def of(
        cls, kept_bytes: int, kept_max_bytes: int, lacking_bytes: npt.NDArray[np.integer], damaged_chunks: int
    ) -> "Warmth":
        """Of a memory that may keep `kept_max_bytes`; `lacking_bytes` are the lengths of the chunks that could still
        come. When none of them fits beside what is there, it is as warm as can be.
        """
        room_bytes = max(kept_max_bytes - kept_bytes, 0)
        fitting = lacking_bytes[lacking_bytes <= room_bytes]
        coming_bytes = min(int(fitting.sum(dtype=np.int64)), room_bytes)
        return cls(kept_bytes, kept_bytes + coming_bytes, damaged_chunks)

    @property
    def share(self) -> float:
        """From 0 to 1; what can keep nothing is as warm as can be."""
        return self.kept_bytes / self.wanted_bytes if self.wanted_bytes else 1.0


def together(known: Collection[Warmth], unknown: int, dataset_bytes: int) -> Warmth:
    """The warmth of several memories. Those that nobody knows are taken to be empty, and as large as the others are on
    average, as far as the dataset has so much: so they may be warmer than is told, and never colder.
    """
    wanted_bytes = sum(each.wanted_bytes for each in known)
    rest_bytes = max(dataset_bytes - wanted_bytes, 0)
    unknown_bytes = min(unknown * wanted_bytes // len(known), rest_bytes) if known else rest_bytes
    return Warmth(
        sum(each.kept_bytes for each in known),
        wanted_bytes + unknown_bytes,
        sum(each.damaged_chunks for each in known),
    )
