"""Servers and etcd on hosts of their own: a node finds the servers, and goes on when etcd is cut off."""

import subprocess
import sys
import time

import pytest

from dieselfs.limits import READ_TIMEOUT_S
from lab.cluster import ETCD_PORT, Cluster
from lab.network import Host, Network
from tests.support.dlcmd import COMMAND

READER = """
import sys
import dieselfs
data = dieselfs.connect("letters")
for path in sys.stdin:
    print(data.get(path.strip()).decode(), flush=True)
"""


@pytest.fixture
def cluster(registered_cluster: Cluster) -> Cluster:
    return registered_cluster


def test_a_node_reads_on_without_etcd_and_without_the_server_that_it_used(
    net: Network, cluster: Cluster, etcd: Host, node: Host
) -> None:
    address = f"etcd://{etcd.address}:{ETCD_PORT}"
    variables = node.environment(DIESELFS_SERVER=address, DIESELFS_KEY_FILE=str(cluster.key_file))
    folder = node.folder / "letters"
    folder.mkdir()
    for letter in "abc":
        (folder / letter).write_text(letter * 3)
    node.run([*COMMAND, "put", "-r", f"{folder}/", "dl://letters/"], env=variables)
    reader = node.start(
        [sys.executable, "-c", READER], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert reader.stdin is not None and reader.stdout is not None
    with reader.stdin, reader.stdout:

        def read(name: bytes) -> bytes:
            assert reader.stdin is not None and reader.stdout is not None
            reader.stdin.write(name + b"\n")
            reader.stdin.flush()
            return reader.stdout.readline()

        assert read(b"a") == b"aaa\n", node.log()
        net.cut_off(etcd)
        cluster.busiest().host.kill()
        began_s = time.monotonic()
        assert read(b"b") == b"bbb\n", node.log()
        assert time.monotonic() - began_s < READ_TIMEOUT_S
    node.run([*COMMAND, "ls"], env=variables, exit_code=6)  # who starts now cannot know the servers
