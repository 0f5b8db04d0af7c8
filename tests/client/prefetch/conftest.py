"""Fixtures for the prefetcher over a page cache that is a dictionary (`tests/support/prefetch_rig.py`)."""

from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.support.dataset import PackedDataset, TreeEntry, pack_entries
from tests.support.prefetch_rig import CHUNK_BYTES, FILES, content


@pytest.fixture(scope="module")
def packed() -> PackedDataset:
    names = [b"%04d" % n for n in range(FILES)]
    return pack_entries(
        [TreeEntry(name, 0o100644, 0, content(name)) for name in names], chunk_bytes=CHUNK_BYTES
    )


@pytest.fixture
def threads_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done in threads is done at once, so that every run is the same, however busy the machine is."""

    async def run_sync(
        function: Callable[..., Any],
        *arguments: object,
        limiter: trio.CapacityLimiter | None = None,
        **_: object,
    ) -> Any:
        async with limiter or trio.CapacityLimiter(1):
            await trio.lowlevel.checkpoint()
            return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
