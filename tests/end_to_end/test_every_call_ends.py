"""Every public call and every verb ends, with an error, against a server that refuses, hangs, closes or drips."""

import contextlib
import os
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dieselfs.cache.file_reader import FileReader
from dieselfs.dataset import Dataset
from dieselfs.errors import EXIT_OK, EXIT_PARTIAL, EXIT_UNAVAILABLE, EXIT_USAGE, DieselfsError, Unavailable
from dieselfs.limits import VERB_PATIENCE_S
from dieselfs.records import DatasetRecord
from dieselfs.rpc.client import ServerClient
from dieselfs.rpc.limit_kinds import QuotaRecord, RateRecord
from dieselfs.rpc.members import JobId
from dieselfs.rpc.records import CopyRequest
from dieselfs.rpc.server_connections import ServerConnections
from dieselfs.settings import Settings
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.spec import PlanSpec
from dieselfs.sources.server import ServerSource
from dieselfs_tools.cli.command_line import VERBS
from tests.end_to_end.test_redis_servers import options
from tests.support.dataset import TreeEntry, pack_entries
from tests.support.dlcmd import Dlcmd, Ran
from tests.support.redis import needs_redis, running_redis
from tests.support.server import running_server
from tests.support.speeds import write_speeds
from tests.support.troublemaker import TROUBLES, troublemaker

ENDS_S = 200.0
"""Far more than the bound of any of these calls: 60 s for the reply, and 60 s for retries on other servers."""

_CHUNK = bytes(16)

Calls = dict[str, Callable[[], object]]

METHODS: dict[str, Callable[[Any], object]] = {
    "create_dataset": lambda client: client.create_dataset("d"),
    "dataset": lambda client: client.dataset("d"),
    "datasets": lambda client: client.datasets(),
    "lost_datasets": lambda client: client.lost_datasets(),
    "drop_dataset": lambda client: client.drop_dataset("d"),
    "purge": lambda client: client.purge("d", 0, True),
    "attached_sources": lambda client: client.attached_sources("d"),
    "detach": lambda client: client.detach("d", b"/f"),
    "copy_attached": lambda client: client.copy_attached("d", True),
    "repack": lambda client: client.repack("d", 1, np.zeros(1, np.uint16), 0, True),
    "rebuild": lambda client: client.rebuild("d"),
    "object_bytes": lambda client: client.object_bytes("d"),
    "fsck": lambda client: client.fsck("d", True, False),
    "open_page": lambda client: client.open_page(10),
    "keep_page": lambda client: client.keep_page(10),
    "put_tag": lambda client: client.put_tag("d", "t"),
    "tags": lambda client: client.tags("d"),
    "delete_tag": lambda client: client.delete_tag("d", "t"),
    "keep_mirror": lambda client: client.keep_mirror("d", "site:d", 1),
    "put_mirror": lambda client: client.put_mirror("d", bytes(1000)),
    "promote_mirror": lambda client: client.promote_mirror("d"),
    "mirrors": lambda client: client.mirrors(),
    "pin": lambda client: client.pin("d", "h", 1, 1, 60),
    "pins": lambda client: client.pins("d"),
    "join_job": lambda client: client.join_job(JobId("d", "j", 1, bytes(16)), bytes(16), bytes(60), 0),
    "leave_job": lambda client: client.leave_job(JobId("d", "j", 1, bytes(16)), bytes(16), bytes(60)),
    "copy_entries": lambda client: client.copy_entries(CopyRequest("d", b"f", "d", b"g")),
    "keys": lambda client: client.keys("d"),
    "put_keys": lambda client: client.put_keys("d", b"dieselfs-keys 1", b""),
    "cipher": lambda client: client.cipher(DatasetRecord(bytes(16), "d", 1, 1, 0, 0, 0)),
    "known_cipher": lambda client: client.known_cipher("d"),
    "ensure_dataset": lambda client: client.ensure_dataset("d"),
    "encrypt": lambda client: client.encrypt(DatasetRecord(bytes(16), "d", 1, 1, 0, 0, 0)),
    "reserve_versions": lambda client: client.reserve_versions("d", 1),
    "put_chunk": lambda client: client.put_chunk("d", _CHUNK, [bytes(1000)]),
    "pending_file": lambda client: client.pending_file("d", b"f"),
    "snapshot": lambda client: client.snapshot("d"),
    "payload_in_parts": lambda client: client.payload_in_parts(
        "d", _CHUNK, 10, lambda: iter((memoryview(bytearray(10)),)), ahead=[_CHUNK]
    ),
    "part": lambda client: client.part("d", _CHUNK, 0, 1),
    "ranges": lambda client: client.ranges("d", _CHUNK, np.array([[0, 1]], np.uint32)),
    "shared_payloads": lambda client: client.shared_payloads("d", _CHUNK, 1),
    "block_checksums": lambda client: client.block_checksums("d", _CHUNK, 4),
    "stat": lambda client: client.stat("d", b"f"),
    "list_folder": lambda client: client.list_folder("d", b"", b"", 10),
    "add_key": lambda client: client.add_key("ada"),
    "add_token": lambda client: client.add_token(["d"], "read", 1),
    "expire_key": lambda client: client.expire_key("k", 1),
    "remove_key": lambda client: client.remove_key("ada"),
    "bar": lambda client: client.bar("ada", True),
    "grant": lambda client: client.grant("ada", "d", "read"),
    "users": lambda client: client.users(),
    "add_members": lambda client: client.add_members("g", ["ada"]),
    "remove_members": lambda client: client.remove_members("g"),
    "groups": lambda client: client.groups(),
    "usage": lambda client: client.usage(),
    "set_quota": lambda client: client.set_quota(QuotaRecord("dataset:d", 1, 1)),
    "quotas": lambda client: client.quotas(),
    "set_rate": lambda client: client.set_rate(RateRecord("ada", 1 << 20)),
    "rates": lambda client: client.rates(),
    "set_owner": lambda client: client.set_owner("d", "ada"),
    "status": lambda client: client.status(),
    "check_server": lambda client: client.check_server(True),
}
VERB_ARGUMENTS: dict[str, list[str]] = {
    "put": ["put", "f", "dl://d/"],
    "sync": ["sync", ".", "dl://d/"],
    "get": ["get", "dl://d/f", "out"],
    "import": ["import", "f.tar", "dl://d/"],
    "attach": ["attach", "f.tar", "dl://d/"],
    "detach": ["detach", "f.tar", "dl://d"],
    "export": ["export", "d", "out.erofs"],
    "ls": ["ls"],
    "stat": ["stat", "dl://d/f"],
    "find": ["find", "dl://d"],
    "tree": ["tree", "dl://d"],
    "cat": ["cat", "dl://d/f"],
    "head": ["head", "dl://d/f"],
    "cp": ["cp", "dl://d/f", "dl://d/g"],
    "mirror": ["mirror", "--status"],
    "mv": ["mv", "dl://d/f", "dl://d/g"],
    "rm": ["rm", "dl://d/f"],
    "du": ["du", "dl://d"],
    "info": ["info", "dl://d"],
    "rb": ["rb", "-y", "dl://d"],
    "purge": ["purge", "dl://d"],
    "repack": ["repack", "dl://d"],
    "tag": ["tag", "ls", "d"],
    "snapshot": ["snapshot", "log", "dl://d"],
    "fsck": ["fsck", "dl://d"],
    "rebuild": ["rebuild", "dl://d"],
    "shuffle": ["shuffle", "dl://d"],
    "which": ["which", "--step", "1", "--batch", "2", "dl://d"],
    "prove": ["prove", "d", "f"],
    "columns": ["columns", "list", "dl://d"],
    "bisect": ["bisect", "--step", "1", "--batch", "2", "dl://d", "--", "true"],
    "user": ["user", "ls"],
    "group": ["group", "ls"],
    "key": ["key", "ls", "dl://d"],
    "erase": ["erase", "-y", "dl://d"],
    "quota": ["quota", "ls"],
    "usage": ["usage"],
    "limit": ["limit", "ls"],
    "config": ["config", "test"],
    "dashboard": ["dashboard"],
    "doctor": ["doctor"],
    "server": ["server", "status"],
    "verify": ["verify", "dl://d"],
    "check": ["check", ".", "dl://d/"],
    "diff": ["diff", "dl://d", "dl://d@v1"],
    "plan": ["plan", "dl://d", "--speeds", "speeds.json"],
    "bench": ["bench", "dl://d"],
}
WITHOUT_SERVER = {
    "mount",
    "umount",
    "mounts",
    "upgrade",
    "warm",
    "cache",
    "completion",
    "run",
    "metrics",
    "top",
    "why",
    "report",
    "chaos",
    "login",
    "logout",
}
"""They ask daemons of this machine, or nobody; `mount` and `cache` start one, which has the bounds of the library."""
STARTING = {
    "mount": ["mount", "d", "mnt"],
    "run": ["run", "d", "--", "true"],
    "cache": ["cache", "d"],
}
"""They start a daemon, which asks the server."""
VERB_S_MAX = 15.0
"""Most take 1 to 5 s; this is for a busy machine. A call may take 60 s, and a reader's 25 s."""
AT_ONCE = 12
HANGING_SERVER, HANGING_METADATA, LOST_STORE = "hanging server", "hanging metadata", "lost store"
ANSWERED = dict.fromkeys(("du", "group", "info", "limit", "quota", "server", "tag", "usage", "user"), EXIT_OK)
ANSWERED |= dict.fromkeys(("erase", "key"), EXIT_USAGE)
"""Exit codes of verbs that need not always what is away: servers know users and records for a while."""


def _in_threads(calls: Calls) -> dict[str, object]:
    """Make all calls at the same time; the error (or result) of each that has ended within ENDS_S."""
    ended: dict[str, object] = {}

    def run(name: str) -> None:
        try:
            ended[name] = calls[name]()
        except BaseException as error:
            ended[name] = error

    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in calls]
    for thread in threads:
        thread.start()
    deadline_s = time.monotonic() + ENDS_S
    for thread in threads:
        thread.join(max(deadline_s - time.monotonic(), 0))
    return ended


@contextlib.contextmanager
def _running_verbs(folder: Path, trouble: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """All verbs that need a server, at the same time."""
    folder.mkdir()
    (folder / "f").write_bytes(b"content")
    write_speeds(folder / "speeds.json")
    tarfile.open(folder / "f.tar", "w").close()
    with troublemaker(folder, trouble) as address, contextlib.ExitStack() as stack:
        dlcmd = Dlcmd(folder / "home", folder, {"DIESELFS_SERVER": address})
        running = {
            verb: stack.enter_context(dlcmd.start(*words))
            for verb, words in VERB_ARGUMENTS.items()
            if verb in VERBS
        }
        try:
            yield running
        finally:
            for process in running.values():
                process.kill()


def _codes(running: Mapping[str, "subprocess.Popen[bytes]"]) -> dict[str, int]:
    """The exit code of each. Raises TimeoutExpired."""
    deadline_s = time.monotonic() + ENDS_S
    return {verb: process.wait(max(deadline_s - time.monotonic(), 0.1)) for verb, process in running.items()}


def _method_calls(stack: contextlib.ExitStack, trouble: str, settings: Settings) -> Calls:
    clients = {name: stack.enter_context(contextlib.closing(ServerClient(settings))) for name in METHODS}
    calls: Calls = {f"{name} {trouble}": partial(METHODS[name], client) for name, client in clients.items()}
    return {**calls, f"connect {trouble}": partial(Dataset, settings, "d")}


def _reader_calls(stack: contextlib.ExitStack, trouble: str, settings: Settings) -> Calls:
    """Reads along a plan."""
    files = [TreeEntry(b"%03d" % number, 0o100644, 0, bytes(100)) for number in range(100)]
    snapshot = pack_entries(files, chunk_bytes=1000).snapshot
    paths = Plan(snapshot, PlanSpec(group_chunks=2)).share(world=2).paths

    def read(reader: FileReader) -> None:
        with contextlib.closing(reader):
            for path in reader.look_ahead.along(paths):
                reader.get(path)

    client = stack.enter_context(contextlib.closing(ServerClient(settings)))
    return {f"read {trouble}": partial(read, FileReader(ServerSource(client, snapshot)))}


class Endings(NamedTuple):
    """Of calls by kind: how each ended, None if it has not. `codes`: of verbs whose server hangs."""

    calls: dict[str, dict[str, object]]
    codes: dict[str, int]


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> Endings:
    """All troubles, and all that meets them, at the same time, because each takes its timeouts."""
    folder, kinds = tmp_path_factory.mktemp("troubles"), {"method": _method_calls, "reader": _reader_calls}
    calls: dict[str, Calls] = {kind: {} for kind in kinds}
    with _running_verbs(folder / "verbs", "hangs") as running, contextlib.ExitStack() as stack:
        for trouble in TROUBLES:
            (folder / trouble).mkdir()
            address = stack.enter_context(troublemaker(folder / trouble, trouble))
            settings = Settings(folder / trouble / "home", folder / trouble / "cache", address)
            for kind, calls_of in kinds.items():
                calls[kind] |= calls_of(stack, trouble, settings)
        ended = _in_threads({name: call for of_kind in calls.values() for name, call in of_kind.items()})
        found = {kind: {name: ended.get(name) for name in of_kind} for kind, of_kind in calls.items()}
        return Endings(found, _codes(running))


@pytest.mark.parametrize(("kind", "calls"), [("method", len(METHODS) + 1), ("reader", 1)])
def test_every_call_ends_with_an_error(endings: Endings, kind: str, calls: int) -> None:
    """Each public method, and readers ahead of a plan."""
    found = endings.calls[kind]
    assert len(found) == calls * len(TROUBLES)
    assert {name: error for name, error in found.items() if not isinstance(error, DieselfsError)} == {}


def test_every_method_is_tried() -> None:
    groups = ServerClient.__mro__[: ServerClient.__mro__.index(ServerConnections)]
    named = {name for group in groups for name in vars(group)}
    # A call ahead raises nothing: a later one meets the error. The others ask no server.
    without_errors = {"open_ahead", "opened_max", "leave_sealed"}
    assert {name for name in named if not name.startswith("_")} == set(METHODS) | without_errors
    assert set(VERBS) <= set(VERB_ARGUMENTS) | WITHOUT_SERVER


@contextlib.contextmanager
def _stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_server_that_hangs_while_somebody_waits_is_left_soon(tmp_path: Path) -> None:
    """A server that works takes new connections meanwhile; see `endings`."""
    with running_server(tmp_path / "server") as server:
        settings = replace(server.settings(), patience_s=VERB_PATIENCE_S)
        with contextlib.closing(ServerClient(settings)) as client:
            assert client.datasets() == []
            with _stopped(server.process.pid):
                began_s = time.monotonic()
                with pytest.raises(Unavailable, match="no answer in time"):
                    client.datasets()
                assert time.monotonic() - began_s < VERB_S_MAX
            assert client.datasets() == []


@needs_redis
@pytest.mark.parametrize("fault", [HANGING_SERVER, HANGING_METADATA, LOST_STORE])
def test_every_verb_says_soon_what_is_away(tmp_path: Path, fault: str) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "f").write_bytes(bytes(200_000))
    write_speeds(tmp_path / "speeds.json")
    with tarfile.open(tmp_path / "f.tar", "w") as tar:
        tar.add(tmp_path / "f", "g")
    with (
        running_redis(tmp_path / "redis") as redis,
        running_server(tmp_path / "server", options(tmp_path, redis, "one")) as server,
        contextlib.ExitStack() as stack,
    ):
        dlcmd = Dlcmd(tmp_path / "home", tmp_path, {"DIESELFS_SERVER": server.unix})
        dlcmd("put", "f", "dl://d/")
        dlcmd("cat", "dl://d/f")  # the snapshot is known
        if fault == LOST_STORE:
            (tmp_path / "chunks").rename(tmp_path / "away")
        else:
            process = server.process.pid if fault == HANGING_SERVER else redis.pid
            stack.enter_context(_stopped(process))
        verbs = {verb: words for verb, words in VERB_ARGUMENTS.items() if verb in VERBS} | STARTING
        with ThreadPoolExecutor(AT_ONCE) as threads:
            ran = dict(zip(verbs, threads.map(partial(_timed, dlcmd), verbs.values()), strict=True))
    assert {verb: took_s for verb, (_, took_s) in ran.items() if took_s > VERB_S_MAX} == {}
    expected = dict.fromkeys(verbs, EXIT_UNAVAILABLE) | {"doctor": EXIT_PARTIAL}
    differing = {verb: each.exit_code for verb, (each, _) in ran.items() if each.exit_code != expected[verb]}
    assert differing.items() <= (set() if fault == HANGING_SERVER else ANSWERED.items())
    for verb, (each, _) in ran.items():
        assert len(each.stderr.splitlines()) == (each.exit_code != EXIT_OK), (verb, each.stderr)


def _timed(dlcmd: Dlcmd, words: list[str]) -> tuple[Ran, float]:
    began_s = time.monotonic()
    return dlcmd.forked(words), time.monotonic() - began_s


def test_every_verb_ends_with_an_error(tmp_path: Path, endings: Endings) -> None:
    with _running_verbs(tmp_path / "verbs", "says-unavailable") as running:
        codes = _codes(running)
    # It reports a server that fails, beside its other findings.
    assert codes == endings.codes == dict.fromkeys(running, EXIT_UNAVAILABLE) | {"doctor": EXIT_PARTIAL}


def test_every_method_ends_in_embedded_use_without_its_store(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "metadata.db").touch()  # the chunks are away
    settings = Settings(home, tmp_path / "cache", None)
    with contextlib.closing(ServerClient(settings)) as client:
        ended = _in_threads({name: partial(METHODS[name], client) for name in ("datasets", "status")})
    assert sorted(ended) == ["datasets", "status"]
    assert all("has no marker" in str(error) for error in ended.values()), ended
