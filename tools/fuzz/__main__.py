"""`make fuzz TIME=... ONLY=... SEED=...`: mutate inputs of every parser, and keep those that break one.

A finding is an exception that is not a DieselfsError, or an input that takes more than SLOW_S of the
processor. It is written to
`tests/corpus/TARGET/`, which the test suite tries from then on.
"""

import random
import time
import traceback
from pathlib import Path

import click

from dieselfs.digests import extent_digest_of
from dieselfs.errors import DieselfsError
from fuzz.mutation import mutated
from fuzz.target import Target
from fuzz.targets import TARGETS

CORPUS = Path(__file__).parents[2] / "tests" / "corpus"
SLOW_S = 5.0
ROUND = 200
"""Inputs of one target before the next is tried."""
FINDINGS_MAX = 5
"""Of one target; after them it is not tried any more."""


def inputs_of(target: Target) -> list[bytes]:
    """The valid inputs of a target, and those that were found before."""
    return [*target.seeds, *(path.read_bytes() for path in sorted((CORPUS / target.name).glob("*")))]


def fault_of(target: Target, data: bytes) -> str | None:
    """What is wrong with how the target takes this input, or None."""
    began_s = time.thread_time()
    try:
        target.parse(data)
    except DieselfsError:
        pass
    except Exception:  # also a RecursionError, and a MemoryError
        return traceback.format_exc(limit=-3)
    took_s = time.thread_time() - began_s
    return f"took {took_s:.1f} s\n" if took_s > SLOW_S else None


@click.command()
@click.option("--time", "time_s", type=float, default=60.0, show_default=True, help="Seconds.")
@click.option("--only", default="", help="Targets whose names have this in them.")
@click.option("--seed", type=int, default=1, show_default=True)
def main(time_s: float, only: str, seed: int) -> None:
    """Exit code 1 if there are findings."""
    chance = random.Random(seed)
    targets = {target.name: target for target in TARGETS if only in target.name}
    inputs = {name: inputs_of(target) for name, target in targets.items()}
    tried = dict.fromkeys(targets, 0)
    findings = dict.fromkeys(targets, 0)
    ends_s = time.monotonic() + time_s
    while time.monotonic() < ends_s:
        for name, target in targets.items():
            for _ in range(ROUND if findings[name] < FINDINGS_MAX else 0):
                data = mutated(chance, inputs[name])
                tried[name] += 1
                fault = fault_of(target, data)
                if fault is not None:
                    findings[name] += 1
                    path = CORPUS / name / extent_digest_of(data).hex()
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
                    click.echo(f"{name}: {path}\n{fault}")
                    break
    click.echo(f"{sum(tried.values()):,} inputs of {len(targets)} targets: {sum(findings.values())} findings")
    raise SystemExit(bool(sum(findings.values())))


if __name__ == "__main__":
    main()
