"""The lease of maintenance: one job of a dataset, until it ends or its server has crashed."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from dieselfs.errors import NotFound
from dieselfs_server.leases.lease import LEASE_S, NOTE, Excluded, SeenLeases, end_lease, take_lease
from dieselfs_server.metadata.sqlite.store import SqliteMetadata

DATASET = bytes(range(16))
NOW_NS = 1_800_000_000 * 10**9
EXPIRED_NS = NOW_NS + LEASE_S * 10**9


@pytest.fixture
def metadata() -> Iterator[SqliteMetadata]:
    with closing(SqliteMetadata(":memory:")) as store:
        store.create_dataset("data", DATASET)
        yield store


def test_one_job_has_it_until_it_ends(metadata: SqliteMetadata) -> None:
    take_lease(metadata, DATASET, "fsck (a)", NOW_NS)
    take_lease(metadata, DATASET, "fsck (a)", NOW_NS + 1)  # renewed
    with pytest.raises(Excluded, match=r"fsck \(a\) is running on another server"):
        take_lease(metadata, DATASET, "purge (b)", EXPIRED_NS)
    end_lease(metadata, DATASET, "purge (b)")  # not its own
    with pytest.raises(Excluded):
        take_lease(metadata, DATASET, "purge (b)", NOW_NS)
    end_lease(metadata, DATASET, "fsck (a)")
    end_lease(metadata, DATASET, "fsck (a)")
    take_lease(metadata, DATASET, "purge (b)", NOW_NS)


def test_a_crashed_server_excludes_others_for_a_while(metadata: SqliteMetadata) -> None:
    take_lease(metadata, DATASET, "fsck (a)", NOW_NS)
    with pytest.raises(Excluded):
        take_lease(metadata, DATASET, "purge (b)", EXPIRED_NS - 1)
    take_lease(metadata, DATASET, "purge (b)", EXPIRED_NS)
    with pytest.raises(Excluded):
        take_lease(metadata, DATASET, "fsck (a)", EXPIRED_NS)  # it has lost it


def test_a_renewal_takes_the_lease_from_nobody(metadata: SqliteMetadata) -> None:
    """Neither from one whose lease has ended, nor a lease that is gone."""
    now_s = [0.0]
    seen = SeenLeases(lambda: now_s[0])

    def renew(holder: str) -> None:
        take_lease(metadata, DATASET, holder, EXPIRED_NS, NOTE, seen, is_renewal=True)

    with pytest.raises(Excluded, match=r"fsck \(a\) has lost its lease"):
        renew("fsck (a)")
    take_lease(metadata, DATASET, "fsck (a)", NOW_NS)
    for _ in range(2):
        with pytest.raises(Excluded, match=r"fsck \(a\) is running on another server"):
            renew("purge (b)")
        now_s[0] += LEASE_S
    renew("fsck (a)")  # it has expired, and nobody has taken it
    with pytest.raises(Excluded):
        take_lease(metadata, DATASET, "purge (b)", EXPIRED_NS)


def test_lost_metadata_has_no_lease(metadata: SqliteMetadata) -> None:
    for ask in (take_lease, lambda *_: end_lease(metadata, bytes(16), "a")):
        with pytest.raises(NotFound):
            ask(metadata, bytes(16), "a", NOW_NS)
