"""The state of one simulation: what the seed decides, what has happened, and which processes live."""

import hashlib
import random
from dataclasses import dataclass, field

import trio

from tests.simulation.clock import now_s
from tests.simulation.green import Process, current_green, current_process, pause
from tests.simulation.holdings import ForeignObjects


class Violation(AssertionError):
    """A property does not hold."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a run is made of. `steps`, `faults`: only those with these numbers; None for all that the seed gives."""

    seed: int
    steps: frozenset[int] | None = None
    faults: frozenset[int] | None = None

    def command(self) -> str:
        """The command that repeats it."""
        parts = [f"python -m tests.simulation run {self.seed}"]
        for name, numbers in (("steps", self.steps), ("faults", self.faults)):
            if numbers is not None:
                parts.append(f"--{name} {','.join(map(str, sorted(numbers))) or 'none'}")
        return " ".join(parts)


@dataclass(eq=False)
class World:
    """`chances`: the probability of each kind of fault at one opportunity. All randomness of the simulation itself is
    in `faults` and `delays`; a fault that is left out still takes its number, so the others keep theirs.
    """

    course: Course
    chances: dict[str, float]
    nursery: trio.Nursery
    is_verbose: bool = False
    trace: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    lines: list[str] = field(default_factory=list)
    fault_count: int = 0
    applied_faults: list[int] = field(default_factory=list)
    is_calm: bool = True
    """No faults happen: at the begin and at the end."""
    violations: list[str] = field(default_factory=list)
    processes: int = 0
    maintenance: dict[bytes, tuple[Process, str]] = field(default_factory=dict)
    """Who maintains each dataset, by its ID."""
    has_leases: bool = True
    """Whether leases exclude: they are not lost, and clocks agree."""
    unmounted_until_s: float = 0.0
    """The object store is away until then: what is mounted in its place is empty."""
    foreign: ForeignObjects = field(default_factory=ForeignObjects)
    """What chunks are attached to."""
    damage: list[tuple[bytes, int]] = field(default_factory=list)
    """Places of chunks that are read with another bit, until calm."""

    def __post_init__(self) -> None:
        self.faults = random.Random(f"{self.course.seed} faults")
        self.delays = random.Random(f"{self.course.seed} delays")

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        process = current_process()
        line = f"{now_s():12.6f} {process.name if process else '-':10} {text}"
        self.trace.update(line.encode() + b"\n")
        self.lines.append(line)
        if self.is_verbose:
            print(line, flush=True)

    def violated(self, text: str) -> None:
        """A property does not hold: the run fails."""
        self.note(f"VIOLATION {text}")
        self.violations.append(text)

    def fault(self, kind: str) -> bool:
        """Whether a fault of this kind happens here."""
        if self.is_calm or self.faults.random() >= self.chances.get(kind, 0.0):
            return False
        number = self.fault_count
        self.fault_count += 1
        if self.course.faults is not None and number not in self.course.faults:
            return False
        self.applied_faults.append(number)
        self.note(f"fault {number}: {kind}")
        return True

    def start(self, name: str, threads: trio.Nursery, skew_s: float = 0.0) -> Process:
        """A new process, whose threads end when the nursery is cancelled."""
        self.processes += 1
        process = Process(name, self.processes, skew_s)
        threads.start_soon(process.reap)
        return process

    def delay_s(self, usual_s: float) -> float:
        """A random duration: mostly about `usual_s`, seldom much more."""
        factor = self.delays.random()
        return usual_s * (50 * factor if self.delays.random() < 0.02 else 2 * factor)

    def pause(self, usual_s: float) -> None:
        """The calling thread waits for a random time. The event loop does not wait."""
        green = current_green()
        if green is None:
            process = current_process()
            if process is not None:
                process.check()
            return
        pause(self.delay_s(usual_s))
