"""What every daemon counts, with a mount or without one."""

import time

import pytest

from dieselfs.errors import Unavailable
from dieselfs.limits import MIB
from dieselfs.rpc.client import ServerClient
from dieselfs.settings import Settings
from dieselfs.telemetry.registry import Registry
from dieselfs_client.daemon.service import declare_daemon, declare_servers
from tests.support.dataset import TreeEntry, pack_entries


def test_age_memory_and_generation() -> None:
    snapshot = pack_entries([TreeEntry(b"a", 0o100644, 0, b"meow")]).snapshot
    metrics, now_s, pinned = Registry(), [5.0], [7]
    declare_daemon(metrics, snapshot, 64 * MIB, {"pinned": lambda: pinned[0]}, lambda: now_s[0])
    now_s[0], pinned[0] = 8.5, 9
    found = metrics.as_dict()
    assert found["uptime_s"] == 3.5
    assert (found["memory"]["granted_bytes"], found["memory"]["used_bytes"]) == (64 * MIB, {"pinned": 9})
    assert found["memory"]["process_bytes"] > MIB
    updated_s = snapshot.header.updated_ns / 1e9
    assert found["snapshot"]["age_s"] == pytest.approx(time.time() - updated_s, abs=10)


def test_calls_that_servers_failed_and_their_retries(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, metrics = tmp_path_factory.mktemp("home"), Registry()
    servers = ",".join(f"unix:{folder}/{name}.sock" for name in "abc")
    client = ServerClient(Settings(folder, folder, servers))
    declare_servers(metrics, client)
    with pytest.raises(Unavailable, match="none of 3 servers"):
        client.datasets()
    client.close()
    assert metrics.as_dict()["servers"] == {
        "failures": 3,
        "retries": 2,
        "hedges_sent": 0,
        "hedges_won": 0,
    }
