import os
import subprocess
import sys

import pytest

from dieselfs_client.mount.points import namespace

PROGRAM = """
import os, subprocess, sys
from dieselfs_client.mount.points import namespace
from dieselfs_client.mount.points.mounting import facts
if namespace.obstacle() is not None:
    sys.exit(77)
before = os.readlink("/proc/self/ns/mnt"), os.getuid(), os.getgid()
namespace.enter()
after = os.readlink("/proc/self/ns/mnt"), os.getuid(), os.getgid()
assert before[0] != after[0] and before[1:] == after[1:]
assert facts().may_mount
print(facts().is_in_user_namespace)
"""
WITHOUT_RIGHT = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
AMBIENT = """
line = [line for line in open("/proc/self/status") if line.startswith("CapAmb:")][0]
assert (int(line.split()[1], 16) >> 21 & 1) == %d
"""


def printed(*prefix: str) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("private namespaces are not allowed here")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_needs_no_user_namespace() -> None:
    assert printed() == "False"


def test_without_the_right_to_mount_a_user_namespace_gives_it() -> None:
    assert printed(*(WITHOUT_RIGHT if os.getuid() == 0 else ())) == "True"


@pytest.mark.processes
def test_the_table_of_mounts_of_this_process_stays() -> None:
    before = os.readlink("/proc/self/ns/mnt")
    namespace.obstacle()
    assert os.readlink("/proc/self/ns/mnt") == before


def test_a_program_has_the_right_until_it_is_given_up() -> None:
    program = PROGRAM + (
        f"subprocess.run([sys.executable, '-c', {AMBIENT % 1!r}], check=True)\n"
        f"subprocess.run([sys.executable, '-c', {AMBIENT % 0!r}], check=True, preexec_fn=namespace.give_up_rights)\n"
    )
    prefix = WITHOUT_RIGHT if os.getuid() == 0 else []
    done = subprocess.run(
        [*prefix, sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("private namespaces are not allowed here")
    assert done.returncode == 0, done.stderr
