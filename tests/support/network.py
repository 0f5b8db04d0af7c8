"""The network of the laboratory, for tests: where there can be none, they are skipped."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.network import Unsuitable


@contextmanager
def skipping() -> Iterator[None]:
    """A test is skipped with the reason if this machine cannot do what the block asks for."""
    try:
        yield
    except Unsuitable as reason:
        pytest.skip(str(reason))
