"""The command line of the simulator."""

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from itertools import count, islice

from tests.simulation import clients, disk, exchanges, jobs, redis_model, seams, servers
from tests.simulation.mutants import MUTANTS, may_find, mutated
from tests.simulation.runner import Outcome, simulate
from tests.simulation.scenario import scenario_of
from tests.simulation.shrinking import shrink
from tests.simulation.world import Course


def main(arguments: list[str]) -> None:
    for part in (disk, servers, clients, redis_model, jobs, exchanges):
        part.install()
    parser = argparse.ArgumentParser("python -m tests.simulation", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("run", help="run one seed, and print its trace")
    one.add_argument("seed", type=int)
    one.add_argument("--steps", type=_numbers, help="only these steps")
    one.add_argument("--faults", type=_numbers, help="only these faults")
    many = verbs.add_parser("seeds", help="run seeds one after the other")
    many.add_argument("first", type=int)
    many.add_argument("count", type=int)
    many.add_argument("--no-shrink", action="store_true")
    many.add_argument("--with-job", action="store_true", help="only those that have a job of nodes")
    many.add_argument("--digests", action="store_true", help="print the digest of each trace")
    many.add_argument("--jobs", type=int, default=1, help="processes; 0: one for each processor")
    many.add_argument("--time", type=float, default=float("inf"), help="begin no seed after so many seconds")
    old = verbs.add_parser(
        "mutants", help="put known faults into the product, and count the seeds that find them"
    )
    old.add_argument(
        "--seeds", type=int, default=300, help="seeds to try for each, of those that may find it"
    )
    old.add_argument("--shrink", action="store_true", help="make the runs that find them smaller")
    old.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    if options.verb == "mutants":
        sys.exit(_mutants(options.names or list(MUTANTS), options.seeds, options.shrink))
    if options.verb == "run":
        outcome = simulate(Course(options.seed, options.steps, options.faults), is_verbose=True)
        for violation in outcome.violations:
            print(f"violated: {violation}")
        print(f"{outcome.virtual_s:.0f} s, faults {outcome.faults}, trace {outcome.digest}")
        sys.exit(bool(outcome.violations))
    sys.exit(_seeds(options))


def _numbers(text: str) -> frozenset[int]:
    return frozenset() if text == "none" else frozenset(map(int, text.split(",")))


PROGRESS_S = 60.0
"""How often a batch prints where it is."""


@dataclass
class _Tally:
    """What runs have come to. `following`: the first seed that was not run."""

    following: int = 0
    seeds: int = 0
    acknowledged: int = 0
    faults: int = 0
    failed: int = 0


def _seeds(options: argparse.Namespace) -> int:
    first, jobs = options.first, options.jobs or len(os.sched_getaffinity(0))
    seeds = range(first, first + options.count)
    began_s = seams.real_monotonic()
    if jobs == 1:
        tallies = [_share(options, seeds)]
    else:
        tallies = _in_processes(options, [seeds[number::jobs] for number in range(jobs)])
    took_s = seams.real_monotonic() - began_s
    ran, failed = sum(each.seeds for each in tallies), sum(each.failed for each in tallies)
    following = min((each.following for each in tallies), default=first)
    print(
        f"{ran} seeds, {first} to {following - 1}, in {took_s:.1f} s ({ran / took_s:.2f} a second): "
        f"{sum(each.acknowledged for each in tallies)} writes acknowledged, "
        f"{sum(each.faults for each in tallies)} faults, {failed} seeds failed",
        flush=True,
    )
    if following < seeds.stop:
        print(f"continue with: seeds {following} {seeds.stop - following}", flush=True)
    return 1 if failed else 0


def _share(options: argparse.Namespace, seeds: range) -> _Tally:
    """Run seeds one after the other."""
    began_s, tally = seams.real_monotonic(), _Tally(seeds.stop)
    shown_s = began_s
    for seed in seeds:
        now_s = seams.real_monotonic()
        if now_s - began_s > options.time:
            tally.following = seed
            break
        if now_s - shown_s > PROGRESS_S:
            shown_s = now_s
            print(
                f"at seed {seed}: {tally.seeds} seeds, {tally.failed} failed, {now_s - began_s:.0f} s",
                flush=True,
            )
        if options.with_job and scenario_of(seed).job is None:
            continue
        outcome = simulate(Course(seed))
        if options.digests:
            print(f"{seed} {outcome.digest}", flush=True)
        tally.seeds, tally.acknowledged = tally.seeds + 1, tally.acknowledged + outcome.acknowledged
        tally.faults += len(outcome.faults)
        if outcome.violations:
            tally.failed += 1
            _report(shrink(outcome) if not options.no_shrink else outcome)
    return tally


def _in_processes(options: argparse.Namespace, shares: list[range]) -> list[_Tally]:
    """Run each share in a process of its own; what each has come to."""
    children = []
    for share in shares:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, json.dumps(asdict(_share(options, share))).encode())
            os._exit(0)
        os.close(writing)
        children.append((child, reading))
    tallies = []
    for child, reading in children:
        with open(reading, "rb") as pipe:
            content = pipe.read()
        os.waitpid(child, 0)
        # One that has ended has printed where it was.
        tallies.append(_Tally(**json.loads(content)) if content else _Tally(failed=1))
    return tallies


def _report(outcome: Outcome) -> None:
    sys.stdout.write(
        f"{outcome.violations[0]}\n    {outcome.course.command()}\n"
    )  # other processes print, too
    sys.stdout.flush()


def _mutants(names: list[str], seeds: int, is_shrunk: bool) -> int:
    """A line for each mutant; how many were not found."""
    missed = 0
    for name in names:
        with mutated(name):
            tried = islice((seed for seed in count() if may_find(name, scenario_of(seed))), seeds)
            outcomes = (simulate(Course(seed)) for seed in tried)
            found = next((outcome for outcome in outcomes if outcome.violations), None)
            if found is not None and is_shrunk:
                found = shrink(found)
        missed += found is None
        what = (
            f"{found.violations[0]}\n    {found.course.command()}" if found else f"not found in {seeds} seeds"
        )
        print(f"{name}: {MUTANTS[name].what}\n    {what}", flush=True)
    return missed
