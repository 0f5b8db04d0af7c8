"""dlcmd user and server: keys, rights, and what they let through."""

import os
import stat
import time
from contextlib import closing

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_REFUSED, EXIT_USAGE
from dieselfs.rpc.records import UserRecord
from tests.support.dlcmd import Dlcmd
from tests.support.server import RunningServer


def administrator(dlcmd: Dlcmd, server: RunningServer) -> Dlcmd:
    return Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.unix})


def users_of(server: RunningServer) -> list[UserRecord]:
    with closing(server.client()) as client:
        return client.users()


def test_a_user_is_made_let_in_listed_and_removed(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin, key = administrator(dlcmd, server), dlcmd.folder / "anna.key"
    (dlcmd.folder / "f").write_text("content")
    admin("put", "f", "dl://annas/")
    made = admin("user", "add", "anna", "--out", key, "--expires", "30d", "--json").summary
    status = key.stat()
    assert (stat.S_IMODE(status.st_mode), key.read_text().split()[1:3]) == (0o600, ["anna", made["key_id"]])
    anna = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(key)})
    assert anna("ls").text == (
        "user anna has no right on any dataset; "
        "an administrator can change that: dlcmd user grant anna DATASET read\n"
    )
    anna("cat", "dl://annas/f", exit_code=EXIT_NOT_FOUND)

    assert admin("user", "grant", "anna", "annas", "read").text == "anna may read annas\n"
    assert anna("cat", "dl://annas/f").text == "content"
    anna("rm", "dl://annas/f", exit_code=EXIT_REFUSED)
    (listed,) = (one for one in admin("user", "ls", "--json").objects if one["user"] == "anna")
    assert listed["grants"] == {"annas": "read"}
    assert abs(listed["keys"][0]["expires_s"] - time.time() - 30 * 24 * 3600) < 600
    assert f"key {made['key_id']}" in admin("user", "ls").text

    admin("user", "grant", "anna", "dl://annas", "none")
    anna("cat", "dl://annas/f", exit_code=EXIT_NOT_FOUND)
    second = admin("user", "add", "anna").text.split()
    admin("user", "rm", "anna", "--key", made["key_id"])
    anna("ls", exit_code=EXIT_REFUSED)
    key.write_text(" ".join(second) + "\n")
    anna("ls")
    admin("user", "rm", "anna")
    admin("user", "rm", "anna", exit_code=EXIT_NOT_FOUND)
    anna("ls", exit_code=EXIT_REFUSED)


def test_a_key_is_never_written_over_another_file(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin = administrator(dlcmd, server)
    (dlcmd.folder / "taken").write_text("precious")
    (dlcmd.folder / "link").symlink_to("taken")
    for name in ("taken", "link"):
        admin("user", "add", "bert", "--out", name, exit_code=EXIT_USAGE)
    admin("user", "add", "bert", "--out", "no/such/folder", exit_code=EXIT_PARTIAL)
    assert (dlcmd.folder / "taken").read_text() == "precious"
    admin("user", "rm", "-n", "bert", exit_code=EXIT_NOT_FOUND)


def test_a_key_that_is_not_made_leaves_no_file(dlcmd: Dlcmd, server: RunningServer) -> None:
    user = Dlcmd(
        dlcmd.home,
        dlcmd.folder,
        {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(server.user("not-an-admin"))},
    )
    user("user", "add", "carl", "--out", "carl.key", exit_code=EXIT_REFUSED)
    assert os.listdir(dlcmd.folder) == []


def test_dry_runs_change_nothing(dlcmd: Dlcmd, server: RunningServer) -> None:
    admin = administrator(dlcmd, server)
    admin("user", "add", "-n", "dora", "--out", "dora.key")
    assert os.listdir(dlcmd.folder) == []
    admin("user", "grant", "-n", "dora", "x", "read", exit_code=EXIT_NOT_FOUND)
    admin("user", "add", "dora", "--out", "dora.key")
    admin("user", "grant", "-n", "dora", "x", "read")
    admin("user", "rm", "-n", "dora")
    (listed,) = (one for one in admin("user", "ls", "--json").objects if one["user"] == "dora")
    assert listed["grants"] == {}


def test_a_key_as_json(dlcmd: Dlcmd, server: RunningServer) -> None:
    ran = administrator(dlcmd, server)("user", "add", "emil", "--json")
    assert ran.objects[0]["key"].startswith(f"dieselfs-key emil {ran.summary['key_id']} ")


def test_a_key_is_rotated_by_its_user_and_the_old_one_expires(dlcmd: Dlcmd, server: RunningServer) -> None:
    path = server.user("rita", ritas="write")
    old = path.read_text()
    rita = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(path)})
    rita("user", "rotate", "--keep", "1s", exit_code=EXIT_USAGE)
    assert "would replace" in rita("user", "rotate", "-n").text and path.read_text() == old
    summary = rita("user", "rotate", "--keep", "1h", "--json").summary
    assert (stat.S_IMODE(path.stat().st_mode), path.read_text().split()[2]) == (0o600, summary["key_id"])
    assert path.read_text().split()[3] != old.split()[3]
    rita("ls")
    (listed,) = (one for one in users_of(server) if one.name == "rita")
    expiry = {key.key_id: key.expires_s for key in listed.keys}
    assert expiry.keys() == {summary["key_id"], summary["old_key_id"]}
    assert expiry[summary["key_id"]] == 0 and abs(expiry[summary["old_key_id"]] - time.time() - 3600) < 600


def test_a_key_makes_no_key_that_outlives_it_or_is_of_another_user(
    dlcmd: Dlcmd, server: RunningServer
) -> None:
    admin, path = administrator(dlcmd, server), dlcmd.folder / "otto.key"
    admin("user", "add", "otto", "--out", path, "--expires", "30d")
    otto = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(path)})
    otto("user", "add", "otto2", exit_code=EXIT_REFUSED)
    otto("user", "rotate")
    (listed,) = (one for one in users_of(server) if one.name == "otto")
    assert len(listed.keys) == 2
    assert all(0 < key.expires_s < time.time() + 31 * 24 * 3600 for key in listed.keys)


def test_a_token_reads_one_dataset_and_is_listed_and_removed_by_its_user(
    dlcmd: Dlcmd, server: RunningServer
) -> None:
    admin, path, job_path = administrator(dlcmd, server), server.user("tina"), dlcmd.folder / "job.key"
    (dlcmd.folder / "f").write_text("content")
    for name in ("tinas", "others"):
        admin("put", "f", f"dl://{name}/")
        admin("user", "grant", "tina", name, "write")
    variables = {"DIESELFS_SERVER": server.tcp, "DIESELFS_KEY_FILE": str(path)}
    tina, job = (
        Dlcmd(dlcmd.home, dlcmd.folder, variables | {"DIESELFS_KEY_FILE": str(key)})
        for key in (path, job_path)
    )
    made = tina("user", "token", "--dataset", "tinas", "--for", "12h", "--out", job_path, "--json").summary
    assert (stat.S_IMODE(job_path.stat().st_mode), made["right"]) == (0o600, "read")
    assert job("cat", "dl://tinas/f").text == "content"
    job("cat", "dl://others/f", exit_code=EXIT_NOT_FOUND)
    assert (
        "this token of user tina may only read dataset tinas; with your key, make another"
        in job("rm", "dl://tinas/f", exit_code=EXIT_REFUSED).stderr
    )
    assert "administers nothing" in job("user", "grant", "tina", "x", "read", exit_code=EXIT_REFUSED).stderr
    again = ("user", "token", "--dataset", "tinas")
    for words in (again, ("user", "rotate"), ("user", "rm", "tina", "--key", made["key_id"])):
        assert "is a token of user tina, and changes no keys" in job(*words, exit_code=EXIT_REFUSED).stderr
    assert [[key["key_id"] for key in one["keys"]] for one in job("user", "ls", "--json").objects] == [
        [made["key_id"]]
    ]

    listed = tina("user", "ls")
    assert f"token {made['key_id']}" in listed.text and "    may read tinas" in listed.text
    assert [one["user"] for one in tina("user", "ls", "--json").objects] == ["tina"]
    tina("user", "rm", "tina", exit_code=EXIT_REFUSED)
    tina("user", "rm", "admin", "--key", "x", exit_code=EXIT_REFUSED)
    tina("user", "rm", "tina", "--key", made["key_id"])
    job("cat", "dl://tinas/f", exit_code=EXIT_REFUSED)
    writer = tina("user", "token", "--dataset", "tinas", "--write").text
    job_path.write_text(writer)
    job("rm", "dl://tinas/f")
    tina("user", "token", "--dataset", "tinas", "--for", "32d", exit_code=EXIT_USAGE)
    admin("user", "grant", "tina", "others", "read")
    more = ("user", "token", "--dataset", "tinas", "--dataset", "others", "--write")
    assert "tina may not write dataset 'others'" in tina(*more, exit_code=EXIT_REFUSED).stderr
    admin("user", "bar", "nobody", "-n", exit_code=EXIT_NOT_FOUND)
    admin("user", "bar", "tina", "-n")
    tina("ls")
    assert admin("user", "bar", "tina", "--json").summary["is_barred"]
    assert "tina, barred\n" in admin("user", "ls").text
    for barred in (tina, job):
        barred("ls", exit_code=EXIT_REFUSED)
    admin("user", "bar", "tina", "--lift")
    job("ls")
