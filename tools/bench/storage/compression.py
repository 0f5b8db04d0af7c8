"""What `--compress zstd` saves and costs: datasets of several kinds of files beside the same ones stored plainly."""

import json
import os
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from io import BytesIO
from itertools import count
from pathlib import Path

import numpy as np

from bench.harness.figures import Run, Scale, Side, Table, Trial
from bench.harness.stopwatch import measure
from dieselfs.chunk.frames import Compression
from dieselfs.dataset import Dataset
from dieselfs.limits import KIB, MIB
from dieselfs.settings import Settings
from dieselfs.sources.plain import node_source
from dieselfs.transfer.upload import TreeUpload, walk_source
from lab.server import RunningServer, running_server

SIDES = ("plain", "zstd")
KIND_BYTES = 48 * MIB
READ_AT_ONCE = 256

Chance = np.random.Generator


def _words(chance: Chance, number: int) -> str:
    """Words as often as in a language: the n-th one 1/n times as often as the first."""
    ranks = (3000 ** chance.random(number)).astype(int)
    return " ".join(f"{zlib.crc32(b'%d' % rank):x}"[: 2 + rank % 7] for rank in ranks.tolist())


def _record(chance: Chance) -> bytes:
    fields = {
        "id": int(chance.integers(1 << 60)),
        "caption": _words(chance, 8),
        "box": chance.random(4).round(4).tolist(),
        "split": "train",
    }
    return json.dumps(fields).encode()


def _lines(chance: Chance) -> bytes:
    return b"\n".join(_record(chance) for _ in range(16_000))


def _text(chance: Chance) -> bytes:
    return _words(chance, 400).encode()


def _points(chance: Chance) -> bytes:
    """100,000 points of a scan: x, y and z in float32 with a precision of a millimetre, ring after ring."""
    angle = np.linspace(0, 200 * np.pi, 100_000)
    distance = 20 + 5 * np.sin(angle / 50) + chance.normal(0, 0.02, angle.shape)
    points = np.stack(
        (distance * np.cos(angle), distance * np.sin(angle), np.floor(angle / 6.28) / 10), axis=1
    )
    return points.round(3).astype("<f4").tobytes()


def _mask(chance: Chance) -> bytes:
    """An array of 512 x 512 labels in uint8, with 30 objects, as npy."""
    mask, (rows, columns) = np.zeros((512, 512), np.uint8), np.ogrid[:512, :512]
    for label, (row, column, radius) in enumerate(
        chance.integers((0, 0, 10), (512, 512, 80), (30, 3)).tolist(), 1
    ):
        mask[(rows - row) ** 2 + (columns - column) ** 2 < radius**2] = label
    np.save(file := BytesIO(), mask)
    return file.getvalue()


def _jpeg(chance: Chance) -> bytes:
    return chance.bytes(110_000)


KINDS: dict[str, tuple[Callable[[Chance], bytes], int]] = {
    "JSON records of 170 bytes": (_record, 170),
    "JSON lines of 2.7 MB": (_lines, 2_700 * KIB),
    "texts of 2 KB": (_text, 2 * KIB),
    "point clouds of 1.2 MB": (_points, 1_200_000),
    "masks of 262 kB": (_mask, 256 * KIB),
    "bytes as of JPEG, 110 kB": (_jpeg, 110_000),
}
"""How a file is made, and about how many bytes it has."""


def compression(folder: Path, scale: Scale) -> Generator[Trial | Table]:
    """Reads are over TCP, each with a new reader, of files that the kernel of the server has in memory."""
    with running_server(folder / "server") as server:
        settings, sizes = server.settings(server.user("bench", all_datasets="admin")), []
        for title, (make, file_bytes) in KINDS.items():
            if not scale.wants(title):
                continue
            source = folder / "source" / str(file_bytes)
            files, total_bytes = _written(
                source, make, KIND_BYTES // file_bytes // (8 if scale.is_quick else 1) + 1
            )

            def sides(run: Callable[[str], Run], files: int = files, size: int = total_bytes) -> list[Side]:
                return [Side(side, partial(run, side), files, "files", size) for side in SIDES]

            puts = sides(partial(_put, settings, source, count()))
            yield Trial(f"Put of {files:,} {title}", puts, scale.rounds, SIDES[0])
            for side in SIDES:
                sizes.append(_stored(settings, server, source, side, title))
            for what, passes in (("Cold", 1), ("Warm", 2)):
                reads = sides(partial(_read, settings, file_bytes, passes))
                yield Trial(f"{what} read of {files:,} {title}", reads, scale.rounds, SIDES[0])
            singles = sides(partial(_single, settings, file_bytes), min(files, 1000), 0)
            yield Trial(f"Random reads of single {title}", singles, scale.rounds, SIDES[0])
        yield Table(sizes)


def _written(source: Path, make: Callable[[Chance], bytes], files: int) -> tuple[int, int]:
    """The files, at most 100,000; returns their number and bytes."""
    chance, total_bytes = np.random.default_rng(28), 0
    for number in range(min(files, 100_000)):
        place = source / str(number // 1000)
        place.mkdir(parents=True, exist_ok=True)
        total_bytes += (place / str(number)).write_bytes(make(chance))
    return min(files, 100_000), total_bytes


def _upload(dataset: Dataset, source: Path, side: str) -> int:
    """Returns the bytes that were sent."""
    compressed = Compression() if side == "zstd" else None
    run = TreeUpload(dataset.client, dataset.create(), None, compression=compressed)
    return run.run(lambda failed: walk_source(os.fsencode(source), b"", failed)).sent_bytes


def _put(settings: Settings, source: Path, numbers: Iterator[int], side: str) -> Run:
    with Dataset(settings, f"put-{source.name}-{next(numbers)}", must_exist=False) as dataset:
        return measure(lambda: _upload(dataset, source, side))


def _stored(
    settings: Settings, server: RunningServer, source: Path, side: str, title: str
) -> dict[str, object]:
    """Store what `_read` reads; the row of a table."""
    with closing(Dataset(settings, f"{side}-{source.name}", must_exist=False)) as dataset:
        sent = _upload(dataset, source, side)
        folder = server.folder / "chunks" / dataset.record().dataset_id.hex()
        stored = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        dataset.refresh()
        kept = _kept(dataset, server.folder.parent / "disk" / f"{side}-{source.name}")
    sizes = {"payloads": sent, "chunks in the store": stored, "on the disk of a node": kept}
    return {"files": title, "side": side, **sizes}


def _kept(dataset: Dataset, disk: Path) -> int:
    """The bytes that a disk tier has of a dataset after each chunk was fetched."""
    disk.mkdir(parents=True)
    snapshot = dataset.snapshot
    with closing(node_source(dataset.client, snapshot, str(disk))) as source:
        for chunk in range(snapshot.chunk_count):
            source.fetch_chunk(chunk)
    return sum(file.stat().st_size for file in disk.glob("dieselfs-1/*/" + "[0-9a-f]" * 32))


def _read(settings: Settings, file_bytes: int, passes: int, side: str) -> Run:
    """A reader with memory of its own; the last of `passes` is measured."""
    with Dataset(settings, f"{side}-{file_bytes}") as dataset:
        paths = list(dataset.shuffle(seed=1))
        parts = [paths[at : at + READ_AT_ONCE] for at in range(0, len(paths), READ_AT_ONCE)]
        for _ in range(passes - 1):
            deque(map(dataset.get_many, parts), maxlen=0)
        return measure(lambda: deque(map(dataset.get_many, parts), maxlen=0))


def _single(settings: Settings, file_bytes: int, side: str) -> Run:
    """The same files one by one, in an order without a plan."""
    with Dataset(settings, f"{side}-{file_bytes}") as dataset:
        paths = list(dataset.files())
        chosen = np.random.default_rng(1).permutation(len(paths))[:1000].tolist()
        return measure(lambda: deque((dataset.get(paths[number]) for number in chosen), maxlen=0))
