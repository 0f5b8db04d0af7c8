import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dieselfs.settings.table import IMAGE, OVERLAY
from dieselfs_client.daemon import control
from dieselfs_client.mount.points.mount_table import mount_at
from dieselfs_client.mount.points.options import MountOptions
from tests.client.conftest import FILES, needs_root
from tests.support.supervised import wait_for

pytestmark = pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")

HELPERS = {
    "mount.dieselfs": "from dieselfs_client.main import mount_helper; mount_helper()",
    "umount.dieselfs": "from dieselfs_client.main import umount_helper; umount_helper()",
}
HELPER = HELPERS["mount.dieselfs"]


def mount_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "dieselfs_client.main", *map(str, arguments)]


def helper_command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-c", HELPER, *map(str, arguments)]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_in_the_background(options: MountOptions, mountpoint: Path) -> None:
    done = run(mount_command("letters", mountpoint, "--server", options.server or "", "--memory", "64MB"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (mountpoint / "train/7.txt").read_bytes() == FILES["train/7.txt"]
    control.unmount(mountpoint)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_in_the_foreground_until_a_signal(
    options: MountOptions, mountpoint: Path, signum: signal.Signals
) -> None:
    command = mount_command("letters", mountpoint, "--foreground", "-o", f"server={options.server},view=fuse")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "serving generation" in process.stderr.readline()
            assert len(os.listdir(mountpoint / "train")) == len(FILES)
            process.send_signal(signum)
            assert process.wait(20) == 0
            assert "is unmounted" in process.stderr.read()
        finally:
            process.kill()
    assert mount_at(str(mountpoint)) is None


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_the_rights_of_the_service_are_enough(options: MountOptions, mountpoint: Path, view: str) -> None:
    """Those that `deploy/systemd/dieselfs-mount@.service` leaves to root."""
    unit = (Path(__file__).parents[2] / "deploy/systemd/dieselfs-mount@.service").read_text()
    [kept] = re.findall(r"^CapabilityBoundingSet=(.+)$", unit, re.MULTILINE)
    bounds = ",".join(["-all", *(name.lower().replace("cap_", "+") for name in kept.split())])
    limited = ["setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set={bounds}"]
    terms = f"server={options.server},view={view},allow_other,uid=65534"
    command = [*limited, *mount_command("letters", mountpoint, "--foreground", "-o", terms)]
    with subprocess.Popen(command) as process:
        try:
            wait_for(mountpoint, lambda status: status.is_served)
            assert len(os.listdir(mountpoint / "train")) == len(FILES)
            assert (mountpoint / "train/7.txt").read_bytes() == FILES["train/7.txt"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()
    assert mount_at(str(mountpoint)) is None


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["numbers", "{mount}", "-o", "server={server}"], 3, "numbers"),
        (["letters", "{mount}/missing", "-o", "server={server}"], 3, "there is no such folder"),
        (["letters", "{mount}", "-o", "colour=red"], 1, "'colour=red' is not known"),
        (["letters", "{mount}", "--memory", "lots"], 1, "'lots' is not a size"),
        (["letters"], 1, "Missing argument"),
        (["letters", "{mount}", "--server", "unix:/nowhere.sock"], 6, "/nowhere.sock"),
    ],
)
def test_mistakes_get_one_line_and_a_code(
    options: MountOptions, mountpoint: Path, arguments: list[str], code: int, text: str
) -> None:
    filled = [argument.format(mount=mountpoint, server=options.server) for argument in arguments]
    done = run(mount_command(*filled))
    assert done.returncode == code
    assert done.stderr.startswith("dieselfs-mount: ")
    assert text in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_helper_of_mount(options: MountOptions, mountpoint: Path) -> None:
    done = run(
        helper_command(
            "letters", mountpoint, "-v", "-n", "-o", f"rw,noauto,server={options.server},view=fuse"
        )
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"letters mounted on {mountpoint}" in done.stdout
    assert len(os.listdir(mountpoint / "train")) == len(FILES)
    subprocess.run(["umount", str(mountpoint)], check=True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["letters", "{mount}", "-f", "-o", "rw"], 0),
        (["letters", "{mount}", "-f", "-o", "colour=red"], 32),
        (["letters", "{mount}", "-f", "-s", "-o", "colour=red"], 0),
        (["letters", "{mount}/missing"], 32),
        (["/home/ada/letters", "{mount}", "-f"], 32),
        (["letters"], 1),
    ],
)
def test_exit_codes_of_the_helper(
    options: MountOptions, mountpoint: Path, arguments: list[str], code: int
) -> None:
    assert run(helper_command(*(a.format(mount=mountpoint) for a in arguments))).returncode == code
    assert mount_at(str(mountpoint)) is None


def test_a_dataset_that_mount_made_a_path_of_is_explained(mountpoint: Path) -> None:
    done = run(helper_command("/home/ada/letters", mountpoint, "-o", "rw"))
    assert done.stderr.startswith("mount.dieselfs: /home/ada/letters is a path, not a dataset: ")
    assert done.stderr.endswith("write dl://letters\n")


def with_mount(folder: Path, script: str, *unshared: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a mount namespace in which the helpers are installed in /sbin."""
    for name, code in HELPERS.items():
        (folder / name).write_text(f"#!/bin/sh\nexec {sys.executable} -c '{code}' \"$@\"\n")
        (folder / name).chmod(0o755)
    install = f"""
set -e
mkdir {folder}/sbin {folder}/upper {folder}/work
mount -t tmpfs none {folder}/upper
mkdir {folder}/upper/upper {folder}/upper/work
mount -t overlay none -o lowerdir=/usr/sbin,upperdir={folder}/upper/upper,workdir={folder}/upper/work /usr/sbin
cp {folder}/mount.dieselfs {folder}/umount.dieselfs /usr/sbin/
"""
    done = run(["unshare", "--mount", *unshared, "sh", "-c", install + script])
    if "overlay" in done.stderr and done.returncode != 0:
        pytest.skip("this kernel has no overlay file system to install the helper in")
    return done


needs_mount = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("mount") is None, reason="needs root and mount(8)"
)
UNMOUNT = "until umount {0} 2>{1}/busy; do sleep 0.05; done  # its own files may be open for a moment\n"


@needs_mount
def test_mount_finds_its_helper(options: MountOptions, mountpoint: Path, tmp_path: Path) -> None:
    """`mount -t dieselfs`."""
    script = f"""
mkdir {tmp_path}/letters
cd {tmp_path}
mount -t dieselfs dl://letters {mountpoint} -o server={options.server},memory=64MB,view=fuse
cat {mountpoint}/train/7.txt
grep {mountpoint} /proc/mounts | cut -d ' ' -f 1
"""
    done = with_mount(tmp_path, script + UNMOUNT.format(mountpoint, tmp_path))
    expected = FILES["train/7.txt"] + b"dl://letters\n"
    assert (done.stdout.encode(), done.stderr, done.returncode) == (expected, "", 0)


@needs_mount
@pytest.mark.parametrize("view", [IMAGE, OVERLAY])
def test_a_plain_umount_finds_its_helper(
    options: MountOptions, mountpoint: Path, tmp_path: Path, view: str
) -> None:
    """In namespaces whose first process is the script, as at boot."""
    script = f"""
mount -t tmpfs none /run
mount -t dieselfs dl://letters {mountpoint} -o server={options.server},memory=64MB,view={view}
cat {mountpoint}/train/7.txt
grep -c "OPTS=helper=dieselfs" /run/mount/utab
"""
    end = f"grep -c {mountpoint} /proc/mounts /run/mount/utab || true\n"
    done = with_mount(
        tmp_path, script + UNMOUNT.format(mountpoint, tmp_path) + end, "--pid", "--fork", "--mount-proc"
    )
    expected = FILES["train/7.txt"] + b"1\n/proc/mounts:0\n/run/mount/utab:0\n"
    assert (done.stdout.encode(), done.stderr, done.returncode) == (expected, "", 0)


@needs_mount
def test_all_lines_of_fstab_are_mounted_at_once(
    options: MountOptions, mountpoint: Path, tmp_path: Path
) -> None:
    """As at boot; the second time there is nothing left to mount."""
    fstab = tmp_path / "fstab"
    fstab.write_text(
        f"dl://letters {mountpoint} dieselfs server={options.server},memory=64MiB,_netdev,nofail 0 0\n"
    )
    script = f"""
mount -t tmpfs none /run
mount -a -T {fstab}
mount -a -T {fstab}
grep -c " {mountpoint} " /proc/mounts
cat {mountpoint}/train/7.txt
"""
    end = f"grep -c {mountpoint} /proc/mounts || true\n"
    done = with_mount(
        tmp_path, script + UNMOUNT.format(mountpoint, tmp_path) + end, "--pid", "--fork", "--mount-proc"
    )
    expected = b"1\n" + FILES["train/7.txt"] + b"0\n"
    assert (done.stdout.encode(), done.stderr, done.returncode) == (expected, "", 0)


@needs_mount
def test_a_line_of_fstab_says_all_of_a_job(
    options: MountOptions, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the environment nothing, which is another one at boot."""
    monkeypatch.setenv("DIESELFS_JOB", "other")
    monkeypatch.setenv("DIESELFS_JOB_NODE", "other")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("0123456789abcdef" * 4)
    job = f"job=resnet,job_nodes=1,job_node=node-7,job_host=127.0.0.1,job_secret={secret}"
    fstab = tmp_path / "fstab"
    fstab.write_text(
        f"letters  {mountpoint}  dieselfs  server={options.server},memory=64MiB,view=fuse,{job},_netdev,noauto  0  0\n"
    )
    script = f"""
mount --fstab {fstab} {mountpoint}
cat {mountpoint}/.dieselfs/stats
"""
    done = with_mount(tmp_path, script + UNMOUNT.format(mountpoint, tmp_path))
    assert (done.stderr, done.returncode) == ("", 0)
    told = json.loads(done.stdout)["job"]
    assert (told["name"], told["node"], told["members"]) == ("resnet", "node-7", ["node-7"])
