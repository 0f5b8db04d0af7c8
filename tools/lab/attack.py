"""Users of each right attack a server with everything that the protocol has, while another user reads and writes small
files. Then the server is killed, and starts with chunks of the attackers' dataset that it has still to apply. This
module starts processes and threads.

`python -m lab.attack` is one attacker: a JSON object with the fields of `Attacker` on its standard input, until a time.
"""

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from itertools import count, cycle
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.chunk.source import AttachedSource
from dieselfs.dataset import Dataset
from dieselfs.errors import DieselfsError, Unavailable
from dieselfs.limits import (
    BULK_BYTES_PER_USER_MAX,
    CHUNK_OBJECT_BYTES_MAX,
    CHUNK_PAYLOAD_BYTES_MAX,
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
from dieselfs_server.store.posix import PosixStore
from lab.server import RunningServer, start_server

SHARED, OWN, OTHER = "shared", "of-attacker", "of-other"
"""Datasets: one that all read, one of the attackers, and one of the user who suffers."""
BYSTANDERS = tuple(f"bystander-{number}" for number in range(8))
"""Datasets that nobody uses during the attack."""
CALL_TIMEOUT_S = 15.0
CONNECTIONS = {"none": 6, "read": 16, "write": 8, "admin": 4}
"""Of each attacker, by its right."""
SLOW_CONNECTIONS = 8
"""Further ones of each attacker, on which bytes move slowly, or not at all."""
SLOW_PAUSE_S = 0.05
"""Between two bytes of a slow connection."""
ASKED = 32
"""Calls whose replies nobody reads."""
NICE = 10
"""Of the attackers: as if they were on machines of their own."""
PAUSE_S = 0.02
"""Between two calls of the user who suffers."""
ROOM_BYTES = 256 * MIB
"""The attackers' quota: the test is about time, not about disks."""

BACKLOG = b"backlog"
BACKLOG_CHUNKS, BACKLOG_ENTRIES = 100, 4_000
"""Chunks of the attackers' dataset that are in the store, and not in the metadata, when the server starts again; each
has the files of a folder of its own in BACKLOG."""
WHOLE_TIMEOUT_S = 120.0
"""For the attackers' dataset, until all of them are applied."""

SOURCES = "sources"
SOURCE_BYTES = 32 * MIB
SHARED_FILES = 4_000

Call = tuple[str, dict[str, object], Sequence[bytes]]


@dataclass(frozen=True)
class Attacker:
    """`chunk`: the ID of a chunk of SHARED in hexadecimal, with `payload_bytes`; `source`: a file of SOURCE_BYTES that
    may be attached; `until_s`: on the monotonic clock.
    """

    server: str
    key_file: str
    home: str
    right: str
    chunk: str
    payload_bytes: int
    source: str
    until_s: float
    dataset_id: str

    def run(self) -> None:
        """Attack over all connections until the time has come."""
        calls = self._calls()
        threads = [
            Thread(target=self._attack, args=(calls, place)) for place in range(CONNECTIONS[self.right])
        ]
        threads += [Thread(target=self._dawdle, args=(place,)) for place in range(SLOW_CONNECTIONS)]
        threads += [Thread(target=self._send_junk)] if self.right == "none" else []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _attack(self, calls: list[Callable[[], Call]], place: int) -> None:
        wanted = cycle(calls[place % len(calls) :] + calls[: place % len(calls)])
        for connection in self._connections():
            while time.monotonic() < self.until_s and connection.is_open:
                method, arguments, bulk = next(wanted)()
                with suppress(DieselfsError):
                    connection.call(
                        method, arguments, bulk, CALL_TIMEOUT_S, bulk_bytes_max=BULK_BYTES_PER_USER_MAX
                    )

    def _connections(self) -> Iterator[Connection]:
        """One after another, each until its user is done with it, or it fails."""
        settings = Settings(Path(self.home), Path(self.home), self.server, key_file=self.key_file)
        access, address = read_access(settings), parse_address(self.server)
        while time.monotonic() < self.until_s:
            with suppress(DieselfsError, OSError):
                sock = connected(address, access.tls, CALL_TIMEOUT_S)
                with closing(Connection(sock, address, access.key, CALL_TIMEOUT_S)) as connection:
                    yield connection

    def _dawdle(self, place: int) -> None:
        """Ask and read nothing, read byte by byte, send a call byte by byte, or the bulk bytes behind one."""
        payload: dict[str, object] = {"dataset": SHARED, "chunk_id": bytes.fromhex(self.chunk)}
        wanted = frame(encode_call("get_payload", 1, payload))
        chunk = {"dataset": OWN, "chunk_id": bytes(16), "bulk_length": CHUNK_OBJECT_BYTES_MAX}
        announced, way = frame(encode_call("put_chunk", 1, chunk)), place % 4
        for connection in self._connections():
            ends_s = min(self.until_s, time.monotonic() + CALL_TIMEOUT_S)
            with suppress(DieselfsError, OSError):
                connection.limit(CALL_TIMEOUT_S)
                connection.send([(wanted * ASKED, wanted, b"", announced)[way]])
                for byte in cycle(wanted):
                    if time.monotonic() >= ends_s:
                        break
                    time.sleep(SLOW_PAUSE_S)
                    if way == 1:
                        connection.receive(1)
                    elif way:
                        connection.send([bytes((byte,))])

    def _send_junk(self) -> None:
        """Bytes without a key: noise, a long hello, a call before the handshake."""
        noise = np.random.default_rng(1).bytes(1 << 16)
        early = frame(encode_call("list_datasets", 1, {}))
        for junk in cycle((noise, early, b"\0\0\x10\0" + noise)):
            if time.monotonic() >= self.until_s:
                return
            with suppress(DieselfsError, OSError), closing(open_socket(parse_address(self.server))) as sock:
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
        numbers, ids = count(os.getpid() << 20, 1 << 12), ChunkIdSource()
        attached = deque((bytes(16),), maxlen=1)

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

        def share(extent_bytes: int, is_attached: bool = False) -> Call:
            """Files that share bytes: each begins a byte after the one before."""
            builder, first, chunk_id = ChunkBuilder(CHUNK_PAYLOAD_BYTES_MAX), next(numbers), ids.next()
            size_bytes = SOURCE_BYTES if is_attached else SHARED_FILES + extent_bytes
            payload = bytes(size_bytes)
            for number in range(SHARED_FILES):
                name, extent = b"s/%x" % (first + number), payload[number : number + extent_bytes]
                builder.add_file(name, extent, 0o644, 0, offset=number)
            status = os.stat(self.source)
            source = AttachedSource(os.fsencode(self.source), SOURCE_BYTES, f"mtime_ns={status.st_mtime_ns}")
            sealed, own = (
                builder.seal(payload, source if is_attached else None),
                bytes.fromhex(self.dataset_id),
            )
            content = b"".join(sealed.encode(chunk_id, OWN, own, first << 20))
            attached.append(chunk_id if is_attached else attached[-1])
            arguments = {"dataset": OWN, "chunk_id": chunk_id, "bulk_length": len(content)}
            return "put_chunk", arguments, (content,)

        def read_attached() -> Call:
            """The first read of an attached chunk compares its whole payload with its digest."""
            ranges = np.array([[0, 1]], "<u4").tobytes()
            return "get_ranges", {"dataset": OWN, "chunk_id": attached[-1], "ranges": ranges}, ()

        def write(size_bytes: int) -> Call:
            content = bytes(size_bytes)
            return "write_file", {**file, "path": b"w/%x" % next(numbers), "content": content}, ()

        copy = CopyRequest(SHARED, b"d", OWN, b"copy", is_merged=True)._asdict()
        return [
            lambda: put(400, 100, 1),
            lambda: put(4000, 3, 1),
            lambda: put(1, 1, 4 * MIB),
            lambda: share(1, is_attached=True),
            read_attached,
            lambda: share(2),
            lambda: share(1 << 12),  # more than may be shared
            lambda: write(1),
            lambda: write(INLINE_FILE_BYTES_MAX),
            lambda: ("reserve_versions", {"dataset": OWN, "count": VERSIONS_PER_REQUEST_MAX}, ()),
            lambda: (
                "put_tag",
                {"dataset": OWN, "tag": f"t{(next(numbers) >> 12) % 20}", "generation": 0},
                (),
            ),
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
    memory of the server. `restart_s`: after `kill -9`, until they could list, read and write again, and a file in each
    dataset but the attackers' was read. `is_served_first`: whether no call on this one was answered by then. `whole_s`:
    until it was served, with this number of chunks of its backlog.
    """

    reads_s: Sequence[float]
    writes_s: Sequence[float]
    failures: Sequence[str]
    resident_bytes: int
    restart_s: float
    is_served_first: bool
    backlog_chunks: int
    whole_s: float


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def attack(folder: Path, duration_s: float, options: Sequence[str] = ()) -> Suffered:
    """Attack a new server for this time. `options`: of the server, besides those of `start_server`."""
    sources = folder / SOURCES
    sources.mkdir(parents=True)
    options = (*options, "--attach-roots", str(sources))
    server = start_server(folder, options)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        # They do not stop before the server is killed.
        attackers = list(_prepared(server, time.monotonic() + duration_s + 1 + CALL_TIMEOUT_S))
        command = [sys.executable, "-m", "lab.attack"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        for attacker in attackers:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
            processes.append(process)
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(json.dumps(asdict(attacker)).encode())
        reads_s, writes_s, failures = _suffer(server, attackers[0].until_s - CALL_TIMEOUT_S)
        resident = _resident_bytes(server.process.pid)
        server.kill()
        for process in processes:
            process.kill()
        _leave_backlog(folder, bytes.fromhex(attackers[0].dataset_id))
        started_s = time.monotonic()
        server = start_server(folder, options, is_new=False)
        keys = [Path(attacker.key_file) for attacker in attackers if attacker.right == "write"]
        with ThreadPoolExecutor() as pool:
            asking = [
                pool.submit(_until_whole, server, key) for key in keys for _ in range(CONNECTIONS["write"])
            ]
            _use(server)
            restart_s = time.monotonic() - started_s
            is_served_first = not any(each.done() for each in asking)
            backlog_chunks = min(each.result() for each in asking)
        whole_s = time.monotonic() - started_s
    finally:
        for process in processes:
            process.kill()
            process.wait()
        server.kill()
    return Suffered(
        reads_s, writes_s, failures, resident, restart_s, is_served_first, backlog_chunks, whole_s
    )


def _leave_backlog(folder: Path, dataset_id: bytes) -> None:
    """Store chunks as servers leave them that are killed in the middle of commits."""
    builder, ids = ChunkBuilder(), ChunkIdSource()
    for number in range(BACKLOG_ENTRIES):
        builder.add_file(b"%x" % number, b"1", 0o644, 0)
    sealed = builder.seal()
    with closing(PosixStore.open(f"posix://{folder}/chunks", False)) as store:
        for chunk in range(BACKLOG_CHUNKS):
            top, chunk_id = b"%s/%x/" % (BACKLOG, chunk), ids.next()
            entries = [(top + entry[0], *entry[1:]) for entry in sealed.entries]
            parts = replace(sealed, entries=entries).encode(chunk_id, OWN, dataset_id, time.time_ns())
            store.put(dataset_id, chunk_id, parts)


def _until_whole(server: RunningServer, key_file: Path) -> int:
    """Ask for the backlog until the server no longer refuses; how many of its chunks there are. Raises Unavailable."""
    ends_s = time.monotonic() + WHOLE_TIMEOUT_S
    with closing(server.client(key_file)) as client:
        while True:
            try:
                return len(client.list_folder(OWN, BACKLOG, b"", LISTING_ENTRIES_MAX))
            except Unavailable:
                if time.monotonic() > ends_s:
                    raise
            time.sleep(PAUSE_S)


def _use(server: RunningServer) -> None:
    """List, read and write as the other user, and read a file of each dataset but the attackers'."""
    with closing(server.client(server.folder / f"{OTHER}.key")) as client:
        assert OTHER in {dataset.name for dataset in client.datasets()} and not client.lost_datasets()
        client.list_folder(OTHER, b"", b"", LISTING_ENTRIES_MAX)
        _read(client, b"small")
        _write(client, b"small")
    with closing(server.client()) as client:
        for dataset in BYSTANDERS:
            client._value("read_file", dataset=dataset, path=b"small")
        client._value("read_file", dataset=SHARED, path=b"d/7")


def _prepared(server: RunningServer, until_s: float) -> Iterator[Attacker]:
    """Datasets, users, and a file that they may attach."""
    source = server.folder / SOURCES / "source"
    source.write_bytes(bytes(SOURCE_BYTES))
    with closing(Dataset(server.settings(), SHARED, must_exist=False)) as data:
        for number in range(2000):
            data.put(f"d/{number}", np.random.default_rng(number).bytes(1500))
        data.flush()
    with closing(server.client()) as client:
        dataset_id = client.create_dataset(OWN).dataset_id
        client.set_quota(QuotaRecord(f"dataset:{OWN}", ROOM_BYTES))
        for dataset in (OTHER, *BYSTANDERS):
            client.create_dataset(dataset)
            _write(client, b"small", dataset)
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
        fields = right, chunk_id.hex(), payload_bytes, str(source), until_s, dataset_id.hex()
        yield Attacker(server.tcp, str(key), home, *fields)


def _suffer(server: RunningServer, until_s: float) -> tuple[list[float], list[float], list[str]]:
    reads_s, writes_s, failures = list[float](), list[float](), list[str]()
    with closing(server.client(server.user(OTHER, **{OTHER: "write"}))) as client:
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


def _write(client: Any, path: bytes, dataset: str = OTHER) -> None:
    client._value("write_file", dataset=dataset, path=path, content=b"small", mode=0o644, mtime_ns=0)


def _resident_bytes(process: int) -> int:
    """The most that it had."""
    (line,) = (
        line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) << 10


if __name__ == "__main__":
    os.nice(NICE)
    Attacker(**json.load(sys.stdin)).run()
