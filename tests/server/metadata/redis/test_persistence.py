"""What Redis keeps: of real servers with good and bad settings, and with a user who may not ask."""

from pathlib import Path

import pytest

from dieselfs.rpc.records import OK, WARNING
from dieselfs_server.metadata.redis.persistence import NodeSettings, checks
from dieselfs_server.metadata.redis.store import RedisMetadata
from tests.support.redis import HOST, needs_redis, running_cluster, running_redis

GOOD = ("--appendonly", "yes", "--appendfsync", "everysec")


@needs_redis
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GOOD, None),
        (("--appendonly", "no"), "appendonly is off"),
        (("--appendonly", "yes", "--appendfsync", "no"), "appendfsync is no"),
        ((*GOOD, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "allkeys-lru"),
    ],
    ids=["good", "no log", "no fsync", "eviction"],
)
def test_settings_of_one_server(options: tuple[str, ...], said: str | None, tmp_path: Path) -> None:
    with running_redis(tmp_path, *options) as redis:
        metadata = RedisMetadata.open(f"redis://{HOST}:{redis.port}/0")
        (found,) = metadata.condition()
        assert (found.state, found.name) == (WARNING if said else OK, "metadata")
        assert (said or "appendfsync everysec") in found.text and str(redis.port) in found.text
        if said is None:
            redis.client().acl_setuser(
                "dieselfs", enabled=True, nopass=True, commands=["-@all", "+ping"], keys=["*"]
            )
            limited = RedisMetadata.open(f"redis://dieselfs@{HOST}:{redis.port}/0")
            (found,) = limited.condition()
            assert found.state == WARNING and "+info" in found.fix
            limited.close()
        metadata.close()


@needs_redis
def test_each_master_of_a_cluster_is_asked(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        metadata = RedisMetadata.open(f"redis+cluster://{cluster.hosts}")
        (found,) = metadata.condition()
        masters = {str(node.port) for node in cluster.masters()}
        metadata.close()
    assert "appendonly is off" in found.text and all(port in found.text for port in masters)


def test_faults_of_several_nodes_are_one_line() -> None:
    bad = NodeSettings(False, False, "everysec", "noeviction")
    found = checks({"a": bad, "b": NodeSettings(True, False, "always", "noeviction"), "c": bad})
    assert [(each.state, each.text.partition(":")[0]) for each in found] == [(WARNING, "Redis a, c")]
    assert "last write" in checks({"a": NodeSettings(True, True, "everysec", None)})[0].text
