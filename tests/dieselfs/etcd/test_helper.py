"""Forks of a process that talks to etcd, as the workers of a training program are."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.etcd import running_etcd

FORKS = """
import os, sys, threading
from dieselfs.errors import Unavailable
from dieselfs.etcd.client import Etcd, EtcdAccess
from dieselfs.etcd.helper import read_values
from dieselfs.net.address import parse_etcd

etcd = Etcd(parse_etcd(sys.argv[1]), EtcdAccess())
nobody = Etcd(parse_etcd("127.0.0.1:1"), EtcdAccess())
etcd.put("/fork/x", b"\\xff")
stopping = threading.Event()

def ask():
    while not stopping.is_set():
        assert read_values(etcd, "/fork/") == {"/fork/x": b"\\xff"}

def child():
    ask_once = read_values(etcd, "/fork/")
    try:
        read_values(nobody, "/")
    except Unavailable as error:
        return ask_once == {"/fork/x": b"\\xff"} and "no connection" in str(error)

asking = threading.Thread(target=ask)
asking.start()
children = []
for _ in range(3):
    children.append(os.fork())
    if not children[-1]:
        os._exit(0 if child() else 1)
outcomes = [os.waitpid(process, 0)[1] for process in children]
stopping.set()
asking.join()
assert outcomes == [0, 0, 0], outcomes
"""


def test_a_process_may_fork_while_it_asks(tmp_path: Path) -> None:
    """In a program of its own: the one that runs the tests has threads, which must not be forked."""
    with running_etcd(tmp_path) as etcd:
        subprocess.run(
            [sys.executable, "-c", FORKS, str(etcd.address)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            timeout=100,
        )
