"""Programs that train on files, as their manuals show them: each writes its files, and reads all of them.

None of them knows of dieselfs. Packages are imported where they are used, as most need not be there. This module reads
and writes files.
"""

import io
import os
import random
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

IMAGE_PIXELS = 256
IMAGES_PER_CLASS = 100
NOISE = 40
"""Standard deviation: makes JPEG files of about 40 KB."""
LOADER_WORKERS, BATCH = 2, 32
ARRAYS_PER_UNIT, ARRAY_FLOATS = 2, 1 << 14
ROWS_PER_UNIT, ROW_BYTES, ROWS_READ_PER_UNIT = 32, 4096, 4
LINES_PER_UNIT, COLUMNS = 100, 8
RECORDS_PER_UNIT = 1000
RECORDS_PER_GROUP = 100_000
PICTURES_PER_UNIT, PICTURE_PIXELS = 4, 64
VALUES_PER_UNIT, VALUE_BYTES, VALUES_READ_PER_UNIT = 8, 4096, 4
SHARD_IMAGES = 250
LMDB_BYTES_MAX = 4 << 30
LARGE_UNIT_BYTES = 512 << 10
"""Of one large file: 500 MiB in all."""
SEED = 5


@dataclass(frozen=True, slots=True)
class Program:
    """`packages`: that must be there; `write` fills the new folder `folder` with the files of that many units, `read`
    reads them; both return how many items it reads.
    """

    name: str
    folder: str
    packages: Sequence[str]
    write: Callable[[Path, int], int]
    read: Callable[[Path, int], int]


# -- images ---------------------------------------------------------------------------------------------------


def _jpeg(number: int) -> bytes:
    from PIL import Image

    size = (IMAGE_PIXELS, IMAGE_PIXELS)
    bands = [Image.effect_noise(size, NOISE) for _ in range(3)]
    out = io.BytesIO()
    Image.merge("RGB", bands).save(out, "JPEG", quality=85)
    return out.getvalue()


def _write_images(folder: Path, units: int) -> int:
    for number in range(units):
        place = folder / f"class{number // IMAGES_PER_CLASS:03}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(_jpeg(number))
    return units


class _ImageFolder:
    """What torchvision's `ImageFolder` does: it walks the folders of the classes, and opens each image with `open`."""

    def __init__(self, root: Path) -> None:
        classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples: list[tuple[str, int]] = []
        for label, name in enumerate(classes):
            for place, _, files in sorted(os.walk(root / name, followlinks=True)):
                self.samples += [(os.path.join(place, file), label) for file in sorted(files)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return _decoded(path), label


def _decoded(path: str) -> Any:
    from PIL import Image

    with open(path, "rb") as file:
        return np.array(Image.open(file).convert("RGB"))


def _load(folder: Path, units: int) -> int:
    from torch.utils.data import DataLoader

    samples: Any = _ImageFolder(folder)
    loader = DataLoader(samples, batch_size=BATCH, shuffle=True, num_workers=LOADER_WORKERS)
    return sum(len(labels) for _, labels in loader)


def _decode(folder: Path, units: int) -> int:
    samples = _ImageFolder(folder).samples
    random.Random(SEED).shuffle(samples)
    return sum(_decoded(path).shape[2] == 3 for path, _ in samples)


def _load_with_datasets(folder: Path, units: int) -> int:
    import datasets

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as cache:
        found = datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=cache, split="train")
        return sum(row["image"].width == IMAGE_PIXELS for row in found)


def _load_with_tensorflow(folder: Path, units: int) -> int:
    import tensorflow

    paths = tensorflow.data.Dataset.list_files(f"{folder}/*/*.jpg", shuffle=True, seed=SEED)
    images = paths.map(
        lambda path: tensorflow.io.decode_jpeg(tensorflow.io.read_file(path)),
        num_parallel_calls=tensorflow.data.AUTOTUNE,
    )
    return sum(len(batch) for batch in images.batch(BATCH))


def _write_shards(folder: Path, units: int) -> int:
    for first in range(0, units, SHARD_IMAGES):
        with tarfile.open(folder / f"{first // SHARD_IMAGES:06}.tar", "w") as archive:
            for number in range(first, min(first + SHARD_IMAGES, units)):
                for suffix, content in (("jpg", _jpeg(number)), ("cls", b"%d" % (number % 10))):
                    member = tarfile.TarInfo(f"{number:06}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return units


def _load_shards(folder: Path, units: int) -> int:
    import webdataset

    shards = sorted(map(str, folder.glob("*.tar")))
    found = webdataset.WebDataset(shards, shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    return sum(image.width == IMAGE_PIXELS for image, _ in found)


# -- arrays and tables ----------------------------------------------------------------------------------------


def _write_arrays(folder: Path, units: int) -> int:
    for number in range(units * ARRAYS_PER_UNIT):
        np.save(folder / f"{number}.npy", np.full(ARRAY_FLOATS, number, np.float32))
    return units * ARRAYS_PER_UNIT


def _load_arrays(folder: Path, units: int) -> int:
    numbers = _order(units * ARRAYS_PER_UNIT)
    return sum(int(np.load(folder / f"{number}.npy")[-1]) == number for number in numbers)


def _write_matrix(folder: Path, units: int) -> int:
    rows = units * ROWS_PER_UNIT
    matrix = np.random.default_rng(SEED).integers(0, 256, (rows, ROW_BYTES), np.uint8)
    np.save(folder / "matrix.npy", matrix)
    return units * ROWS_READ_PER_UNIT


def _read_rows(folder: Path, units: int) -> int:
    matrix = np.load(folder / "matrix.npy", mmap_mode="r")
    chosen = _order(len(matrix))[: units * ROWS_READ_PER_UNIT]
    return sum(int(matrix[row].sum(dtype=np.int64)) > 0 for row in chosen)


def _write_lines(folder: Path, units: int) -> int:
    table = np.random.default_rng(SEED).random((units * LINES_PER_UNIT, COLUMNS))
    heads = ",".join(f"column{number}" for number in range(COLUMNS))
    np.savetxt(folder / "table.csv", table, "%.9f", ",", header=heads, comments="")
    return len(table)


def _read_lines(folder: Path, units: int) -> int:
    import pandas

    return len(pandas.read_csv(folder / "table.csv"))


def _write_records(folder: Path, units: int) -> int:
    import pyarrow
    import pyarrow.parquet

    records = units * RECORDS_PER_UNIT
    columns = np.random.default_rng(SEED).random((COLUMNS, records))
    table = pyarrow.table({f"column{number}": column for number, column in enumerate(columns)})
    pyarrow.parquet.write_table(table, folder / "table.parquet", row_group_size=RECORDS_PER_GROUP)
    return records


def _read_records(folder: Path, units: int) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.read_table(folder / "table.parquet").num_rows)


def _write_pictures(folder: Path, units: int) -> int:
    import h5py

    shape = (units * PICTURES_PER_UNIT, PICTURE_PIXELS, PICTURE_PIXELS, 3)
    with h5py.File(folder / "pictures.h5", "w") as file:
        content = np.random.default_rng(SEED).integers(0, 256, shape, np.uint8)
        file.create_dataset("pictures", data=content, chunks=(1, *shape[1:]))
    return shape[0]


def _read_pictures(folder: Path, units: int) -> int:
    import h5py

    with h5py.File(folder / "pictures.h5") as file:
        pictures = file["pictures"]
        return sum(pictures[number].any() for number in _order(len(pictures)))


# -- one large file -------------------------------------------------------------------------------------------


def _write_large(folder: Path, units: int) -> int:
    content = random.Random(SEED)
    with open(folder / "large.bin", "wb") as file:
        for _ in range(units):
            file.write(content.randbytes(LARGE_UNIT_BYTES))
    return units


def _read_in_sequence(folder: Path, units: int) -> int:
    part = bytearray(LARGE_UNIT_BYTES)
    with open(folder / "large.bin", "rb", buffering=0) as file:
        return sum(file.readinto(part) == LARGE_UNIT_BYTES for _ in range(units))


# -- databases ------------------------------------------------------------------------------------------------


def _values(units: int) -> list[tuple[int, bytes]]:
    content = random.Random(SEED)
    return [(number, content.randbytes(VALUE_BYTES)) for number in range(units * VALUES_PER_UNIT)]


def _write_sqlite(folder: Path, units: int) -> int:
    with sqlite3.connect(folder / "values.sqlite") as database:
        database.execute("create table contents (number integer primary key, content blob)")
        database.executemany("insert into contents values (?, ?)", _values(units))
    database.close()
    return units * VALUES_READ_PER_UNIT


def _read_sqlite(folder: Path, units: int) -> int:
    database = sqlite3.connect(f"file:{folder}/values.sqlite?mode=ro", uri=True)
    question = "select content from contents where number = ?"
    chosen = _order(units * VALUES_PER_UNIT)[: units * VALUES_READ_PER_UNIT]
    found = sum(len(database.execute(question, (number,)).fetchone()[0]) > 0 for number in chosen)
    database.close()
    return found


def _write_lmdb(folder: Path, units: int) -> int:
    import lmdb

    with (
        lmdb.open(str(folder / "values.mdb"), map_size=LMDB_BYTES_MAX, subdir=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, value in _values(units):
            transaction.put(b"%08d" % number, value)
    (folder / "values.mdb-lock").unlink()
    return units * VALUES_READ_PER_UNIT


def _read_lmdb(folder: Path, units: int) -> int:
    import lmdb

    chosen = _order(units * VALUES_PER_UNIT)[: units * VALUES_READ_PER_UNIT]
    with (
        lmdb.open(str(folder / "values.mdb"), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        return sum(transaction.get(b"%08d" % number) is not None for number in chosen)


def _order(items: int) -> list[int]:
    return random.Random(SEED).sample(range(items), items)


PROGRAMS = [
    Program("ImageFolder, DataLoader", "loader", ["PIL", "torch"], _write_images, _load),
    Program("PIL", "pil", ["PIL"], _write_images, _decode),
    Program("np.load", "arrays", [], _write_arrays, _load_arrays),
    Program("np.load, mmap_mode", "matrix", [], _write_matrix, _read_rows),
    Program("pandas, CSV", "csv", ["pandas"], _write_lines, _read_lines),
    Program("pyarrow, Parquet", "parquet", ["pyarrow"], _write_records, _read_records),
    Program("one file in sequence", "large", [], _write_large, _read_in_sequence),
    Program("h5py", "hdf5", ["h5py"], _write_pictures, _read_pictures),
    Program("sqlite3", "sqlite", [], _write_sqlite, _read_sqlite),
    Program("lmdb", "lmdb", ["lmdb"], _write_lmdb, _read_lmdb),
    Program("datasets, imagefolder", "imagefolder", ["PIL", "datasets"], _write_images, _load_with_datasets),
    Program("webdataset", "webdataset", ["PIL", "webdataset"], _write_shards, _load_shards),
    Program("tf.data", "tfdata", ["PIL", "tensorflow"], _write_images, _load_with_tensorflow),
]
