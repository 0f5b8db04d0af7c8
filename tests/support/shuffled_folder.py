"""A folder of samples without bytes, for samplers; a dataset whose items are its indices."""

from torch.utils.data import Dataset

from dieselfs.shuffle.plan import Share
from dieselfs.snapshot.reader import Snapshot
from dieselfs.torch.samples import find_samples
from tests.support.dataset import TreeEntry, pack_entries

CHUNK_BYTES = 100


class ShuffledFolder(Dataset[int]):
    """The folder `train/` of a dataset, whose chunks also have files of `val/`: one for each ten samples.

    `others`: files of `train/` that are not samples. Records `declared` shares.
    """

    def __init__(self, samples: int, others: int = 0, classes: int = 3) -> None:
        paths = [b"train/c%d/%04d.png" % (number % classes, number) for number in range(samples)]
        paths += [b"train/c0/%04d.txt" % number for number in range(others)]
        paths += [b"val/c%d/%04d.png" % (number % classes, number) for number in range(samples // 10)]
        paths.sort(key=lambda path: path[-8:])
        files = [TreeEntry(path, 0o100644, 0, b"x" * (len(path) % 7 + 9)) for path in paths]
        self._content = bytes(pack_entries(files, chunk_bytes=CHUNK_BYTES).snapshot.content)
        self.snapshot = Snapshot(self._content, "packed")
        self.folder = b"train"
        self.columns = find_samples(self.snapshot, self.folder)
        self.declared: list[Share] = []

    def expect_plan(self) -> None:
        pass

    def declare(self, share: Share) -> None:
        self.declared.append(share)

    def __len__(self) -> int:
        return len(self.columns.nodes)

    def __getitem__(self, index: int) -> int:
        return index
