"""Samples of a fixed number of tokens from files of tokens. No I/O of its own: a source reads."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Nodes, Numbers, distinct
from dieselfs.errors import InvalidInput
from dieselfs.samples.file_lists import match_files
from dieselfs.samples.order import Names, PlanOrder
from dieselfs.samples.sample_set import SampleSet
from dieselfs.samples.source import ConnectOptions, SampleSource, open_file_or_folder
from dieselfs.samples.token_files import SUFFIXES, TokenFile, document_starts, joined, named, token_file
from dieselfs.samples.token_shards import shard_files, shard_index, table_starts
from dieselfs.shuffle.assignment import ChunkHomes, HomesOf
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.shuffle.windows import WindowLayout, Windows, document_places, is_after, is_start


class TokenSamples(SampleSet):
    """Samples of `length` tokens from files of tokens, in their order.

        TokenSamples("c4@v1/train.bin", 2048)                       # Megatron's, with train.idx beside it
        TokenSamples("/mnt/books", 2049, "*.npy", overlap=1)        # all arrays of a folder
        TokenSamples("web/part-0.u16", 2048, dtype="uint16")        # nothing but tokens
        TokenSamples("wiki/mds/train", 2048)                        # shards of MDS, or of LitData

    An item is an int64 array of shape (length,). With `boundaries`, it is a dict of three: `tokens`; `positions`, the
    place of each token in its document; `documents`, the number of its document. Both count from 0 in each sample.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        length: int,
        patterns: str | Iterable[str] | None = None,
        *,
        overlap: int = 0,
        dtype: npt.DTypeLike | None = None,
        boundaries: bool = False,
        eos: int | None = None,
        column: str = "tokens",
        **connection: Unpack[ConnectOptions],
    ) -> None:
        """`root`: a file of tokens, or a folder of them. `patterns`: as `FileSamples`; by default the shards that an
        `index.json` in the folder names, else all files whose names end in one of `SUFFIXES`. `overlap`: tokens that a
        sample has in common with the next one of its file. `dtype`: of tokens in files without a header. `eos`: the
        token that ends documents; without it, `boundaries` are those of an index or of shards. `column`: of MDS. The
        options of the connection: see `open_source`.

        Raises NotFound if nothing matches, InvalidInput, Damaged, AccessDenied, Unavailable.
        """
        if eos is not None and not boundaries:
            raise InvalidInput("eos= is the end of documents: give boundaries=True with it")
        source, folder, name = open_file_or_folder(root, **connection)
        super().__init__(root, source, folder)
        self._boundaries, self._eos = boundaries, eos

        def find() -> npt.NDArray[np.integer]:
            self.files = [*self._found_files(name, patterns, column, dtype)]
            self.windows = Windows([file.stream for file in self.files], length, overlap)
            if not len(self.windows):
                raise InvalidInput(f"{self.root}: no file has {length} tokens")
            for file in self.files:
                if eos is not None and not np.can_cast(np.min_scalar_type(eos), file.dtype):
                    raise InvalidInput(f"{named(source, file.node)}: no token of {file.dtype} is eos={eos}")
            if boundaries and eos is None:
                self._starts = [*map(self._document_starts, self.files)]
            return np.array([file.node for file in self.files])

        self._find(find)
        source.partial_files = self.nodes.astype(np.int64)

    def _found_files(
        self, name: bytes, patterns: str | Iterable[str] | None, column: str, dtype: npt.DTypeLike | None
    ) -> Iterable[TokenFile]:
        """`name`: of the only file in the folder; empty: all of the folder. Raises as `__init__`."""
        if name and patterns is not None:
            raise InvalidInput(f"{self.root} is a file: patterns are for folders")
        if name:
            return [token_file(self.source, self.snapshot.require(joined(self.folder, name)), dtype)]
        index = shard_index(self.source, self.folder) if patterns is None else None
        if index is not None:
            return shard_files(self.source, self.folder, index, column, dtype)
        wanted = [f"**/*{suffix}" for suffix in SUFFIXES] if patterns is None else patterns
        nodes = match_files(self.snapshot, self.folder, [wanted] if isinstance(wanted, str) else [*wanted])
        return [token_file(self.source, node, dtype) for node in nodes.tolist()]

    def _document_starts(self, file: TokenFile) -> Numbers:
        return (table_starts if file.table else document_starts)(self.source, file)

    def __len__(self) -> int:
        return len(self.windows)

    def path(self, index: int) -> str:
        """The path of the file that a sample is in, in the dataset."""
        return super().path(int(self.windows.places(self._whole([index]))[0][0]))

    def reads(self, indices: Numbers) -> Iterator[tuple[SampleSource, Numbers, Nodes]]:
        """As that of `SamplePlaces`, but the extents with the first bytes of samples, each when it is first needed. A
        sample that ends in another extent waits for it.
        """
        none = np.empty(0, np.int64)
        if not self.source.takes_lists:
            return iter([(self.source, none, none.astype(np.uint32))])
        extents = np.empty(len(indices), np.int64)
        streams, begins = self.windows.places(indices)
        for stream in distinct(streams).tolist():
            mine, file = streams == stream, self.files[stream]
            extents[mine] = self.snapshot.extent_numbers(file.node, file.stream.bytes_of(begins[mine]))
        firsts = np.full(int(extents.max(initial=-1)) + 1, len(extents))
        firsts[extents[::-1]] = np.arange(len(extents))[::-1]  # of equal ones, the last that is written stays
        places = np.sort(firsts[firsts < len(extents)])
        return iter([(self.source, places, extents[places].astype(np.uint32))])

    def order(self, spec: PlanSpec) -> "WindowOrder":
        layout = self._layout()
        plan = Plan(self.snapshot, replace(spec, folder=self.folder), layout)
        return WindowOrder(plan, SampleNumbers(None), self.source, layout)

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> "TokenSubset":
        return TokenSubset(self, self._whole(indices))

    def _layout(self) -> WindowLayout:
        snapshot = self.snapshot
        firsts, counts = (snapshot.column(name)[self.nodes].astype(np.int64) for name in ("firsts", "counts"))
        places, chunks = (snapshot.column(f"extent_{name}").astype(np.int64) for name in ("places", "chunks"))
        extents = [np.arange(first, first + count) for first, count in zip(firsts, counts, strict=True)]
        if not len(chunks):  # a plain folder: one chunk for all
            places, chunks, extents = (
                np.zeros(1, np.int64),
                np.zeros(1, np.int64),
                [np.zeros(1, np.int64)] * len(firsts),
            )
        runs = [self.windows.runs(stream, places[numbers]) for stream, numbers in enumerate(extents)]
        ids = snapshot.column("chunk_ids").view(">u8").astype(np.uint64).reshape(-1, 2)
        return WindowLayout(
            ids if len(ids) else np.zeros((1, 2), np.uint64),
            chunks[np.concatenate(extents)],
            np.concatenate([first for first, _ in runs]),
            np.concatenate([count for _, count in runs]),
            self.folder,
            self.windows.digest(snapshot.path_many(self.nodes)),
        )

    def _whole(self, indices: Any) -> Numbers:
        """Sample numbers. Raises IndexError."""
        samples = np.asarray(indices, np.int64)
        samples = np.where(samples < 0, samples + len(self), samples)
        if len(samples) and not 0 <= samples.min() <= samples.max() < len(self):
            raise IndexError(f"there are {len(self)} samples")
        return samples

    def _items(self, indices: Any) -> list[Any]:
        streams, begins = self.windows.places(self._whole(indices))
        tokens = np.empty((len(begins), self.windows.length), np.int64)
        for stream in set(streams.tolist()):
            file, mine = self.files[stream], np.flatnonzero(streams == stream)
            tokens[mine] = self._rows(file, begins[mine])
        if not self._boundaries:
            return [*self._made(tokens)]
        is_first = np.zeros(tokens.shape, np.bool_)
        for stream in set(streams.tolist()) if self._eos is None else ():
            mine = streams == stream
            is_first[mine] = is_start(begins[mine], self.windows.length, self._starts[stream])
        if self._eos is not None:
            is_first = is_after(tokens, self._eos)
        parts = map(self._made, (tokens, *document_places(is_first)))
        return [
            dict(zip(("tokens", "positions", "documents"), item, strict=True))
            for item in zip(*parts, strict=True)
        ]

    def _rows(self, file: TokenFile, begins: Numbers) -> npt.NDArray[np.integer]:
        """The tokens of samples of a file: shape (n, length). `begins`: shape (n,), the first token of each."""
        stream, length = file.stream, self.windows.length
        rows = np.empty((len(begins), length), file.dtype)
        firsts = stream.bytes_of(begins)
        if len(stream.begins) == 1:
            self.source.read_rows(file.node, firsts, rows.view(np.uint8))
            return rows
        # With what lies between the pieces, in ranges of equal length inside the file.
        spans = stream.bytes_of(begins + length - 1) + stream.item_bytes - firsts
        raw = np.empty((len(begins), int(spans.max())), np.uint8)
        firsts = np.minimum(firsts, self.snapshot.size(file.node) - raw.shape[1])
        self.source.read_rows(file.node, firsts, raw)
        for row, content, begin, first in zip(rows, raw, begins.tolist(), firsts.tolist(), strict=True):
            place = 0
            for byte, count in stream.pieces(begin, length):
                piece = content[byte - first : byte - first + count * stream.item_bytes]
                row[place : place + count] = piece.view(file.dtype)
                place += count
        return rows

    @staticmethod
    def _made(rows: Numbers) -> Any:
        """What gives the items of a batch, row by row."""
        return rows


class TokenSubset:
    """Some of the samples, for samplers. `samples`: shape (n,), each once."""

    def __init__(self, whole: TokenSamples, samples: Numbers) -> None:
        self._whole, self._samples, self.source = whole, samples, whole.source

    def __len__(self) -> int:
        return len(self._samples)

    def order(self, spec: PlanSpec) -> "WindowOrder":
        whole, names = self._whole._layout(), np.sort(self._samples).astype(np.uint64)
        plan = Plan(self._whole.snapshot, replace(spec, folder=self._whole.folder), whole.select(names))
        return WindowOrder(plan, SampleNumbers(self._samples), self.source, whole)

    def subset(self, indices: Sequence[int] | npt.NDArray[np.integer]) -> "TokenSubset":
        return TokenSubset(self._whole, self._samples[np.asarray(indices, np.int64)])

    def expect_plan(self) -> None:
        self._whole.expect_plan()


class SampleNumbers:
    """The index of a sample in a dataset from its name in a layout, its number. `chosen`: shape (n,); None: all."""

    def __init__(self, chosen: Numbers | None) -> None:
        self.chosen = chosen
        self._by_number = None if chosen is None else np.argsort(chosen, kind="stable")

    def samples(self, names: npt.NDArray[Any]) -> Numbers:
        """The same shape as `names`."""
        numbers = names.astype(np.int64)
        if self.chosen is None or self._by_number is None:
            return numbers
        found: Numbers = self._by_number[np.searchsorted(self.chosen, numbers, sorter=self._by_number)]
        return found


class WindowOrder(PlanOrder):
    """The order of samples of tokens, in which a sample has the place of the chunk with its first byte."""

    is_listed = True

    def __init__(self, plan: Plan, names: Names, source: SampleSource, layout: WindowLayout) -> None:
        """`layout`: of all samples."""
        super().__init__(plan, names, source)
        self._window_layout = layout

    def homes_of(self, nodes: Sequence[str]) -> HomesOf:
        homes = ChunkHomes(self.plan.snapshot, nodes)
        return lambda positions: homes.of(
            self._window_layout.chunks_of(self.plan.names_at(positions).astype(np.int64))
        )

    def with_spec(self, spec: PlanSpec) -> "WindowOrder":
        spec = replace(spec, folder=self.spec.folder)
        plan = Plan(self.plan.snapshot, spec, self.plan.layout)
        return WindowOrder(plan, self._names, self._source, self._window_layout)

    def declare(self, reader: ReaderSpec) -> None:
        """The library loads ahead what is listed."""
