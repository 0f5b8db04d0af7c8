"""Samples of a fixed number of tokens, cut from streams of tokens, and their layout in chunks. No I/O.

A stream is the tokens of a file, one after the other. Sample k of it has `length` tokens from token
`k * (length - overlap)` on. Samples are numbered stream by stream. docs/reference/order.md specifies the order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Keys, Numbers, distinct
from dieselfs.columns import starts_of
from dieselfs.errors import InvalidInput
from dieselfs.shuffle.order import Layout
from dieselfs.snapshot.format import COUNT_MAX
from dieselfs.snapshot.splice import runs_of

LENGTH_MAX = 1 << 24
"""Tokens of a sample."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Tokens of `item_bytes` bytes each, in stretches of a file, which follow each other. `begins`: shape (n,), the
    first byte of each stretch, ascending; `counts`: shape (n,), its tokens.
    """

    begins: Numbers
    counts: Numbers
    item_bytes: int

    @classmethod
    def whole(cls, first_byte: int, item_bytes: int, tokens: int) -> "Stream":
        """One stretch."""
        return cls(np.array([first_byte]), np.array([tokens]), item_bytes)

    @cached_property
    def firsts(self) -> Numbers:
        """The first token of each stretch."""
        return starts_of(self.counts)

    @cached_property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def end_byte(self) -> int:
        """The end of the last stretch."""
        return int(self.begins[-1] + self.counts[-1] * self.item_bytes)

    def bytes_of(self, tokens: Numbers) -> Numbers:
        """The first byte of each token: shape (n,), as given."""
        stretches = np.searchsorted(self.firsts, tokens, side="right") - 1
        found: Numbers = self.begins[stretches] + (tokens - self.firsts[stretches]) * self.item_bytes
        return found

    def tokens_before(self, places: Numbers) -> Numbers:
        """How many tokens begin before each byte of the file: shape (n,), as given."""
        stretches = np.maximum(np.searchsorted(self.begins, places, side="right") - 1, 0)
        inside = -((self.begins[stretches] - places) // self.item_bytes)
        found: Numbers = self.firsts[stretches] + np.clip(inside, 0, self.counts[stretches])
        return found

    def pieces(self, first: int, length: int) -> Iterator[tuple[int, int]]:
        """The first byte and the number of tokens of each piece that tokens from `first` on are in."""
        stretch = int(np.searchsorted(self.firsts, first, side="right")) - 1
        while length:
            inside = first - int(self.firsts[stretch])
            count = min(int(self.counts[stretch]) - inside, length)
            if count:
                yield int(self.begins[stretch]) + inside * self.item_bytes, count
            stretch, first, length = stretch + 1, first + count, length - count


class Windows:
    """The samples of several streams."""

    def __init__(self, streams: Sequence[Stream], length: int, overlap: int = 0) -> None:
        """Raises InvalidInput."""
        if not isinstance(length, int) or not 1 <= length <= LENGTH_MAX:
            raise InvalidInput(f"length is {length!r}: give the tokens of a sample, 1 to {LENGTH_MAX}")
        if not isinstance(overlap, int) or not 0 <= overlap < length:
            raise InvalidInput(f"overlap is {overlap!r}: give a number of tokens from 0 to {length - 1}")
        self.streams, self.length, self.stride = [*streams], length, length - overlap
        tokens = np.array([stream.tokens for stream in streams], np.int64)
        self.counts: Numbers = np.maximum(tokens - overlap, 0) // self.stride
        """Samples of each stream."""
        self._firsts = starts_of(self.counts)
        self._total = int(self.counts.sum())
        if self._total > COUNT_MAX:  # of positions, which a cursor can name
            raise InvalidInput(
                f"{self._total:,} samples, and an order has at most {COUNT_MAX:,}: give a larger length"
            )

    def __len__(self) -> int:
        return self._total

    def places(self, samples: Numbers) -> tuple[Numbers, Numbers]:
        """The stream of each sample, and its first token in it; both of shape (n,)."""
        streams = np.searchsorted(self._firsts, samples, side="right") - 1
        return streams, (samples - self._firsts[streams]) * self.stride

    def runs(self, stream: int, extent_places: Numbers) -> tuple[Numbers, Numbers]:
        """The first sample, and the number of samples, that begin in each extent of the file of a stream.

        `extent_places`: shape (extents,), the first byte of each, ascending from 0. Both results have this shape.
        """
        count = int(self.counts[stream])
        begins = -(-self.streams[stream].tokens_before(extent_places) // self.stride)
        numbers = np.clip(begins, 0, count)
        numbers[:1] = 0
        return self._firsts[stream] + numbers, np.diff(numbers, append=count)

    def digest(self, files: Sequence[bytes]) -> bytes:
        """The digest of what the samples are. `files`: the path of each stream."""
        numbers = [[self.length, self.stride]]
        numbers += [
            [int(each.begins[0]) if len(each.begins) else 0, each.item_bytes, each.tokens]
            for each in self.streams
        ]
        lines = [" ".join(map(str, line)).encode() for line in numbers]
        return sha256(b"tokens 1\n" + b"\n".join([*lines, *files])).digest()


class WindowLayout(Layout):
    """The layout of samples: a sample belongs to the chunk with its first byte. The names are sample numbers.

    It takes memory for each extent, not for each sample.
    """

    def __init__(
        self,
        chunk_ids: Keys,
        chunks: Numbers,
        firsts: Numbers,
        counts: Numbers,
        folder: bytes,
        selection: bytes,
    ) -> None:
        """Runs of samples: `chunks`: shape (runs,), the row of each one's chunk in `chunk_ids`; `firsts`, `counts`: as
        `Windows.runs`, `firsts` ascending. `chunk_ids`: as `Layout`; those in which no sample begins are left out.
        `selection`: `Windows.digest`.
        """
        has_samples = counts > 0
        chunks, firsts, counts = chunks[has_samples], firsts[has_samples], counts[has_samples]
        used = distinct(chunks)
        rows = np.searchsorted(used, chunks)
        super().__init__(chunk_ids[used], np.empty(0, np.uint32), np.empty(0, np.int64), folder)
        self.selection = selection
        self._chunks, self._firsts = chunks, firsts
        by_chunk = np.argsort(rows, kind="stable")
        self._runs = firsts[by_chunk], counts[by_chunk]
        self._run_counts = np.bincount(rows, minlength=len(used)).astype(np.int64)
        self.counts = np.bincount(rows, counts, len(used)).astype(np.int64)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def files_of(self, chunks: Numbers) -> npt.NDArray[np.uint64]:
        """The samples of these chunks, chunk by chunk."""
        runs = runs_of(starts_of(self._run_counts)[chunks], self._run_counts[chunks])
        firsts, counts = self._runs
        return runs_of(firsts[runs], counts[runs]).astype(np.uint64)

    def chunks_of(self, samples: Numbers) -> Numbers:
        """The chunk of each sample, as given: shape (n,)."""
        chunks: Numbers = self._chunks[np.searchsorted(self._firsts, samples, side="right") - 1]
        return chunks

    def select(self, names: Keys) -> Layout:
        """The layout of some of the samples, in the same chunks and groups. `names`: shape (n,), ascending, each once.

        Raises InvalidInput if a sample comes twice.
        """
        if len(distinct(names)) < len(names):
            raise InvalidInput("a subset of token samples has each sample once")
        rows = np.searchsorted(distinct(self._chunks), self.chunks_of(names.astype(np.int64)))
        selected = Layout(np.empty((0, 2), np.uint64), np.empty(0, np.uint32), np.empty(0, np.int64))
        selected.folder, selected.chunk_names = self.folder, self.chunk_names
        selected.selection = sha256(self.selection + names.astype("<u8").tobytes()).digest()
        selected._place(names, rows)
        return selected


def document_places(is_first: npt.NDArray[np.bool_]) -> tuple[Numbers, Numbers]:
    """The place of each token in its document, and the number of its document, both counted from 0 in each sample.

    `is_first`: shape (n, length), whether a document begins with the token. The first token of a sample counts as such.
    Both results have this shape.
    """
    is_first = is_first.copy()
    is_first[:, :1] = True
    places = np.arange(is_first.shape[1])
    begins = np.maximum.accumulate(np.where(is_first, places, 0), axis=1)
    return places - begins, np.cumsum(is_first, axis=1) - 1


def is_after(tokens: Numbers, end_token: int) -> npt.NDArray[np.bool_]:
    """Whether each token follows `end_token`. `tokens`: shape (n, length); the result has this shape."""
    is_first = np.zeros(tokens.shape, np.bool_)
    is_first[:, 1:] = tokens[:, :-1] == end_token
    return is_first


def is_start(begins: Numbers, length: int, document_starts: Numbers) -> npt.NDArray[np.bool_]:
    """Whether each token of some samples is the first of a document: shape (n, length).

    `begins`: shape (n,), the first token of each sample; `document_starts`: shape (documents,), ascending.
    """
    is_first = np.zeros((len(begins), length), np.bool_)
    lows = np.searchsorted(document_starts, begins)
    counts = np.searchsorted(document_starts, begins + length) - lows
    rows = np.repeat(np.arange(len(begins)), counts)
    is_first[rows, document_starts[runs_of(lows, counts)] - begins[rows]] = True
    return is_first
