"""The store in a bucket keeps the contract of object stores, on a real S3 server, also when requests fail."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from dieselfs.bucket.client import PART_BYTES, PART_RETRIES_MAX, Bucket
from dieselfs.bucket.url import BucketUrl
from dieselfs.chunk.builder import ChunkBuilder
from dieselfs.chunk.ids import chunk_name
from dieselfs.errors import AlreadyExists, Damaged, InvalidInput, NotFound, Unavailable
from dieselfs_server.datasets.catalog import Catalog
from dieselfs_server.datasets.dataset_names import DatasetNames
from dieselfs_server.metadata.sqlite.store import SqliteMetadata
from dieselfs_server.store.bucket import EXCLUSIVE_CHECK_S, BucketStore, check_exclusive
from dieselfs_server.store.interface import ObjectStore
from dieselfs_server.store.opening import open_store
from dieselfs_server.store.tiered import TieredStore
from dieselfs_server.store.wrapper import RetryingStore, RetryPolicy
from tests.conformance.chunk_store_suite import (
    CHUNK_ID,
    DATASET_ID,
    OTHER_ID,
    ChunkStoreSuite,
    ServedStoreSuite,
    chunk_at,
)
from tests.support.buckets import BUCKET, S3Server, needs_gateway, set_credentials
from tests.support.http_proxy import (
    Action,
    Answer,
    HttpProxy,
    Pass,
    Reset,
    Rule,
    Silence,
    Truncate,
    http_proxy,
)

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("botocore", reason="the extra s3 is not installed")
pytestmark = needs_gateway

PREFIX = "a/prefix"
SHORT_TIMEOUT_S = 1.0


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)


def opened(url: str, timeout_s: float = 10.0, part_retries_max: int = PART_RETRIES_MAX) -> BucketStore:
    return BucketStore(Bucket(BucketUrl.parse(url), timeout_s, part_retries_max))


def retried(store: ObjectStore) -> RetryingStore:
    return RetryingStore(store, RetryPolicy(tries_max=20), random.Random(1), sleep=lambda wait_s: None)


@pytest.fixture
def direct(gateway: S3Server) -> BucketStore:
    """An empty store."""
    store = opened(gateway.url(PREFIX))
    for dataset_id in (DATASET_ID, OTHER_ID):
        store.delete_dataset(dataset_id)
    for name in store.list_records(""):
        store.delete_record(name)
    return store


@pytest.fixture
def proxy(gateway: S3Server, direct: BucketStore) -> Iterator[HttpProxy]:
    with http_proxy(gateway.endpoint) as running:
        yield running


class TestBucketStore(ServedStoreSuite):
    @pytest.fixture
    def store(self, direct: BucketStore) -> BucketStore:
        return direct


class TestBucketStoreWithFailingRequests(ChunkStoreSuite):
    """Every fifth request fails, in turns with 503, 500 and a reset connection, before the server sees it."""

    @pytest.fixture
    def store(self, gateway: S3Server, proxy: HttpProxy) -> ObjectStore:
        def fail_some(request: str, number: int) -> Action:
            faults = (Answer(503, "SlowDown"), Answer(500, "InternalError"), Reset(is_done=False))
            return Pass() if number % 5 else faults[number // 5 % len(faults)]

        store = opened(gateway.url(PREFIX, proxy.endpoint))
        proxy.obey(fail_some)
        return retried(store)


def get(store: ObjectStore) -> bytes | None:
    try:
        return store.get_range(DATASET_ID, CHUNK_ID, 0, store.size(DATASET_ID, CHUNK_ID))
    except NotFound:
        return None


def test_each_chunk_and_record_is_one_object(gateway: S3Server, direct: BucketStore) -> None:
    direct.put(DATASET_ID, CHUNK_ID, [b"content"])
    direct.put_record("users", b"x")
    names = [f"{DATASET_ID.hex()}/{chunk_name(CHUNK_ID)}", "records/users"]
    assert gateway.keys(PREFIX) == [f"{PREFIX}/{name}" for name in sorted(names)]


CONTENT = bytes(range(256)) * 1000


def cut_at(cut: int, is_done: bool) -> Rule:
    """The writer dies at request `cut`, which the server carries out or not."""
    return lambda request, number: Pass() if number < cut else Reset(is_done and number == cut)


@pytest.mark.parametrize("is_done", [False, True])
def test_a_put_cut_at_any_request_leaves_all_or_nothing(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy, is_done: bool
) -> None:
    """`is_done`: the last request of the writer arrives; its answer does not."""
    doomed = opened(gateway.url(PREFIX, proxy.endpoint))
    cut = 0
    while True:
        proxy.obey(cut_at(cut, is_done))
        try:
            doomed.put(DATASET_ID, CHUNK_ID, [CONTENT])
            break
        except Unavailable:
            is_stored = get(direct) is not None
        assert get(direct) == (CONTENT if is_stored else None)
        assert list(direct.list_chunks(DATASET_ID)) == ([CHUNK_ID] if is_stored else [])
        assert is_stored == is_done
        proxy.obey(lambda request, number: Pass())
        if is_stored:
            with pytest.raises(AlreadyExists):
                doomed.put(DATASET_ID, CHUNK_ID, [CONTENT])
        direct.delete_dataset(DATASET_ID)
        assert gateway.keys(f"{PREFIX}/{DATASET_ID.hex()}") == []
        cut += 1
    assert cut == 1 and get(direct) == CONTENT


def test_a_large_record_cut_at_any_request_is_the_old_or_the_new_one(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    old, new = b"1" * (PART_BYTES + 1), b"2" * (PART_BYTES + 2)
    doomed = opened(gateway.url(PREFIX, proxy.endpoint), part_retries_max=0)
    for is_done in (False, True):
        direct.put_record("tag-large", old)
        cut = 0
        while True:
            proxy.obey(cut_at(cut, is_done))
            try:
                doomed.put_record("tag-large", new)
                break
            except Unavailable:
                is_completed = is_done and "uploadId" in proxy.requests[cut] and "POST" in proxy.requests[cut]
                assert direct.get_record("tag-large") == (new if is_completed else old)
                assert direct.list_records("") == ["tag-large"]
            direct.put_record("tag-large", old)
            cut += 1
        assert cut == 4  # the upload begins, two parts, the upload ends
        assert direct.get_record("tag-large") == new
    client = gateway.client()
    for row in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
        client.abort_multipart_upload(Bucket=BUCKET, Key=row["Key"], UploadId=row["UploadId"])


def test_a_record_that_is_replaced_while_it_is_read_is_read_again(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    old, new = b"1" * (2 * PART_BYTES), b"2" * (3 * PART_BYTES)
    direct.put_record("tag-large", old)
    reader = opened(gateway.url(PREFIX, proxy.endpoint))

    def replace(request: str, number: int) -> Action:
        if number == 2:
            direct.put_record("tag-large", new)
        return Pass()

    proxy.obey(replace)
    assert reader.get_record("tag-large") == new


def test_an_answer_that_breaks_off_is_read_again(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    direct.put(DATASET_ID, CHUNK_ID, [CONTENT])
    reader = retried(opened(gateway.url(PREFIX, proxy.endpoint)))
    proxy.obey(lambda request, number: Truncate(1000) if number < 2 else Pass())
    assert reader.get_range(DATASET_ID, CHUNK_ID, 0, len(CONTENT)) == CONTENT
    assert len(proxy.requests) == 3


def test_a_server_that_is_silent_costs_a_bounded_time(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    direct.put(DATASET_ID, CHUNK_ID, [CONTENT])
    store = opened(gateway.url(PREFIX, proxy.endpoint), SHORT_TIMEOUT_S)
    proxy.obey(lambda request, number: Silence())
    with pytest.raises(Unavailable, match=f"object store s3://{BUCKET}/{PREFIX}: .*: no answer in time"):
        store.get_range(DATASET_ID, CHUNK_ID, 0, 1)
    with pytest.raises(Unavailable, match="no answer in time"):
        store.put(DATASET_ID, CHUNK_ID, [b"x"])


def test_a_wrong_clock_is_said_and_not_tried_again(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    store = retried(opened(gateway.url(PREFIX, proxy.endpoint)))
    proxy.obey(lambda request, number: Answer(403, "RequestTimeTooSkewed"))
    with pytest.raises(
        Unavailable, match=r"RequestTimeTooSkewed: said the proxy; the clocks .* differ: set the time"
    ):
        store.put(DATASET_ID, CHUNK_ID, [b"x"])
    assert len(proxy.requests) == 1


def test_a_refused_create_without_an_object_is_tried_again(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    store = retried(opened(gateway.url(PREFIX, proxy.endpoint)))
    proxy.obey(lambda request, number: Answer(409, "ConditionalRequestConflict") if number == 0 else Pass())
    store.put(DATASET_ID, CHUNK_ID, [CONTENT])
    assert get(direct) == CONTENT


def test_a_fast_tier_serves_what_it_has_while_the_bucket_is_away(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy, tmp_path: Path
) -> None:
    builder = ChunkBuilder()
    builder.add_file(b"file", CONTENT, 0o644, 0)
    chunk = b"".join(builder.seal().encode(CHUNK_ID, "data", DATASET_ID, first_version=1))
    slow = gateway.url(PREFIX, proxy.endpoint)
    store = open_store(f"tiered:fast=posix://{tmp_path}/fast,slow={slow},size=1GiB", is_new=True)
    try:
        assert isinstance(store, TieredStore)
        store.put(DATASET_ID, CHUNK_ID, [chunk])
        store.wait_until_idle()
        proxy.obey(lambda request, number: Answer(503, "SlowDown"))
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, len(chunk)) == chunk == get(direct)
        assert proxy.requests == []
    finally:
        proxy.obey(lambda request, number: Pass())
        store.close()


def test_storage_without_conditional_put_is_refused(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    proxy.obey(lambda request, number: Answer(200, "") if "PUT" in request else Pass())
    with pytest.raises(InvalidInput, match=r"^store s3://x: this storage has no conditional put"):
        check_exclusive(opened(gateway.url(PREFIX, proxy.endpoint)), "s3://x")


def test_storage_that_loses_conditional_put_takes_no_more_writes(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    now_s = 0.0
    store = BucketStore(Bucket(BucketUrl.parse(gateway.url(PREFIX, proxy.endpoint))), lambda: now_s)
    store.put(DATASET_ID, CHUNK_ID, [b"first"])
    proxy.obey(lambda request, number: Answer(200, "") if "PUT" in request else Pass())
    now_s = EXCLUSIVE_CHECK_S
    for _ in range(2):  # each write tries again
        with pytest.raises(Unavailable, match="no conditional put"):
            store.put(DATASET_ID, CHUNK_ID, [b"second"])
    with pytest.raises(Unavailable, match="no conditional put"):
        store.create_record("name", b"")
    proxy.obey(lambda request, number: Pass())
    with pytest.raises(AlreadyExists):
        store.put(DATASET_ID, CHUNK_ID, [b"second"])
    assert store.create_record("name", b"") and get(direct) == b"first"


def test_a_truncated_object_is_damage(gateway: S3Server, direct: BucketStore) -> None:
    key = f"{PREFIX}/{DATASET_ID.hex()}/{chunk_name(CHUNK_ID)}"
    gateway.client().put_object(Bucket=BUCKET, Key=key, Body=b"12345")
    with pytest.raises(Damaged, match=f"chunk {chunk_name(CHUNK_ID)}: offset 2"):
        direct.get_range(DATASET_ID, CHUNK_ID, 2, 10)


def test_objects_of_others_are_not_listed(gateway: S3Server, direct: BucketStore) -> None:
    direct.put(DATASET_ID, CHUNK_ID, [b"x"])
    direct.put_record("users", b"x")
    for key in (
        f"{DATASET_ID.hex()}/zzz",
        f"{DATASET_ID.hex()}/folder/name",
        "records/Foreign",
        "other/thing",
    ):
        gateway.client().put_object(Bucket=BUCKET, Key=f"{PREFIX}/{key}", Body=b"")
    assert list(direct.list_chunks(DATASET_ID)) == [CHUNK_ID]
    assert list(direct.list_datasets()) == [DATASET_ID]
    assert direct.list_records("") == ["users"]


def test_listing_since_then_asks_for_no_earlier_names(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    for time_s in (100, 200):
        direct.put(DATASET_ID, chunk_at(time_s), [b"x"])
    watched = opened(gateway.url(PREFIX, proxy.endpoint))
    proxy.obey(lambda request, number: Pass())
    assert list(watched.list_chunks(DATASET_ID, 200)) == [chunk_at(200)]
    (request,) = proxy.requests
    assert f"start-after=a%2Fprefix%2F{DATASET_ID.hex()}%2F{chunk_name(chunk_at(200))[:5]}" in request


def test_calls_cost_as_many_requests_however_many_datasets_there_are(
    gateway: S3Server, proxy: HttpProxy
) -> None:
    store, asked = opened(gateway.url("names", proxy.endpoint)), list[dict[str, int]]()
    names = DatasetNames(store)
    names.claim("dropped", OTHER_ID)
    names.release("dropped", OTHER_ID)
    proxy.obey(lambda request, number: Pass())

    def requests(call: Callable[[], object]) -> int:
        before = len(proxy.requests)
        call()
        return len(proxy.requests) - before

    with closing(SqliteMetadata(":memory:")) as metadata:
        for number in range(12):
            dataset_id = bytes([number]) * 16
            new = requests(partial(names.claim, f"set-{number}", dataset_id))
            store.put(dataset_id, CHUNK_ID, [b"x"])
            metadata.create_dataset(f"set-{number}", dataset_id)
            asked.append(
                {
                    "a new name": new,
                    "its dataset at the start of a server": requests(
                        partial(names.claim, "set-0", bytes(16))
                    ),
                    "a name that was dropped": requests(partial(names.find, "dropped")),
                    "a name that does not exist": requests(partial(Catalog(store, metadata).dataset, "none")),
                    "lost datasets": requests(Catalog(store, metadata).lost_datasets),
                }
            )
    assert asked == [dict(zip(asked[0], (2, 1, 3, 2, 1), strict=True))] * 12


def test_a_store_may_be_the_whole_bucket(gateway: S3Server, direct: BucketStore) -> None:
    direct.put(OTHER_ID, CHUNK_ID, [b"of the store with a prefix"])
    store = opened(gateway.url())
    store.put(DATASET_ID, CHUNK_ID, [b"x"])
    store.put_record("users", b"x")
    assert list(store.list_datasets()) == [DATASET_ID] and list(direct.list_datasets()) == [OTHER_ID]
    assert store.list_records("") == ["users"] and direct.list_records("") == []
    store.delete_dataset(DATASET_ID)
    store.delete_record("users")
    assert list(store.list_datasets()) == [] and list(direct.list_datasets()) == [OTHER_ID]


def test_more_objects_than_one_request_lists(
    gateway: S3Server, direct: BucketStore, proxy: HttpProxy
) -> None:
    chunk_ids = [chunk_at(7, number) for number in range(1050)]
    for chunk_id in chunk_ids:
        direct.put(DATASET_ID, chunk_id, [b"x"])
    assert list(direct.list_chunks(DATASET_ID)) == chunk_ids
    remover = opened(gateway.url(PREFIX, proxy.endpoint))
    proxy.obey(lambda request, number: Pass())
    remover.delete_dataset(DATASET_ID)
    assert list(direct.list_chunks(DATASET_ID)) == []
    assert len(proxy.requests) <= 6  # not one for each chunk


def test_ids_and_names_are_checked(direct: BucketStore) -> None:
    with pytest.raises(InvalidInput):
        direct.put(b"short", CHUNK_ID, [b""])
    for name in ("", "a/b", "Users", "a.b"):
        with pytest.raises(InvalidInput):
            direct.put_record(name, b"")
