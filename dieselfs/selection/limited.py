"""Has a table of columns decoded in a process with limits: anybody who writes to a dataset can make it, and a small one
may decode to any size. This module starts processes.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from dieselfs.errors import Damaged, InvalidInput
from dieselfs.process.launch import module_environment, python_command
from dieselfs.process.sandbox import DATA_BYTES_MAX
from dieselfs.units import format_size

EVALUATION_S_MAX = 60.0


def limited(
    request: Mapping[str, object], content: bytes, what: str, meanwhile: Callable[[], object] = lambda: None
) -> tuple[Any, memoryview]:
    """The reply of `selection.evaluation` to a request with a table: its first line, and what follows. `meanwhile` is
    called while it works.

    Raises the error of the process, InvalidInput or Damaged; InvalidInput, with `what` it was for, if it takes longer
    than EVALUATION_S_MAX, or fails.
    """
    with open(os.memfd_create("dieselfs-columns"), "w+b") as file:
        file.write(json.dumps(request).encode() + b"\n" + content)
        file.seek(0)
        process = subprocess.Popen(
            python_command("dieselfs.selection.evaluation"),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**module_environment(), "OPENBLAS_NUM_THREADS": "1"},
        )
    with process:
        try:
            meanwhile()
            reply, _ = process.communicate(timeout=EVALUATION_S_MAX)
        except subprocess.TimeoutExpired:
            raise InvalidInput(f"{what}: it takes longer than {EVALUATION_S_MAX:.0f} s") from None
        finally:
            process.kill()
    if process.returncode or not reply:
        limit = format_size(DATA_BYTES_MAX)
        raise InvalidInput(f"{what}: its process has failed, with {limit} of memory")
    end = reply.index(b"\n") + 1
    head = json.loads(reply[:end])
    if "error" in head:
        raise (Damaged if head["is_damaged"] else InvalidInput)(head["error"])
    return head, memoryview(reply)[end:]
