"""Which files an expression selects, with the real DuckDB and pyarrow; and what it refuses."""

import re
import sys
from pathlib import Path

import pytest

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import COLUMNS_PATH
from dieselfs.shuffle.order import Layout
from dieselfs.snapshot.reader import Snapshot
from dieselfs.snapshot.subtree import files_below, listed_children, subtree_snapshot, walk_order
from tests.support.dataset import TreeEntry, pack_entries

pa = pytest.importorskip("pyarrow", reason="the extra columns is not installed")
pytest.importorskip("duckdb", reason="the extra columns is not installed")

from dieselfs.selection import evaluation, expression, limited  # noqa: E402  # needs both
from dieselfs.selection.file_columns import FileColumns, read_table  # noqa: E402  # needs both

PATHS = [b"a/%d" % number for number in range(6)] + [b"b/x'y", b"none"]
PLAIN = pack_entries([TreeEntry(path, 0o100644, 0, path) for path in PATHS]).snapshot
COLUMNS = FileColumns(
    pa.table(
        {
            "path": pa.array([b"gone", *PATHS[:-1]], pa.large_binary()),
            "width": [9000, *range(0, 700, 100)],
            "Lang": ["de", "de", "en", None, "de", "en", "de", "fr"],
        }
    )
)
CONTENT = {COLUMNS_PATH: COLUMNS.encode()}
STORED = [TreeEntry(path, 0o100644, 0, CONTENT.get(path, path)) for path in (*PATHS, COLUMNS_PATH)]
SNAPSHOT = pack_entries(STORED).snapshot


def chosen(where: str) -> list[bytes]:
    """Without the process of the expression."""
    found = evaluation.evaluated(CONTENT[COLUMNS_PATH], where)
    return SNAPSHOT.path_many(COLUMNS.files(SNAPSHOT, *found))


@pytest.mark.parametrize(
    ("where", "paths"),
    [
        ("width >= 300 and lang = 'de'", [b"a/3", b"a/5"]),
        ("\"Lang\" in ('en', 'fr') -- a comment", [b"a/1", b"a/4", b"b/x'y"]),
        ("regexp_matches(lang, '^f') or path like 'a/0%'", [b"a/0", b"b/x'y"]),
        ("lang is null", [b"a/2", b"none"]),
        ("width > 600", []),
    ],
)
def test_selected_files(where: str, paths: list[bytes]) -> None:
    assert sorted(chosen(where)) == paths


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("widht > 1", "no column 'widht': did you mean width?"),
        ("width", "its value is BIGINT, not true or false"),
        ("width = 'abc'", "Could not convert string 'abc'"),
        ("width >", "syntax error"),
        ("", "its value is TUPLE"),
        ("true) or (true), (true", "no single expression"),
        ("true) from files where (true", "no single expression"),
        ("true) union select (true", "no single expression"),
        ("true); drop table files; select (true", "Only SELECT statements"),
        ("exists(select * from read_csv('/etc/passwd'))", "subquery is not possible"),
        ("width in (select 1)", "subquery is not possible"),
        ("row_number() over () < 3", "window is not possible"),
        ("columns(*) > 1", "star is not possible"),
        ("width > $1", "parameter is not possible"),
        ("max(width) > 3", "the function 'max' is not possible"),
        ("unnest([true, width > 3])", "it has several values for a file"),
        ("not " * 800 + "true", "it is nested too deeply"),
        ("lang = '\udcff'", "cannot encode str as UTF-8"),
        ("random() < 0.5", "the function 'random' is not possible"),
        ("now() > timestamp '2020-01-01'", "the function 'now' is not possible"),
        ("age(timestamp '2020-01-01') > interval '1 year'", "the function 'age' is not possible"),
        ("ago(interval '1 day') > timestamp '2020-01-01'", "the function 'ago' is not possible"),
    ],
)
def test_refused_expressions(where: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(reason)) as raised:
        chosen(where)
    assert "\n" not in str(raised.value).replace(where, "")


def selected(
    where: str, snapshot: Snapshot = SNAPSHOT, content: bytes = CONTENT[COLUMNS_PATH]
) -> list[bytes]:
    return snapshot.path_many(expression.select(snapshot, lambda _: content, where))


def test_a_process_evaluates_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selected("lang is null or width = 100") == [b"none", b"a/1", b"a/2"]
    with pytest.raises(InvalidInput, match="did you mean width"):
        selected("widht > 1")
    with monkeypatch.context() as patch, pytest.raises(InvalidInput, match="its process has failed"):
        patch.setattr(sys, "executable", "/bin/false")
        selected("width > 1")
    with monkeypatch.context() as patch, pytest.raises(InvalidInput, match="its process has failed, with 4"):
        patch.setattr(sys, "executable", "/bin/false")
        FileColumns.decode(CONTENT[COLUMNS_PATH])
    monkeypatch.setattr(limited, "EVALUATION_S_MAX", 0.01)
    with pytest.raises(InvalidInput, match=r"the table .*: it takes longer than 0 s"):
        FileColumns.decode(CONTENT[COLUMNS_PATH])
    with pytest.raises(InvalidInput, match="it takes longer than 0 s"):
        selected("width > 1")
    with pytest.raises(InvalidInput, match="the limit is 10,000"):
        selected("width > 1" + " " * expression.CHARACTERS_MAX)


def test_a_table_that_is_none_is_damaged() -> None:
    other = FileColumns(pa.table({"width": [1], "path": ["a/1"]})).encode()
    with pytest.raises(Damaged, match="its first column is not 'path'"):
        evaluation.evaluated(other, "width > 1")
    with pytest.raises(Damaged, match="Parquet magic bytes"):
        selected("width > 1", content=b"no table")


def test_without_duckdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InvalidInput, match="selections need duckdb"):
        selected("width > 1")


def test_a_dataset_without_columns() -> None:
    with pytest.raises(InvalidInput, match="has no columns: add a table with 'dlcmd columns add'"):
        selected("width > 1", PLAIN)


def test_the_table_is_neither_listed_nor_a_sample() -> None:
    assert SNAPSHOT.path_many(files_below(SNAPSHOT)) == PLAIN.path_many(files_below(PLAIN))
    assert SNAPSHOT.path_many(walk_order(SNAPSHOT)) == PLAIN.path_many(walk_order(PLAIN))
    assert [SNAPSHOT.name(node) for node in listed_children(SNAPSHOT, 0)] == [b"a", b"b", b"none"]
    assert len(Layout.of(SNAPSHOT)) == len(PATHS)


def test_the_snapshot_of_a_selection_has_its_files_and_chunks_alone() -> None:
    spread = pack_entries(STORED, chunk_bytes=8).snapshot
    nodes = expression.select(spread, CONTENT.__getitem__, "lang = 'en'")
    part = Snapshot(subtree_snapshot(spread, b"", nodes), "part")
    part.verify()
    assert [part.path(node) for node in part.walk()] == [b"a", b"a/1", b"a/4"]
    assert part.chunk_count < spread.chunk_count
    below = Snapshot(subtree_snapshot(spread, b"a", nodes), "part", b"a")
    below.verify()
    assert [below.path(node) for node in below.walk()] == [b"1", b"4"]
    assert len(Snapshot(subtree_snapshot(spread, b"", nodes[:0]), "empty")) == 1


def test_columns_are_joined_by_path(tmp_path: Path) -> None:
    table = tmp_path / "more.jsonl"
    table.write_text('{"file": "1", "width": 111, "score": 0.5}\n{"file": "/5/", "score": 1}\n')
    added = read_table(table, "file", b"a", SNAPSHOT, is_partial=False)
    joined = COLUMNS.joined(added, SNAPSHOT)
    rows = {row["path"]: row for row in joined.table.to_pylist()}
    assert rows[b"a/1"] == {"path": b"a/1", "width": 111, "Lang": "en", "score": 0.5}
    assert rows[b"a/5"] == {"path": b"a/5", "width": 500, "Lang": "de", "score": 1.0}
    assert rows[b"a/0"]["score"] is None and b"gone" not in rows and len(rows) == 7


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,n\na/1,1\nx,2\ny,3\n", "2 of 3 paths are not files of dl://packed: x, y; leave them out"),
        ("path,n\na/1,1\na/1,2\n", "more than one row has the key a/1"),
        ("file,n\na/1,1\n", "no column 'path': there are file, n"),
        ("path,n\na/1,\n", "column 'n' has no value"),
        ("path,n,N\na/1,1,1\n", "a column cannot be called 'N'"),
        ("path\na/1\n", "no column beside the key"),
        ("path,n\n1,1\n", "the key 'path' has values of type int64; paths are text"),
        ("path,n\na/1\n", "CSV parse error"),
    ],
)
def test_faulty_tables(tmp_path: Path, text: str, reason: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(text)
    with pytest.raises(InvalidInput, match=re.escape(reason)):
        read_table(table, "path", b"", SNAPSHOT, is_partial=False)


def test_values_of_another_type_are_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("path,width\na/1,wide\n")
    added = read_table(table, "path", b"", SNAPSHOT, is_partial=False)
    with pytest.raises(InvalidInput, match="'width' has values of type int64, the table has string"):
        COLUMNS.joined(added, SNAPSHOT)


def test_times_do_not_depend_on_the_time_zone_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    late = "hour(timestamptz '2020-01-01 23:00:00+00') = 23"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert len(expression.select(SNAPSHOT, CONTENT.__getitem__, late)) == len(PATHS)


def test_paths_are_decoded_after_the_process_with_limits_has_done_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileColumns, "decode_here", lambda *_: pytest.fail("decoded without limits"))
    with pytest.raises(InvalidInput, match="'now' is not possible"):
        expression.select(SNAPSHOT, CONTENT.__getitem__, "now() is null")
