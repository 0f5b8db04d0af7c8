"""dlcmd limit: a user with a limit gets slower, and nothing fails."""

import time
from contextlib import closing

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_USAGE
from tests.server.test_jobs import join
from tests.server.test_service import read, write
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer

CONTENT_BYTES = 3 << 20


def waits(admin: Dlcmd) -> int:
    (status,) = admin("server", "status", "--json").objects
    return int(status["metrics"]["rates.waits"])


def test_a_limited_user_waits_both_ways_and_others_do_not(
    dlcmd: Dlcmd, own_server: RunningServer, admin: Dlcmd
) -> None:
    def user(name: str) -> Dlcmd:
        settings = {
            "DIESELFS_SERVER": own_server.tcp,
            "DIESELFS_KEY_FILE": str(own_server.user(name, pets="write")),
        }
        return Dlcmd(dlcmd.home, dlcmd.folder, settings)

    slow, fast = user("slow"), user("fast")
    (dlcmd.folder / "f").write_bytes(bytes(range(256)) * (CONTENT_BYTES // 256))
    assert admin("limit", "set", "slow", "--rate", "1MiB/s").text == "slow: 1.0 MiB/s\n"
    fast("put", "f", "dl://pets/fast")
    fast("get", "dl://pets/fast", "from-fast")
    assert waits(admin) == 0
    start_s = time.monotonic()
    slow("put", "f", "dl://pets/slow")
    assert time.monotonic() - start_s > 1.5  # 3 MiB, of which one is free
    put_waits = waits(admin)
    assert put_waits
    start_s = time.monotonic()
    slow("get", "dl://pets/slow", "from-slow")
    assert time.monotonic() - start_s > 1.5 and waits(admin) > put_waits
    assert (dlcmd.folder / "from-slow").read_bytes() == (dlcmd.folder / "f").read_bytes()
    slow("limit", "ls", exit_code=EXIT_REFUSED)
    slow("limit", "rm", "slow", exit_code=EXIT_REFUSED)


def test_files_inside_messages_are_limited_as_well(own_server: RunningServer, admin: Dlcmd) -> None:
    """`write_file` and `read_file`, which clients in other languages use."""
    key_file = own_server.user("slow", pets="write")
    with closing(own_server.client(key_file)) as client:
        client.create_dataset("pets")
        admin("limit", "set", "slow", "--rate", "1MiB/s")
        start_s = time.monotonic()
        for number in range(2):
            content = bytes(1 << 20)
            write(client, "pets", b"%d" % number, content)
            assert read(client, "pets", b"%d" % number) == content
        assert time.monotonic() - start_s > 2  # 4 MiB, of which one is free


def test_limits_are_set_listed_and_removed(own_server: RunningServer, admin: Dlcmd) -> None:
    own_server.user("anna")
    assert admin("limit", "ls").text == "there are no limits\n"
    admin("limit", "set", "-n", "anna", "--requests", "5")
    admin("limit", "set", "anna", "--requests", "2000", "--job-rate", "200MiB/s")
    admin("limit", "set", "*", "--rate", "1GiB/s")
    assert admin("limit", "ls").text == "*: 1.0 GiB/s\nanna: 200 MiB/s for each job, 2,000 requests/s\n"
    (_, anna) = admin("limit", "ls", "--json").objects
    assert (anna["bytes_per_s"], anna["job_bytes_per_s"]) == (None, 200 << 20)
    admin("limit", "rm", "anna")
    admin("limit", "rm", "anna", exit_code=EXIT_NOT_FOUND)
    admin("limit", "set", "anna", exit_code=EXIT_USAGE)
    admin("limit", "set", "anna", "--rate", "1KiB/s", exit_code=EXIT_USAGE)
    admin("limit", "set", "nobody-known", "--requests", "5", exit_code=EXIT_NOT_FOUND)


def test_a_job_is_limited_once_a_node_of_it_has_joined(
    dlcmd: Dlcmd, own_server: RunningServer, admin: Dlcmd
) -> None:
    key_file = own_server.user("teamed", shared="write")
    settings = {"DIESELFS_SERVER": own_server.tcp, "DIESELFS_KEY_FILE": str(key_file)}
    teamed = Dlcmd(dlcmd.home, dlcmd.folder, settings)
    (dlcmd.folder / "f").write_bytes(bytes(range(256)) * (CONTENT_BYTES // 256))
    teamed("put", "f", "dl://shared/f")
    admin("limit", "set", "teamed", "--job-rate", "1MiB/s")
    teamed("get", "dl://shared/f", "alone")
    assert waits(admin) == 0
    with closing(own_server.client(key_file)) as client:
        join(client, "n1")
    teamed("get", "dl://shared/f", "in-job")
    assert waits(admin) > 0
