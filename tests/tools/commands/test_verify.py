"""dlcmd verify: a dataset, its tags and a local copy have one digest."""

import os

from dieselfs.errors import EXIT_DAMAGED, EXIT_NOT_FOUND, EXIT_PARTIAL
from tests.support.dlcmd import Dlcmd


def test_a_dataset_its_tag_and_the_folder_have_one_digest(dlcmd: Dlcmd, pets: str) -> None:
    folder = dlcmd("verify", "pets").text.split()[0]
    assert dlcmd("verify", f"dl://{pets}").lines[0] == f"{folder}  dl://{pets}"
    dlcmd("tag", "add", f"dl://{pets}", "v1")
    (dlcmd.folder / "pets/none").write_bytes(b"changed")
    dlcmd("put", "pets/none", f"dl://{pets}/none")
    changed = dlcmd("verify", "--json", f"dl://{pets}").objects[0]["digest"]
    assert changed != folder
    assert dlcmd("verify", "--json", "--quick", f"dl://{pets}").objects[0]["digest"] == changed
    assert dlcmd("verify", "--json", f"dl://{pets}@v1").objects[0]["digest"] == folder
    dlcmd("get", "-r", f"dl://{pets}/", "copy")
    assert dlcmd("verify", "--json", "copy").objects[0]["digest"] == changed


def test_damage_is_found(dlcmd: Dlcmd, pets: str) -> None:
    dataset_id = dlcmd("info", "--json", f"dl://{pets}").objects[0]["dataset_id"]
    (chunk,) = (path for path in (dlcmd.home / "chunks" / dataset_id).glob("???/??/*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[-1] ^= 1
    chunk.chmod(0o600)
    chunk.write_bytes(content)
    assert "digest" in dlcmd("verify", f"dl://{pets}", exit_code=EXIT_DAMAGED).stderr


def test_what_is_no_file_is_named(dlcmd: Dlcmd) -> None:
    (dlcmd.folder / "odd").mkdir()
    os.mkfifo(dlcmd.folder / "odd/pipe")
    assert "pipe: neither file" in dlcmd("verify", "odd", exit_code=EXIT_PARTIAL).stderr


def test_what_is_not_there(dlcmd: Dlcmd) -> None:
    dlcmd("verify", "no-such-folder", exit_code=EXIT_NOT_FOUND)
    dlcmd("verify", "dl://no-such-dataset", exit_code=EXIT_NOT_FOUND)
