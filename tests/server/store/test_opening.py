"""The URLs of object stores."""

from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, KIB
from dieselfs.settings.table import BY_NAME
from dieselfs_server.store import rados_pool
from dieselfs_server.store.opening import STORES, TIERED_FORM, folders, open_store, tier_options
from lab.ceph import RunningCeph
from tests.conformance.chunk_store_suite import CHUNK_ID, DATASET_ID
from tests.support.ceph import needs_ceph

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "url",
    [
        "memory:",
        "posix://{folder}/chunks",
        "tiered:fast=posix://{folder}/fast,slow=posix://{folder}/slow,size=1GiB",
    ],
)
def test_a_store_is_opened_and_works(url: str, tmp_path: Path) -> None:
    store = open_store(url.format(folder=tmp_path), is_new=True)
    try:
        store.put(DATASET_ID, CHUNK_ID, [b"content"])
        assert store.get_range(DATASET_ID, CHUNK_ID, 0, 7) == b"content"
        store.put_record("users", b"x")
        assert list(store.list_datasets()) == [DATASET_ID]
    finally:
        store.close()


@needs_ceph
def test_a_pool_is_opened_and_works(ceph: RunningCeph, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("ANSWER_TIMEOUT_S", "CHANGE_TIMEOUT_S"):  # of a cluster with a machine of its own
        monkeypatch.setattr(rados_pool, limit, rados_pool.OPERATION_TIMEOUT_S)
    store = open_store(ceph.url("data"), is_new=True)
    try:
        store.put_record("opened", b"x")
        assert store.get_record("opened") == b"x"
        store.delete_record("opened")
    finally:
        store.close()


@pytest.mark.parametrize(
    "url",
    [
        "posix:",
        "s4://bucket",
        "s3://",
        "s3://bucket?key=x",
        "gs://bucket?region=x",
        "az://x",
        "/folder",
        "rados://?conf=x",
        "rados://pool?config=x",
        "rados://pool?user=admin",
        "tiered:fast=memory:,slow=memory:",
        "tiered:fast=memory:,slow=memory:,size=1X",
        "tiered:fast=memory:,slow=memory:,size=0GiB",
        "tiered:fast=memory:,slow=memory:,size=1GiB,size=2GiB",
        "tiered:fast=tiered:x,slow=memory:,size=1GiB",
        "tiered:fast=memory:,slow=nothing:,size=1GiB",
    ],
)
def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url, is_new=True)


def test_an_unknown_kind_of_store_is_told_all_that_there_are() -> None:
    with pytest.raises(InvalidInput) as caught:
        open_store("s4://bucket", is_new=True)
    for form in (*(kind.form for kind in STORES.values()), TIERED_FORM):
        assert form in str(caught.value)


def test_help_and_guide_have_all_kinds_of_stores() -> None:
    """The table of settings is in the library, which does not know the stores of the server."""
    guide = (ROOT / "docs/guide/object-stores.md").read_text()
    for scheme in (*STORES, "tiered"):
        assert f"{scheme}:" in BY_NAME["store"].help and f"`{scheme}:" in guide, scheme


def test_values_of_tiers_may_hold_commas() -> None:
    slow = "rados://pool?conf=/etc/a,b.conf&user=client.x"
    options = tier_options(f"tiered:slow={slow},fast=posix:///ssd,1,size=3TiB")
    assert options == ("posix:///ssd,1", slow, 3072 * GIB)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("7KiB", 7 * KIB), ("3TiB", 3072 * GIB), ("64G", 64 * GIB), ("64GB", 64 * 10**9)]
)
def test_the_size_of_the_fast_tier_has_units(text: str, size_bytes: int) -> None:
    assert tier_options(f"tiered:fast=memory:,slow=memory:,size={text}")[2] == size_bytes


@pytest.mark.parametrize("text", ["0", "0GiB", "much"])
def test_a_size_that_cannot_be_is_said_with_its_url(text: str) -> None:
    with pytest.raises(InvalidInput, match=f"^store 'tiered:.*size={text}': size.*200GiB|write for example"):
        tier_options(f"tiered:fast=memory:,slow=memory:,size={text}")


def test_the_folders_of_a_store() -> None:
    assert folders("posix:///data/a%20b") == ["/data/a b"]
    assert folders("tiered:fast=posix:///ssd,slow=rados://pool,size=1GiB") == ["/ssd"]
    assert folders("memory:") == folders("s3://bucket") == []
