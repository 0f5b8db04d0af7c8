"""The command line as a whole: help, common options, errors and exit codes."""

import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dieselfs import errors
from dieselfs_tools.cli.command_line import EXIT_OUTPUT_CLOSED, GROUPS, SYNONYMS, VERBS, described, dlcmd, run
from tests.support.dlcmd import Dlcmd
from tests.support.documents import REPOSITORY
from tests.support.server import RunningServer, free_port


def subcommands(group: click.Group) -> dict[str, click.Command]:
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def verbs(group: click.Group = dlcmd, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in subcommands(group).items():
        yield (*above, name)
        if isinstance(command, click.Group):
            yield from verbs(command, (*above, name))


@pytest.mark.parametrize("verb", [(), *verbs()], ids=" ".join)
def test_every_help_page_has_two_examples_and_the_common_options(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*verb, "--help"]) == errors.EXIT_OK
    page = capsys.readouterr().out
    examples = page.partition("Examples:\n")[2].splitlines()
    assert sum(line.strip().startswith(("dlcmd ", "tar ")) for line in examples) >= 2
    assert all(
        name in page
        for name in ("--server", "--key-file", "--json", "--quiet", "--progress", "--bytes", "--debug")
    )
    assert max(map(len, page.splitlines())) <= 120


CHANGING = (
    "put",
    "get",
    "rm",
    "rb",
    "mount",
    "umount",
    "upgrade",
    "cache",
    "purge",
    "user add",
    "user rm",
    "user grant",
)


@pytest.mark.parametrize("verb", CHANGING)
def test_everything_that_changes_something_has_a_dry_run(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*verb.split(), "--help"])
    assert "-n, --dry-run" in capsys.readouterr().out


def test_the_exit_codes_of_the_help_are_those_of_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    table = capsys.readouterr().out.partition("Exit codes:\n")[2]
    listed = {int(line.split()[0]) for line in table.splitlines() if line.strip()}
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert listed == codes | {EXIT_OUTPUT_CLOSED}


USAGE = [
    ["putt"],
    ["ls", "--no-such-option"],
    ["ls", "dl://"],
    ["ls", "dl://d/../etc"],
    ["ls", "dl://d/x//y"],
    ["put", "x"],
    ["put", "x", "y"],
    ["put", "-", "dl://d/"],
    ["put", "-r", "-", "dl://d/x"],
    ["put", "--chunk-size", "4X", ".", "dl://d/"],
    ["put", "--chunk-size", "1G", ".", "dl://d/"],
    ["put", "--jobs", "0", ".", "dl://d/"],
    ["put", ".", "dl://d/"],
    ["get", "."],
    ["rb", "dl://d/inside"],
    ["purge", "--grace", "soon", "dl://d"],
    ["user", "add", "not a name"],
    ["user", "grant", "anna", "d", "own"],
    ["mount", "d"],
    ["--server", "http://x/y", "ls"],
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
@pytest.mark.processes
def test_what_cannot_be_is_one_line_and_exit_code_1(
    arguments: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(home))
    assert run(arguments) == errors.EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dlcmd: ") and err.count("\n") == 1


MISSING = [
    ["ls", "dl://none"],
    ["ls", "none"],
    ["ls", "-R", "dl://none"],
    ["stat", "dl://none/x"],
    ["cat", "dl://none/x"],
    ["get", "dl://none/x"],
    ["get", "-r", "dl://none/"],
    ["rm", "dl://none/x"],
    ["rm", "-r", "dl://none/x"],
    ["du", "dl://none"],
    ["info", "dl://none"],
    ["rb", "-y", "dl://none"],
    ["mount", "none", "."],
    ["purge", "dl://none"],
    ["shuffle", "none"],
    ["user", "rm", "nobody"],
    ["user", "rm", "-n", "nobody"],
    ["user", "grant", "nobody", "d", "read"],
    ["put", "no-such-file", "dl://none/"],
    ["put", "-r", "no-such-folder", "dl://none/"],
]


@pytest.mark.parametrize("arguments", MISSING, ids=" ".join)
@pytest.mark.processes
def test_what_is_not_there_is_one_line_and_exit_code_3(
    arguments: list[str],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == errors.EXIT_NOT_FOUND
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dlcmd: ") and err.count("\n") == 1
    if arguments[0] == "cat":  # which has no JSON
        return
    assert run([*arguments, "--json"]) == errors.EXIT_NOT_FOUND
    assert capsys.readouterr().out.startswith('{"type": "summary", "exit_code": 3, "error": ')


def test_the_embedded_server_was_left_without_a_dataset_by_a_put_of_nothing(dlcmd: Dlcmd) -> None:
    dlcmd("put", "no-such-file", "dl://of-nothing/", exit_code=errors.EXIT_NOT_FOUND)
    dlcmd("info", "dl://of-nothing", exit_code=errors.EXIT_NOT_FOUND)


def test_common_options_may_stand_before_and_after_the_verb(dlcmd: Dlcmd, server: RunningServer) -> None:
    before = dlcmd("--server", server.unix, "--json", "ls")
    after = dlcmd("ls", "--json", "--server", server.unix)
    between = dlcmd("--json", "server", "--server", server.unix, "status")
    assert before.stdout == after.stdout
    assert between.objects[0]["address"] == server.unix


def test_the_environment_names_the_server(dlcmd: Dlcmd, server: RunningServer) -> None:
    there = Dlcmd(dlcmd.home, dlcmd.folder, {"DIESELFS_SERVER": server.unix})
    assert there("server", "status", "--json").objects[0]["address"] == server.unix
    assert there("--server", "embedded", "server", "status", "--json").objects[0]["address"] != server.unix


def test_the_configuration_file_names_the_server(dlcmd: Dlcmd, server: RunningServer) -> None:
    config = dlcmd.folder / ".config" / "dieselfs" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'server = "{server.unix}"\n')
    assert dlcmd("server", "status", "--json").objects[0]["address"] == server.unix
    config.write_text("sever = 1\n")
    assert "unknown setting 'sever'" in dlcmd("ls", exit_code=errors.EXIT_USAGE).stderr


@pytest.mark.parametrize("arguments", [("ls",), ("put", "f", "dl://d/"), ("user", "ls")], ids=" ".join)
def test_an_unreachable_server_is_exit_code_6(dlcmd: Dlcmd, arguments: tuple[str, ...]) -> None:
    (dlcmd.folder / "f").touch()
    address = f"tcp://127.0.0.1:{free_port()}"
    ran = dlcmd("--server", address, *arguments, exit_code=errors.EXIT_UNAVAILABLE)
    assert ran.stderr == f"dlcmd: cannot reach the server at {address}: Connection refused\n"


def test_what_is_no_server_is_exit_code_6(dlcmd: Dlcmd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = dlcmd.start(
            "--server", f"127.0.0.1:{listener.getsockname()[1]}", "ls", stderr=subprocess.PIPE
        )
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            _, err = process.communicate(timeout=60)
    assert process.returncode == errors.EXIT_UNAVAILABLE
    assert err.startswith(b"dlcmd: ") and err.count(b"\n") == 1


def test_wrong_and_missing_keys_are_exit_code_4(dlcmd: Dlcmd, server: RunningServer) -> None:
    over_tcp = ("--server", server.tcp)
    refused = errors.EXIT_REFUSED
    assert "requires a key" in dlcmd(*over_tcp, "ls", exit_code=refused).stderr
    assert "No such file" in dlcmd(*over_tcp, "ls", "--key-file", "none", exit_code=refused).stderr

    key = server.user("reader-with-a-key")
    dlcmd(*over_tcp, "ls", "--key-file", key)
    wrong = dlcmd.folder / "wrong"
    *name, secret, pin = key.read_text().split()
    wrong.write_text(" ".join([*name, secret[:-10] + "AAAAAAAAA=", pin]))
    wrong.chmod(0o600)
    err = dlcmd(*over_tcp, "ls", "--key-file", wrong, exit_code=refused).stderr
    assert secret[:20] not in err
    wrong.write_text("not a key")
    assert "is not a key file" in dlcmd(*over_tcp, "ls", "--key-file", wrong, exit_code=refused).stderr
    key.chmod(0o644)
    assert "chmod 600" in dlcmd(*over_tcp, "ls", "--key-file", key, exit_code=refused).stderr
    key.chmod(0o600)


def test_a_right_that_is_missing_is_exit_code_4_and_an_unseen_dataset_exit_code_3(
    dlcmd: Dlcmd, server: RunningServer
) -> None:
    (dlcmd.folder / "f").write_text("x")
    for name in ("seen", "unseen"):
        dlcmd("--server", server.unix, "put", "f", f"dl://{name}/")
    reader = ("--server", server.tcp, "--key-file", server.user("only-reads", seen="read"))
    assert dlcmd(*reader, "ls", "--json").objects[0]["dataset"] == "seen"
    assert dlcmd(*reader, "cat", "dl://seen/f").stdout == b"x"
    refused = errors.EXIT_REFUSED
    assert "may only read" in dlcmd(*reader, "put", "-f", "f", "dl://seen/g", exit_code=refused).stderr
    dlcmd(*reader, "rm", "dl://seen/f", exit_code=refused)
    dlcmd(*reader, "rb", "-y", "dl://seen", exit_code=refused)
    dlcmd(*reader, "purge", "dl://seen", exit_code=refused)
    dlcmd(*reader, "group", "ls", exit_code=refused)
    dlcmd(*reader, "server", "status", exit_code=refused)
    dlcmd(*reader, "ls", "dl://unseen", exit_code=errors.EXIT_NOT_FOUND)


def test_a_traceback_only_with_debug(dlcmd: Dlcmd) -> None:
    dlcmd("stat", "dl://none/x", exit_code=errors.EXIT_NOT_FOUND)
    process = dlcmd.start("stat", "--debug", "dl://none/x", stderr=subprocess.PIPE)
    _, err = process.communicate(timeout=60)
    assert b"Traceback" in err and process.returncode == errors.EXIT_NOT_FOUND


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt(15), 143, "interrupted"),
        (PermissionError(errno.EACCES, "Permission denied", "/a"), 4, "/a: Permission denied"),
        (click.Abort(), 130, "interrupted"),
        (errors.Damaged("chunk x: offset 3"), 5, "chunk x: offset 3"),
        (errors.StorageFull("no room"), 2, "no room"),
        (OSError(errno.EIO, os.strerror(errno.EIO), "/a/b"), 2, "/a/b: Input/output error"),
        (RuntimeError("can't start new thread"), 6, "allows no more threads (ulimit -u, pids.max)"),
        (MemoryError(), 6, "allows no more memory"),
        (ZeroDivisionError("x"), 70, "this is a bug in dieselfs: ZeroDivisionError: x"),
    ],
)
def test_errors_as_line_and_exit_code(error: BaseException, exit_code: int, text: str) -> None:
    message, code = described(error)
    assert text in message
    assert code == exit_code


@pytest.mark.parametrize("verb", ["put", "get", "rm", "rb", "mount", "warm", ""])
def test_only_put_and_get_continue_after_an_interruption(verb: str) -> None:
    message, _ = described(KeyboardInterrupt(), verb)
    assert ("the same command, run again, continues" in message) is (verb in ("put", "get"))


@pytest.mark.parametrize("arguments", [[], ["tag"], ["user"], ["server"]], ids=" ".join)
def test_a_group_alone_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == errors.EXIT_USAGE
    out, err = capsys.readouterr()
    assert out.startswith(" ".join(["Usage: dlcmd", *arguments])) and err == ""


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (["-h"], ["--help"]),
        (["help"], ["--help"]),
        (["put", "-h"], ["put", "--help"]),
        (["help", "put"], ["put", "--help"]),
        (["help", "tag", "add"], ["tag", "add", "--help"]),
    ],
    ids=str,
)
def test_there_are_short_ways_to_the_help(
    short: list[str], long: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(long) == errors.EXIT_OK
    page = capsys.readouterr().out
    assert run(short) == errors.EXIT_OK
    assert capsys.readouterr().out == page


def test_help_does_not_wait_for_heavy_imports() -> None:
    """The orders of some verbs are options that numpy parses."""
    program = (
        "import sys; from dieselfs_tools.cli.command_line import VERBS, dlcmd\n"
        "context = dlcmd.make_context('dlcmd', ['ls'])\n"
        "[dlcmd.get_command(context, verb) for verb in set(VERBS) - {'shuffle', 'which', 'bisect'}]\n"
        "print(*{'numpy', 'trio', 'thriftpy2'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "\n"


def test_help_has_each_verb_once_in_its_group_with_a_whole_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(["--help"])
    page = capsys.readouterr().out.partition("Start here:\n")[2].partition("  Examples:")[0]
    lines = re.findall(r"^  (\w+(?:, \w+)*) +([A-Z].*)$", page, re.MULTILINE)
    assert sorted(verb for names, _ in lines for verb in names.split(", ")) == sorted(VERBS)
    assert all(text == VERBS[names.partition(",")[0]] for names, text in lines)
    assert all(text.endswith(".") and text.count(". ") == 0 for text in VERBS.values())
    assert re.findall(r"^(\w.*):$", page, re.MULTILINE) == list(GROUPS)[1:]


def test_the_words_of_other_programs_lead_to_ours(capsys: pytest.CaptureFixture[str]) -> None:
    for word, verb in SYNONYMS.items():
        assert word not in VERBS and verb in {*VERBS, "--version"}
        assert run([word]) == errors.EXIT_USAGE
        assert f"there is no verb '{word}'; did you mean {verb}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["putt"], "there is no verb 'putt'; did you mean put?"),
        (["rm", "imagenet"], "dlcmd: 'imagenet' is not a dataset location: did you mean dl://imagenet?"),
        (["put", "-r", "imagenet"], "dlcmd put -r imagenet dl://"),
        (["put", "dl://d/"], "the SOURCE is missing"),
        (["stat"], "dlcmd: dl://DATASET/PATH... is missing"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_answered_by_what_to_write(
    arguments: list[str],
    text: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DIESELFS_HOME", str(home))
    assert run(arguments) == errors.EXIT_USAGE
    assert text in capsys.readouterr().err


def test_a_misspelt_dataset_is_answered_by_the_one_that_exists(dlcmd: Dlcmd) -> None:
    (dlcmd.folder / "f").touch()
    dlcmd("put", "f", "dl://misspelt-animals/")
    for verb in ("ls", "info", "get", "du"):
        ran = dlcmd(verb, "dl://mispelt-animals", exit_code=errors.EXIT_NOT_FOUND)
        assert "did you mean dl://misspelt-animals?" in ran.stderr


def test_a_misspelt_path_is_answered_by_the_one_that_exists(dlcmd: Dlcmd) -> None:
    (dlcmd.folder / "class_00").mkdir(exist_ok=True)
    (dlcmd.folder / "class_00" / "tom.jpg").touch()
    dlcmd("put", "-r", "class_00", "dl://misspelt-paths/")
    for place, meant in (("clas_00", "class_00"), ("class_00/tom.jp", "class_00/tom.jpg")):
        ran = dlcmd("ls", f"dl://misspelt-paths/{place}", exit_code=errors.EXIT_NOT_FOUND)
        assert f"did you mean dl://misspelt-paths/{meant}?" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mount", "/mnt/x", "dl://pets"), "the dataset comes first: dlcmd mount dl://pets /mnt/x"),
        (("put", "-r", "dl://pets", "pets"), "to write stored files here: dlcmd get dl://pets pets"),
        (("umount", "dl://pets"), "dl://pets/ is not mounted on this machine"),
        (("warm", "dl://pets"), "dl://pets/ is not mounted on this machine"),
        (
            ("mount", "./", "pets"),
            " is a folder: a dataset, or a file with a snapshot, comes first",
        ),
        (("ls", "/pets"), "names no dataset: write dl://DATASET/PATH"),
        (("ls", "dl:pets"), "has no remote: name its server in the settings, and write dl://DATASET/PATH"),
        (("du", "--depth", "x", "dl://pets"), "'x' is not a valid integer. ('dlcmd du --help' explains)"),
    ],
)
@pytest.mark.processes
def test_swapped_arguments_are_named(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == errors.EXIT_USAGE
    assert message in capsys.readouterr().err


def test_the_document_is_about_this_command(capsys: pytest.CaptureFixture[str]) -> None:
    document = (REPOSITORY / "docs" / "guide" / "dlcmd.md").read_text(encoding="utf-8")
    headings = {
        name for line in document.splitlines() if line.startswith("### ") for name in line[4:].split(", ")
    }
    assert headings == set(VERBS)
    rows = {int(row[1]) for row in re.finditer(r"^\| (\d+) \|", document, re.MULTILINE)}
    run(["--help"])
    table = capsys.readouterr().out.partition("Exit codes:\n")[2]
    assert {int(line.split()[0]) for line in table.splitlines() if line.strip()} == rows
    known = {name for verb in [(), *verbs()] for name in option_names(verb)}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", document)) <= known


def option_names(verb: tuple[str, ...]) -> set[str]:
    command: click.Command = dlcmd
    for name in verb:
        assert isinstance(command, click.Group)
        command = subcommands(command)[name]
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}
