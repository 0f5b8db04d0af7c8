"""A file on the web as a source: over a real server that fails in all ways."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dieselfs.attached import web_file as module
from dieselfs.attached.opening import open_source
from dieselfs.attached.web_file import PART_BYTES, REDIRECTS_MAX, TRIES_MAX, WebFile
from dieselfs.errors import AccessDenied, Damaged, DieselfsError, InvalidInput, NotFound, Unavailable
from dieselfs.net.web_connections import client, proxy_parts
from dieselfs_server.store.attached import Sources
from tests.support import http_files
from tests.support.certificates import make_certificate
from tests.support.http_files import web_file

CONTENT = os.urandom(100_000)


def anything(location: bytes) -> None:
    """Allow all."""


def opened(url: str, check_allowed: Callable[[bytes], None] = anything) -> WebFile:
    return WebFile(url.encode(), check_allowed, pause=lambda _: None)


@pytest.fixture
def file() -> Iterator[http_files.WebFile]:
    with web_file(CONTENT) as served:
        yield served


def test_ranges_of_a_version(file: http_files.WebFile) -> None:
    found = open_source(file.url.encode(), anything)
    assert (found.source.size_bytes, found.source.mark) == (len(CONTENT), 'etag="1"')
    assert found.mtime_ns == 1_600_000_000 * 10**9
    assert found.read(10, 1000) == CONTENT[10:1010]
    assert found.read(5, 0) == b"" and found.descriptor is None
    assert file.ranges == ["bytes=0-0", "bytes=10-1009"]
    with pytest.raises(Damaged, match="it ends at 100000"):
        found.read(99_999, 2)


def test_a_known_version_is_compared_at_each_read(file: http_files.WebFile) -> None:
    source = opened(file.url).source
    known = open_source(file.url.encode(), anything, source)
    assert len(file.ranges) == 1 and known.source == source
    assert known.read(0, 10) == CONTENT[:10]
    file.etag = '"2"'
    with pytest.raises(Damaged, match=r"it has changed since it was attached .* attach it again"):
        known.read(0, 10)
    file.etag, file.content = '"1"', CONTENT[:-1]
    with pytest.raises(Damaged, match="it has changed"):
        known.read(0, 10)


def test_the_time_is_the_mark_of_a_file_without_an_etag(file: http_files.WebFile) -> None:
    file.etag = None
    assert opened(file.url).source.mark == "modified_ns=1600000000000000000"
    file.modified = None
    with pytest.raises(InvalidInput, match="neither ETag nor Last-Modified"):
        opened(file.url)


def test_a_server_without_ranges_is_refused(file: http_files.WebFile) -> None:
    file.has_ranges = False
    with pytest.raises(InvalidInput, match="no requests for a range of a file; dlcmd import"):
        opened(file.url)


def test_large_reads_are_several_requests() -> None:
    content = os.urandom(PART_BYTES + 5)
    with web_file(content) as file:
        assert opened(file.url).read(0, len(content)) == content
        assert file.ranges[1:] == [f"bytes=0-{PART_BYTES - 1}", f"bytes={PART_BYTES}-{PART_BYTES + 4}"]


def test_passing_faults_are_tried_again(file: http_files.WebFile) -> None:
    file.statuses = [503, 429, 500]
    source = opened(file.url)
    file.sends = [100, 0]
    assert source.read(0, 1000) == CONTENT[:1000]
    file.statuses = [503] * TRIES_MAX
    with pytest.raises(Unavailable, match=f"HTTP status 503 .*; tried {TRIES_MAX} times"):
        source.read(0, 10)
    assert source.read(0, 10) == CONTENT[:10]


def test_a_silent_server(file: http_files.WebFile, monkeypatch: pytest.MonkeyPatch) -> None:
    source = opened(file.url)
    monkeypatch.setattr(module, "SILENCE_S", 0.2)
    client.cache_clear()
    file.silent = 1
    assert source.read(0, 10) == CONTENT[:10]
    file.silent = TRIES_MAX
    with pytest.raises(Unavailable, match=f"tried {TRIES_MAX} times"):
        source.read(0, 10)
    client.cache_clear()


@pytest.mark.parametrize(
    "status, kind",
    [
        (404, NotFound),
        (410, NotFound),
        (403, AccessDenied),
        (401, AccessDenied),
        (416, InvalidInput),
        (418, Unavailable),
    ],
)
def test_answers_that_last(file: http_files.WebFile, status: int, kind: type[DieselfsError]) -> None:
    file.statuses = [status]
    with pytest.raises(kind):
        opened(file.url)
    assert len(file.ranges) == 1


def test_nobody_there() -> None:
    with web_file(CONTENT) as file:
        gone = file.url
    with pytest.raises(Unavailable, match="refused"):
        opened(gone)


def test_redirects_are_checked_before_they_are_followed(file: http_files.WebFile) -> None:
    base = file.url.removesuffix("/data/a.tar")
    file.redirects = {"/data/old.tar": "/data/a.tar?key=1", "/data/out.tar": f"{base}/secret/a.tar?key=1"}
    sources = Sources((f"{base}/data",))
    assert opened(f"{base}/data/old.tar", sources._check_allowed).read(0, 5) == CONTENT[:5]
    asked = len(file.ranges)
    with pytest.raises(AccessDenied, match=r"secret/a.tar: it is not below attach_roots"):
        opened(f"{base}/data/out.tar", sources._check_allowed)
    assert len(file.ranges) == asked + 1  # the target was not asked
    file.redirects = {"/data/a.tar": "/data/a.tar"}
    with pytest.raises(Unavailable, match=f"more than {REDIRECTS_MAX} redirects"):
        opened(file.url)


def test_a_name_that_leads_into_a_private_network_needs_a_root_with_the_address(
    file: http_files.WebFile,
) -> None:
    named = file.url.replace("127.0.0.1", "localhost")
    root = named.removesuffix("/a.tar")
    with pytest.raises(AccessDenied, match=r"(127\.0\.0\.1|::1).*not below attach_roots"):
        opened(named, Sources((root,))._check_allowed)
    roots = (root, root.replace("localhost", "127.0.0.1"), root.replace("localhost", "[::1]"))
    assert opened(named, Sources(roots)._check_allowed).read(0, 5) == CONTENT[:5]
    assert opened(named).read(0, 5) == CONTENT[:5]


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = make_certificate(tmp_path)
    with web_file(CONTENT, certificate=certificate) as file:
        client.cache_clear()
        with pytest.raises(Unavailable, match="certificate"):
            opened(file.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        client.cache_clear()
        assert opened(file.url).read(0, 5) == CONTENT[:5]
        client.cache_clear()


@pytest.mark.parametrize(
    "proxy, expected",
    [
        ("proxy:3128", ("http://proxy:3128", None)),
        ("https://proxy", ("https://proxy", None)),
        ("me:p%40ss@proxy:3128", ("http://proxy:3128", "me:p@ss")),
        ("http://me:p@ss@proxy:3128", ("http://proxy:3128", "me:p@ss")),
    ],
)
def test_proxies_with_a_login_and_without_a_scheme(proxy: str, expected: tuple[str, str | None]) -> None:
    assert proxy_parts(proxy) == expected


def test_files_over_http_are_asked_without_a_proxy(
    file: http_files.WebFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    assert opened(file.url).read(0, 5) == CONTENT[:5]


def test_what_is_no_host_name_is_one_clear_error() -> None:
    for scheme in ("http", "https"):
        with pytest.raises(Unavailable, match="is no host name"):
            opened(f"{scheme}://a..b/x")
