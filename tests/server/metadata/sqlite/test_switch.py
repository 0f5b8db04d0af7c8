"""Copies in SQLite: what a crash leaves is not seen, and is removed by the next rebuild."""

from contextlib import closing
from pathlib import Path

from dieselfs_server.metadata.sqlite.connections import Connections
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from tests.support.metadata_chunks import DATASET, DATASET_ID, NOW_NS, Put, apply, apply_to_copy, chunk_id


def rows(path: Path) -> list[str]:
    """The names of all rows of the table of datasets."""
    with closing(Connections(str(path))) as connections, connections.reading() as connection:
        return [name for (name,) in connection.execute("SELECT name FROM dataset ORDER BY number")]


def test_a_copy_that_a_crash_left_is_removed_by_the_next_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    for _ in range(2):
        with closing(SqliteMetadata(path)) as store:
            if not store.datasets():
                store.create_dataset(DATASET, DATASET_ID)
                apply(store, [Put(b"a", 1, size=3)], chunk_id(1))
            store.begin_rebuild(DATASET_ID)
    assert rows(path) == [DATASET, f"{DATASET}/copy"]
    with closing(SqliteMetadata(path)) as store:
        copy = store.begin_rebuild(DATASET_ID)
        apply_to_copy(store, copy, [Put(b"a", 1, size=3)], chunk_id(1))
        store.finish_rebuild(DATASET_ID, copy, NOW_NS)
        assert [dataset.name for dataset in store.datasets()] == [DATASET]
    assert rows(path) == [DATASET]


def test_names_that_begin_alike_do_not_mix(tmp_path: Path) -> None:
    with closing(SqliteMetadata(tmp_path / "metadata.db")) as store:
        names = ["pet", "pets", "pets_", "p"]
        for number, name in enumerate(names):
            dataset_id = bytes([number]) * 16
            store.create_dataset(name, dataset_id)
            apply(store, [Put(b"in-" + name.encode(), 1)], chunk_id(number), dataset_id)
        for number in range(len(names)):
            store.finish_rebuild(bytes([number]) * 16, store.begin_rebuild(bytes([number]) * 16), NOW_NS)
            left = {dataset.name: dataset.files for dataset in store.datasets()}
            assert left == {name: int(other > number) for other, name in enumerate(names)}
