"""Samples of tokens from one large file: through a mount, with the library, and with other loaders, by one process, or
by two workers of PyTorch's loader.

numpy.memmap on the local file system takes windows at random, as in nanoGPT. dieselfs takes samples in its chunk-wise
order, which its sampler knows ahead: each chunk is read once, before the first of its samples is needed. So do
the loaders of Megatron (its indexed dataset, windows at random) and LitData (its own chunks, shuffled). The caches are
dropped before each run, so no side competes with the files of another for the page cache. Warm: the run then reads its
files once before it is measured. Cold: mount and server are new. This module writes files, and mounts.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.figures import Run, RunFailed, Scale, Side, Trial
from bench.harness.forms import (
    DATASET,
    Home,
    can_drop_caches,
    drop_caches,
    filesystem_type,
    mounted,
    running_home,
)
from bench.harness.readers import Work, read_together
from lab.server import upload

FILE_BYTES = 2 << 20
"""For each large file of the scale: 10 GB in all."""
LENGTH, BATCH = 2048, 64
BATCHES, QUICK_BATCHES = 2000, 4
SEED, LITDATA_CHUNK, WORKERS = 1, "64MB", 2
MEMMAP, MOUNT, LIBRARY = "numpy.memmap, random", "mount, TokenDataset", "library, TokenDataset"
MOUNT_MEMMAP = "mount, numpy.memmap, random"
BY_WORKERS = f", {WORKERS} workers"
MEGATRON, LITDATA = "Megatron, IndexedDataset", "LitData, TokensLoader"

Batches = Iterator[Any]
"""Tensors of shape (BATCH, LENGTH), int64."""


def tokens(folder: Path, scale: Scale) -> Generator[Trial]:
    file_bytes = scale.large_files * FILE_BYTES
    batches = QUICK_BATCHES if scale.is_quick else BATCHES
    source = folder / "source"
    make_tokens(source, file_bytes)
    with running_home(folder / "home") as home:
        with home.dataset(must_exist=False) as data:
            upload(data, source)
        stage = _Stage(folder, home, batches)
        kinds = [(False, "warm")] + [(True, "cold")] * can_drop_caches()
        for is_cold, name in kinds:
            ways: dict[str, Callable[[bool], Run]] = {
                MEMMAP: partial(stage.plain, memmap_batches, source),
                MOUNT: partial(stage.mount, token_batches),
                MOUNT_MEMMAP: partial(stage.mount, memmap_batches),
                LIBRARY: partial(stage.library, token_batches),
                MEMMAP + BY_WORKERS: partial(stage.plain, partial(memmap_batches, workers=WORKERS), source),
                MOUNT + BY_WORKERS: partial(stage.mount, partial(token_batches, workers=WORKERS)),
                LIBRARY + BY_WORKERS: partial(stage.library, partial(token_batches, workers=WORKERS)),
                MEGATRON: partial(stage.plain, megatron_batches, source),
                LITDATA: partial(stage.plain, litdata_batches, folder / "litdata"),
            }
            sides = [
                Side(name, partial(way, is_cold), batches * BATCH, "samples", batches * BATCH * LENGTH * 2)
                for name, way in ways.items()
            ]
            size = f"{file_bytes / 1e9:,.1f} GB of tokens on {filesystem_type(folder)}"
            yield Trial(f"{size}, samples of {LENGTH:,}, {name}", sides, scale.rounds, MEMMAP)


def make_tokens(folder: Path, file_bytes: int) -> None:
    """A file of uint16 tokens, and beside it the index of Megatron and the chunks of LitData if these are installed."""
    folder.mkdir(parents=True)
    source, piece = np.random.default_rng(SEED), FILE_BYTES // 2
    with open(folder / "tokens.bin", "wb") as file:
        for _ in range(file_bytes // FILE_BYTES):
            source.integers(0, 50_000, piece, np.uint16).tofile(file)
    lengths = np.full(file_bytes // FILE_BYTES, piece)
    with suppress(ImportError):
        from megatron.core.datasets.indexed_dataset import _IndexWriter

        with _IndexWriter(str(folder / "tokens.idx"), np.uint16) as index:
            index.write(lengths.tolist(), None, [*range(len(lengths) + 1)])
    with suppress(ImportError):
        import torch
        from litdata.streaming.cache import Cache
        from litdata.streaming.item_loader import TokensLoader

        shards = folder.parent / "litdata"
        shards.mkdir()
        cache = Cache(str(shards), chunk_bytes=LITDATA_CHUNK, item_loader=TokensLoader(block_size=LENGTH))
        content = np.memmap(folder / "tokens.bin", np.uint16, "r").reshape(-1, piece)
        for number, document in enumerate(content):
            cache[number] = torch.from_numpy(document.copy())
        cache.done()
        cache.merge()


# -- ways to read ----------------------------------------------------------------------------------------


class _Windows:
    """The windows of a file of tokens, by their first token."""

    def __init__(self, root: str) -> None:
        self._content = np.memmap(f"{root}/tokens.bin", np.uint16, "r")

    def __len__(self) -> int:
        return len(self._content) - LENGTH

    def __getitems__(self, places: list[int]) -> list[Any]:
        import torch

        return [torch.from_numpy(self._content[at : at + LENGTH].astype(np.int64)) for at in places]

    def random(self) -> Iterator[list[int]]:
        source = np.random.default_rng(SEED)
        while True:
            yield source.integers(0, len(self), BATCH).tolist()


def memmap_batches(root: str, workers: int = 0) -> Batches:
    windows = _Windows(root)
    return _loaded(windows, windows.random(), workers)


def token_batches(root: str, workers: int = 0, **connection: Any) -> Batches:
    from dieselfs.torch import ChunkShuffleBatchSampler, TokenDataset

    dataset = TokenDataset(f"{root}/tokens.bin", LENGTH, dtype="uint16", **connection)
    return _loaded(dataset, ChunkShuffleBatchSampler(dataset, BATCH, seed=SEED, rank=0, world=1), workers)


def _loaded(dataset: Any, batches: Any, workers: int) -> Batches:
    """By workers of PyTorch's loader, or by this process."""
    import torch
    from torch.utils.data import DataLoader

    if workers:
        yield from DataLoader(dataset, batch_sampler=batches, num_workers=workers)
    for indices in batches if not workers else ():
        yield torch.stack(dataset.__getitems__(indices))


def megatron_batches(root: str) -> Batches:
    """Windows of its sequences, as its GPTDataset takes them."""
    import torch

    try:
        from megatron.core.datasets.indexed_dataset import IndexedDataset
    except ImportError:
        raise RunFailed("megatron-core is not installed") from None
    content = IndexedDataset(f"{root}/tokens", mmap=True)
    source, windows = np.random.default_rng(SEED), FILE_BYTES // 2 // LENGTH
    while True:
        numbers = source.integers(0, len(content) * windows, BATCH).tolist()
        places = [divmod(number, windows) for number in numbers]
        found = [content.get(document, at * LENGTH, LENGTH) for document, at in places]
        yield torch.stack([torch.from_numpy(each.astype(np.int64)) for each in found])


def litdata_batches(root: str) -> Batches:
    import torch

    try:
        from litdata import StreamingDataset, TokensLoader
    except ImportError:
        raise RunFailed("litdata is not installed") from None
    dataset = StreamingDataset(
        root, item_loader=TokensLoader(block_size=LENGTH), shuffle=True, seed=SEED, drop_last=False
    )
    blocks = iter(dataset)
    while found := [*islice(blocks, BATCH)]:
        yield torch.stack(found).to(torch.int64)


@dataclass(frozen=True, slots=True)
class _Stage:
    folder: Path
    home: Home
    batches: int

    def plain(self, way: Callable[[str], Batches], root: Path, is_cold: bool) -> Run:
        return self._run(lambda: way(str(root)), is_cold, root)

    def mount(self, way: Callable[[str], Batches], is_cold: bool) -> Run:
        with self._mounted() as mountpoint:
            return self._run(lambda: way(str(mountpoint)), is_cold, mountpoint)

    def library(self, way: Callable[..., Batches], is_cold: bool) -> Run:
        if is_cold:
            self.home.stop_server()
        options = {"home": self.home.folder}
        with self.home.dataset():  # the server starts before the work, and stays
            return self._run(lambda: way(DATASET, **options), is_cold, self.home.folder)

    @contextmanager
    def _mounted(self) -> Iterator[Path]:
        mountpoint = self.folder / "mount"
        with mounted(self.home, mountpoint):
            yield mountpoint

    def _run(self, begin: Callable[[], Batches], is_cold: bool, root: Path) -> Run:
        if can_drop_caches():
            drop_caches()
        if not is_cold:
            for path in root.rglob("*"):
                if path.is_file() and not path.match(".dieselfs/*"):
                    _read(path)
        return read_together([partial(_reader, begin, self.batches)], self.batches * BATCH)


def _reader(begin: Callable[[], Batches], batches: int) -> Work:
    """Opens nothing before the work, as the first sample is a part of it; but imports everything."""
    import torch  # noqa: F401  # takes a second

    import dieselfs.torch

    assert dieselfs.torch

    def work() -> int:
        return sum(len(batch) for batch in islice(begin(), batches))

    return work


def _read(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        while file.read(FILE_BYTES):
            pass
