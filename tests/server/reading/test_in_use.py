"""Values in use: shared by their users, made again after the last one."""

from contextlib import ExitStack
from itertools import count

import pytest

from dieselfs_server.reading.in_use import InUse


def test_users_share_a_value_until_the_last_one_ends() -> None:
    values: InUse[str, int] = InUse()
    numbers = count()
    with ExitStack() as first:
        assert first.enter_context(values.held("a", lambda: next(numbers))) == 0
        with (
            values.held("a", lambda: next(numbers)) as shared,
            values.held("b", lambda: next(numbers)) as other,
        ):
            assert (shared, other) == (0, 1)
            first.close()
            assert "a" in values
        assert "a" not in values and "b" not in values
        with values.held("a", lambda: next(numbers)) as later:
            assert later == 2


def test_a_value_that_cannot_be_made_is_not_in_use() -> None:
    values: InUse[str, float] = InUse()
    with pytest.raises(ZeroDivisionError), values.held("a", lambda: 1 / 0):
        pass
    assert "a" not in values
    with pytest.raises(KeyError), values.held("a", lambda: 1.0):
        raise KeyError
    assert "a" not in values
