"""The scripts are those that Redis runs. `test_fields.py` tests their behaviour."""

from dieselfs_server.metadata.redis.scripts import READ, SCAN, SWAP
from tests.support.redis import RedisProcess, needs_redis


@needs_redis
def test_redis_knows_them_by_the_names_that_we_give(redis_server: RedisProcess) -> None:
    with redis_server.client() as client:
        for script in (READ, SWAP, SCAN):
            assert client.execute_command("SCRIPT LOAD", script.text) in (
                script.digest,
                script.digest.decode(),
            )
            assert script.text.isascii()
