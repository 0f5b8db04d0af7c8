"""The URLs of buckets: what they say, and what is refused without showing a secret."""

import pytest

from dieselfs.bucket.url import BucketUrl, check_endpoint, endpoint_danger, is_object_url, parse_object
from dieselfs.errors import InvalidInput


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://data", BucketUrl("s3", "data", "", {})),
        ("s3://data/", BucketUrl("s3", "data", "", {})),
        ("gs://my-data.example/a/b/", BucketUrl("gs", "my-data.example", "a/b", {})),
        (
            "s3://data/x?endpoint=http://127.0.0.1:7480&region=eu&profile=me&ca=/etc/a.pem",
            BucketUrl(
                "s3",
                "data",
                "x",
                {
                    "endpoint": "http://127.0.0.1:7480",
                    "region": "eu",
                    "profile": "me",
                    "ca": "/etc/a.pem",
                },
            ),
        ),
        ("az://data/x?account=me", BucketUrl("az", "data", "x", {"account": "me"})),
    ],
)
def test_a_url_says_where_and_how(url: str, expected: BucketUrl) -> None:
    assert BucketUrl.parse(url) == expected


def test_a_url_is_shown_without_its_options() -> None:
    assert str(BucketUrl.parse("s3://data/a/b/?region=eu")) == "s3://data/a/b"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:///prefix", "is not the name of a bucket; write s3://BUCKET"),
        ("s3://a", "is not the name of a bucket"),
        ("s3://data:80/x", "is not the name of a bucket"),
        ("s3://data/a//b", "a prefix has letters"),
        ("s3://data/../b", "a prefix has letters"),
        ("s3://data/a%0Ab", "a prefix has letters"),
        (
            "s3://data?regoin=eu",
            "unknown option 'regoin'; the options are anonymous, ca, endpoint, profile, region",
        ),
        ("gs://data?profile=x", "unknown option 'profile'"),
        ("s3://data?region=", "give each option once, with a value"),
        ("s3://data?region=a&region=b", "give each option once"),
        ("s3://data?endpoint=ftp://x", "write for example https://"),
        ("s3://data?endpoint=127.0.0.1:80", "write for example https://"),
        ("s3://data?endpoint=http://x:port", "write for example https://"),
        ("s3://data?endpoint=http://a b", "write for example https://"),
        ("s3://data?endpoint=http://a%0Ab", "write for example https://"),
        ("s3://data?region=e%0Au", "is not a name of one"),
    ],
)
def test_what_is_no_url_of_a_bucket_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=f"^store 's3://|^store 'gs://.*{message}") as caught:
        BucketUrl.parse(url)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEY:hush@data/x",
        "s3://data?secret_access_key=hush",
        "az://data?sas_token=hush",
        "s3://data?endpoint=https://KEY:hush@host",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        BucketUrl.parse(url)
    assert "hush" not in str(caught.value)


def test_an_endpoint_of_the_environment_is_checked_too() -> None:
    check_endpoint("https://[::1]:7480/path", "AWS_ENDPOINT_URL")
    with pytest.raises(InvalidInput, match=r"^AWS_ENDPOINT_URL: the endpoint is no URL"):
        check_endpoint("htp:/x", "AWS_ENDPOINT_URL")


@pytest.mark.parametrize(
    "endpoint", [None, "https://s3.example.org", "http://127.0.0.1:7480", "http://[::1]:7480"]
)
def test_an_endpoint_with_tls_or_on_this_machine_is_no_danger(endpoint: str | None) -> None:
    assert endpoint_danger(endpoint) == ""


def test_an_endpoint_elsewhere_without_tls_is_a_danger() -> None:
    assert endpoint_danger("http://s3.example.org:7480").startswith("is used without TLS")


@pytest.mark.parametrize(
    ("url", "bucket", "key"),
    [
        ("s3://data/a/b.tar", "s3://data", "a/b.tar"),
        ("s3://data", "s3://data", ""),
        ("gs://data/", "gs://data", ""),
        ("s3://data/a b%20?x&y=1.tar", "s3://data", "a b%20?x&y=1.tar"),
        ("s3://data/a.tar?region=eu", "s3://data", "a.tar"),
    ],
)
def test_a_key_has_any_characters(url: str, bucket: str, key: str) -> None:
    found, found_key = parse_object(url)
    assert (str(found), found_key) == (bucket, key)
    assert is_object_url(url) and not is_object_url(f"./{url}")


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///key", "http://data/a", "s3://data/a?password=x", "s3://k:s@data/a"]
)
def test_a_wrong_url_of_an_object_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        parse_object(url)


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_anonymous_requests(kind: str) -> None:
    assert BucketUrl.parse(f"{kind}://data?anonymous=true").is_anonymous
    assert not BucketUrl.parse(f"{kind}://data").is_anonymous
    for options in ("anonymous=yes", "anonymous=", "anonymous=true&profile=me"):
        with pytest.raises(InvalidInput):
            BucketUrl.parse(f"{kind}://data?{options}")
