"""Samplers over a selection: of its files alone, resumed exactly with another number of ranks."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from dieselfs.dataset import connect
from dieselfs.errors import InvalidInput
from dieselfs.names import COLUMNS_PATH
from dieselfs.torch import ChunkShuffleBatchSampler, FileDataset
from tests.support.server import RunningServer

pa = pytest.importorskip("pyarrow", reason="the extra columns is not installed")
pytest.importorskip("duckdb", reason="the extra columns is not installed")

from dieselfs.selection.file_columns import FileColumns  # noqa: E402  # needs pyarrow

FILES, BATCH, SEED = 60, 4, 1
THIRD = "number % 3 = 0"


@pytest.fixture
def home(server: RunningServer, tmp_path: Path) -> Iterator[Path]:
    with connect("numbered", create=True, server=server.unix, home=tmp_path) as made:
        for number in range(FILES):
            made.put(f"{number:02}", b"%d" % number)
        paths = pa.array([b"%02d" % number for number in range(FILES)], pa.large_binary())
        made.put(COLUMNS_PATH, FileColumns(pa.table({"path": paths, "number": range(FILES)})).encode())
    yield tmp_path
    with connect("numbered", server=server.unix, home=tmp_path) as made:
        made.delete_dataset()


def test_a_selection_resumes_with_another_number_of_ranks(server: RunningServer, home: Path) -> None:
    def opened(where: str) -> FileDataset:
        return FileDataset("numbered", where=where, server=server.unix, home=home)

    def sampler(samples: FileDataset, rank: int = 0, world: int = 1) -> ChunkShuffleBatchSampler:
        return ChunkShuffleBatchSampler(samples, batch_size=BATCH, seed=SEED, rank=rank, world=world)

    with opened(THIRD) as samples, opened("number < 20") as others:
        one = sampler(samples)
        batches = [[int(samples[index]) for index in batch] for batch in one]
        assert sorted(chain(*batches)) == list(range(0, FILES, 3))
        stopped = sampler(samples)
        loader = DataLoader(samples, batch_sampler=stopped, collate_fn=list)
        list(zip(range(2), stopped.consumed(loader), strict=False))
        state = stopped.state_dict()
        rest = []
        for rank in range(2):
            resumed = sampler(samples, rank, 2)
            resumed.load_state_dict(state)
            rest.append([[int(samples[index]) for index in batch] for batch in resumed])
        assert [sorted(chain(*parts)) for parts in zip(*rest, strict=True)] == [
            sorted(batch) for batch in batches[2:]
        ]
        with pytest.raises(InvalidInput, match="the cursor is of snapshot"):
            sampler(others).load_state_dict(state)
