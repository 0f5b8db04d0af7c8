"""A measured store keeps the contract, and counts each call."""

from pathlib import Path

import pytest

from dieselfs.errors import NotFound, Unavailable
from dieselfs.telemetry.registry import Registry
from dieselfs_server.store.measured import MeasuredStore
from dieselfs_server.store.memory import MemoryStore
from tests.conformance.chunk_store_suite import ChunkStoreSuite

DATASET, CHUNK = bytes(16), b"\1" * 16


class TestMeasuredStore(ChunkStoreSuite):
    def make_store(self, folder: Path) -> MeasuredStore:
        return MeasuredStore(MemoryStore(), Registry())


def test_calls_and_failures_are_counted_by_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, metrics = MemoryStore(), Registry()
    store = MeasuredStore(backend, metrics)
    store.put(DATASET, CHUNK, [b"x"])
    assert store.get_range(DATASET, CHUNK, 0, 1) == b"x"
    with pytest.raises(NotFound):  # an answer
        store.get_range(DATASET, bytes(16), 0, 1)

    def fails(name: str) -> bytes | None:
        raise Unavailable("away")

    fails.__name__ = "get_record"
    monkeypatch.setattr(backend, "get_record", fails)
    with pytest.raises(Unavailable):
        store.get_record("x")
    found = metrics.as_dict()["store"]
    assert {name: each["count"] for name, each in found["answered_s"].items()} == {
        "put": 1,
        "get_range": 2,
        "get_record": 1,
    }
    assert found["failures"] == {"get_record": 1}
