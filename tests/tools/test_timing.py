"""The parts of `dlcmd bench` that need no mount; tests/tools/commands/test_bench.py has the others."""

from pathlib import Path

from dieselfs.dataset import Dataset
from dieselfs.settings import Settings
from dieselfs_tools.timing import Form, fetch_rate


def test_chunks_are_fetched_until_the_time_is_over(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    with Dataset(settings, "data", is_created=False) as data:
        data.put("file", bytes(1_000_000))
        data.flush()
        assert fetch_rate(data.chunks) > 0
        assert fetch_rate(data.chunks, seconds=0.0) == 0


def test_paths_of_a_form_are_distinct() -> None:
    paths = Form("small", 2_500, 100).paths()
    assert len(set(paths)) == 2_500 and {path[:4] for path in paths} == {"0000", "0001", "0002"}
