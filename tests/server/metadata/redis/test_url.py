"""Addresses of Redis as users write them; no password in them, and none from a file that others can read."""

from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs_server.metadata.redis.url import RedisLocation, RedisTls, parse_redis_url


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("redis://localhost", RedisLocation([("localhost", 6379)])),
        ("redis://10.0.0.5:7000/3", RedisLocation([("10.0.0.5", 7000)], database=3)),
        ("redis://me@h:1/", RedisLocation([("h", 1)], user="me")),
        ("redis://[::1]:7", RedisLocation([("::1", 7)])),
        ("redis://h?prefix=lab1:", RedisLocation([("h", 6379)], prefix=b"lab1:")),
        ("redis+cluster://a:1,b,c:3", RedisLocation([("a", 1), ("b", 6379), ("c", 3)], is_cluster=True)),
        ("redis+unix:///run/r%20s.sock", RedisLocation([], socket_path="/run/r s.sock")),
        ("rediss://h", RedisLocation([("h", 6379)], tls=RedisTls())),
        ("rediss+cluster://a,b", RedisLocation([("a", 6379), ("b", 6379)], is_cluster=True, tls=RedisTls())),
    ],
)
def test_addresses(url: str, location: RedisLocation) -> None:
    assert parse_redis_url(url) == location


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://me:secret@h", "password_file"),
        ("redis://:secret@h", "password_file"),
        ("redis://h:0", "HOST:PORT"),
        ("redis://h:65536", "HOST:PORT"),
        ("redis://", "HOST:PORT"),
        ("redis+cluster://a:1,,b:2", "HOST:PORT"),
        ("redis://h/one", "database"),
        ("redis+cluster://h/1", "no databases"),
        ("redis://h?timeout=3", "timeout"),
        ("redis://h?prefix={x}", "prefix"),
        ("redis://h?prefix=", "prefix"),
        ("redis://h?ca_file=/etc/ca.pem", "ca_file"),
        ("rediss://h?ca_file=/nonexistent", "/nonexistent"),
        ("rediss://h?certificate_file=/dev/null", "both certificate_file and key_file"),
        ("redis://h?password_file=/nonexistent", "/nonexistent"),
    ],
)
def test_what_is_no_address(url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        parse_redis_url(url)
    assert "secret" not in str(refused.value)


def test_the_password_comes_from_a_file_of_ours_alone(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("se cret\n")
    location = parse_redis_url(f"redis://h?password_file={file}")
    assert location.password == "se cret"
    assert "se cret" not in f"{location} {location!r}"
    file.chmod(0o640)
    with pytest.raises(InvalidInput, match="chmod 600"):
        parse_redis_url(f"redis://h?password_file={file}")
    file.chmod(0o600)
    for content in (b"", b"\n", b"\xff", b"x" * 5000):
        file.write_bytes(content)
        with pytest.raises(InvalidInput, match="password file"):
            parse_redis_url(f"redis://h?password_file={file}")


@pytest.mark.parametrize(
    ("url", "danger"),
    [
        ("redis://10.0.0.5", "no password"),
        ("rediss://10.0.0.5", "no password"),
        ("redis://10.0.0.5?password_file={}", "without TLS"),
        ("rediss://10.0.0.5?password_file={}", ""),
        ("redis://localhost", "every user of this machine"),
        ("redis://localhost?password_file={}", ""),
        ("redis+unix:///run/redis.sock", ""),
    ],
)
def test_what_is_open_on_the_network(tmp_path: Path, url: str, danger: str) -> None:
    file = tmp_path / "password"
    file.touch(0o600)
    file.write_text("secret")
    found = parse_redis_url(url.format(file)).danger()
    assert danger in found and bool(found) == bool(danger)
