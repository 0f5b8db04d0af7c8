"""The runs of a command with some files left out, and their log. This module starts processes and writes files.

The folder of a bisect has `runs.jsonl`, a line for what is searched and one for each run; `NNN.out`, the output of a
run; and `files` and `left-out` of the newest run, one path a line.
"""

import fcntl
import json
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from dieselfs.arrays import Positions
from dieselfs.errors import InvalidInput, os_errors_as
from dieselfs.process.keeper import kill_descendants
from dieselfs.shuffle.cursor import REPLAY_VARIABLE, Cursor
from dieselfs_tools.bisection.search import Unfinished, Verdict

FILES_VARIABLE, LEFT_OUT_VARIABLE = "DIESELFS_BISECT_FILES", "DIESELFS_BISECT_LEFT_OUT"
"""The environment variables of the command with the paths of two lists; REPLAY_VARIABLE has the order."""
END_GRACE_S = 10.0
"""A command that is ended has this long after SIGTERM; then it is killed, with all that it started."""
EXIT_SKIP = 125
"""As for `git bisect run`: the exit code of a run that shows nothing."""
_LINE_BYTES_MAX = 1 << 16
_READ_BYTES = 1 << 16
_LINE_END = re.compile(rb"[\r\n]+")


@dataclass(frozen=True, slots=True)
class Metric:
    """A number in the output of the command: the last group of `expression`, or all that it matches."""

    expression: str
    above: float | None
    below: float | None

    def values(self, line: str) -> list[float]:
        """Raises InvalidInput for what is no number."""
        try:
            return [float(found[found.re.groups]) for found in re.finditer(self.expression, line)]
        except (TypeError, ValueError):
            raise InvalidInput(f"--metric matches what is no number: {line[:200]!r}") from None

    def is_bad(self, value: float) -> bool:
        """Beyond a limit; also infinite, or not a number."""
        return (
            not isfinite(value)
            or (self.above is not None and value > self.above)
            or (self.below is not None and value < self.below)
        )


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command. `left_out`: positions of the whole order; `returned`: the exit code, None if it was
    ended; `metric`: the last value, None without one and for one that is no finite number.
    """

    run: int
    left_out: str
    files: int
    verdict: Verdict
    returned: int | None
    metric: float | None
    seconds: float


class _Watch:
    """The values of a metric in an output that comes in parts."""

    def __init__(self, metric: Metric | None) -> None:
        self._metric, self._rest = metric, b""
        self.value: float | None = None
        self.is_bad = False

    def read(self, part: bytes) -> bool:
        """Whether a bad value has come."""
        *lines, rest = _LINE_END.split(self._rest + part)
        self._rest = rest[-_LINE_BYTES_MAX:]
        if self._metric is not None:
            for line in lines:
                for value in self._metric.values(line.decode("utf-8", "replace")):
                    self.value = value
                    if self._metric.is_bad(value):
                        self.is_bad = True
                        return True
        return False


class Trials:
    """The runs of one bisect. Close it at the end. Raises InvalidInput if the folder has those of another one."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        start: Cursor,
        whole: Positions,
        names: Sequence[bytes],
        metric: Metric | None,
        timeout_s: float,
        runs_max: int,
        note: Callable[[Run], None],
    ) -> None:
        """`start`: the order, and the first position of the steps. `whole`, shape (n,), ascending: the position of each
        file of the steps in the whole order; `names`: their paths. `note` gets each run, also those of the log.
        """
        self._folder, self._command, self._start = folder.absolute(), command, start
        self._whole, self._names, self._metric = whole, names, metric
        self._timeout_s, self._runs_max, self._note = timeout_s, runs_max, note
        self._verdicts: dict[str, Verdict] = {}
        searched = {
            "command": list(command),
            "start": str(start),
            "positions": _text_of(whole.tolist()),
            "metric": None if metric is None else asdict(metric),
        }
        self._log = self._opened(searched)

    @property
    def runs(self) -> int:
        """Number of runs that were made."""
        return len(self._verdicts)

    def close(self) -> None:
        os.close(self._log)

    def output_of(self, run: int) -> Path:
        return self._folder / f"{run:03}.out"

    def __call__(self, kept: Sequence[int]) -> Verdict:
        """Run the command with some files of the steps; a run of the log is not repeated.

        Raises Unfinished if no more runs are allowed, or if the order cannot leave these files out; InvalidInput if
        the command cannot be run or has no result.
        """
        is_kept = {*kept}
        left_out = [number for number in range(len(self._names)) if number not in is_kept]
        positions = self._whole[left_out].tolist()
        text = _text_of(positions)
        if text in self._verdicts:
            return self._verdicts[text]
        if self.runs >= self._runs_max:
            raise Unfinished(f"{self.runs} runs are made; the same command with a larger --runs continues")
        try:
            cursor = self._start.skipping(_ranges(positions))
        except InvalidInput as error:
            raise Unfinished(f"the files found so far cannot all be left out: {error}") from None
        environment = {
            **os.environ,
            REPLAY_VARIABLE: str(cursor),
            FILES_VARIABLE: self._listed("files", kept),
            LEFT_OUT_VARIABLE: self._listed("left-out", left_out),
        }
        run = self._run(text, len(left_out), environment)
        self._verdicts[text] = run.verdict
        _append(self._log, asdict(run))
        self._note(run)
        return run.verdict

    def _opened(self, searched: Mapping[str, Any]) -> int:
        """The log, locked, with a head and whole lines: one that a kill has cut is dropped."""
        path = self._folder / "runs.jsonl"
        with os_errors_as(InvalidInput, path, "; give another --into"):
            self._folder.mkdir(parents=True, exist_ok=True)
            log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lines = path.read_bytes().splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):
                os.ftruncate(log, sum(map(len, lines[:-1])))
                del lines[-1]
            if not lines:
                _append(log, searched)
            elif json.loads(lines[0]) != searched:
                raise InvalidInput(f"{self._folder} has the runs of another bisect; remove it")
            for line in lines[1:]:
                run = Run(**json.loads(line))
                self._verdicts[run.left_out] = Verdict(run.verdict)
                self._note(run)
        except (BlockingIOError, ValueError, TypeError) as error:
            os.close(log)
            what = "another dlcmd bisect uses it" if isinstance(error, OSError) else "it is no log of runs"
            what = str(error) if isinstance(error, InvalidInput) else what
            raise InvalidInput(f"{path}: {what}, or give another --into") from None
        return log

    def _listed(self, name: str, numbers: Iterable[int]) -> str:
        path = self._folder / name
        path.write_bytes(b"".join(self._names[number] + b"\n" for number in numbers))
        return str(path)

    def _run(self, left_out: str, files: int, environment: Mapping[str, str]) -> Run:
        number, watch, began_s = self.runs + 1, _Watch(self._metric), time.monotonic()
        output = self.output_of(number)
        returned = run_bounded(self._command, environment, output, watch.read, self._timeout_s)
        watch.read(b"\n")  # a last line without an end
        value = watch.value if watch.value is not None and isfinite(watch.value) else None
        verdict = self._verdict(returned, watch, output)
        return Run(number, left_out, files, verdict, returned, value, round(time.monotonic() - began_s, 3))

    def _verdict(self, returned: int | None, watch: _Watch, output: Path) -> Verdict:
        if watch.is_bad:
            return Verdict.BAD
        if returned is None or returned == EXIT_SKIP:
            return Verdict.UNKNOWN
        if not 0 <= returned <= EXIT_SKIP:
            how = f"exit code {returned}" if returned > 0 else f"signal {signal.Signals(-returned).name}"
            raise InvalidInput(
                f"the command ended with {how}, which is no result: see {output}; when it is mended, the same command "
                "continues"
            )
        if self._metric is None:
            return Verdict.BAD if returned else Verdict.GOOD
        if returned:
            return Verdict.UNKNOWN
        if watch.value is None:
            raise InvalidInput(f"nothing in the output of the command matches --metric: see {output}")
        return Verdict.GOOD


def _append(log: int, fields: Mapping[str, Any]) -> None:
    os.write(log, json.dumps(fields).encode() + b"\n")
    os.fsync(log)


def run_bounded(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: Path,
    read: Callable[[bytes], bool],
    timeout_s: float,
) -> int | None:
    """Run a command, write all that it prints to a file, and return its exit code (of a signal, negative as of
    `Popen`). None: it was ended after `timeout_s`, or because `read`, which gets each part of the output, returned
    True.

    No process that it has started is left: to be called in a keeper (`process.keeper`), which adopts them. Raises
    InvalidInput if the command cannot be run.
    """
    deadline_s = time.monotonic() + timeout_s
    with open(output, "wb", buffering=0) as file, selectors.DefaultSelector() as selector:
        with os_errors_as(InvalidInput, command[0]):
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        assert process.stdout is not None
        ended = os.pidfd_open(process.pid)
        try:
            selector.register(process.stdout, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while (left_s := deadline_s - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left_s)}
                if process.stdout.fileno() in ready:  # before its end: all that it has written is read
                    part = os.read(process.stdout.fileno(), _READ_BYTES)
                    file.write(part)
                    if not part:
                        selector.unregister(process.stdout)
                    elif read(part):
                        return None
                elif ended in ready:
                    return process.wait()
            return None
        finally:
            os.close(ended)
            process.stdout.close()
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_GRACE_S)
            kill_descendants()
            process.poll()


def _ranges(positions: Iterable[int]) -> list[range]:
    """Ascending positions as ranges that do not touch."""
    found: list[range] = []
    for position in positions:
        if found and found[-1].stop == position:
            found[-1] = range(found[-1].start, position + 1)
        else:
            found.append(range(position, position + 1))
    return found


def _text_of(positions: Iterable[int]) -> str:
    """`100-199+300-399`, as in the name of a share; empty for none."""
    return "+".join(f"{one.start}-{one.stop - 1}" for one in _ranges(positions))
