"""The files that an expression over the columns of a dataset selects, as `width >= 512 and lang = 'de'`. This module
starts a process.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np

from dieselfs.arrays import Numbers
from dieselfs.errors import InvalidInput
from dieselfs.names import COLUMNS_PATH, SCHEME
from dieselfs.selection.limited import limited
from dieselfs.snapshot.reader import Snapshot

CHARACTERS_MAX = 10_000
_FILE_COLUMNS = "dieselfs.selection.file_columns"  # pyarrow takes as long to import as the process to start


def select(snapshot: Snapshot, read: Callable[[bytes], bytes], expression: str) -> Numbers:
    """The files for which an expression is true, ascending: shape (n,). `read(path)`: the bytes of a file.

    A file without values has the value NULL in each column. Takes about 1 s for a million files. Raises InvalidInput
    for what is no such expression, or has an unknown column, or takes longer than `limited` allows; Damaged.
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
    what = f"the expression {expression!r}"
    head, bits = limited({"where": expression}, content, what, lambda: import_module(_FILE_COLUMNS))
    is_chosen = np.unpackbits(np.frombuffer(bits, np.uint8), count=head["rows"]).astype(np.bool_)
    # Not before: the process with limits has decoded the paths, so they are not too large for this one.
    from dieselfs.selection.file_columns import FileColumns

    return FileColumns.decode_here(content, ()).files(snapshot, is_chosen, head["has_others"])
