"""Batches of an order as an `IterableDataset`, for programs that want no sampler. No I/O of its own."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Unpack

import torch
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from dieselfs.frameworks.torch.sampler import ChunkShuffleBatchSampler
from dieselfs.limits import CURSOR_CHARACTERS_MAX
from dieselfs.samples.sample_set import read_items
from dieselfs.samples.sampler_state import Batch, SamplerOptions, entry_of


class BatchStream(IterableDataset[Any]):
    """The batches of a rank in the order of a sampler, collated.

        stream = BatchStream(dataset, batch_size=256, seed=1)
        loader = DataLoader(stream, batch_size=None, num_workers=8)
        for epoch in range(stream.epoch, 90):
            stream.set_epoch(epoch)
            for images, labels in stream.consumed(loader): ...

    The workers of a loader take the steps in turn, so batches come in the order of the sampler, whatever their number.
    Works with forked, spawned and persistent workers, and with `StatefulDataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        **options: Unpack[SamplerOptions],
    ) -> None:
        """`dataset`: as samplers take it; `batch_size`: samples of one step, of all ranks together; `collate_fn`: makes
        a batch of items, as for `DataLoader`; the options: see `SamplerOptions`. Raises InvalidInput.
        """
        super().__init__()
        self.dataset, self.collate_fn = dataset, collate_fn
        self.sampler = ChunkShuffleBatchSampler(dataset, batch_size, **options)
        # The cursor from which workers start, in shared memory: persistent workers keep their copy of this object.
        self._start = torch.zeros(CURSOR_CHARACTERS_MAX, dtype=torch.uint8).share_memory_()
        self._announce()

    @property
    def epoch(self) -> int:
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch. For the current one nothing changes, so a resumed epoch continues."""
        self.sampler.set_epoch(epoch)
        self._announce()

    def consumed(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader over this stream; each counts as consumed when it is yielded, as with samplers."""
        self._announce()
        self.sampler.expect_steps()
        return self.sampler.consumed(loader)

    def state_dict(self) -> dict[str, str]:
        """The state as a cursor, as that of samplers: it counts what `consumed` has yielded."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, str]) -> None:
        """Continue from a state of a stream, or of a sampler. Raises InvalidInput."""
        self.sampler.load_state_dict(state)
        self._announce()

    def __len__(self) -> int:
        """Batches of a whole epoch, whatever the start position."""
        return len(self.sampler)

    def __iter__(self) -> "StreamBatches":
        return StreamBatches(self, bytes(self._start.tolist()).rstrip(b"\0").decode())

    def _announce(self) -> None:
        text = self.state_dict()["cursor"].encode().ljust(CURSOR_CHARACTERS_MAX, b"\0")
        self._start.copy_(torch.tensor(list(text), dtype=torch.uint8))


class StreamBatches(Iterator[Any]):
    """The batches of one worker, from a cursor on. Stateful loaders keep its state for each worker."""

    def __init__(self, stream: BatchStream, cursor: str) -> None:
        self._stream, self._cursor, self._done = stream, cursor, 0
        self._steps: Iterator[tuple[int, list[int]]] | None = None

    def __next__(self) -> Any:
        if self._steps is None:
            self._steps = self._open()
        _, indices = next(self._steps)
        self._done += 1
        return self._stream.collate_fn(read_items(self._stream.dataset, indices))

    def _open(self) -> Iterator[tuple[int, list[int]]]:
        sampler, worker = self._stream.sampler, get_worker_info()
        if worker is not None or sampler.state_dict()["cursor"] != self._cursor:
            sampler.load_state_dict({"cursor": self._cursor})
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        steps = sampler.steps(sampler.position, number, workers)
        return islice(steps, number + self._done * workers, None, workers)

    def state_dict(self) -> dict[str, Any]:
        """Where this worker began, and how many batches it has given since."""
        return {"cursor": self._cursor, "batches": self._done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Before the first batch. With the same number of workers only; a stream's own state has no such limit."""
        self._cursor, self._done = entry_of(state, "cursor"), int(entry_of(state, "batches"))
