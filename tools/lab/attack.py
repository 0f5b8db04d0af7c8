"""Users of each right attack a server with everything that the protocol has, while another user reads and writes small
files. This module starts processes and threads.

`python -m lab.attack` is one attacker: a JSON object with the fields of `Attacker` on its standard input, until a time.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import count, cycle
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError
from dieselfs.limits import (
    BULK_BYTES_PER_USER_MAX,
    INLINE_FILE_BYTES_MAX,
    LISTING_ENTRIES_MAX,
    MIB,
    PATH_BYTES_MAX,
    RANGES_PER_REQUEST_MAX,
    VERSIONS_PER_REQUEST_MAX,
)
from dieselfs.net.address import parse_address
from dieselfs.net.sockets import open_socket
from dieselfs.rpc.access import read_access
from dieselfs.rpc.connection import Connection, connected
from dieselfs.rpc.limit_kinds import QuotaRecord
from dieselfs.rpc.messages import encode_call, frame
from dieselfs.rpc.records import CopyRequest
from dieselfs.settings import Settings
from dieselfs.snapshot.reader import Snapshot
from lab.server import RunningServer, start_server

SHARED, OWN, OTHER = "shared", "of-attacker", "of-other"
"""Datasets: one that all read, one of the attackers, and one of the user who suffers."""
CALL_TIMEOUT_S = 15.0
CONNECTIONS = {"none": 6, "read": 16, "write": 8, "admin": 4}
"""Of each attacker, by its right."""
NICE = 10
"""Of the attackers: as if they were on machines of their own."""
PAUSE_S = 0.02
"""Between two calls of the user who suffers."""
ROOM_BYTES = 256 * MIB
"""The attackers' quota: the test is about time, not about disks."""

Call = tuple[str, dict[str, object], Sequence[bytes]]


@dataclass(frozen=True)
class Attacker:
    """`chunk`: the ID of a chunk of SHARED in hexadecimal, with `payload_bytes`; `until_s`: on the monotonic clock."""

    server: str
    key_file: str
    home: str
    right: str
    chunk: str
    payload_bytes: int
    until_s: float
    dataset_id: str

    def run(self) -> None:
        """Attack over all connections until the time has come."""
        calls = self._calls()
        threads = [
            Thread(target=self._attack, args=(calls, place)) for place in range(CONNECTIONS[self.right])
        ]
        threads += [Thread(target=self._send_junk)] if self.right == "none" else []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _attack(self, calls: list[Callable[[], Call]], place: int) -> None:
        key_file = self.key_file
        access = read_access(Settings(Path(self.home), Path(self.home), self.server, key_file=key_file))
        address, wanted = (
            parse_address(self.server),
            cycle(calls[place % len(calls) :] + calls[: place % len(calls)]),
        )
        while time.monotonic() < self.until_s:
            with suppress(DieselfsError, OSError):
                sock = connected(address, access.tls, CALL_TIMEOUT_S)
                with closing(Connection(sock, address, access.key, CALL_TIMEOUT_S)) as connection:
                    while time.monotonic() < self.until_s and connection.is_open:
                        method, arguments, bulk = next(wanted)()
                        with suppress(DieselfsError):
                            connection.call(
                                method,
                                arguments,
                                bulk,
                                CALL_TIMEOUT_S,
                                bulk_bytes_max=BULK_BYTES_PER_USER_MAX,
                            )

    def _send_junk(self) -> None:
        """Bytes without a key: noise, a long hello, a call before the handshake."""
        noise = np.random.default_rng(1).bytes(1 << 16)
        early = frame(encode_call("list_datasets", 1, {}))
        for junk in cycle((noise, early, b"\0\0\x10\0" + noise)):
            if time.monotonic() >= self.until_s:
                return
            with suppress(OSError), closing(open_socket(parse_address(self.server))) as sock:
                sock.settimeout(1.0)
                sock.sendall(junk)
                sock.recv(1)

    def _calls(self) -> list[Callable[[], Call]]:
        return {
            "none": self._of_anyone,
            "read": self._of_reader,
            "write": self._of_writer,
            "admin": self._of_administrator,
        }[self.right]()

    def _of_anyone(self) -> list[Callable[[], Call]]:
        deep = b"/".join([b"d"] * (PATH_BYTES_MAX // 2))
        calls: list[Call] = [
            ("list_datasets", {}, ()),
            ("list_lost_datasets", {}, ()),
            ("server_pin", {}, ()),
            ("check_server", {"is_whole": True}, ()),
            ("open_page", {"lease_s": 3600}, ()),
            ("usage", {"dataset": ""}, ()),
            ("get_snapshot", _snapshot(SHARED), ()),
            ("stat", {"dataset": OTHER, "path": deep}, ()),
            ("put_chunk", {"dataset": OTHER, "chunk_id": bytes(16), "bulk_length": MIB}, (bytes(MIB),)),
        ]
        return [lambda call=call: call for call in calls]  # type: ignore[misc]  # a call is bound

    def _of_reader(self) -> list[Callable[[], Call]]:
        chunk: dict[str, object] = {"dataset": SHARED, "chunk_id": bytes.fromhex(self.chunk)}
        offsets = np.random.default_rng(2).integers(0, self.payload_bytes - 1000, RANGES_PER_REQUEST_MAX)
        short, long = (
            np.stack((offsets, np.full(len(offsets), size)), axis=1).astype("<u4").tobytes()
            for size in (9, 900)
        )
        page: dict[str, object] = {"path": b"d", "after": b"", "limit": LISTING_ENTRIES_MAX}
        calls: list[Call] = [
            ("get_ranges", {**chunk, "ranges": short}, ()),
            ("get_ranges", {**chunk, "ranges": long}, ()),
            ("list_folder", {"dataset": SHARED, **page}, ()),
            ("get_ranges", {**chunk, "ranges": short}, ()),
            ("get_payload", chunk, ()),
            ("get_block_checksums", chunk, ()),
            ("get_snapshot", _snapshot(SHARED), ()),
            ("read_file", {"dataset": SHARED, "path": b"d/7"}, ()),
            ("stat", {"dataset": SHARED, "path": b"/".join([b"d"] * (PATH_BYTES_MAX // 2))}, ()),
            ("list_pins", {"dataset": SHARED}, ()),
            ("list_datasets", {}, ()),
        ]
        return [lambda call=call: call for call in calls]  # type: ignore[misc]  # a call is bound

    def _of_writer(self) -> list[Callable[[], Call]]:
        file = {"dataset": OWN, "mode": 0o644, "mtime_ns": 0}
        numbers, ids = count(os.getpid() << 20), ChunkIdSource()

        def put(entries: int, parts: int, size_bytes: int) -> Call:
            builder, first, chunk_id = ChunkBuilder(), next(numbers), ids.next()
            for number in range(entries):
                path = b"/".join(b"%x" % (first + number + part) for part in range(parts))
                builder.add_file(path, bytes(size_bytes), 0o644, 0)
            content = b"".join(
                builder.seal().encode(chunk_id, OWN, bytes.fromhex(self.dataset_id), first << 20)
            )
            arguments = {"dataset": OWN, "chunk_id": chunk_id, "bulk_length": len(content)}
            return "put_chunk", arguments, (content,)

        def write(size_bytes: int) -> Call:
            content = bytes(size_bytes)
            return "write_file", {**file, "path": b"w/%x" % next(numbers), "content": content}, ()

        copy = CopyRequest(SHARED, b"d", OWN, b"copy", is_merged=True)._asdict()
        return [
            lambda: put(400, 100, 1),
            lambda: put(4000, 3, 1),
            lambda: put(1, 1, 4 * MIB),
            lambda: write(1),
            lambda: write(INLINE_FILE_BYTES_MAX),
            lambda: ("reserve_versions", {"dataset": OWN, "count": VERSIONS_PER_REQUEST_MAX}, ()),
            lambda: ("put_tag", {"dataset": OWN, "tag": f"t{next(numbers) % 20}", "generation": 0}, ()),
            lambda: ("copy_entries", copy, ()),
            lambda: ("get_snapshot", _snapshot(OWN), ()),
        ]

    def _of_administrator(self) -> list[Callable[[], Call]]:
        numbers = count()
        names = (f"{OWN}-{next(numbers) % 8}" for _ in count())
        return [
            lambda: (
                "fsck",
                {"dataset": OWN, "is_deep": True, "is_repair": True, "with_progress": False},
                (),
            ),
            lambda: (
                "purge",
                {"dataset": OWN, "grace_s": 0, "is_dry_run": False, "with_progress": False},
                (),
            ),
            lambda: ("create_dataset", {"name": next(names)}, ()),
            lambda: ("drop_dataset", {"name": next(names)}, ()),
        ]


def _snapshot(dataset: str) -> dict[str, object]:
    return {"dataset": dataset, "generation": 0, "known_digest": b"", "tag": "", "bases": b""}


@dataclass(frozen=True)
class Suffered:
    """What another user had of the server during an attack: seconds of each small read and write, and errors; the
    memory of the server; how long it took after `kill -9` until the dataset was read again.
    """

    reads_s: Sequence[float]
    writes_s: Sequence[float]
    failures: Sequence[str]
    resident_bytes: int
    restart_s: float


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def attack(folder: Path, duration_s: float, options: Sequence[str] = ()) -> Suffered:
    """Attack a new server for this time. `options`: of the server, besides those of `start_server`."""
    server = start_server(folder, options)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        attackers = list(_prepared(server, time.monotonic() + duration_s + 1))
        command = [sys.executable, "-m", "lab.attack"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for attacker in attackers:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            processes.append(process)
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(json.dumps(asdict(attacker)).encode())
        reads_s, writes_s, failures = _suffer(server, attackers[0].until_s)
        resident = _resident_bytes(server.process.pid)
        server.kill()
        for process in processes:
            process.kill()
        started_s = time.monotonic()
        server = start_server(folder, options, is_new=False)
        with closing(server.client()) as client:
            client._value("read_file", dataset=OTHER, path=b"small")
        restart_s = time.monotonic() - started_s
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.kill()
    return Suffered(reads_s, writes_s, failures, resident, restart_s)


def _prepared(server: RunningServer, until_s: float) -> Iterator[Attacker]:
    """Datasets and users."""
    with closing(Dataset(server.settings(), SHARED, must_exist=False)) as data:
        for number in range(2000):
            data.put(f"d/{number}", np.random.default_rng(number).bytes(1500))
        data.flush()
    with closing(server.client()) as client:
        dataset_id = client.create_dataset(OWN).dataset_id
        client.set_quota(QuotaRecord(f"dataset:{OWN}", ROOM_BYTES))
        client.create_dataset(OTHER)
        _write(client, b"small")
        content = client.snapshot(SHARED).content
    assert content is not None
    snapshot = Snapshot(bytes(content), SHARED)
    chunk_id, payload_bytes = snapshot.chunk_id(0), snapshot.chunk_payload_length(0)
    home = str(server.folder / "attackers")
    for right in CONNECTIONS:
        grants = (
            {} if right == "none" else {SHARED: "read"} if right == "read" else {SHARED: "read", OWN: right}
        )
        key = server.user(right, **grants)
        fields = right, chunk_id.hex(), payload_bytes, until_s, dataset_id.hex()
        yield Attacker(server.tcp, str(key), home, *fields)


def _suffer(server: RunningServer, until_s: float) -> tuple[list[float], list[float], list[str]]:
    reads_s, writes_s, failures = list[float](), list[float](), list[str]()
    with closing(server.client(server.user("other", **{OTHER: "write"}))) as client:
        while time.monotonic() < until_s:
            for took_s, work in ((reads_s, _read), (writes_s, _write)):
                started_s = time.monotonic()
                try:
                    work(client, b"small")
                except DieselfsError as error:
                    failures.append(f"{work.__name__}: {error}")
                took_s.append(time.monotonic() - started_s)
                time.sleep(PAUSE_S)
    return reads_s, writes_s, failures


def _read(client: Any, path: bytes) -> None:
    client._value("read_file", dataset=OTHER, path=path)


def _write(client: Any, path: bytes) -> None:
    client._value("write_file", dataset=OTHER, path=path, content=b"small", mode=0o644, mtime_ns=0)


def _resident_bytes(process: int) -> int:
    """The most that it had."""
    (line,) = (
        line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    os.nice(NICE)
    Attacker(**json.load(sys.stdin)).run()
