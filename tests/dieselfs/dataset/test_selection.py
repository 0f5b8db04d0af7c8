"""A selection by columns is read, ordered and resumed as any dataset, over a real server."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset, connect
from dieselfs.errors import InvalidInput
from dieselfs.names import COLUMNS_PATH
from dieselfs.samples.file_lists import FileSamples
from tests.support.server import RunningServer

pa = pytest.importorskip("pyarrow", reason="the extra columns is not installed")
pytest.importorskip("duckdb", reason="the extra columns is not installed")

from dieselfs.selection.file_columns import FileColumns  # noqa: E402  # needs pyarrow

FILES = 40
NAMES = count()
GERMAN = "lang = 'de'"


def path(number: int) -> str:
    return f"train/{number:02}"


def columns(data: Dataset, files: int) -> None:
    table = pa.table(
        {
            "path": pa.array([path(each).encode() for each in range(files)], pa.large_binary()),
            "number": range(files),
            "lang": ["de" if each % 4 == 0 else "en" for each in range(files)],
        }
    )
    data.put(COLUMNS_PATH, FileColumns(table).encode())
    data.flush()


@pytest.fixture
def data(server: RunningServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Dataset]:
    settings = replace(
        server.settings(), identity=str(tmp_path / "own" / "identity"), cache=tmp_path / "cache"
    )
    name = f"labelled-{next(NAMES)}"
    with Dataset(settings, name, must_exist=False, encrypt=getattr(request, "param", False)) as dataset:
        for each in range(FILES):
            dataset.put(path(each), path(each).encode() * 50)
        columns(dataset, FILES)
        yield dataset


@pytest.mark.parametrize("data", [False, True], ids=["plain", "encrypted"], indirect=True)
def test_a_selection_is_a_dataset_of_its_files(data: Dataset) -> None:
    assert len(data) == FILES and data.ls() == ["train"] and len(data.shuffle(1)) == FILES
    with data.select(GERMAN) as german, german.select("number < 20") as few:
        assert len(german) == 10 and german.generation == data.generation
        assert list(german.files()) == [path(each) for each in range(0, FILES, 4)]
        assert few.ls("train") == [f"{each:02}" for each in range(0, 20, 4)]
        order = list(german.shuffle(seed=3))
        assert sorted(order) == list(german.files())
        assert german.get_many(order) == [name.encode() * 50 for name in order]
        copy = ForkingPickler.loads(ForkingPickler.dumps(few))
        assert list(copy.files()) == list(few.files()) and copy.get(path(4)) == path(4).encode() * 50
        copy.close()
        assert german.columns().to_pylist()[1] == {"path": path(1), "number": 1, "lang": "en"}
    with pytest.raises(InvalidInput, match="did you mean lang"):
        data.select("lange = 'de'")


def test_an_expression_with_a_comment_is_narrowed(data: Dataset) -> None:
    with data.select(f"{GERMAN} -- the first") as german, german.select("number < 20 -- few") as few:
        assert few.ls("train") == [f"{each:02}" for each in range(0, 20, 4)]


def test_a_cursor_fits_its_selection_alone(data: Dataset) -> None:
    with data.select(GERMAN) as german, data.select("lang = 'en'") as english:
        plan = german.plan(seed=1)
        text = str(plan.cursor(4))
        with data.select(GERMAN) as again:
            rest = again.plan_at(text).share(start=4)
            assert list(rest.paths) == list(plan.share().paths)[4:]
        for other in (data, english):
            with pytest.raises(InvalidInput, match="the cursor is of snapshot"):
                other.plan_at(text)


def test_a_selection_follows_its_generation(data: Dataset) -> None:
    with data.select("number >= 38") as chosen:
        chosen.put(path(FILES), b"new")
        columns(chosen, FILES + 1)
        assert list(chosen.files()) == [path(38), path(39)]
        chosen.refresh()
        assert list(chosen.files()) == [path(38), path(39), path(40)]


def test_samplers_and_connect_select(server: RunningServer, tmp_path: Path) -> None:
    name, home = f"labelled-{next(NAMES)}", tmp_path
    with connect(name, create=True, server=server.unix, home=home) as made:
        for each in range(FILES):
            made.put(path(each), b"%d" % each)
        columns(made, FILES)
    with FileSamples(name, where=GERMAN, server=server.unix, home=home) as samples:
        assert [int(samples[each]) for each in range(len(samples))] == list(range(0, FILES, 4))
    with connect(name, where="number < 3", server=server.unix, home=home) as few:
        assert [batch.contents for batch in few.batches(3, is_opportunistic=False)]
        assert len(few) == 3
