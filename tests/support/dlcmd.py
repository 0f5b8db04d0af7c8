"""`dlcmd` as users run it: a process of its own, over an embedded home or against a server."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0

COMMAND = (sys.executable, "-m", "dieselfs_tools.dlcmd")


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    exit_code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What `--json` printed, but for the summary."""
        return self._all_objects()[:-1]

    @property
    def summary(self) -> dict[str, Any]:
        return self._all_objects()[-1]

    def _all_objects(self) -> list[dict[str, Any]]:
        objects = [json.loads(line) for line in self.stdout.split(b"\n")[:-1]]
        assert [one["type"] == "summary" for one in objects] == [False] * (len(objects) - 1) + [True]
        assert objects[-1]["exit_code"] == self.exit_code
        return objects


@dataclass(frozen=True)
class Dlcmd:
    """Runs commands in `folder`, with a configuration of its own. `home` is the DIESELFS_HOME."""

    home: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("DIESELFS_", "XDG_"))
        }
        return {
            **kept,
            "HOME": str(self.folder),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "DIESELFS_HOME": str(self.home),
            **self.variables,
        }

    def __call__(self, *arguments: str | bytes | Path, exit_code: int = 0, stdin: bytes = b"") -> Ran:
        """Run one command to its end, which is to be `exit_code`; an error is to be said in clear lines."""
        process = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            cwd=self.folder,
            env=self.environment(),
            timeout=TIMEOUT_S,
            check=False,
        )
        ran = Ran(process.returncode, process.stdout, process.stderr.decode("utf-8"))
        assert ran.exit_code == exit_code, f"{arguments}: {ran}"
        assert "Traceback" not in ran.stderr
        if exit_code:
            assert ran.stderr.startswith("dlcmd: ")
        return ran

    def start(self, *arguments: str | bytes | Path, **options: Any) -> "subprocess.Popen[bytes]":
        """Start one command, for those who want to meddle with it."""
        options = {"cwd": self.folder, "env": self.environment(), "stdin": subprocess.DEVNULL, **options}
        return subprocess.Popen([*COMMAND, *arguments], **options)
