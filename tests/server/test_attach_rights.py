"""Who may attach what: the roots of the operator, the rights of users, and what the audit log has of it."""

import base64
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dieselfs.bucket.client import Bucket
from dieselfs.bucket.url import parse_object
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import ChunkIdSource
from dieselfs.chunk.source import AttachedSource
from dieselfs.errors import AccessDenied, InvalidInput, NotFound, Unavailable
from dieselfs.rpc.client import ServerClient
from tests.server.test_logs import audit_of
from tests.support.http_files import web_file
from tests.support.server import RunningServer, running_server

IDS = ChunkIdSource()


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("shared", "private"):
        (folder / name).mkdir()
        (folder / name / "a.tar").write_bytes(os.urandom(1000))
    return folder


@pytest.fixture(scope="module")
def attaching(roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    options = ("--attach-roots", f"{roots}/shared,{roots}/other")
    with running_server(tmp_path_factory.mktemp("attaching"), options) as running:
        yield running


def attach(client: ServerClient, dataset: str, path: Path) -> None:
    """The first 100 bytes of a file as the file `a`."""
    status = os.stat(path)
    source = AttachedSource(os.fsencode(path), status.st_size, f"mtime_ns={status.st_mtime_ns}")
    attach_source(client, dataset, source, path.read_bytes()[:100])


def attach_source(client: ServerClient, dataset: str, source: AttachedSource, payload: bytes) -> None:
    record = client.dataset(dataset)
    builder = ChunkBuilder()
    builder.add_file(b"a", payload, 0o644, 0, offset=0)
    sealed = builder.seal(payload, source)
    first, chunk_id = client.reserve_versions(dataset, 1), IDS.next()
    client.put_chunk(dataset, chunk_id, sealed.encode(chunk_id, dataset, record.dataset_id, first))


def test_users_attach_what_is_below_the_roots(attaching: RunningServer, roots: Path) -> None:
    with closing(attaching.client(attaching.user("ann", pets="write"))) as ann:
        ann.create_dataset("pets")
        attach(ann, "pets", roots / "shared/a.tar")
        attach(ann, "pets", roots / "shared/a.tar")
        content = ann._value("read_file", dataset="pets", path=b"a")
        assert bytes(content) == (roots / "shared/a.tar").read_bytes()[:100]
        with pytest.raises(AccessDenied, match="not below attach_roots of this server"):
            attach(ann, "pets", roots / "private/a.tar")
        (listed,) = ann.attached_sources("pets")
        assert listed.location == os.fsencode(roots / "shared/a.tar") and not listed.trouble
        with pytest.raises(AccessDenied):  # it needs the right to purge
            ann.copy_attached("pets", False)
        assert ann.copy_attached("pets", True) == 1
        with pytest.raises(AccessDenied, match="not below attach_roots of this server"):
            attach_source(
                ann,
                "pets",
                AttachedSource(b"http://169.254.169.254/latest/meta-data", 100, "etag=x"),
                bytes(100),
            )
    with closing(attaching.client(attaching.user("eve", pets="read"))) as eve:
        for call in (
            lambda: attach(eve, "pets", roots / "shared/a.tar"),
            lambda: eve.attached_sources("pets"),
            lambda: eve.detach("pets", b"/"),
        ):
            with pytest.raises(AccessDenied):
                call()
    with closing(attaching.client(attaching.user("bob"))) as bob, pytest.raises(NotFound):
        bob.attached_sources("pets")
    noted = [
        (entry["event"], entry["user"], str(entry["source"]).removeprefix(f"{roots}/"), entry["outcome"])
        for entry in audit_of(attaching)
        if "source" in entry
    ]
    assert noted == [
        ("put_chunk", "ann", "shared/a.tar", "ok"),
        ("put_chunk", "ann", "private/a.tar", "AccessDenied"),
        ("put_chunk", "ann", "http://169.254.169.254/latest/meta-data", "AccessDenied"),
        ("detach", "eve", "/", "AccessDenied"),
    ]


def _sign_in(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials of Google's or Azure's kind for this process and those it starts."""
    if kind == "az":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", base64.b64encode(bytes(64)).decode())
        return
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "a@b", "private_key": pem, "private_key_id": "1"}
    (folder / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(folder / "account.json"))


@pytest.mark.parametrize(
    "kind, is_anonymous", [("s3", True), ("gs", True), ("gs", False), ("az", True), ("az", False)]
)
def test_a_storage_leads_the_server_nowhere(
    kind: str, is_anonymous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    if not is_anonymous:
        _sign_in(kind, tmp_path, monkeypatch)
    with web_file(b"what only the server reaches", "secret") as inner, web_file(b"x" * 28, "a") as outer:
        endpoint = outer.url.partition("/data/")[0]
        location = f"{kind}://pets/shared/a?endpoint={endpoint}" + "&anonymous=true" * is_anonymous
        location += "&account=account" * (kind == "az")
        source = AttachedSource(location.encode(), 28, 'etag="1"')
        root = location.replace("shared/a", "shared")
        with (
            running_server(tmp_path / "server", ("--attach-roots", root)) as server,
            closing(server.client(server.user("ann", pets="write"))) as ann,
        ):
            ann.create_dataset("pets")
            outer.redirects["/pets/shared/a"] = inner.url
            with pytest.raises(Unavailable, match="HTTP status 302 Found"):
                attach_source(ann, "pets", source, b"what only the server reaches"[:10])
            assert inner.ranges == [] and outer.ranges
            outer.redirects.clear()
            attach_source(ann, "pets", source, b"x" * 10)
            assert bytes(ann._value("read_file", dataset="pets", path=b"a")) == b"x" * 10


def test_credentials_that_cannot_sign_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="the extra s3 is not installed")
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "token")
    with web_file(b"x" * 28, "a") as file:
        url = f"az://pets/a?endpoint={file.url.partition('/data/')[0]}&account=account"
        bucket, key = parse_object(url)
        with pytest.raises(Unavailable, match=r"cannot sign a request, .* use the key of the account: HTTP"):
            Bucket(bucket).find(key)
        with pytest.raises(InvalidInput, match="such an endpoint needs a name of A-Z"):
            Bucket(bucket).find("a b")
