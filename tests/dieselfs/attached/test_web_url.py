"""URLs of files on the web: what is refused, where redirects lead, and which addresses are public."""

import pytest

from dieselfs.attached.web_url import (
    check_root,
    http_time_ns,
    is_below,
    is_public,
    parse_web_url,
    redirected,
    with_host,
)
from dieselfs.errors import AccessDenied, InvalidInput
from dieselfs.settings.kinds import ROOTS


def test_urls_of_files() -> None:
    for url in ("https://x.org/a.tar", "http://10.0.0.1:8000/a%20b/c.tar", "https://[::1]/a"):
        assert parse_web_url(url).geturl() == url


@pytest.mark.parametrize(
    "url",
    [
        "https://x.org",
        "https://x.org/",
        "https://x.org/a/",
        "https://x.org/a/../b",
        "https://x.org/a/%2e%2e/b",
        "https://x.org/a%2f..%2fb",
        "https://x.org//b",
        "https://x.org/a\\b",
        "https://x.org/a b",
        "https://x.org/\u00e4",
        "https://x.org:0/a",
        "https://x.org:99999/a",
        "https:///a",
        "ftp://x.org/a",
        "https://x.org/a#b",
    ],
)
def test_what_is_no_url_of_a_file(url: str) -> None:
    with pytest.raises(InvalidInput):
        parse_web_url(url)


@pytest.mark.parametrize("url", ["https://me:hidden@x.org/a.tar", "https://x.org/a.tar?key=hidden"])
def test_secrets_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_web_url(url)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    "root, is_found",
    [
        ("https://x.org", True),
        ("https://x.org/", True),
        ("https://X.org:443/data", True),
        ("https://x.org/data/", True),
        ("https://x.org/dat", False),
        ("https://x.org/data/a.tar", False),
        ("http://x.org/data", False),
        ("https://x.org:444/data", False),
        ("https://x.org.evil.org/data", False),
    ],
)
def test_what_is_below_a_root(root: str, is_found: bool) -> None:
    check_root(root)
    assert is_below("https://x.org/data/a.tar", root) == is_found


def test_roots_are_checked_when_a_server_starts() -> None:
    assert ROOTS.parse("/data,https://x.org/sets") == ("/data", "https://x.org/sets")
    for root in ("https://x.org/a?b=c", "https://", "ftp://x.org"):
        with pytest.raises(InvalidInput):
            ROOTS.parse(root)


def test_redirects() -> None:
    assert redirected("https://x.org/a/b", "/c?key=1") == "https://x.org/c?key=1"
    assert redirected("http://x.org/a", "https://y.org/c#d") == "https://y.org/c"
    with pytest.raises(AccessDenied, match="without TLS"):
        redirected("https://x.org/a", "http://x.org/a")
    for target in ("file:///etc/passwd", "https://u:p@x.org/a", "//[::1/a"):
        with pytest.raises(InvalidInput):
            redirected("https://x.org/a", target)


@pytest.mark.parametrize(
    "target",
    [
        "https://x.org/root/../secret",
        "//x.org/root/../secret",
        "https://x.org/root/%2e%2e/secret?key=hidden",
        "/root/.%2E/secret",
        "https://x.org/root/..%2fsecret",
        "https://x.org/root/..\\secret",
        "https://y.org/root/./secret",
    ],
)
def test_redirects_do_not_leave_a_root_by_parts_that_clients_resolve(target: str) -> None:
    with pytest.raises(InvalidInput, match="backslash") as raised:
        redirected("https://x.org/root/a", target)
    assert "hidden" not in str(raised.value)


@pytest.mark.parametrize(
    "address, expected",
    [
        ("8.8.8.8", True),
        ("2600::1", True),
        ("10.0.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fd00::1", False),
        ("fe80::1%eth0", False),
        ("::ffff:127.0.0.1", False),
    ],
)
def test_addresses(address: str, expected: bool) -> None:
    assert is_public(address) == expected


def test_parts_of_urls() -> None:
    assert with_host("http://x.org:8000/a", "10.0.0.1") == "http://10.0.0.1:8000/a"
    assert with_host("http://x.org/a", "::1") == "http://[::1]/a"
    assert http_time_ns("Sun, 13 Sep 2020 12:26:40 GMT") == 1_600_000_000 * 10**9
    assert http_time_ns(None) == http_time_ns("yesterday") == 0
    assert http_time_ns("Sun, 13 Sep 99999999999 12:26:40 GMT") == 0
