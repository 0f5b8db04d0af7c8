"""What several datasets come to."""

import pytest

from dieselfs.errors import EXIT_DAMAGED, EXIT_OK, EXIT_REFUSED, EXIT_UNAVAILABLE
from dieselfs_tools.commands.maintain import worse


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (EXIT_OK, EXIT_OK, EXIT_OK),
        (EXIT_OK, EXIT_REFUSED, EXIT_REFUSED),
        (EXIT_UNAVAILABLE, EXIT_DAMAGED, EXIT_DAMAGED),  # a monitor must see the damage
    ],
)
def test_damage_is_worse_than_what_may_pass(one: int, other: int, both: int) -> None:
    assert worse(one, other) == worse(other, one) == both
