"""Samples of tokens from a real server and from a plain folder, in the loaders of PyTorch."""

import os
import pickle  # noqa: TID251  # as a DataLoader hands a dataset to spawned workers
import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, random_split

from dieselfs.dataset import Dataset
from dieselfs.errors import Damaged, InvalidInput, NotFound
from dieselfs.samples.source import LibrarySource
from dieselfs.torch import (
    BatchStream,
    ChunkShuffleBatchSampler,
    MixedDataset,
    OpportunisticSampler,
    TokenDataset,
)
from dieselfs.transfer.upload import TreeUpload, walk_source
from tests.support.server import RunningServer

SAMPLES = Path(__file__).parents[3] / "samples"
CHUNK_BYTES = 20_000
TOKENS = np.random.default_rng(1).integers(0, 50_000, 100_001).astype(np.uint16)
OTHERS = np.arange(5_000, dtype=np.int32)
DOCUMENTS = [[(n * 31 + place * 7) % 1000 + 1 for place in range(5 + n * 3 % 50)] + [0] for n in range(40)]
"""What the writers of Megatron, LitData and MosaicML have written."""
SHARDS = {"litdata-tokens": [23, 17], "mosaicml-tokens": [14, 14, 12], "mosaicml-token-bytes": [15, 14, 11]}
"""The documents in each of their shards."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    for name in ("one", "two"):
        (folder / name).mkdir()
    np.save(folder / "one/web.npy", TOKENS)
    np.save(folder / "two/books.npy", OTHERS)
    TOKENS.tofile(folder / "raw.bin")
    for name in ("megatron", *SHARDS):
        shutil.copytree(SAMPLES / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def stored(server: RunningServer, folder: Path) -> str:
    """The same files in chunks of 20 KB, so that one file spans many."""
    with Dataset(server.settings(), "tokens", must_exist=False) as data:
        upload = TreeUpload(data.client, data.create(), None, jobs=1, chunk_bytes=CHUNK_BYTES)
        assert not upload.run(lambda failed: walk_source(os.fsencode(folder), b"", failed)).failures
    return "tokens"


@pytest.fixture(params=["library", "folder"])
def root(
    request: pytest.FixtureRequest,
    server: RunningServer,
    stored: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(server.folder / "cache"))
    monkeypatch.setenv("DIESELFS_SERVER", server.unix)
    yield str(folder) if request.param == "folder" else stored


def rows(dataset: TokenDataset) -> list[list[int]]:
    return [row.tolist() for row in dataset.__getitems__(range(len(dataset)))]


def test_samples_of_each_kind_of_file(root: str) -> None:
    expected = TOKENS[: 100_001 // 64 * 64].reshape(-1, 64).tolist()
    with TokenDataset(f"{root}/one", 64) as dataset:
        assert rows(dataset) == expected and len(dataset) == 1562
        assert dataset[-1].dtype == torch.int64 and dataset[-1].tolist() == expected[-1]
        assert dataset.path(5).endswith("web.npy")
        with pytest.raises(IndexError):
            dataset[1562]
        with pickle.loads(pickle.dumps(dataset)) as copy:
            assert copy[77].tolist() == expected[77]
    with TokenDataset(f"{root}/raw.bin", 64, dtype="uint16") as dataset:
        assert rows(dataset) == expected
    with TokenDataset(root, 1001, "*/*.npy", overlap=1) as both:
        assert len(both) == 100 + 4 and both[100].tolist() == [*range(1001)] and both[101][0] == 1000


def check_documents(dataset: TokenDataset, documents: list[list[int]], first_item: int) -> int:
    """Compare the items of one file, 32 tokens each, with its documents; returns the first item of the next file."""
    tokens = np.concatenate(documents)
    places = np.concatenate([np.arange(len(document)) for document in documents])
    for number in range(len(tokens) // 32):
        item, span = dataset[first_item + number], slice(number * 32, number * 32 + 32)
        begins = np.flatnonzero(np.append(True, places[span][1:] == 0))
        own = np.searchsorted(begins, np.arange(32), side="right") - 1
        assert item["tokens"].tolist() == tokens[span].tolist()
        assert item["documents"].tolist() == own.tolist()
        assert item["positions"].tolist() == (np.arange(32) - begins[own]).tolist()
    return first_item + len(tokens) // 32


@pytest.mark.parametrize("eos", [None, 0])
def test_documents_of_megatron(root: str, eos: int | None) -> None:
    with TokenDataset(f"{root}/megatron/tokens.bin", 32, boundaries=True, eos=eos) as dataset:
        assert check_documents(dataset, DOCUMENTS, 0) == len(dataset)


@pytest.mark.parametrize("name", SHARDS)
def test_documents_in_shards(root: str, name: str) -> None:
    dtype = "uint16" if name.endswith("bytes") else None
    with TokenDataset(f"{root}/{name}", 32, boundaries=True, dtype=dtype) as dataset:
        item, documents = 0, iter(DOCUMENTS)
        for count in SHARDS[name]:
            item = check_documents(dataset, [next(documents) for _ in range(count)], item)
        assert item == len(dataset)
        read = np.concatenate([*ChunkShuffleBatchSampler(dataset, 4)])
        assert sorted(read.tolist()) == [*range(len(dataset))]


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")
def test_blocks_are_those_of_litdata(folder: Path) -> None:
    litdata = pytest.importorskip("litdata", reason="litdata is not installed: pip install litdata")
    blocks = litdata.StreamingDataset(
        str(folder / "litdata-tokens"), item_loader=litdata.TokensLoader(block_size=32), shuffle=False
    )
    with TokenDataset(folder / "litdata-tokens", 32) as dataset:
        assert rows(dataset) == [block.tolist() for block in blocks]


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_job_resumes_with_another_number_of_ranks_and_workers(root: str) -> None:
    """Two sources by weight: what three ranks read, then two with workers, is the order of one rank."""
    with MixedDataset(
        [TokenDataset(f"{root}/one", 64), TokenDataset(f"{root}/two", 64)], weights=[3, 1], epoch_samples=480
    ) as dataset:

        def steps_of(world: int, workers: int, state: Any, steps: int) -> tuple[list[list[list[int]]], Any]:
            by_rank = []
            for rank in range(world):
                stream = BatchStream(dataset, 24, seed=5, rank=rank, world=world)
                if state:
                    stream.load_state_dict(state)
                loader = DataLoader(stream, batch_size=None, num_workers=workers)
                consumed = stream.consumed(loader)
                by_rank.append([next(consumed).tolist() for _ in range(steps)])
                told = stream.state_dict()
            return [[*chain(*parts)] for parts in zip(*by_rank, strict=True)], told

        whole, _ = steps_of(1, 0, None, 20)
        first, state = steps_of(3, 0, None, 7)
        assert [*first, *steps_of(2, 2, state, 13)[0]] == whole
        books = [row for step in whole for row in step if row == [*range(row[0], row[0] + 64)]]
        assert len(books) == 120
        assert len({tuple(row) for step in whole for row in step}) == 360 + 5_000 // 64


def test_each_sample_comes_once_in_groups_of_chunks(server: RunningServer, stored: str) -> None:
    with TokenDataset("tokens/one", 64, server=server.unix) as dataset:
        sampler = ChunkShuffleBatchSampler(dataset, 25, seed=2, group_chunks=2)
        order = np.concatenate([*sampler])
        assert sorted(order.tolist()) == [*range(len(dataset))]
        # 128 bytes each: a group of two chunks has 312 samples, all of them neighbours in two stretches.
        first = np.sort(order[:300])
        assert (np.diff(first) > 100).sum() <= 1
        train, held_out = random_split(dataset, [0.9, 0.1])
        taken = np.concatenate(
            [np.concatenate([*ChunkShuffleBatchSampler(part, 10)]) for part in (train, held_out)]
        )
        assert sorted(taken[: len(train)].tolist()) == [*range(len(train))]
        local = ChunkShuffleBatchSampler(dataset, 24, seed=2, rank=1, world=2, assignment=["a", "b"])
        assert len(np.concatenate([*local])) == 781
        with pytest.raises(InvalidInput, match="give no mixture, and no tokens"):
            OpportunisticSampler(dataset, 24, rank=0, world=1)
        other = TokenDataset("tokens/one", 65, server=server.unix)
        with other, pytest.raises(InvalidInput, match="the cursor is of snapshot"):
            ChunkShuffleBatchSampler(other, 25).load_state_dict(sampler.state_dict())


def test_chunks_are_loaded_ahead_of_their_samples(server: RunningServer, stored: str) -> None:
    with TokenDataset("tokens/one", 64, server=server.unix) as dataset:
        assert isinstance(dataset.source, LibrarySource)
        sampler = ChunkShuffleBatchSampler(dataset, 4, seed=2, group_chunks=1)
        for batch in sampler:
            dataset.__getitems__(batch)
            if dataset.source.dataset.statistics()["look_ahead"]["chunks"]:
                break
        else:
            pytest.fail("no chunk was loaded ahead")


def test_faults_have_one_clear_line(tmp_path: Path) -> None:
    def fails(error: type[Exception], message: str, name: str, length: int = 8, **options: Any) -> None:
        with pytest.raises(error, match=message) as raised:
            TokenDataset(tmp_path / name, length, **options)
        assert "\n" not in str(raised.value)

    (tmp_path / "a.bin").write_bytes(bytes(33))
    np.save(tmp_path / "float.npy", np.zeros(9))
    np.save(tmp_path / "square.npy", np.zeros((9, 9), np.int32))
    np.save(tmp_path / "cut.npy", np.zeros(999, np.int32))
    os.truncate(tmp_path / "cut.npy", 999)
    (tmp_path / "no.npy").write_bytes(b"no")
    shutil.copytree(SAMPLES / "megatron", tmp_path, dirs_exist_ok=True)
    fails(InvalidInput, "a.bin has no header: give the type of its tokens, as dtype='uint16'", "a.bin")
    fails(InvalidInput, "33 bytes are no whole number of uint16", "a.bin", dtype="uint16")
    fails(InvalidInput, "no file has 99 tokens", "a.bin", 99, dtype="uint8")
    fails(InvalidInput, "dtype is 'u16'", "a.bin", dtype="u16")
    fails(InvalidInput, "float.npy: tokens are whole numbers, not float64", "float.npy")
    fails(InvalidInput, "tokens have one dimension", "square.npy")
    fails(InvalidInput, "no.npy is no array of NumPy", "no.npy")
    fails(Damaged, "it is cut off, it should have 999 tokens", "cut.npy")
    fails(InvalidInput, "does not say where documents begin", "a.bin", dtype="uint8", boundaries=True)
    fails(InvalidInput, "give boundaries=True", "a.bin", dtype="uint8", eos=0)
    fails(InvalidInput, "no token of uint8 is eos=256", "a.bin", dtype="uint8", boundaries=True, eos=256)
    fails(InvalidInput, "is a file: patterns are for folders", "a.bin", patterns="*", dtype="uint8")
    fails(NotFound, r"no file matches \*.x", ".", patterns="*.x")
    for name in SHARDS:
        shutil.copytree(SAMPLES / name, tmp_path / name)
    fails(InvalidInput, "has bytes: give the type of its tokens, as dtype='int64'", "mosaicml-token-bytes")
    fails(InvalidInput, "no column 'ids': give one of number, tokens", "mosaicml-tokens", column="ids")
    fails(InvalidInput, "has int32, and no tokens of one type", "mosaicml-tokens", column="number")
    shutil.copytree(SAMPLES / "litdata", tmp_path / "images")
    fails(InvalidInput, "the chunks of LitData have no tokens", "images")
    (tmp_path / "litdata-tokens/index.json").write_text('{"chunks": [{}], "config": {}}')
    fails(Damaged, "index.json: no proper description of its shards", "litdata-tokens")
    os.truncate(tmp_path / "mosaicml-tokens/shard.00001.mds", 40)
    fails(Damaged, "shard.00001.mds: its table is not that of 14 samples", "mosaicml-tokens")
    os.truncate(tmp_path / "tokens.bin", 64)
    fails(Damaged, "by its index 1[0-9]* tokens of uint16", "tokens.bin")
    (tmp_path / "tokens.idx").write_bytes(b"MMIDIDX")
    fails(Damaged, "is no index of Megatron", "tokens.bin")
