"""Objects of a real S3 server as sources of an import."""

import gc
import io
import os
import resource
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_UNAVAILABLE, EXIT_USAGE, Damaged, NotFound
from dieselfs_tools.archives.importing.bucket_files import FIRST_BYTES, BucketFile, beside, expanded
from tests.support.buckets import BUCKET, REGION, S3Server, needs_gateway, running_gateway, set_credentials
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY
from tests.support.importing import contents

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("botocore", reason="the extra s3 is not installed")
pytestmark = needs_gateway

LARGE_BYTES = FIRST_BYTES + 40_000_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest.fixture(autouse=True)
def credentials(gateway: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", gateway.endpoint)


def archive(**files: bytes) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return written.getvalue()


def put(gateway: S3Server, **objects: bytes) -> None:
    client = gateway.client()
    for key, content in objects.items():
        client.put_object(Bucket=BUCKET, Key=key, Body=content)


@pytest.fixture(scope="module")
def shards(gateway: S3Server) -> None:
    put(
        gateway,
        **{
            "shards/train-0.tar": archive(a=b"0"),
            "shards/train-1.tar": archive(b=b"1"),
            "shards/deep/val-0.tar": archive(c=b"2"),
            "shards/a = b&c?.tar": archive(d=b"3"),
            "shards/marker/": b"",
        },
    )


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://data/shards/train-1.tar", ["train-1.tar"]),
        ("s3://data/shards/train-*.tar", ["train-0.tar", "train-1.tar"]),
        ("s3://data/shards/**-0.tar", ["deep/val-0.tar", "train-0.tar"]),
        ("s3://data/shards/{train,x}-[1-9].tar", ["train-1.tar"]),
        ("s3://data/shards/deep", ["deep/val-0.tar"]),
        ("s3://data/shards/", ["a = b&c?.tar", "deep/val-0.tar", "train-0.tar", "train-1.tar"]),
        ("s3://data/shards/a = b&c?.tar", ["a = b&c?.tar"]),
    ],
)
def test_a_url_names_one_object_or_several(url: str, found: list[str]) -> None:
    assert expanded(url) == [f"s3://data/shards/{name}" for name in found]


@pytest.mark.usefixtures("shards")
def test_options_stay_with_each_object(gateway: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    options = f"?endpoint={gateway.endpoint}&region={REGION}"
    assert expanded(f"s3://data/shards/deep/{options}") == [f"s3://data/shards/deep/val-0.tar{options}"]
    assert contents(f"s3://data/shards/deep/val-0.tar{options}") == {"c": b"2"}
    assert beside(f"s3://data/x/{options}", "index.json") == f"s3://data/x/index.json{options}"


@pytest.mark.parametrize("url", ["s3://data/gone.tar", "s3://data/gone/", "s3://data/gone-*.tar"])
def test_what_is_not_there_is_named(url: str) -> None:
    with pytest.raises(NotFound, match="gone"):
        expanded(url)


def test_a_large_object_is_read_in_parts(gateway: S3Server) -> None:
    content = os.urandom(1_000_003) * (LARGE_BYTES // 1_000_003)
    put(gateway, large=content)
    with BucketFile("s3://data/large") as file:
        assert io.BufferedReader(file, 100_000).read() == content
    with BucketFile("s3://data/large") as file:
        assert file.read(10) == content[:10]  # and it ends in the middle


def test_an_object_that_is_replaced_meanwhile_is_damaged(gateway: S3Server) -> None:
    put(gateway, changing=bytes(LARGE_BYTES))
    with BucketFile("s3://data/changing") as file:
        assert file.read(10) == bytes(10)
        put(gateway, changing=os.urandom(LARGE_BYTES))
        with pytest.raises(Damaged, match="replaced while it was read"):
            while file.read(1 << 20):
                pass


@pytest.mark.parametrize("name", ["mosaicml", "mosaicml-zstd", "litdata"])
def test_a_folder_with_an_index_is_one_source(gateway: S3Server, name: str) -> None:
    folder = REPOSITORY / "tests" / "samples" / name
    for path in folder.rglob("*"):
        if path.is_file():
            put(gateway, **{f"sets/{name}/{path.relative_to(folder)}": path.read_bytes()})
    assert expanded(f"s3://data/sets/{name}") == [f"s3://data/sets/{name}/"]
    assert contents(f"s3://data/sets/{name}/") == contents(folder)


def test_arrays_of_zarr_are_imported_and_attached(
    own_dlcmd: Dlcmd, dataset: str, gateway: S3Server, tmp_path: Path
) -> None:
    zarr = pytest.importorskip("zarr", reason="the extra test is not installed")
    images = np.arange(240, dtype=np.int32).reshape(10, 24)
    zarr.create_array(tmp_path / "x", data=images, chunks=(4, 24), compressors=None)
    for path in filter(Path.is_file, (tmp_path / "x").rglob("*")):
        put(gateway, **{f"arrays/x/{path.relative_to(tmp_path / 'x')}": path.read_bytes()})
    assert expanded("s3://data/arrays/x") == ["s3://data/arrays/x/"]
    assert contents("s3://data/arrays/x/") == contents(tmp_path / "x")
    run = served(own_dlcmd, gateway)
    assert run("attach", "--json", "s3://data/arrays/x/", f"dl://{dataset}/").summary["attached"] == 10
    assert run("cat", f"dl://{dataset}/x/00000009.24.int32").stdout == images[9].tobytes()


def test_an_array_has_more_chunks_than_a_process_may_open(
    dlcmd: Dlcmd, dataset: str, gateway: S3Server, tmp_path: Path
) -> None:
    zarr = pytest.importorskip("zarr", reason="the extra test is not installed")
    zarr.create_array(tmp_path / "y", data=np.arange(400).reshape(200, 2), chunks=(1, 2), compressors=None)
    found = filter(Path.is_file, (tmp_path / "y").rglob("*"))
    put(gateway, **{f"arrays/{path.relative_to(tmp_path)}": path.read_bytes() for path in found})
    run, before = served(dlcmd, gateway), resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()  # objects that other tests have left may hold more descriptors than the limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
    try:
        assert run("import", "--json", "s3://data/arrays/y/", f"dl://{dataset}/").summary["stored"] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def served(dlcmd: Dlcmd, gateway: S3Server) -> Dlcmd:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3")
    return Dlcmd(dlcmd.home, dlcmd.folder, {name: os.environ[name] for name in names})


@pytest.mark.usefixtures("shards")
def test_dlcmd_imports_and_resumes(dlcmd: Dlcmd, dataset: str, gateway: S3Server) -> None:
    run = served(dlcmd, gateway)
    words = ["import", "--json", "s3://data/shards/**.tar", f"dl://{dataset}/"]
    assert run(*words).summary["stored"] == 4
    again = run(*words).summary
    assert (again["stored"], again["skipped"]) == (0, 4)
    assert run("cat", f"dl://{dataset}/c").stdout == b"2"
    would = run("import", "-n", "--name", "{source}/{name}", "s3://data/shards/train-1.tar", "dl://x/")
    assert "dl://x/train-1/b" in would.text


def test_formats_with_an_index_at_the_end_are_spooled(dlcmd: Dlcmd, dataset: str, gateway: S3Server) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow", reason="the extra import is not installed")
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="the extra import is not installed")
    written = io.BytesIO()
    parquet.write_table(pyarrow.table({"image": [b"\xff\xd8\xff0"], "label": ["cat"]}), written)
    put(gateway, **{"tables/part-0.parquet": written.getvalue()})
    run = served(dlcmd, gateway)
    run("import", "s3://data/tables/", f"dl://{dataset}/")
    assert run("cat", f"dl://{dataset}/part-0/00000000.jpg").stdout == b"\xff\xd8\xff0"


def test_errors_are_one_line(dlcmd: Dlcmd, gateway: S3Server, tmp_path: Path) -> None:
    run = served(dlcmd, gateway)
    missing = run("import", "s3://data/gone.tar", "dl://x/", exit_code=EXIT_NOT_FOUND)
    assert missing.stderr == "dlcmd: s3://data/gone.tar: there is no such object, and none below it\n"
    no_bucket = run("import", "s3://nobucket/a.tar", "dl://x/", exit_code=EXIT_UNAVAILABLE)
    assert "bucket" in no_bucket.stderr
    secret = run("import", "s3://key:secret@data/a.tar", "dl://x/", exit_code=EXIT_USAGE)
    assert "credentials do not belong into a URL" in secret.stderr and ":secret" not in secret.stderr
    nobody = Dlcmd(run.home, run.folder, {"AWS_EC2_METADATA_DISABLED": "true", "AWS_ACCESS_KEY_ID": ""})
    stderr = nobody("import", "s3://data/a.tar", "dl://x/", exit_code=EXIT_UNAVAILABLE).stderr
    assert "no credentials found" in stderr


def test_a_public_bucket_needs_no_credentials(
    dlcmd: Dlcmd, dataset: str, gateway: S3Server, tmp_path: Path
) -> None:
    client = gateway.client()
    client.create_bucket(Bucket="public", ACL="public-read")
    for number in range(2):
        content = archive(**{f"{number}": b"public"})
        client.put_object(Bucket="public", Key=f"sets/{number}.tar", Body=content, ACL="public-read")
    without = Dlcmd(dlcmd.home, dlcmd.folder, {"AWS_CONFIG_FILE": os.devnull, "HOME": str(tmp_path)})
    options = f"?endpoint={gateway.endpoint}&region={REGION}"
    for verb in ("import", "attach"):
        url = f"s3://public/sets/*.tar{options}&anonymous=true"
        without(verb, url, f"dl://{dataset}-{verb}/")
        assert without("cat", f"dl://{dataset}-{verb}/1").stdout == b"public"
    private = without(
        "import", f"s3://{BUCKET}/x.tar{options}&anonymous=true", "dl://x/", exit_code=EXIT_UNAVAILABLE
    )
    assert len(private.stderr.splitlines()) == 1
