"""The parsers of what users write, and of what processes of a node or of a job give each other, as targets. No I/O."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache

import numpy as np

from dieselfs.attached.web_url import http_time_ns, is_address, is_below, parse_web_url, redirected, with_host
from dieselfs.bucket.errors import parse_failure
from dieselfs.bucket.url import parse_object
from dieselfs.cluster.chunk_requests import decode_requests
from dieselfs.etcd.keys import CONFIG_PREFIX, decode_server, decode_settings, encode_server
from dieselfs.importance.score_lines import ScoreLines
from dieselfs.importance.scored_files import ScoredFiles
from dieselfs.net.address import TcpAddress, parse_metrics_address
from dieselfs.rpc.messages import decode_call, encode_call
from dieselfs.rpc.methods import PEER_METHODS
from dieselfs.samples.file_lists import match_files
from dieselfs.settings.file import changed
from dieselfs.shuffle.opportunistic import Arrival, ServedLog
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry.http import prometheus_text
from dieselfs.telemetry.registry import Registry, Report
from dieselfs.telemetry.series import History, Recorded
from dieselfs_client.mount.kernel import protocol
from dieselfs_server.admission.quotas import Holds
from dieselfs_tools.cli.patterns import Patterns
from dieselfs_tools.commands.maintain import parse_time
from dieselfs_tools.commands.orders import SkippedSteps
from fuzz.small_snapshot import small_snapshot
from fuzz.target import Target, of_text

_PATHS = (b"train/cat.txt", b"train", b"a/b/c/d.jpg", b"\xff.tar")


@cache
def _snapshot() -> Snapshot:
    return Snapshot(small_snapshot(), "fuzzed")


def _filter(text: str) -> None:
    """A pattern of the command line, and as rules of a file."""
    for patterns in (Patterns(excludes=[text], includes=[text]), Patterns(lines=text.splitlines())):
        for path in _PATHS:
            patterns.is_wanted(path)
            patterns.is_pruned(path)


def _peer_requests(data: bytes) -> object:
    """The call of a member, with columns for a snapshot."""
    _, _, arguments = decode_call(data, PEER_METHODS)
    return [[*one.of(memoryview(bytes(16)))] for one in decode_requests(arguments, _snapshot())]


def _columns(chunks: list[int], counts: list[int], ranges: list[int]) -> bytes:
    packed = {
        name: np.array(column, np.uint32).tobytes()
        for name, column in (("chunks", chunks), ("counts", counts), ("ranges", ranges))
    }
    return encode_call("get_extents", 1, {"digest": bytes(32), "is_shared_plan": False, **packed})


def _losses(data: bytes) -> None:
    """In two pieces."""
    lines, middle = ScoreLines(), len(data) // 2
    lines.write(0, data[:middle])
    lines.write(middle, data[middle:])


def _kernel_request(data: bytes) -> None:
    """The body as that of every request which is decoded."""
    request = protocol.decode_request(memoryview(len(data).to_bytes(4, "little") + data[4:]))
    decoders: tuple[Callable[[memoryview], object], ...] = (
        protocol.decode_init,
        protocol.decode_read,
        protocol.decode_write,
        protocol.decode_setattr,
        protocol.decode_number,
        protocol.decode_batch_forget,
        protocol.decode_name,
    )
    for decode in decoders:
        decode(request.body)


def _report() -> bytes:
    registry = Registry()
    registry.counter("node_cache.hits", "Hits.", node="n1").value += 1
    registry.histogram("rpc.call_s", "Times.", (0.1, 1.0)).observe(0.5)
    return json.dumps(asdict(registry.report({"process": "7"}))).encode()


def _web_url(text: str) -> None:
    parts = parse_web_url(text)
    is_below(text, "https://data.example.org/pets")
    with_host(text, "2001:db8::1")
    is_address(parts.hostname or "")


def _redirect(text: str) -> None:
    for url in ("https://data.example.org/pets/a.tar", "http://[::1]:8080/b"):
        redirected(url, text)


def _history() -> bytes:
    history = History(metrics := Registry())
    metrics.counter("page_cache.hits", "Hits.").value += 1
    plan = {"order": "a", "seed": 1, "epoch": 0, "group": 100, "positions": 9}
    reader = {"world": 1, "rank": 0, "worker": 0, "position": 3}
    metrics.info("plans", "Plans.", lambda: [{**plan, "readers": [reader]}])
    for now_s in (1000.0, 1001.0):
        history.sample(now_s)
    return json.dumps(history.content()).encode()


_LOG = ServedLog("0123456789abcdef01234567", 1, 0, 0, 2, (Arrival(0, 3), Arrival(7, 1)))

LOCAL_TARGETS = (
    Target("filter", of_text(_filter), [b"*.jpg", b"- /a/**\n+ [!a-c]?{x,yz}\n!\n# x", b"{{a.*b}}/"]),
    Target(
        "glob",
        of_text(lambda text: match_files(_snapshot(), b"", [text])),
        [b"train/*.txt", b"**/[!a]?*", b"[]a]"],
    ),
    Target("peer-request", _peer_requests, [_columns([0, 1], [0, 2], [0, 2, 3, 2]), _columns([1], [0], [])]),
    Target("losses", _losses, [b"0.731 train/cat.txt\n2e-3 train/video\n\n1 a"]),
    Target(
        "kept-scores", lambda data: ScoredFiles(_snapshot()).load(data), [ScoredFiles(_snapshot()).encode()]
    ),
    Target("served-log", of_text(ServedLog.parse), [str(_LOG).encode()]),
    Target("skipped-steps", of_text(SkippedSteps.parse), [b"2:12300-12400", b"0:7"]),
    Target("rebuild-time", of_text(parse_time), [b"2026-05-01T12:30", b"1777638600"]),
    Target("metrics-address", of_text(parse_metrics_address), [b"127.0.0.1:9100", b"[::1]:9100"]),
    Target("object-url", of_text(parse_object), [b"s3://bucket/a/b?endpoint=https://h:7480", b"gs://b/k"]),
    Target(
        "bucket-failure",
        of_text(parse_failure),
        [
            b"HTTP status 403 Forbidden: <Code>AccessDenied</Code><Message>no</Message>\n\nDebug source:\nError {}"
        ],
    ),
    Target("etcd-server", decode_server, [encode_server([TcpAddress("10.0.0.5", 7070)])]),
    Target("etcd-setting", lambda data: decode_settings({f"{CONFIG_PREFIX}tls": data}), [b"off"]),
    Target(
        "config-change", of_text(lambda text: changed(text, "server", 'a"\n')), [b'# x\nserver = "a" # y\n']
    ),
    Target("metrics-report", lambda data: prometheus_text([Report.parse(data)]), [_report()]),
    Target("history", Recorded.parse, [_history()]),
    Target(
        "web-url", of_text(_web_url), [b"https://data.example.org:8443/pets/a%20b.tar", b"http://[::1]/x"]
    ),
    Target(
        "web-redirect", of_text(_redirect), [b"/c.tar?token=1", b"https://[2001:db8::1]:443/a#b", b"../x"]
    ),
    Target(
        "http-time", of_text(http_time_ns), [b"Wed, 21 Oct 2015 07:28:00 GMT", b"Wed, 21 Oct 15 07:28 +0200"]
    ),
    Target("quota-holds", Holds.decode, [b'[3,[["pets","OO7-V-81f03--V--9V--0k",4096,2,1777638600]]]']),
    Target("kernel-request", _kernel_request, [bytes(120)]),
)
