"""The metrics of a mount that belong to none of its parts alone: memory, hit rate, view, scores, plans. No I/O."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from dieselfs.prefetch.window import PlanWindow
from dieselfs.shuffle.plan import Share
from dieselfs.shuffle.share_name import ShareName
from dieselfs.shuffle.spec import ReaderSpec
from dieselfs.snapshot.reader import Snapshot
from dieselfs.telemetry import catalogue
from dieselfs.telemetry.registry import Registry
from dieselfs.telemetry.stalls import DAEMON_CAUSES, METER
from dieselfs_client.daemon.daemon_metrics import declare_daemon
from dieselfs_client.memory.budget import Allotment
from dieselfs_client.memory.chunk_cache import ChunkCache
from dieselfs_client.mount.points.view_choice import Choice
from dieselfs_client.prefetch.prefetcher import Prefetcher
from dieselfs_client.supervision.kept_scores import KeptScores


def declare_node(
    metrics: Registry,
    snapshot: Snapshot,
    allotment: Allotment,
    choice: Choice,
    chunk_cache: ChunkCache,
    prefetcher: Prefetcher,
    scores: KeptScores,
    clock: Callable[[], float],
) -> None:
    """Declare the metrics in `metrics`; they are read from the other arguments. `clock` is in seconds."""
    for part, size_bytes in asdict(allotment).items():
        metrics.declare(catalogue.MEMORY_ALLOTTED_BYTES, part=part).value = size_bytes
    used: dict[str, Callable[[], int]] = {
        "evictable": lambda: chunk_cache.policy.evictable_bytes,
        "window": lambda: prefetcher.budget.window_bytes,
        "pinned": lambda: prefetcher.budget.pinned_bytes,
        "tripwires": lambda: prefetcher.tripwires.held_bytes,
    }
    declare_daemon(metrics, snapshot, allotment.total, used, clock)
    for cause in DAEMON_CAUSES:
        metrics.declare(catalogue.WORK_SPENT_S, partial(METER.spent_for, cause), cause=cause)
    dataset_bytes = prefetcher.table.total_page_bytes
    best = round(min(allotment.pinned / max(dataset_bytes, 1), 1), 4)
    metrics.declare(catalogue.HIT_RATE_BEST_POSSIBLE).value = best
    metrics.gauge(
        "hit_rate.actual", "Pinned share of the planned bytes.", partial(_actual_hit_rate, prefetcher)
    )
    metrics.info("view", "How the kernel shows the files, and why no better way is possible.", choice.fields)
    scored = scores.files
    metrics.gauge("importance.batches", "Batches of losses that were written.", lambda: scored.batches)
    metrics.gauge("importance.scored_files", "Files that have a score.", lambda: scored.scored)
    metrics.info("importance_orders", "The orders that were drawn last, with checksums.", scored.orders)
    metrics.declare(
        catalogue.PLANS,
        lambda: [_plan(window, snapshot.chunk_count, dataset_bytes) for window in prefetcher.windows],
    )


def _actual_hit_rate(prefetcher: Prefetcher) -> float | None:
    planned_bytes = prefetcher.planned.value
    return round(prefetcher.planned_hits.value / planned_bytes, 4) if planned_bytes else None


def _plan(window: PlanWindow, chunk_count: int, dataset_bytes: int) -> dict[str, Any]:
    spec = window.plan.spec
    return {
        "order": str(ShareName.of(Share(window.plan, ReaderSpec()))),
        "policy": spec.policy,
        "seed": spec.seed,
        "epoch": spec.epoch,
        "group": spec.group_chunks,
        "group_bytes": _group_bytes(window, max(chunk_count, 1), dataset_bytes),
        "positions": len(window.plan),
        "fetched_to": window.ahead,
        "dropped_to": window.behind,
        "files_per_s": window.rate(),
        "readers": [
            {
                "rank": share.rank,
                "world": share.world,
                "worker": share.reader.worker,
                "position": position,
            }
            for share, position in window.positions()
        ],
    }


def _group_bytes(window: PlanWindow, chunks: int, dataset_bytes: int) -> int:
    """The files of an average group that the readers here read."""
    group_chunks = min(window.plan.spec.group_chunks or chunks, chunks)
    ranks = {(share.rank, share.world) for share, _ in window.positions()}
    return round(dataset_bytes * group_chunks / chunks * min(sum(1 / world for _, world in ranks), 1))
