"""What programs and daemons have kept with release 0.1 (`tests/samples/release-0.1`) means the same now.

`tests/support/release_states.py` has written the files, with the code of that release.
"""

import json
import pickle  # noqa: TID251  # programs pickle objects of the library
from pathlib import Path
from typing import Any

import pytest
import torch

from dieselfs.importance.scored_files import ScoredFiles
from dieselfs.shuffle.opportunistic import Parts, ServedLog, served
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.share_name import ShareName
from tests.support import release_states as made

KEPT = Path(__file__).parents[1] / "samples" / "release-0.1"
STATES: dict[str, Any] = json.loads((KEPT / "states.json").read_text())
PLAN = Plan(made.FOLDER.snapshot, made.SPEC)


@pytest.mark.parametrize("name", made.DATASETS)
def test_a_sampler_continues(name: str) -> None:
    sampler = made.sampler_of(name)
    sampler.load_state_dict(STATES[name]["state"])
    assert sampler.state_dict() == STATES[name]["state"]
    assert made.following(sampler) == STATES[name]["next"]


def test_a_sampler_by_importance_continues() -> None:
    sampler = made.importance_sampler()
    sampler.load_state_dict(torch.load(KEPT / "importance-sampler.pt", weights_only=True))
    assert made.following(sampler) == STATES["importance"]["next"]


def test_a_cursor_and_the_name_of_a_share_lead_to_the_same_files() -> None:
    found = STATES["plan"]
    assert str(PLAN.cursor(11)) == found["cursor"]
    share = ShareName.parse(found["share"].encode()).share(lambda spec: Plan(made.FOLDER.snapshot, spec))
    assert str(ShareName.of(share)) == found["share"]
    assert share.nodes().tolist() == found["nodes"]


def test_an_opportunistic_order_is_repeated_from_its_log() -> None:
    log = ServedLog.parse(STATES["opportunistic"]["log"])
    parts = Parts(PLAN.layout, log.seed, log.epoch, log.rank, log.world)
    assert served(parts, log).nodes.tolist() == STATES["opportunistic"]["nodes"]


def test_a_daemon_takes_over_scores_and_orders() -> None:
    scored, files = ScoredFiles(made.FOLDER.snapshot), made.files_of(made.FOLDER.snapshot)
    scored.load((KEPT / "scores.npz").read_bytes())
    assert scored.scored == len(files)
    assert scored.order(made.KEY, files).tolist() == STATES["scores"]["nodes"]


def test_pickled_objects_are_equal_to_new_ones() -> None:
    found = pickle.loads((KEPT / "objects.pickle").read_bytes())
    assert found == {
        "cursor": PLAN.cursor(11),
        "spec": made.SPEC,
        "reader": made.READER,
        "log": ServedLog.parse(STATES["opportunistic"]["log"]),
    }
