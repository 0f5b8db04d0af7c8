"""The network of the laboratory, for tests, which are skipped if there can be none."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.network import Unsuitable


@contextmanager
def skipping() -> Iterator[None]:
    """Skip the test, with the reason, if the block raises Unsuitable."""
    try:
        yield
    except Unsuitable as reason:
        pytest.skip(str(reason))
