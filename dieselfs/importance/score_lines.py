"""Losses as text: what programs write to `.dieselfs/scores` of a mount. Bytes in, batches out; no I/O.

    0.731 train/cat/1.jpg
    2.094 train/dog/7.jpg
    accuracy 0.713

A line has the loss of a file, a blank, and its path, or the word "accuracy" and the accuracy on validation data. An
empty line ends a batch.
"""

from math import isfinite
from typing import NamedTuple

import numpy as np

from dieselfs.errors import InvalidInput
from dieselfs.importance.scores import Losses
from dieselfs.names import printable

BATCH_BYTES_MAX = 8 << 20
"""Limit of the paths of a batch, which are in memory until it ends."""
LINE_BYTES_MAX = 16 << 10
"""A path has at most 4 KiB."""
ACCURACY = b"accuracy"


class LossBatch(NamedTuple):
    """The files of a batch, and the loss of each: shape (n,). `accuracy`: the last one that was written with it."""

    paths: list[bytes]
    losses: Losses
    accuracy: float | None = None


class ScoreLines:
    """Collects the text of one writer, in pieces of any size."""

    def __init__(self) -> None:
        self.length_bytes = 0
        """Length of the text so far."""
        self._rest = b""  # a line without its end
        self._begin()

    def _begin(self) -> None:
        """A new batch."""
        self._paths: list[bytes] = []
        self._losses: list[float] = []
        self._accuracy: float | None = None
        self._path_bytes = 0

    def write(self, offset: int, content: bytes) -> list[LossBatch]:
        """Add the next piece of the text; returns the batches that end in it. Raises InvalidInput for a line that is
        malformed, a loss that is not finite, and a piece that does not follow the text so far. Then the piece does not
        count, and its batch is dropped.
        """
        if offset != self.length_bytes:
            raise InvalidInput(
                f"losses are written at {offset}, after {self.length_bytes}: write them in order"
            )
        *lines, rest = (self._rest + content).split(b"\n")
        self._rest, found = b"", []
        try:
            if len(rest) > LINE_BYTES_MAX:
                raise InvalidInput(f"a line is longer than {LINE_BYTES_MAX} bytes: write LOSS PATH")
            for line in lines:
                if line:
                    self._add(line)
                elif self._paths or self._accuracy is not None:
                    found.append(self._ended())
        except InvalidInput:
            self._begin()
            raise
        self._rest = rest
        self.length_bytes += len(content)
        return found

    def _add(self, line: bytes) -> None:
        loss, blank, path = line.partition(b" ")
        is_accuracy = loss == ACCURACY
        try:
            value = float(path if is_accuracy else loss)
        except ValueError:
            blank = b""
        if not blank or not path:
            raise InvalidInput(f"{printable(line[:80])!r} is not LOSS PATH")
        if not isfinite(value):
            of = "accuracy" if is_accuracy else f"loss of {printable(path)}"
            raise InvalidInput(f"the {of} is {value}: leave out the step")
        if is_accuracy:
            self._accuracy = value
            return
        self._path_bytes += len(path)
        if self._path_bytes > BATCH_BYTES_MAX:
            raise InvalidInput(
                f"a batch has more than {BATCH_BYTES_MAX >> 20} MiB: end it with an empty line"
            )
        self._paths.append(path)
        self._losses.append(value)

    def _ended(self) -> LossBatch:
        batch = LossBatch(self._paths, np.array(self._losses), self._accuracy)
        self._begin()
        return batch
