"""What a mount tells of its warmth is understood; over real mounts it is tried in tests/end_to_end/test_warm.py."""

from pathlib import Path

import pytest

from dieselfs.cluster.warmth import Warmth
from dieselfs.errors import Unavailable
from dieselfs_client.cluster.job_warmth import job_fields, warmth_fields
from dieselfs_client.mount.control.warmth import parsed, warm


def test_a_job_is_as_warm_as_its_nodes() -> None:
    nodes = {"a": Warmth(100, 100), "b": Warmth(10, 100, 1), "c": None}
    found = parsed(job_fields("training", "a", nodes, 400))
    assert (found.job, found.unknown, found.warm_nodes) == ("training", ("c",), 1)
    assert (found.whole, found.dataset_bytes) == (Warmth(110, 300, 1), 400)
    assert found.nodes == {"a": Warmth(100, 100), "b": Warmth(10, 100, 1)}


def test_a_mount_without_a_job_is_one_node() -> None:
    found = parsed({"dataset_bytes": 9, "node": warmth_fields(Warmth(7, 7)), "job": None})
    assert (found.job, found.whole, found.warm_nodes, found.unknown) == (None, Warmth(7, 7), 1, ())
    assert found.dataset_bytes == 9


def test_what_is_no_mount_has_no_warmth(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=str(tmp_path)):
        warm(str(tmp_path))
