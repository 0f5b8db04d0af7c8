"""The table of quotas and rates: its names are those of records, of calls and of what the server counts."""

from typing import Any

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.rpc.limit_kinds import (
    QUOTAS,
    RATES,
    LimitKind,
    QuotaRecord,
    RateRecord,
    UsageRecord,
    check_limits,
    limits_of,
    numbers_of,
)
from dieselfs.rpc.messages import thrift
from dieselfs_server.admission.quotas import Amount


def fields(struct: Any) -> set[str]:
    return {name for _, name, *_ in struct.thrift_spec.values()}


@pytest.mark.parametrize(
    ("kinds", "record", "struct"), [(QUOTAS, QuotaRecord, "QuotaInfo"), (RATES, RateRecord, "RateInfo")]
)
def test_each_kind_is_a_field_of_its_record_and_struct(
    kinds: tuple[LimitKind, ...], record: type[QuotaRecord] | type[RateRecord], struct: str
) -> None:
    names = {kind.name for kind in kinds}
    assert names == set(record._fields[1:]) == fields(getattr(thrift, struct)) - {record._fields[0]}
    assert len({kind.option for kind in kinds}) == len(names)


def test_each_quota_is_counted_and_shown_with_the_usage() -> None:
    assert Amount._fields == tuple(kind.name for kind in QUOTAS)
    named = {name for kind in QUOTAS for name in (kind.name, kind.field)}
    assert named <= set(UsageRecord._fields) and fields(thrift.UsageInfo) == set(UsageRecord._fields)
    assert all(kind.label and kind.remedy for kind in QUOTAS)


@pytest.mark.parametrize(("kinds", "record"), [(QUOTAS, QuotaRecord), (RATES, RateRecord)])
def test_limits_survive_the_way_through_a_record(
    kinds: tuple[LimitKind, ...], record: type[QuotaRecord] | type[RateRecord]
) -> None:
    for kind in kinds:
        limits = {kind.name: kind.least}
        assert limits_of(kinds, record("ada", **numbers_of(kinds, limits))) == limits
    assert limits_of(kinds, record("ada")) == {}


def test_texts_have_the_unit() -> None:
    texts = {kind.name: kind.text(2048) for kind in (*QUOTAS, *RATES)}
    assert texts == {
        "stored_bytes": "2.0 KiB",
        "files": "2,048 files",
        "bytes_per_s": "2.0 KiB/s",
        "job_bytes_per_s": "2.0 KiB/s for each job",
        "requests_per_s": "2,048 requests/s",
    }


@pytest.mark.parametrize("kind", [*QUOTAS, *RATES], ids=lambda kind: kind.name)
def test_what_is_too_low_or_no_number_is_refused(kind: LimitKind) -> None:
    kinds = QUOTAS if kind in QUOTAS else RATES
    check_limits(kinds, {kind.name: kind.least})
    with pytest.raises(InvalidInput, match="too low"):
        check_limits(kinds, {kind.name: kind.least - 1})
    for text in ("many", "-1", ""):
        with pytest.raises(InvalidInput):
            kind.parse(text)
    assert kind.parse("5") == 5
