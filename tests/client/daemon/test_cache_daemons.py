"""Cache daemons are found by their command lines."""

import pytest

from dieselfs_client.daemon.cache_daemons import CACHE_DAEMON, CacheProcess, cache_daemons, parsed


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["imagenet@v1", "--generation", "7"], CacheProcess(5, "imagenet@v1", 7)),
        (["dl://a", "--job", "train", "--generation", "7"], CacheProcess(5, "a", 7, "train")),
        (["imagenet"], None),
        (["imagenet", "--generation", "x"], None),
    ],
)
def test_a_daemon_is_described_by_its_words(words: list[str], found: CacheProcess | None) -> None:
    assert parsed(5, ["python", "-P", "-m", CACHE_DAEMON, *words, "--report-fd", "3", ""]) == found


def test_this_process_is_no_cache_daemon() -> None:
    assert parsed(1, ["python", "-m", "pytest"]) is None
    assert all(daemon.generation for daemon in cache_daemons())
