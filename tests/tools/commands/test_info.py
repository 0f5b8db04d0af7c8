"""dlcmd info: a dataset as a whole, and where the bytes of a file lie."""

import os

from dieselfs.digests import extent_digest_of
from dieselfs.errors import EXIT_NOT_FOUND, EXIT_USAGE
from tests.support.dlcmd import Dlcmd


def test_a_dataset_has_totals_and_a_generation(dlcmd: Dlcmd, pets: str) -> None:
    (found,) = dlcmd("info", "--json", f"dl://{pets}").objects
    assert (found["files"], found["bytes"], found["chunks"], found["generation"]) == (3, 4101, 1, 1)
    assert len(bytes.fromhex(found["dataset_id"])) == 16
    text = dlcmd("info", f"dl://{pets}").text
    assert "files       3\n" in text and "4.0 KiB, 1.3 KiB on average" in text


def test_the_extents_of_a_file_are_shown(dlcmd: Dlcmd, dataset: str) -> None:
    content = os.urandom(5000)
    (dlcmd.folder / "f").write_bytes(content)
    dlcmd("put", "--chunk-size", "2000", "f", f"dl://{dataset}/")
    (found,) = dlcmd("info", "--json", f"dl://{dataset}/f").objects
    assert [(extent["place"], extent["length"], extent["blake3"]) for extent in found["extents"]] == [
        (place, len(content[place : place + 2000]), extent_digest_of(content[place : place + 2000]).hex())
        for place in (0, 2000, 4000)
    ]
    assert len({extent["chunk"] for extent in found["extents"]}) == 3
    text = dlcmd("info", f"dl://{dataset}/f").text
    assert text.startswith(f"dl://{dataset}/f: 4.9 KiB in 3 extents, generation ")


def test_what_has_no_extents_is_refused(dlcmd: Dlcmd, pets: str) -> None:
    dlcmd("info", f"dl://{pets}/train", exit_code=EXIT_USAGE)
    dlcmd("info", f"dl://{pets}/gone", exit_code=EXIT_NOT_FOUND)
