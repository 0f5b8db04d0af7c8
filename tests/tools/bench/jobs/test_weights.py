"""What `bench weights` reads is the whole model, in each way."""

from pathlib import Path

from bench.jobs.weights import TENSOR_BYTES, WAYS, make_weights


def test_each_way_reads_all_bytes(tmp_path: Path) -> None:
    made = {path.suffix: path for path in make_weights(tmp_path / "model", 2)}
    assert {suffix: way(made[suffix]) for suffix, way in WAYS.items()} == dict.fromkeys(
        WAYS, 2 * TENSOR_BYTES
    )
