"""The command line of the simulator."""

import argparse
import faulthandler
import sys

from tests.simulation import clients, disk, redis_model, seams, servers
from tests.simulation.mutants import MUTANTS, mutated
from tests.simulation.runner import Outcome, simulate
from tests.simulation.shrinking import shrink
from tests.simulation.world import Course


def main(arguments: list[str]) -> None:
    for part in (disk, servers, clients, redis_model):
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
    many.add_argument("--digests", action="store_true", help="print the digest of each trace")
    many.add_argument("--time", type=float, default=float("inf"), help="begin no seed after so many seconds")
    old = verbs.add_parser(
        "mutants", help="put known faults into the product, and count the seeds that find them"
    )
    old.add_argument("--seeds", type=int, default=300, help="seeds to try for each")
    old.add_argument("--shrink", action="store_true", help="make the runs that find them smaller")
    old.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    faulthandler.dump_traceback_later(600, exit=True)  # a run that waits for something real
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


def _seeds(options: argparse.Namespace) -> int:
    first = options.first
    began_s, ran, failed, stored, faults = seams.real_monotonic(), 0, 0, 0, 0
    for seed in range(first, first + options.count):
        if seams.real_monotonic() - began_s > options.time:
            break
        outcome = simulate(Course(seed))
        if options.digests:
            print(f"{seed} {outcome.digest}", flush=True)
        ran, stored, faults = ran + 1, stored + outcome.acknowledged, faults + len(outcome.faults)
        if outcome.violations:
            failed += 1
            _report(shrink(outcome) if not options.no_shrink else outcome)
    took_s = seams.real_monotonic() - began_s
    print(
        f"{ran} seeds from {first} in {took_s:.1f} s ({1000 * took_s / max(ran, 1):.0f} s per 1,000): "
        f"{stored} writes acknowledged, {faults} faults, {failed} seeds failed",
        flush=True,
    )
    return 1 if failed else 0


def _report(outcome: Outcome) -> None:
    print(f"{outcome.violations[0]}\n    {outcome.course.command()}", flush=True)


def _mutants(names: list[str], seeds: int, is_shrunk: bool) -> int:
    """A line for each mutant; how many were not found."""
    missed = 0
    for name in names:
        with mutated(name):
            outcomes = (simulate(Course(seed)) for seed in range(seeds))
            found = next((outcome for outcome in outcomes if outcome.violations), None)
            if found is not None and is_shrunk:
                found = shrink(found)
        missed += found is None
        what = (
            f"{found.violations[0]}\n    {found.course.command()}" if found else f"not found in {seeds} seeds"
        )
        print(f"{name}: {MUTANTS[name].what}\n    {what}", flush=True)
    return missed
