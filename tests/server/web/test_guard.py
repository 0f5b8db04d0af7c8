"""The names that a browser may use; others could be led here by anybody who owns them."""

import pytest

from dieselfs_server.web.guard import is_own

NAMES = {"storage-1", "data.example.org"}


@pytest.mark.parametrize(
    "header",
    [
        *("127.0.0.1", "127.0.0.1:7071", "10.0.0.5:443", "[::1]", "[::1]:7071", "[fe80::1]:80"),
        *(
            "localhost",
            "localhost:7071",
            "LOCALHOST",
            "storage-1:7071",
            "Data.Example.org",
            "data.example.org.",
        ),
    ],
)
def test_own(header: str) -> None:
    assert is_own(header, NAMES)


@pytest.mark.parametrize(
    "header",
    [
        *("", ":", "evil.example.org", "evil.example.org:7071", "localhost.evil.org", "storage-1.evil.org"),
        *("127.0.0.1.evil.org", "storage-1:x", "storage-1:80:80", "storage-1 ", "2130706433.nip.io"),
    ],
)
def test_foreign(header: str) -> None:
    assert not is_own(header, NAMES)
