"""A network on one machine: hosts as network namespaces, joined by a switch, with rates, losses and partitions.

Needs root and iproute2. Its processes, mounts and files are removed at the end of the block. The next network on the
machine removes those of a killed program (`sweep`).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path
from typing import Any

from dieselfs.errors import MountError
from dieselfs.limits import KIB
from dieselfs_client.mount.points.mount_table import MOUNTINFO, mount_at, parse_mountinfo
from dieselfs_client.mount.points.mounting import unmount
from lab import delay_line, server
from lab import namespace as namespaces
from lab.namespace import Namespace, command
from lab.packet_filter import bytecode, program

RUN_TIMEOUT_S = 120.0
HOSTS_MAX = 250

_BURST_BYTES_MIN = 64 * KIB  # a packet of a virtual link may be as large
_QUEUE_MS = 100
_NAME = re.compile(r"dieselfs-(?P<process>\d+)-\d+")
_numbers = count(1)


class Unsuitable(Exception):
    """The reason why this machine cannot run a network or its programs."""


class Host(Namespace):
    """Made by `Network.host`. Its processes and files are the machine's, but each host has its own home folders."""

    def __init__(self, network: "Network", name: str) -> None:
        super().__init__(f"{network.name}-{name}", name)
        number = len(network.hosts) + 1
        assert number <= HOSTS_MAX
        self.name, self.address, self.folder = name, f"10.77.0.{number}", network.folder / name
        self.port = f"port{number}"
        """Its device at the switch."""
        self.folder.mkdir()
        self.log_file = self.folder / "log"
        self._started: list[subprocess.Popen[bytes]] = []

    def log(self) -> str:
        return self.log_file.read_text("utf-8", "replace") if self.log_file.exists() else ""

    def environment(self, **variables: str) -> dict[str, str]:
        """Of its programs: its own home and run-time folder, this program's packages, no settings of dieselfs."""
        pinned = {
            name: value for name, value in os.environ.items() if not name.startswith(("DIESELFS_", "XDG_"))
        }
        own = {"HOME": self.folder / "home"}
        kinds = ("CACHE", "CONFIG", "DATA", "STATE")
        own |= {f"XDG_{kind}_HOME": self.folder / kind.lower() for kind in kinds}
        own["XDG_RUNTIME_DIR"] = self.folder / "run"
        for place in own.values():
            place.mkdir(mode=0o700, exist_ok=True)
        paths = {"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path if path)}
        return {**pinned, **{name: str(place) for name, place in own.items()}, **paths, **variables}

    def run(self, words: Sequence[str | Path], exit_code: int = 0, **options: Any) -> str:
        """Run a program to its end and require `exit_code`; its standard output."""
        timeout_s = options.pop("timeout", RUN_TIMEOUT_S)
        options = {"cwd": self.folder, "env": self.environment(), **options}
        with self.inside():
            process = server.popen(
                words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
            )
        with process:
            try:
                output, errors = process.communicate(timeout=timeout_s)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == exit_code, f"{self.name}: {words}: {process.returncode}\n{errors}"
        return str(output)

    def start(self, words: Sequence[str | Path], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a program, which ends with the network at the latest."""
        with self.log_file.open("ab") as log, self.inside():
            settings = {"cwd": self.folder, "env": self.environment(), "stdin": subprocess.DEVNULL}
            process = server.popen(words, **{**settings, "stdout": log, "stderr": log, **options})
        self._started.append(process)
        return process

    def kill(self, process: "subprocess.Popen[bytes] | None" = None) -> None:
        """Kill one process, or all of them, and wait for their end."""
        if process is not None:
            process.kill()
            process.wait(namespaces.END_TIMEOUT_S)
        else:
            namespaces.kill_in(self.namespace)

    def stop(self) -> None:
        """SIGSTOP for all its processes: connections stay open and silent."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, number)

    def end(self) -> None:
        super().end()
        for process in self._started:
            process.wait(namespaces.END_TIMEOUT_S)


class Network:
    """Hosts at one switch. A context manager, which raises Unsuitable."""

    def __init__(self) -> None:
        self.name = f"dieselfs-{os.getpid()}-{next(_numbers)}"
        self.folder = Path(tempfile.gettempdir(), self.name)
        self.hosts: list[Host] = []
        self._lost: dict[tuple[Host, Host], float] = {}  # source, target, share of the packets
        self._stack = ExitStack()

    def __enter__(self) -> "Network":
        reason = why_not()
        if reason is not None:
            raise Unsuitable(reason)
        sweep()
        self._stack.callback(remove, self.name)
        try:
            self.folder.mkdir(mode=0o755)
            self._switch = Namespace(f"{self.name}-switch", "switch")
            self._stack.callback(self._switch.end)
            with self._switch.inside():
                command("ip", "link", "add", "switch", "type", "bridge")
                command("ip", "link", "set", "switch", "up")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def host(self, name: str, round_trip_s: float = 0.0) -> Host:
        """A new host, which reaches all others and nothing else. `round_trip_s`: what its link adds to a round trip."""
        host = Host(self, name)
        self._stack.callback(host.end)
        self.hosts.append(host)
        with self._switch.inside():
            if round_trip_s:
                self._delayed_link(host, round_trip_s)
            else:
                here = f"type veth peer name eth0 netns {host.namespace}"
                command("ip", "link", "add", host.port, *here.split())
            command("ip", "link", "set", host.port, "master", "switch", "up")
            command("tc", "qdisc", "add", "dev", host.port, "clsact")
        with host.inside():
            command("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
            command("ip", "link", "set", "eth0", "up")
        return host

    def _delayed_link(self, host: Host, round_trip_s: float) -> None:
        """As a pair of virtual devices, with a process of `host` between its ends."""
        with ExitStack() as stack:
            with self._switch.inside():
                outer = delay_line.open_tap(host.port)
            stack.callback(os.close, outer)
            with host.inside():
                inner = delay_line.open_tap("eth0")
            stack.callback(os.close, inner)
            host.start(delay_line.command(outer, inner, round_trip_s / 2), pass_fds=(outer, inner))

    def rate(self, host: Host, bytes_per_s: int | None) -> None:
        """Limit the rates at which a host sends and receives; None: no limit."""
        for place, device in ((host.inside, "eth0"), (self._switch.inside, host.port)):
            with place():
                if bytes_per_s is None:
                    command("tc", "qdisc", "delete", "dev", device, "root")
                else:
                    burst = max(bytes_per_s // 100, _BURST_BYTES_MIN)
                    limits = f"rate {bytes_per_s}bps burst {burst} latency {_QUEUE_MS}ms"
                    command("tc", "qdisc", "replace", "dev", device, "root", "tbf", *limits.split())

    def cut(self, one: Host, other: Host) -> None:
        """Drop all packets between two hosts; connections stay open and silent."""
        self.lose(one, other, 1.0)
        self.lose(other, one, 1.0)

    def cut_off(self, host: Host) -> None:
        """Cut a host off from all present ones."""
        for other in self.hosts:
            if other is not host:
                self.cut(host, other)

    def lose(self, source: Host, target: Host, share: float) -> None:
        """Drop this share of the packets from `source` to `target`, at random."""
        self._lost[source, target] = share
        self._apply(source)

    def heal(self, *hosts: Host) -> None:
        """End all losses between two hosts, from and to one host, or, without hosts, everywhere."""
        healed = [pair for pair in self._lost if set(hosts) <= set(pair)]
        for pair in healed:
            del self._lost[pair]
        for source in {source for source, _ in healed}:
            self._apply(source)

    def _apply(self, source: Host) -> None:
        """Replace the filter at the port of `source`, atomically."""
        lost = {IPv4Address(to.address): share for (of, to), share in self._lost.items() if of is source}
        place = f"filter replace dev {source.port} ingress protocol ip prio 1 handle 1 bpf direct-action"
        with self._switch.inside():
            command("tc", *place.split(), "bytecode", bytecode(program(lost)))


def why_not() -> str | None:
    """Why no network is possible here, or None."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None


def sweep() -> None:
    """Remove the networks of ended processes."""
    left = [*namespaces.names("dieselfs-"), *os.listdir(tempfile.gettempdir())]
    for network in sorted({match[0] for name in left if (match := _NAME.match(name))}):
        process = int(network.split("-")[1])
        if not Path(f"/proc/{process}").exists():
            remove(network)


def remove(network: str) -> None:
    """Remove the processes, mounts, namespaces and files of a network."""
    folder = Path(tempfile.gettempdir(), network)
    for namespace in namespaces.names(f"{network}-"):
        namespaces.remove(namespace)
    for record in reversed([*parse_mountinfo(MOUNTINFO.read_bytes())]):
        if Path(record.mountpoint).is_relative_to(folder):
            clear(Path(record.mountpoint))
    shutil.rmtree(folder, ignore_errors=True)


def clear(mountpoint: Path) -> None:
    """Remove every mount from `mountpoint`, dead ones too."""
    with suppress(MountError):
        while mount_at(str(mountpoint)) is not None:
            unmount(str(mountpoint), lazily=True)
