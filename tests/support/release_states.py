"""Write what programs and daemons of a release keep for the next one: `python -m tests.support.release_states FOLDER`.

Run it with the code of the release. `tests/dieselfs/test_release_states.py` reads the files with the present code.
"""

import json
import pickle  # noqa: TID251  # programs pickle objects of the library
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from dieselfs.arrays import Nodes
from dieselfs.importance.score_lines import LossBatch
from dieselfs.importance.scored_files import OrderKey, ScoredFiles
from dieselfs.samples.mixture import Mixture
from dieselfs.samples.order import Ordered
from dieselfs.samples.sampler_state import SamplerState
from dieselfs.shuffle.opportunistic import OpportunisticOrder, Parts, log_of
from dieselfs.shuffle.plan import Plan
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.skips import Skips
from dieselfs.shuffle.spec import PlanSpec, ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.torch import ImportanceSampler
from tests.support.shuffled_folder import ShuffledFolder

SAMPLES, BATCH, STEPS = 90, 10, 4
SPEC = PlanSpec(5, 1, 3, Skips([range(20, 24)]), b"train")
READER = ReaderSpec(1, 3, 7, 11)
KEY = OrderKey(b"", 5, 2)
FOLDER, OTHER = ShuffledFolder(SAMPLES), ShuffledFolder(15, classes=2)
DATASETS: dict[str, Ordered] = {"folder": FOLDER, "mixture": Mixture([FOLDER, OTHER], [1, 2], 60)}


def following(sampler: Any) -> list[list[int]]:
    """The next steps, all of them trained on; the loss of a sample is its number."""
    steps = []
    is_drawn = isinstance(sampler, ImportanceSampler)
    for step in sampler if is_drawn else (step for _, step in sampler.steps(sampler.position)):
        sampler.advance()
        if is_drawn:
            sampler.record(np.array(step, np.float64))
        steps.append(step)
        if len(steps) == STEPS:
            break
    return steps


def sampler_of(name: str) -> SamplerState:
    return SamplerState(DATASETS[name], BATCH, seed=5, group_chunks=3, rank=0, world=1)


def importance_sampler() -> ImportanceSampler:
    return ImportanceSampler(TensorDataset(torch.arange(SAMPLES)), BATCH, seed=5, rank=0, world=1)


def files_of(snapshot: Snapshot) -> Nodes:
    """All files, ascending: shape (n,)."""
    return np.sort(Plan(snapshot, PlanSpec()).nodes())


def main() -> None:
    folder = Path(sys.argv[1])
    states: dict[str, Any] = {}
    for name in DATASETS:
        sampler = sampler_of(name)
        sampler.set_epoch(1)
        following(sampler)
        states[name] = {"state": sampler.state_dict(), "next": following(sampler)}
    drawn = importance_sampler()
    following(drawn)
    torch.save(drawn.state_dict(), folder / "importance-sampler.pt")
    states["importance"] = {"next": following(drawn)}

    plan = Plan(FOLDER.snapshot, SPEC)
    share = plan.share(READER.rank, READER.world, READER.batch, READER.start)
    states["plan"] = {
        "cursor": str(plan.cursor(11)),
        "share": str(ShareName.of(share)),
        "nodes": share.nodes().tolist(),
    }
    parts = Parts(plan.layout, SPEC.seed, SPEC.epoch, 1, 3)
    order = OpportunisticOrder(parts, SPEC.seed, SPEC.epoch)
    nodes = []
    for part in parts.order:
        order.arrive(part)
        nodes += order.draw(2)
    nodes += order.draw(order.available)
    log = log_of(plan.cursor(0).snapshot, SPEC, ReaderSpec(1, 3), order.arrivals)
    states["opportunistic"] = {"log": str(log), "nodes": nodes}

    scored, files = ScoredFiles(FOLDER.snapshot), files_of(FOLDER.snapshot)
    paths = [FOLDER.snapshot.path(int(node)) for node in files]
    scored.take(LossBatch(paths, np.arange(float(len(paths)))))
    states["scores"] = {"nodes": scored.order(KEY, files).tolist()}
    (folder / "scores.npz").write_bytes(scored.encode())

    pickled = {"cursor": plan.cursor(11), "spec": SPEC, "reader": READER, "log": log}
    (folder / "objects.pickle").write_bytes(pickle.dumps(pickled))
    (folder / "states.json").write_text(json.dumps(states) + "\n")


if __name__ == "__main__":
    main()
