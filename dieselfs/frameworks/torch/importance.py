"""A sampler that prefers samples with large losses, for PyTorch's DataLoader (SHADE). This module exchanges losses.

sampler = ImportanceSampler(dataset, batch_size=256, seed=1)
loader = DataLoader(dataset, batch_sampler=sampler, num_workers=8)
for images, labels in sampler.consumed(loader):
    losses = cross_entropy(model(images), labels, reduction="none")
    losses.mean().backward()
    sampler.record(losses)
"""

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from functools import partial
from hashlib import sha256
from secrets import token_bytes
from socket import gethostname
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch.utils.data import Sampler

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.importance.course import Course
from dieselfs.importance.rank_reader import RankReader
from dieselfs.importance.schedule import DEFAULT_REPEATS
from dieselfs.samples.base_names import PairSamples
from dieselfs.samples.ranks import Gather, gathering, rank_and_world
from dieselfs.samples.reading_list import announce
from dieselfs.samples.sample_set import SampleSet
from dieselfs.samples.sample_store import SampleStore, name_on, new_name
from dieselfs.samples.source import LibrarySource
from dieselfs.samples.stored_reads import ReadCounts, StoredReads
from dieselfs.samples.tokens import TokenSamples

if TYPE_CHECKING:  # imported in a job, and for an encrypted dataset, alone
    from dieselfs.samples.sample_pool import SamplePool
    from dieselfs.sources.decrypted import Decryption

Batch = TypeVar("Batch")

DEFAULT_CACHE_SHARE = 0.1
_FINGERPRINT_CHARACTERS = 24
_KEY_BYTES = 32
_log = logging.getLogger(__name__)


class ImportanceSampler(Sampler[list[int]]):
    """A rank's batches: `DataLoader(dataset, batch_sampler=ImportanceSampler(dataset, 256))`.

    Works with any dataset that has a length and items by number. For the datasets of this package, the files of samples
    that the cache keeps are in memory (`/dev/shm`), for all workers and ranks of the node. Cannot be pickled; one
    loader at a time may use it. With several ranks, all make it, begin and end epochs, and call `exchange`, at the same
    time.
    """

    def __init__(
        self,
        dataset: Sized,
        batch_size: int,
        *,
        seed: int = 0,
        cache_share: float = DEFAULT_CACHE_SHARE,
        repeats: float = DEFAULT_REPEATS,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = False,
        gather: Gather | None = None,
    ) -> None:
        """`batch_size`: samples of one step, of all ranks together. `cache_share`: of the dataset, kept by the cache.
        `repeats`: how often a cached sample is served for each time that it was drawn; 1: no repetition. `rank`,
        `world`: see `rank_and_world`. `gather`: exchanges objects between ranks, by default with torch.distributed.

        Raises InvalidInput.
        """
        if not 0 <= cache_share <= 1:
            raise InvalidInput(f"cache_share is {cache_share}: give a number from 0 to 1")
        rank, world = rank_and_world(rank, world)
        self.dataset, self.rank, self.world = dataset, rank, world
        self._files = _files_of(dataset)
        sizes = None if self._files is None else _sizes_of(dataset, self._files)
        total = len(dataset) if sizes is None else int(sizes.sum())
        course = Course(len(dataset), seed, int(cache_share * total), sizes, repeats)
        self._gather = gathering(gather, world)
        self.reader = RankReader(course, batch_size, rank, world, gather=self._gather, drop_last=drop_last)
        self._fingerprint = _fingerprint(dataset, self._files)
        self._stored = self._open_store() if cache_share and self._files is not None else None
        self._counted = ReadCounts(0, 0, 0)  # before this epoch
        self._is_ordered = True

    def _open_store(self) -> StoredReads:
        """Each node has one store of the ranks' common name; in a job of several nodes, they are a pool."""
        dataset: Any = self.dataset
        source = dataset.source
        me: Any = source.node if isinstance(source, LibrarySource) else None
        of_ranks = self._gather((new_name(), me, gethostname(), token_bytes(_KEY_BYTES)))
        (name, _, _, key), nodes = of_ranks[0], {node for _, node, _, _ in of_ranks}
        is_pooled = me is not None and None not in nodes and len(nodes) > 1
        hosts = {host for _, _, host, _ in of_ranks}
        if not is_pooled and len(hosts) > 1 and self.rank == 0:
            _log.warning(
                "each of %d nodes keeps the samples of its own ranks alone: nodes find each other in a job, so "
                'open the dataset with job="auto" on all of them',
                len(hosts),
            )
        store = SampleStore(name_on(name, me) if is_pooled else name)
        shared = partial(_shared_of, source, store, name, me, nodes if is_pooled else (), key)
        dataset.source = stored = StoredReads(source, store, shared)
        weakref.finalize(self, store.close)
        return stored

    def close(self) -> None:
        """Release the memory of the cache. Samples are read from their source from now on."""
        if self._stored is not None:
            dataset: Any = self.dataset
            if dataset.source is self._stored:
                dataset.source = self._stored.source
            self._stored.store.close()
            self._stored = None

    @property
    def epoch(self) -> int:
        return self.reader.epoch

    @property
    def position(self) -> int:
        """Number of consumed positions of the epoch, of all ranks together."""
        return self.reader.position

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch, with the losses of all ranks. For the current one nothing changes, so a
        resumed epoch continues. All ranks must call it.
        """
        if epoch != self.epoch:
            self.reader.set_epoch(epoch)
            self._begin_counts()

    def _begin_counts(self) -> None:
        if self._stored is not None:
            self._counted = self._stored.counts.total()

    def __iter__(self) -> Iterator[list[int]]:
        told: list[Callable[[int], None]] | None = None
        for step, (_, samples) in enumerate(self.reader.steps()):
            if told is None:
                told = self._announce()
            for tell in told:
                tell(step)
            yield samples

    def _announce(self) -> list[Callable[[int], None]]:
        """Have the library load ahead what the cache does not have now: each such sample where it comes first."""
        samples, ends = self.reader.listed()
        is_missing = np.zeros(len(samples), np.bool_)
        is_missing[np.unique(samples, return_index=True)[1]] = True
        cache = self.reader.course.cache
        is_missing &= np.fromiter(
            (sample not in cache for sample in samples.tolist()), np.bool_, len(samples)
        )
        counts = np.concatenate(([0], np.cumsum(is_missing)))
        return announce(self.dataset, samples[is_missing], counts[ends], False, 0, 1)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.reader)

    # -- training ------------------------------------------------------------------------------------------

    def consumed(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a loader over this sampler; each counts as consumed when it is yielded. After the last batch
        the next epoch starts: its order is made at its first batch, with the accuracy noted in between.
        """
        self._is_ordered = getattr(loader, "in_order", True)
        for batch in loader:
            self.advance()
            yield batch
        self.set_epoch(self.epoch + 1)

    def advance(self) -> None:
        """Count the loader's next batch as consumed. Raises InvalidInput if the loader has taken no further one."""
        released = self.reader.consume()
        if self._stored is not None:
            self._stored.settle(self._nodes_of(released), self._nodes_of(self.reader.kept()))

    def _nodes_of(self, samples: list[int]) -> list[int]:
        assert self._files is not None
        return [node for node in self._files[samples].flatten().tolist() if node >= 0]

    def record(self, losses: Any, indices: Any = None) -> None:
        """The losses of the batch that was consumed last, one for each sample, or of the samples at `indices`.

        Raises InvalidInput for losses that are NaN or infinite, or of another number than the samples.
        """
        if indices is None and not self._is_ordered:
            raise InvalidInput(
                "batches of a loader with in_order=False come in any order: pass the indices of the batch to record"
            )
        self.reader.record(_array(losses), None if indices is None else _array(indices))

    def exchange(self) -> None:
        """Give the losses to all ranks, before a checkpoint in the middle of an epoch. All ranks must call it."""
        self.reader.exchange()

    def note_accuracy(self, accuracy: float) -> None:
        """The accuracy on validation data, equal on all ranks, before the next epoch begins. While it improves, samples
        of the cache are repeated.
        """
        self.reader.note_accuracy(accuracy)

    def loss_weights(self, indices: Any = None) -> torch.Tensor:
        """Factors for the losses of the last consumed batch (or of the samples at `indices`): with them, gradients are
        those of uniform sampling in expectation. Shape (n,). Their mean over an epoch is about 1.
        """
        return torch.from_numpy(
            self.reader.loss_weights(None if indices is None else _array(indices))
        ).float()

    def statistics(self) -> dict[str, float]:
        """Counts of this epoch so far: `reads`, `hits`, and the number of `different` samples in the whole epoch.

        With a cache of bytes, `reads` are the files that this rank and its workers have read since it began the epoch
        or loaded a state; `hits` are those that were in memory, and `from_peers` those of them that other nodes sent.
        Without it, they are samples of all ranks together, and the hits that a cache would have.
        """
        found = self.reader.statistics()
        if self._stored is not None:
            counts = zip(ReadCounts._fields, self._stored.counts.total(), self._counted, strict=True)
            found.update({name: now - before for name, now, before in counts})
        return found

    # -- state ---------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Numbers and tensors, about 12 bytes a sample, which `torch.save` and `torch.load(weights_only=True)` take.

        With several ranks, `exchange` before. Raises InvalidInput with losses that were not exchanged.
        """
        state = {**self.reader.state(), "dataset": self._fingerprint}
        return {
            name: _tensor(value) if isinstance(value, np.ndarray) else value for name, value in state.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with the ranks and the batch size of this sampler. What the memory of the cache had is
        read again. Raises InvalidInput if the state is of other samples, or no state of such a sampler.
        """
        if not isinstance(state, Mapping):
            raise InvalidInput(f"not a state of an importance sampler: {state!r}")
        if (of_state := state.get("dataset", self._fingerprint)) != self._fingerprint:
            raise InvalidInput(
                f"the state is of the samples {of_state}, not of {self._fingerprint}: "
                "use the tag and the folder of that job"
            )
        self.reader.load(
            {
                name: value.numpy() if isinstance(value, torch.Tensor) else value
                for name, value in state.items()
            }
        )
        self._begin_counts()


def _shared_of(
    source: Any, store: SampleStore, name: str, me: str, nodes: Collection[str], key: bytes
) -> "tuple[SamplePool | None, Decryption | None]":
    """The pool of these nodes, and what encrypts the samples of an encrypted dataset in memory: its own key, as in
    mounts, or `key`, which the ranks share, if they read through a mount: its daemon alone has the other.
    """
    snapshot, decryption = source.snapshot, None
    if snapshot.header.is_encrypted and isinstance(source, LibrarySource):
        chunks: Any = source.dataset.chunks
        decryption = chunks.decryption
    elif snapshot.header.is_encrypted:
        from dieselfs.encryption.cipher import DatasetCipher
        from dieselfs.sources.decrypted import Decryption

        decryption = Decryption(snapshot, lambda: DatasetCipher(key))
    if not nodes:
        return None, decryption
    from dieselfs.samples.sample_pool import SamplePool  # in a job alone

    pool = SamplePool(name, nodes, me, store, snapshot, lambda: source.dataset.attachment, decryption)
    return pool, decryption


def _files_of(dataset: object) -> Numbers | None:
    """The nodes of the files of each sample, -1 for none: shape (n, files). None for parts of files, and for a dataset
    that is not ours.
    """
    if isinstance(dataset, PairSamples):
        return dataset.parts
    if isinstance(dataset, SampleSet) and not isinstance(dataset, TokenSamples):
        return dataset.nodes[:, None].astype(np.int64)
    return None


def _sizes_of(dataset: Any, files: Numbers) -> Numbers:
    """The bytes of each sample: shape (n,)."""
    sizes: Numbers = np.where(files < 0, 0, dataset.snapshot.column("sizes")[files]).sum(
        axis=1, dtype=np.int64
    )
    return sizes


def _fingerprint(dataset: Any, files: Numbers | None) -> str:
    """What the numbers of samples depend on: their files, else only how many samples there are."""
    if files is None:
        return f"({len(dataset)} of a {type(dataset).__name__})"
    return sha256(dataset.snapshot.digest + files.tobytes()).hexdigest()[:_FINGERPRINT_CHARACTERS]


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(array.astype(np.int32) if array.dtype == np.uint32 else array)
