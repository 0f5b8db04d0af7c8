"""Batches that are loaded for real, in a network of its own."""

from pathlib import Path

import pytest

from bench.papers import sample_loads
from bench.papers.importance import loaded
from bench.papers.sample_loads import MISS_MS
from bench.simulations.load_times import COMPUTING_MS
from dieselfs.samples.sample_store import SampleStore
from tests.support.network import skipping


def test_each_batch_of_an_epoch_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_loads, "can_drop_caches", lambda: False)
    read: list[int] = []

    class Store(SampleStore):
        def read(self, sample: int) -> bytes | None:
            read.append(sample)
            return super().read(sample)

    monkeypatch.setattr(sample_loads, "SampleStore", Store)
    with skipping(), sample_loads.sample_loads(tmp_path, 20, 500) as loads:
        loads_ms = loads.loads_ms([*range(20), 3, 4], 8, [8, 0, 3])
    assert len(loads_ms) == 3 and min(loads_ms) > 0
    assert read == [*range(8, 16), 19, 3, 4]  # the hits


def test_a_step_takes_as_long_as_the_slower_of_loading_and_computing() -> None:
    run = loaded(sample_loads.ModelLoads(), range(150), 64, [64, 8, 3])
    assert run.duration_s == pytest.approx((64 * MISS_MS + 2 * COMPUTING_MS) / 1e3)
    assert run.seen["% hits"] == pytest.approx(50)
    assert run.seen["ms to load a batch"] == pytest.approx(25 * MISS_MS)
