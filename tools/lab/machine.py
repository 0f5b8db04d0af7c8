"""A host of the network as a whole machine: systemd is its first process, and it has files of its own. This module
starts processes and mounts file systems.

Its files are this machine's, with changes in memory that nobody else sees, and without its enabled units and the home
of root. The programs of dieselfs are in `/opt/dieselfs/bin`, as after an installation, and run the code of this
checkout; a bare machine has none. Everything ends with the host: the mounts are in a table of their own.

Needs root and Debian's package systemd-container.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote

from lab.namespace import wait_for
from lab.network import RUN_TIMEOUT_S, Host, Unsuitable

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT_S = 90.0

_SOURCE, _PYTHON, _BASE = "/opt/dieselfs/source", "/opt/dieselfs/python", "/opt/dieselfs/base"
_FUSE = os.makedev(10, 229)
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_CONTROL_GROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd")
_BOOT = f"""\
set -eu
umask 022
folder=$1 seed=$2 group=$3
shift 3
for place in {" ".join(_CONTROL_GROUPS)}; do
    [ -e "$place/cgroup.procs" ] || continue
    mkdir "$place/$group"
    echo $$ > "$place/$group/cgroup.procs"
done
mount -t tmpfs -o mode=755 machine "$folder"
mkdir "$folder/changes" "$folder/work" "$folder/root"
mount -t overlay -o "lowerdir=/,upperdir=$folder/changes,workdir=$folder/work" machine "$folder/root"
chmod -R a+rX "$seed"
cd "$folder/root"
rm -rf etc/systemd/system etc/resolv.conf
mkdir etc/systemd/system
cp -rP "$seed/." .
exec systemd-nspawn --quiet --keep-unit --register=no --console=pipe --link-journal=no --directory . "$@"
"""
_ENTER = ("--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd")
_ENVIRONMENT = {
    "PATH": "/opt/dieselfs/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
}


@dataclass(frozen=True)
class Machine:
    """`leader`: its first process."""

    host: Host
    leader: int

    @property
    def root(self) -> Path:
        """Its files, as this machine sees them."""
        return Path(f"/proc/{self.leader}/root")

    def path(self, place: str) -> Path:
        return self.root / place.lstrip("/")

    def write(self, place: str, text: str, mode: int = 0o644) -> None:
        """Write a file, with its folders."""
        path = self.path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def words(self, words: Sequence[str | Path]) -> list[str]:
        """The command line that runs a program there."""
        variables = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
        enter = ["nsenter", "--target", str(self.leader), *_ENTER]
        return [*enter, "env", "-i", *variables, *(str(word) for word in words)]

    def run(self, *words: str | Path, exit_code: int = 0, timeout_s: float = RUN_TIMEOUT_S) -> str:
        """Run a program to its end and require `exit_code`; its standard output."""
        done = subprocess.run(
            self.words(words),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == exit_code, (
            f"{self.host.name}: {words}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def shell(self, script: str, exit_code: int = 0, timeout_s: float = RUN_TIMEOUT_S) -> str:
        return self.run("bash", "-euc", script, exit_code=exit_code, timeout_s=timeout_s)

    def property_of(self, unit: str, name: str) -> str:
        """What `systemctl show` says of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).strip()

    def journal(self, unit: str) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", f"--unit={unit}")


def why_not() -> str | None:
    """Why no machine can run here, or None."""
    if shutil.which("systemd-nspawn") is None:
        return "needs systemd-nspawn: apt-get install systemd-container"
    return None


@contextmanager
def running_machine(
    host: Host, binds: Mapping[Path, str] | None = None, is_bare: bool = False
) -> Iterator[Machine]:
    """A machine at the address of `host` until the end of the block. `binds`: folders of this machine, and where it has
    them. Raises Unsuitable.
    """
    if (reason := why_not()) is not None:
        raise Unsuitable(reason)
    folder, seed = host.folder / "machine", host.folder / "seed"
    group = f"dieselfs-lab-{uuid.uuid4().hex}"  # machines that share one would find each other's processes in units
    folder.mkdir()
    _write_seed(seed, host)
    read_only: dict[Path, str] = {}
    if not is_bare:
        _write_programs(seed)
        read_only = {
            REPOSITORY: _SOURCE,
            Path(sys.base_prefix): _BASE,
            Path(sysconfig.get_path("purelib")): f"{_PYTHON}/lib/{_VERSION}/site-packages",
        }
    options = [
        "--tmpfs=/root:mode=0700",  # this machine's has settings of shells and programs
        *(f"--bind-ro={source}:{target}" for source, target in read_only.items()),
        *(f"--bind={source}:{target}" for source, target in (binds or {}).items()),
    ]
    words = [
        *("unshare", "--mount", "--propagation", "private"),
        *("bash", "-c", _BOOT, "boot", str(folder), str(seed), group),
    ]
    process = host.start([*words, *options, f"--hostname={host.name}", "--capability=all", "--boot"])
    try:
        machine = Machine(host, _started(host, process))
        # Without udev the device of this machine may be for root alone.
        machine.run("mknod", "--mode=666", "/dev/fuse", "c", str(os.major(_FUSE)), str(os.minor(_FUSE)))
        yield machine
    finally:
        host.kill()  # as in a power cut: nothing of it is kept
        wait_for(partial(_is_removed, group), "the control groups are empty", START_TIMEOUT_S)


def _is_removed(group: str) -> bool:
    """Remove the control groups of a machine that has ended; False while one has processes."""
    try:
        for place in _CONTROL_GROUPS:
            for path, _, _ in os.walk(f"{place}/{group}", topdown=False):
                os.rmdir(path)
    except OSError:
        return False
    return True


def _write_seed(seed: Path, host: Host) -> None:
    """The files that differ from those of this machine."""
    etc = seed / "etc"
    etc.mkdir(parents=True)
    (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
    (etc / "hostname").write_text(f"{host.name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n")


def _write_programs(seed: Path) -> None:
    """The programs of dieselfs. The virtual environment is a new one, because that of this process may be in a folder
    that only root can enter.
    """
    programs, python = seed / "opt/dieselfs/bin", seed / _PYTHON[1:]
    for place in (programs, python / "bin"):
        place.mkdir(parents=True)
    (python / "pyvenv.cfg").write_text(f"home = {_BASE}/bin\ninclude-system-site-packages = false\n")
    (python / "bin/python").symlink_to(f"{_BASE}/bin/{_VERSION}")
    folders = [_SOURCE, *(f"{_SOURCE}/{name}" for name in ("client", "server", "tools"))]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    for name, entry in project["scripts"].items():
        module, function = entry.split(":")
        program = programs / name
        start = (
            f"import sys; sys.path[:0] = {folders}; sys.argv[0] = {name!r}; "
            f"from {module} import {function}; {function}()"
        )
        program.write_text(
            f"#!/bin/sh\nexport LD_LIBRARY_PATH={_BASE}/lib\n"
            f'exec {_PYTHON}/bin/python -P -c {quote(start)} "$@"\n'
        )
        program.chmod(0o755)


def _started(host: Host, process: "subprocess.Popen[bytes]") -> int:
    """The first process of the machine, once all its units have been started. Raises Unsuitable."""

    def leader() -> int | None:
        """The only child of systemd-nspawn that is the first one of a PID namespace."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            status = Path(f"/proc/{child}/status").read_text()
            if any(
                line.startswith("NSpid:") and line.split()[-1] == "1" and len(line.split()) == 3
                for line in status.splitlines()
            ):
                return int(child)
        return None

    def is_up() -> bool:
        assert process.poll() is None, "it has ended"
        with suppress(OSError):
            found = leader()
            if found is not None:
                asked = Machine(host, found).words(["systemctl", "is-system-running"])
                state = subprocess.run(
                    asked, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S
                )
                return state.stdout.strip() in ("running", "degraded")
        return False

    try:
        wait_for(is_up, "systemd runs", START_TIMEOUT_S)
    except AssertionError as error:
        host.kill()
        raise Unsuitable(
            f"systemd does not start in a container here ({error}): {host.log()[-500:]}"
        ) from None
    found = leader()
    assert found is not None
    return found
