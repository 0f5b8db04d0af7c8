"""The names of files that are the plain bytes of an array: `images/00000007.32x32x3.uint8`. No I/O.

Before the type is the shape, which is `scalar` for a single number. The bytes are in row-major order, little-endian.
"""

import re
from collections.abc import Sequence

from dieselfs.errors import InvalidInput

SCALAR = "scalar"
_NAME = re.compile(r"\.(scalar|\d{1,19}(?:x\d{1,19})*)\.([a-z][a-z0-9_]*)$")


def raw_name(name: str, dtype: str, shape: Sequence[int]) -> str:
    """The name of the file with an array. `dtype`: as `numpy` and `torch` name it."""
    return f"{name}.{'x'.join(map(str, shape)) or SCALAR}.{dtype}"


def raw_form(path: str) -> tuple[str, tuple[int, ...]]:
    """Type and shape of the array in a file: of `a.2x3.float32`, ("float32", (2, 3)). Raises InvalidInput if its name
    does not say them.
    """
    found = _NAME.search(path)
    if found is None:
        raise InvalidInput(f"{path}: its name does not end as an array, in .SHAPE.TYPE")
    shape, dtype = found.groups()
    return dtype, () if shape == SCALAR else tuple(map(int, shape.split("x")))
