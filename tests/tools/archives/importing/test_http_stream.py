"""Files at a URL: connections that break, servers that fail, files that change."""

import os

import pytest

from dieselfs.errors import Damaged, InvalidInput, NotFound, Unavailable
from dieselfs_tools.archives.importing.http_stream import RETRIES_MAX, HttpStream
from tests.support.http_files import web_file

CONTENT = os.urandom(300_000)


def read(url: str) -> bytes:
    with HttpStream(url, pause=lambda _: None) as stream:
        return stream.readall()


def test_a_broken_connection_is_continued_where_it_broke() -> None:
    with web_file(CONTENT) as file:
        file.sends = [100_000, 0, 50_000]
        assert read(file.url) == CONTENT
        assert file.ranges == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-"]


def test_a_file_that_changed_meanwhile_is_not_mixed() -> None:
    with web_file(CONTENT) as file, HttpStream(file.url, pause=lambda _: None) as stream:
        file.sends = []
        assert stream.mtime_ns == 1_600_000_000 * 10**9
    with web_file(CONTENT) as file:
        file.sends = [1000]
        with HttpStream(file.url, pause=lambda _: None) as stream:
            assert len(stream.read(1000) or b"") > 0
            file.etag = '"2"'
            with pytest.raises(Damaged, match="or the file has changed"):
                stream.readall()


def test_servers_that_fail() -> None:
    with web_file(CONTENT) as file:
        file.statuses = [503, 429, 500]
        assert read(file.url) == CONTENT
        file.statuses = [404]
        with pytest.raises(NotFound, match="404"):
            read(file.url)
        file.statuses = [403]
        with pytest.raises(Unavailable, match="403"):
            read(file.url)
        file.statuses = [503] * (RETRIES_MAX + 1)
        with pytest.raises(Unavailable, match=f"503 .* after 0 bytes and {RETRIES_MAX} retries"):
            read(file.url)
        gone = file.url
    with pytest.raises(Unavailable, match="refused"):
        read(gone)


def test_redirects_lead_to_the_web_only() -> None:
    with web_file(CONTENT) as file:
        start = file.url.rpartition("/")[0] + "/start"
        file.redirects["/data/start"] = "a.tar"
        assert read(start) == CONTENT
        for target in ("ftp://127.0.0.1/a.tar", "file:///etc/passwd", "http://user@127.0.0.1/a.tar"):
            file.redirects["/data/start"] = target
            with pytest.raises((InvalidInput, Unavailable)):
                read(start)
