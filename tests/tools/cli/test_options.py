"""Names as options take them."""

import pytest

from dieselfs.errors import InvalidInput
from dieselfs_tools.cli.options import dataset_name, examples, location


@pytest.mark.parametrize("text", ["pets", "dl://pets", "dl://pets/"])
def test_a_dataset_is_named_with_and_without_the_scheme(text: str) -> None:
    assert dataset_name(text) == "pets"


@pytest.mark.parametrize("text", ["", "dl://", "dl://pets/inside", "pets/inside", "/pets", ".pets"])
def test_what_is_no_dataset_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        dataset_name(text)


def test_a_location_is_named_with_and_without_the_scheme() -> None:
    assert location("dl://pets/a") == location("pets/a")
    assert location("pets/a").path == b"a"


def test_examples_keep_their_lines() -> None:
    assert examples("dlcmd a", "dlcmd b") == "\b\nExamples:\n  dlcmd a\n  dlcmd b"
