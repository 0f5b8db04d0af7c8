"""What a process may have of descriptors and mappings bounds what its shelf holds."""

import logging
from pathlib import Path
from typing import cast

import pytest

from dieselfs.rpc.client import ServerClient
from dieselfs.settings.table import CacheOptions
from dieselfs.sources.server import ServerSource
from dieselfs_client.cache_daemon import serve_cache
from dieselfs_client.memory import fd_limits
from dieselfs_client.memory.fd_limits import usable_bytes
from tests.support.dataset import TreeEntry, pack_entries

CHUNK_BYTES = 4000


def test_a_shelf_uses_no_more_memory_than_it_may_hold_chunks_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [TreeEntry(b"%d" % n, 0o100644, 0, bytes(CHUNK_BYTES)) for n in range(8)]
    snapshot = pack_entries(entries, chunk_bytes=CHUNK_BYTES).snapshot
    monkeypatch.setattr(fd_limits, "allow_descriptors", lambda: 5)
    with caplog.at_level(logging.WARNING, fd_limits.__name__):
        assert usable_bytes(5 * CHUNK_BYTES, snapshot) == 5 * CHUNK_BYTES
        assert not caplog.records
        assert usable_bytes(1 << 40, snapshot) == 5 * CHUNK_BYTES
    assert len(caplog.records) == 1
    assert usable_bytes(1 << 40, pack_entries([]).snapshot) == 1 << 40


async def test_a_cache_daemon_that_may_hold_fewer_chunks_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    snapshot = pack_entries([TreeEntry(b"a", 0o100644, 0, bytes(CHUNK_BYTES))]).snapshot
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(fd_limits, "allow_descriptors", lambda: 5)
    with caplog.at_level(logging.WARNING, fd_limits.__name__):
        source = ServerSource(cast(ServerClient, None), snapshot)
        await serve_cache(snapshot, source, CacheOptions(), on_ready=lambda: False)
    assert "limits of this process allow 5 chunks" in caplog.text
