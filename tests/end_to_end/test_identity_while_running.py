"""The identity of two servers over one Redis is replaced while both serve: no call fails, and nothing old stays."""

import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.dataset import Dataset
from dieselfs.errors import Unavailable
from dieselfs.net.auth import Key, read_key_file
from dieselfs_server.access.identity import IDENTITY_RECORD, Identity
from tests.support.redis import needs_redis, running_redis
from tests.support.server import RunningServer, running_servers

CALLS_MIN = 5
"""Rounds of calls while the identity is replaced, which takes some seconds."""


def write_key(path: Path, key: Key) -> Path:
    path.touch(mode=0o600)
    path.write_text(key.text())
    return path


def pins_shown(servers: list[RunningServer]) -> set[bytes]:
    found = set()
    for server in servers:
        with closing(server.client()) as client:
            found.add(client.add_key("probe").pin)
    return found


def use_at(server: RunningServer, key: Path, cache: Path, number: int) -> None:
    """New connections, a snapshot, a write, and a new tag; and all tags are read."""
    with Dataset(replace(server.settings(key), cache=cache), "data") as data:
        assert data.get("a") == b"1"
        data.client.put_tag("data", f"t{number}")
        assert len(data.client.tags("data")) >= number
        data.put(f"new-{number}", b"2")
        data.flush()


@needs_redis
@pytest.mark.parametrize("is_apart", [False, True])
def test_no_call_fails_while_the_identity_is_replaced(tmp_path: Path, is_apart: bool) -> None:
    place = ("--server-identity", str(tmp_path / "identity.key")) if is_apart else ()
    with running_redis(tmp_path / "redis") as redis:
        stores = "--metadata", f"redis://127.0.0.1:{redis.port}/0"
        with running_servers(tmp_path, ("here", "there"), [*stores, *place]) as servers:
            here = servers[0]
            old = here.user("ann", all_datasets="admin")
            command = [
                *(sys.executable, "-m", "dieselfs_server.main", *stores, *place),
                *("--store", f"posix://{here.folder}/chunks", "--state", str(tmp_path / "state")),
            ]
            subprocess.run([*command, "--new-identity", "announce"], check=True, capture_output=True)
            with Dataset(here.settings(old), "data", must_exist=False) as data:
                data.put("a", b"1")
                data.flush()
                both = write_key(tmp_path / "both.key", data.client.add_key("ann"))
            replacing = subprocess.Popen(
                [*command, "--new-identity", "use"], stdout=subprocess.PIPE, text=True
            )
            number = 0
            while replacing.poll() is None or number < CALLS_MIN:
                number += 1
                use_at(servers[number % 2], both, tmp_path / "cache", number)
            printed, _ = replacing.communicate()
            assert replacing.returncode == 0 and "tags again" in printed
            (pin,) = pins_shown(servers)
            assert pin == read_key_file(both).next_pin
            new = write_key(tmp_path / "new.key", replace(read_key_file(both), pin=pin, next_pin=b""))
            for server in servers:  # a client that knows only the new identity believes all of it
                use_at(server, new, tmp_path / "new-cache" / server.folder.name, number := number + 1)
                with closing(server.client(old)) as client, pytest.raises(Unavailable, match="another key"):
                    client.datasets()
            records = here.folder / "chunks/records"
            assert [each.name for each in records.glob("identity*")] == [IDENTITY_RECORD]
            assert bool(Identity.decode((records / IDENTITY_RECORD).read_bytes()).seed) is not is_apart
