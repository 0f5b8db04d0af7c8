"""URLs that are none are refused, in all places, and without what may be a secret."""

from collections.abc import Callable

import pytest

from dieselfs.bucket.url import BucketUrl
from dieselfs.errors import InvalidInput
from dieselfs.net.address import split
from dieselfs_server.metadata.redis.client import parse_redis_url
from dieselfs_server.settings import split_url
from dieselfs_server.store.opening import open_store

WRONG = ("//user:SECRET@[x", "//user:SECRET@a\u2100b/", "//user:SECRET@host/a%00b")


def _open(url: str) -> object:
    return open_store(url, is_new=True)


@pytest.mark.parametrize("rest", WRONG)
@pytest.mark.parametrize(
    ("scheme", "parse"),
    [
        ("s3", BucketUrl.parse),
        ("s3", _open),
        ("posix", _open),
        ("rados", _open),
        ("redis", parse_redis_url),
        ("sqlite", split_url),
    ],
)
def test_what_is_no_url_is_refused(scheme: str, parse: Callable[[str], object], rest: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^'{scheme}' begins something that is no URL") as caught:
        parse(f"{scheme}:{rest}")
    assert "SECRET" not in str(caught.value)


def test_the_parts_of_a_url() -> None:
    assert split("s3://bucket/a?region=x")[:4] == ("s3", "bucket", "/a", "region=x")
