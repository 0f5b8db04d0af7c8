"""What a seed means for a job: its nodes, their memory, what their programs read, and what goes wrong. No I/O."""

import random
from dataclasses import dataclass

JOB_SHARE = 0.15
"""Of all seeds; the others have no job, so they stay cheap."""
KIB, MIB = 1 << 10, 1 << 20

NODE_FAULTS = {
    "peer reset": 0.05,
    "peer stall": 0.03,
    "peer refused": 0.1,
    "peer wrong bytes": 0.02,
    "queue of readers full": 0.05,
    "crash at a wait": 0.004,
    "node crash": 0.5,
    "node hangs": 0.3,
    "nodes parted": 0.4,
    "daemon stops": 0.2,
}
"""As `scenario.FAULTS`, for those of nodes alone: servers answer."""
SERVER_FAULTS = {"node parted from a server": 0.4}

NODES, ALL, OUTAGE = "nodes", "all", "outage"
"""What fails: nodes and their network; servers too; or servers alone, once, for longer than a lease."""


@dataclass(frozen=True)
class Read:
    """What a program does once, after a pause: `kind` with a number that chooses files or an epoch."""

    number: int
    program: str
    kind: str
    pause_s: float
    choice: int


@dataclass(frozen=True)
class JobPlan:
    """- `starts_s`: when the programs of each node start; `memory_bytes`: what it offers
    - `has_cache`: whether an operator has started the daemon of a node; `mounts`: how many it has
    - `ends_idle`: whether daemons end because no program is left; else they are told to
    """

    what_fails: str
    chances: dict[str, float]
    skews_s: tuple[float, ...]
    starts_s: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    has_cache: tuple[bool, ...]
    mounts: tuple[int, ...]
    ends_idle: bool
    programs: int
    program_bytes: int
    chunks: int
    files_per_chunk: int
    file_bytes: int
    reads: tuple[Read, ...]

    @property
    def nodes(self) -> int:
        return len(self.skews_s)

    @property
    def fits(self) -> bool:
        """Whether the nodes can pin all chunks, so that each leaves the servers once."""
        return min(self.memory_bytes) >= MIB

    @property
    def has_close_clocks(self) -> bool:
        """Whether the clocks of nodes differ by less than records of members allow."""
        return max(map(abs, self.skews_s)) < 150

    def of(self, program: str) -> list[Read]:
        return [read for read in self.reads if read.program == program]


def job_plan_of(seed: int, first_number: int) -> JobPlan | None:
    """The job of a seed. `first_number`: of its reads."""
    source = random.Random(f"{seed} job")
    if source.random() >= JOB_SHARE:
        return None
    what_fails = source.choice([NODES, NODES, NODES, ALL, ALL, OUTAGE])
    chances = {}
    if what_fails != OUTAGE:
        faults = NODE_FAULTS if what_fails == NODES else NODE_FAULTS | SERVER_FAULTS
        chances = {
            kind: most * source.random() ** 2 for kind, most in faults.items() if source.random() < 0.5
        }
    nodes, programs = source.choice([2, 2, 3, 3, 4]), source.choice([1, 1, 1, 2])
    fits = what_fails == OUTAGE or source.random() < 0.7
    memory_bytes = tuple(
        source.choice([64, 64, 128, 320]) * MIB if fits else source.randint(8, 80) * KIB for _ in range(nodes)
    )
    is_skewed = what_fails != OUTAGE and source.random() < 0.3
    clocks_s = [0.0, 0.5, -0.5, 100.0, -100.0, 3000.0] if is_skewed else [0.0]
    reads: list[Read] = []
    has_mounts = source.random() < 0.4
    pause_s = source.choice([0.1, 2.0, 5.0])
    for node in range(nodes):
        for program in range(programs):
            for _ in range(source.randint(2, 5)):
                kind = source.choice(["get", "get", "many", "plan", "ahead", "refresh", "range"])
                reads.append(
                    Read(
                        first_number + len(reads),
                        f"node{node}.{program}",
                        kind,
                        2 * pause_s * source.random(),
                        source.getrandbits(16),
                    )
                )
    return JobPlan(
        what_fails,
        chances,
        tuple(source.choice(clocks_s) for _ in range(nodes)),
        tuple(8 * source.random() ** 3 for _ in range(nodes)),
        memory_bytes,
        tuple(source.random() < 0.3 for _ in range(nodes)),
        tuple(source.choice([0, 1, 2]) if has_mounts else 0 for _ in range(nodes)),
        source.random() < 0.3,
        programs,
        source.choice([0, 20 * KIB, 64 * MIB]),
        source.randint(2, 9),
        source.randint(1, 2),
        source.choice([100, 1000, 5000, 30_000]),
        tuple(reads),
    )
