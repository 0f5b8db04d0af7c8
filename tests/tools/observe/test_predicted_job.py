"""How much of a dataset stays in memory: as much as mounts with the same options keep."""

import pytest

from dieselfs.limits import MIB
from dieselfs_client.daemon.node import allotment_of
from dieselfs_client.memory.budget import node_cache_evictable_bytes
from dieselfs_client.mount.points.options import MountOptions
from dieselfs_tools.observe.predicted_job import predicted_job
from tests.support.dataset import TreeEntry, pack_entries

FILES, FILE_BYTES = 48, 1 * MIB
SIZE_BYTES = FILES * FILE_BYTES
SNAPSHOT = pack_entries(
    [TreeEntry(b"%d" % number, 0o100644, 0, bytes(FILE_BYTES)) for number in range(FILES)]
).snapshot
RATES = {"servers_bytes_s": 1e9, "network_bytes_s": 1e9}


@pytest.mark.parametrize("memory_bytes", [24 * MIB, 64 * MIB, 256 * MIB])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_node_keeps_what_its_mount_pins(nodes: int, memory_bytes: int) -> None:
    alone = predicted_job(SNAPSHOT, SIZE_BYTES, memory_bytes, nodes, False, **RATES)
    allotment = allotment_of(SNAPSHOT, MountOptions(memory_bytes=memory_bytes))
    assert (alone.kept_bytes, alone.pooled_bytes) == (allotment.pinned, 0)

    pooled = predicted_job(SNAPSHOT, SIZE_BYTES, memory_bytes, nodes, True, **RATES)
    allotment = allotment_of(SNAPSHOT, MountOptions(memory_bytes=memory_bytes), nodes)
    node_cache = allotment.node_cache
    assert pooled.kept_bytes == allotment.pinned
    assert pooled.pooled_bytes == node_cache - node_cache_evictable_bytes(node_cache, nodes) > 0


def test_a_plan_of_some_files_keeps_its_part() -> None:
    job = predicted_job(SNAPSHOT, SIZE_BYTES // 2, 32 * MIB, 1, False, **RATES)
    whole = predicted_job(SNAPSHOT, SIZE_BYTES, 32 * MIB, 1, False, **RATES)
    assert job.kept_share(SIZE_BYTES // 2) == pytest.approx(whole.kept_share(SIZE_BYTES))
    assert 0 < whole.kept_share(SIZE_BYTES) < 1
