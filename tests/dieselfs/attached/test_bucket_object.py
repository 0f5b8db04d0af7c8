"""An object of a bucket as a source: over a real gateway, and which objects are below a root."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.attached.bucket_object import BucketObject, is_below
from dieselfs.attached.opening import open_source
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import EXIT_DAMAGED, AccessDenied, Damaged, InvalidInput, NotFound
from dieselfs_server.store.attached import Sources
from tests.support.buckets import BUCKET, REGION, S3Server, needs_gateway, running_gateway, set_credentials
from tests.support.dlcmd import Dlcmd
from tests.tools.commands.test_import_ import tar_of

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("botocore", reason="the extra s3 is not installed")

CONTENT = {f"train/{n:03}.jpg": os.urandom(3000 + n) for n in range(50)}


def anything(location: bytes) -> None:
    """Allow all."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as server:
        yield server


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)


def put(gateway: S3Server, key: str, content: bytes) -> bytes:
    """The URL of a new object."""
    gateway.client().put_object(Bucket=BUCKET, Key=key, Body=content)
    return os.fsencode(f"s3://{BUCKET}/{key}?endpoint={gateway.endpoint}&region={REGION}")


@needs_gateway
def test_a_range_and_the_version(gateway: S3Server) -> None:
    location = put(gateway, "a.tar", b"0123456789")
    found = open_source(location, anything)
    assert found.source.location == location and found.source.size_bytes == 10
    assert found.source.mark.startswith("etag=")
    assert (found.read(2, 3), found.read(10, 0), found.descriptor) == (b"234", b"", None)
    known = open_source(location, anything, found.source)
    put(gateway, "a.tar", b"9876543210")
    for stale in (found, known):
        with pytest.raises(Damaged, match=r"a\.tar: it was replaced while it was read"):
            stale.read(2, 3)
    with pytest.raises(Damaged, match="has changed since it was attached"):
        Sources(None).open(found.source)
    with pytest.raises(NotFound):
        open_source(location.replace(b"a.tar", b"b.tar"), anything)


@needs_gateway
def test_dlcmd_attaches_objects(gateway: S3Server, tmp_path: Path) -> None:
    names = list(CONTENT)
    shards = [{name: CONTENT[name] for name in names[number::2]} for number in range(2)]
    urls = [put(gateway, f"shards/{number}.tar", tar_of(shard)) for number, shard in enumerate(shards)]
    variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    dlcmd = Dlcmd(tmp_path / "home", tmp_path, variables)
    pattern = urls[0].replace(b"0.tar", b"*.tar")
    assert dlcmd("attach", "--json", pattern, "dl://pets/").summary["attached"] == 50
    for name in names[:4]:
        assert dlcmd("cat", f"dl://pets/{name}").stdout == CONTENT[name]
    dlcmd("get", "-r", "dl://pets", "got")
    assert all((tmp_path / "got" / name).read_bytes() == content for name, content in CONTENT.items())
    put(gateway, "shards/1.tar", tar_of({"other": b"1"}))
    ran = dlcmd("get", "-r", "-f", "dl://pets", "again", exit_code=EXIT_DAMAGED)
    assert "shards/1.tar: it was replaced" in ran.stderr
    got = {path.name for path in (tmp_path / "again").rglob("*.jpg")}
    assert got == {os.path.basename(name) for name in names[0::2]}
    ran = dlcmd("attach", "--list", "dl://pets", exit_code=EXIT_DAMAGED)
    assert "1 cannot be read" in ran.text
    dlcmd("detach", urls[1], "dl://pets")
    assert dlcmd("purge", "--copy", "--grace", "0s", "--json", "dl://pets").summary["copied_chunks"] == 1
    gateway.client().delete_object(Bucket=BUCKET, Key="shards/0.tar")
    assert dlcmd("cat", f"dl://pets/{names[0]}").stdout == CONTENT[names[0]]


@pytest.mark.parametrize(
    "root, is_allowed",
    [
        ("s3://data", True),
        ("s3://data/", True),
        ("s3://data/shards", True),
        ("s3://data/shards/", True),
        ("s3://data/shard", False),
        ("s3://data/shards/a.tar", False),
        ("s3://dat", False),
        ("gs://data/shards", False),
        ("s3://data/shards?endpoint=http://127.0.0.1:1", False),
    ],
)
def test_what_is_below_a_root(root: str, is_allowed: bool) -> None:
    assert is_below(b"s3://data/shards/a.tar", root) == is_allowed
    if not is_allowed:
        source = AttachedSource(b"s3://data/shards/a.tar", 10, "etag=x")
        with pytest.raises(AccessDenied, match="not below attach_roots"):
            Sources((root, "/tmp")).open(source)


def test_an_endpoint_of_the_user_is_not_that_of_the_root() -> None:
    mine = b"s3://data/shards/a.tar?endpoint=http://127.0.0.1:1"
    assert not is_below(mine, "s3://data/shards")
    assert is_below(mine, "s3://data/shards?endpoint=http://127.0.0.1:1")


@pytest.mark.parametrize("key", ["shards/../secret", "./a", "a//b", ""])
def test_keys_that_are_paths_elsewhere(key: str) -> None:
    with pytest.raises(InvalidInput, match="not the URL of an object"):
        BucketObject(f"s3://data/{key}".encode(), anything)
