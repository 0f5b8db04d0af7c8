"""What a seed means: the steps of each client, the faults and how likely they are, clocks. No I/O."""

import random
from dataclasses import dataclass, replace

from tests.simulation.actors import Step
from tests.simulation.job_plan import ALL, OUTAGE, JobPlan, job_plan_of
from tests.simulation.wide_plan import Quota, add_exchange_steps, add_repacks, add_wide_steps

FILES_OF_WRITER = 5
FAULTS = {
    "reset": 0.02,
    "stall": 0.01,
    "refused": 0.05,
    "store away": 0.05,
    "store full": 0.02,
    "store answer lost": 0.05,
    "wrong bytes": 0.02,
    "short bytes": 0.02,
    "lasting damage": 0.005,
    "crash before store": 0.03,
    "crash after store": 0.05,
    "crash before apply": 0.05,
    "crash after apply": 0.05,
    "metadata away": 0.01,
    "metadata full": 0.02,
    "redis refused": 0.05,
    "redis reset": 0.02,
    "redis answer lost": 0.02,
    "redis full": 0.01,
    "redis restarts": 0.3,
    "partition": 0.3,
    "crash": 0.2,
    "long outage": 0.6,
    "clock jumps": 0.1,
    "metadata lost": 0.05,
    "store unmounted": 0.1,
    "empty listing": 0.1,
}
"""The largest probability of each fault at an opportunity. A seed has some of them, each with less."""


@dataclass(frozen=True)
class Scenario:
    steps: tuple[Step, ...]
    chances: dict[str, float]
    skews_s: dict[str, float]
    grace_s: int
    servers: int
    has_redis: bool
    job: JobPlan | None = None
    quota: Quota | None = None
    quota_account: str = ""

    @property
    def keeps_notes(self) -> bool:
        """Whether no fault takes what is in the metadata alone: pins, members, holds."""
        return not self.chances.keys() & {"redis restarts", "power cut", "metadata lost"}

    @property
    def has_close_clocks(self) -> bool:
        """Whether the clocks of servers differ by less than leases and the grace time allow."""
        clocks_s = [self.skews_s.get(f"server{number}", 0.0) for number in range(self.servers)]
        return "clock jumps" not in self.chances and max(clocks_s) - min(clocks_s) < 5

    @property
    def job_needs_servers(self) -> bool:
        """Whether servers fail beside the job."""
        return self.job is not None and self.job.what_fails == ALL

    @property
    def numbers(self) -> frozenset[int]:
        """Of all steps, and of the reads of the job."""
        reads = [read.number for read in self.job.reads] if self.job else []
        return frozenset([*(step.number for step in self.steps), *reads])

    def of(self, actor: str) -> list[Step]:
        return [step for step in self.steps if step.actor == actor]

    @property
    def actors(self) -> list[str]:
        return sorted({step.actor for step in self.steps})


def scenario_of(seed: int) -> Scenario:
    """The scenario of a seed."""
    source = random.Random(f"{seed} scenario")
    chances = {kind: most * source.random() ** 2 for kind, most in FAULTS.items() if source.random() < 0.4}
    if source.random() < 0.4:
        chances["power cut"] = source.random()
    if "empty listing" in chances and (chances.keys() & {"redis restarts", "power cut", "metadata lost"}):
        del chances["empty listing"]  # a listing that hides what the metadata has lost cannot be noticed
    writers = [f"writer{number}" for number in range(source.randint(1, 3))]
    readers = [f"reader{number}" for number in range(source.randint(1, 2))]
    steps: list[Step] = []
    pause_s = source.choice([0.01, 0.5, 5.0, 60.0])

    def add(actor: str, kind: str, *arguments: object) -> None:
        steps.append(Step(len(steps), actor, kind, 2 * pause_s * source.random(), arguments))

    for writer in writers:
        for _ in range(source.randint(3, 10)):
            changes = _changes(source, writer)
            add(writer, "write", changes)
            if source.random() < 0.06:
                add(writer, "move", source.choice(changes)[0])
    for reader in readers:
        for _ in range(source.randint(2, 6)):
            add(reader, "read")
    if source.random() < 0.6:
        for _ in range(source.randint(1, 5)):
            add("admin", source.choice(["purge", "purge", "purge", "rebuild", "fsck"]))
    quota = add_wide_steps(random.Random(f"{seed} width"), add) if job_plan_of(seed, 0) is None else None
    skews_s = {}
    if source.random() < 0.3:
        clocks_s = [0.0, 0.5, -0.5, 100.0, -100.0, 3000.0, -3000.0]
        for name in ("server0", "server1"):
            skews_s[name] = source.choice(clocks_s)
        for name in writers:
            skews_s[name] = source.choice([*clocks_s, -9000.0])
    has_redis = source.random() < 0.6
    servers = source.randint(1, 2) if has_redis else 1
    grace_s = source.choice([0, 60, 600])
    further, account = random.Random(f"{seed} exchanges"), ""

    def add_further(actor: str, kind: str, *arguments: object) -> None:
        steps.append(Step(len(steps), actor, kind, 2 * pause_s * further.random(), arguments))

    if job_plan_of(seed, 0) is None:
        paths = [
            path
            for step in steps
            if step.actor == writers[0] and step.kind == "write"
            for path, _ in step.arguments[0]
        ]
        account = add_exchange_steps(further, writers[0], paths, add_further)
        add_repacks(further, add_further)
    scenario = Scenario(tuple(steps), chances, skews_s, grace_s, servers, has_redis, None, quota, account)
    job = job_plan_of(seed, len(steps))
    return scenario if job is None else _with_job(scenario, job)


STEPS_BESIDE_A_JOB = 6
_WITHOUT_A_JOB = {"long outage", "clock jumps", "metadata lost", "store unmounted", "empty listing"}
PAUSE_BESIDE_A_JOB_S = 5.0


def _with_job(scenario: Scenario, job: JobPlan) -> Scenario:
    """Less happens beside a job; and servers fail only if the job is to live with that."""
    steps = tuple(
        replace(step, pause_s=min(step.pause_s, PAUSE_BESIDE_A_JOB_S))
        for step in scenario.steps[:STEPS_BESIDE_A_JOB]
    )
    if job.what_fails == ALL:
        # Chunks of the future are refused, so the dataset of the job could not be stored.
        skews_s = {name: skew_s for name, skew_s in scenario.skews_s.items() if abs(skew_s) < 900}
        chances = {kind: most for kind, most in scenario.chances.items() if kind not in _WITHOUT_A_JOB}
        chances |= job.chances
        return replace(scenario, steps=steps, chances=chances, skews_s=skews_s, job=job)
    has_redis = scenario.has_redis and job.what_fails == OUTAGE
    servers = scenario.servers if has_redis else 1
    return replace(
        scenario, steps=steps, chances=job.chances, skews_s={}, job=job, has_redis=has_redis, servers=servers
    )


def _changes(source: random.Random, writer: str) -> list[tuple[bytes, int | None]]:
    """Files that are put, with sizes, or deleted."""
    numbers = source.sample(range(FILES_OF_WRITER), source.randint(1, 3))
    sizes = (None, 1, 40, 3000)
    return [(f"{'abc'[number % 3]}/{writer}-{number}".encode(), source.choice(sizes)) for number in numbers]
