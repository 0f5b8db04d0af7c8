"""The files that an expression over the columns of a dataset selects, as `width >= 512 and lang = 'de'`. This module
starts a process.
"""

import json
import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from dieselfs.arrays import Numbers
from dieselfs.errors import Damaged, InvalidInput
from dieselfs.names import COLUMNS_PATH, SCHEME
from dieselfs.process.launch import module_environment, python_command
from dieselfs.process.sandbox import DATA_BYTES_MAX
from dieselfs.selection.file_columns import FileColumns
from dieselfs.snapshot.reader import Snapshot
from dieselfs.units import format_size

EVALUATION_S_MAX = 60.0
CHARACTERS_MAX = 10_000


def select(snapshot: Snapshot, read: Callable[[bytes], bytes], expression: str) -> Numbers:
    """The files for which an expression is true, ascending: shape (n,). `read(path)`: the bytes of a file.

    A file without values has the value NULL in each column. Takes about 1 s for a million files. Raises InvalidInput
    for what is no such expression, or has an unknown column, or takes longer than EVALUATION_S_MAX; Damaged.
    """
    if snapshot.find(COLUMNS_PATH) < 0:
        raise InvalidInput(
            f"{SCHEME}{snapshot.dataset} has no columns: add a table with 'dlcmd columns add', then select by it"
        )
    if find_spec("duckdb") is None:
        raise InvalidInput("selections need duckdb: in a checkout: pip install '.[columns]'")
    if len(expression) > CHARACTERS_MAX:
        raise InvalidInput(
            f"an expression of {len(expression):,} characters; the limit is {CHARACTERS_MAX:,}"
        )
    content = read(COLUMNS_PATH)
    with open(os.memfd_create("dieselfs-expression"), "w+b") as request:
        request.write(json.dumps({"where": expression}).encode() + b"\n" + content)
        request.seek(0)
        process = subprocess.Popen(
            python_command("dieselfs.selection.evaluation"),
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**module_environment(), "OPENBLAS_NUM_THREADS": "1"},
        )
    with process:
        try:
            reply, _ = process.communicate(timeout=EVALUATION_S_MAX)
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"the expression {expression!r}: it takes longer than {EVALUATION_S_MAX:.0f} s"
            ) from None
        finally:
            process.kill()
    if process.returncode or not reply:
        limit = format_size(DATA_BYTES_MAX)
        raise InvalidInput(f"the expression {expression!r}: its process has failed, with {limit} of memory")
    found = _result(reply)
    # Not before: the process with limits has decoded the paths, so they are not too large for this one.
    return FileColumns.decode(content, ()).files(snapshot, *found)


def _result(reply: bytes) -> tuple[npt.NDArray[np.bool_], bool]:
    """As of `evaluation.evaluated`. Raises InvalidInput, Damaged."""
    head, _, bits = reply.partition(b"\n")
    found = json.loads(head)
    if "error" in found:
        raise (Damaged if found["is_damaged"] else InvalidInput)(found["error"])
    is_chosen = np.unpackbits(np.frombuffer(bits, np.uint8), count=found["rows"]).astype(np.bool_)
    return is_chosen, found["has_others"]
