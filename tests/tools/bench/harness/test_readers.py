import multiprocessing
from functools import partial
from pathlib import Path

import pytest

from bench.harness.figures import RunFailed
from bench.harness.readers import Work, plain_reader, planned_reader, python_reader, read_together

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded.*:DeprecationWarning"  # the clock of pytest-timeout is a thread; readers never see it
)

PATHS = ["a/1", "a/2", "b/1", "b/2"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in PATHS:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(path.encode() * 100)
    return tmp_path


def test_readers_share_the_files_and_their_processor_time_is_counted(tree: Path) -> None:
    for reader in (plain_reader, python_reader):
        size_bytes = len(PATHS[0]) * 100
        run = read_together(
            [partial(reader, tree, PATHS[:2], size_bytes), partial(reader, tree, PATHS[2:], size_bytes)],
            files=len(PATHS),
        )
        assert run.duration_s > 0
        assert list(run.parts) == ["readers"]


def test_a_plan_is_read_from_the_mount_in_its_order(tree: Path) -> None:
    (tree / ".dieselfs/shuffle").mkdir(parents=True)
    (tree / ".dieselfs/shuffle/seed=1").write_text("b/1\na/2\n")
    read_together([partial(planned_reader, tree, "seed=1", 300)], files=2)


def test_a_side_that_reads_too_few_or_too_short_files_has_failed(tree: Path) -> None:
    with pytest.raises(RunFailed, match="4 files were read, 5 expected"):
        read_together([partial(plain_reader, tree, PATHS, 300)], files=5)
    with pytest.raises(RunFailed, match="b/2: 300 of 301 bytes"):
        read_together([partial(plain_reader, tree, PATHS[3:], 301)], files=1)


def test_what_stops_a_reader_is_told_and_none_is_left_behind(tree: Path) -> None:
    with pytest.raises(RunFailed, match="No such file or directory"):
        read_together([partial(plain_reader, tree, ["gone"], 1), partial(plain_reader, tree, PATHS, 300)], 5)
    with pytest.raises(RunFailed, match="nothing to read with"):
        read_together([_unprepared, partial(plain_reader, tree, PATHS, 300)], 4)
    assert not multiprocessing.active_children()


def _unprepared() -> Work:
    raise ValueError("nothing to read with")
