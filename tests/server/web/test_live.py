"""Samples for everybody who watches."""

import json
from collections.abc import Iterator

from dieselfs.telemetry.registry import Registry, Report
from dieselfs_server.web.charts import SAMPLE_S
from dieselfs_server.web.live import Live
from tests.support.still_time import run_in_still_time, time_flies


def server() -> Registry:
    metrics = Registry()
    metrics.gauge("uptime_s", "", lambda: 1000)
    return metrics


def test_each_sample_reaches_all_and_daemons_are_asked_only_for_them() -> None:
    metrics = server()
    sent = metrics.counter("payloads.sent_bytes", "")
    asked: list[int] = []

    def mounts() -> Iterator[tuple[int, Report]]:
        asked.append(1)
        mount = server()
        mount.counter("fetches.chunk_bytes", "").value = 1000 * len(asked)
        yield 7, mount.report({"component": "mount", "dataset": "pets"})

    async def main() -> None:
        import trio

        live = Live(lambda: metrics.report({"component": "server"}), mounts)
        with time_flies():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live.run)
                await live.next()
                sent.value += 600
                first = json.loads(await live.next())
                assert first["sample"]["sent_bytes"] == 600 / SAMPLE_S
                assert (first["local"], asked) == ([], [])
                live.watchers = 1
                await live.next()
                third = json.loads(await live.next())
                assert third["local"][0]["about"]["dataset"] == "pets"
                assert third["sample"]["mount_bytes"] == 1000 / SAMPLE_S
                nursery.cancel_scope.cancel()
        assert len(live.charts.columns(600)["time"]) == 3

    run_in_still_time(main)


def test_a_metric_that_cannot_be_read_ends_nothing() -> None:
    metrics = server()
    metrics.gauge("rpc.connections", "", lambda: 1 / len(values))
    values: list[int] = []

    async def main() -> None:
        import trio

        live = Live(lambda: metrics.report({"component": "server"}), lambda: ())
        with time_flies():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(live.run)
                assert await live.next() == b"{}"
                values.append(1)
                await live.next()
                assert json.loads(await live.next())["sample"]["connections"] == 1
                nursery.cancel_scope.cancel()

    run_in_still_time(main)
