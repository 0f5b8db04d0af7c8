"""The documented lines of --json: the page and the schema are those of the table, and every verb keeps to it.

`tests/support/dlcmd.py` checks the lines of all tests that look at them; here is each verb that needs no mount.
"""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError

from dieselfs.errors import EXIT_NOT_FOUND, EXIT_PARTIAL, EXIT_USAGE
from dieselfs_tools.cli.command_line import VERBS
from dieselfs_tools.cli.private_home import private_home
from tests.support.dlcmd import Dlcmd, check_json_line
from tests.support.documents import REPOSITORY
from tests.support.json_fields import FIELDS
from tests.support.json_lines import VERB_LINES, fields_of, page, schema, text
from tests.support.speeds import write_speeds

REFERENCE = REPOSITORY / "docs" / "reference"


def test_the_page_and_the_schema_hold_the_table() -> None:
    document = (REFERENCE / "json.md").read_text(encoding="utf-8")
    _, _, rest = document.partition("<!-- python -m tests.support.json_lines -->\n\n")
    table, _, _ = rest.partition("\n<!-- end -->")
    assert table == page(), "write it again: python -m tests.support.json_lines"
    written = (REFERENCE / "json-schema.json").read_text(encoding="utf-8")
    assert written == text(), "write it again: python -m tests.support.json_lines --schema"
    assert json.loads(written) == schema()


def test_each_verb_is_there_and_each_field_is_used() -> None:
    assert set(VERBS) == set(VERB_LINES), "describe its lines in tests.support.json_lines"
    forms = [form for lines in VERB_LINES.values() for kind in lines.values() for form in kind]
    used = {name for form in forms for name, _, _ in fields_of(form)}
    assert set(FIELDS) - used == {"type", "exit_code", "error", "reason"}
    Draft202012Validator.check_schema(schema())


def test_the_check_finds_what_is_wrong() -> None:
    good = {"type": "summary", "exit_code": 0, "entries": 1, "bytes": 2}
    check_json_line("find", good)
    for bad in ({**good, "more": 1}, {**good, "bytes": "2"}, {"type": "summary", "entries": 1, "bytes": 2}):
        with pytest.raises((AssertionError, ValidationError)):
            check_json_line("find", bad)


RUNS: Sequence[tuple[str, int]] = (
    ("put -r pets/ dl://D/", 0),
    ("put -r -n --force pets/ dl://D/", 0),
    ("put gone dl://D/", EXIT_NOT_FOUND),
    ("sync --delete pets/ dl://D/", 0),
    ("sync -n --delete empty/ dl://D/", 0),
    ("sync dl://D/ synced", 0),
    ("sync -n --delete dl://D/train/ synced", 0),
    ("import a.tar dl://D/in/", 0),
    ("import -n a.tar dl://D/other/", 0),
    ("attach -n a.tar dl://D/at/", 0),
    ("attach a.tar dl://D/at/", 0),
    ("attach --list D", 0),
    ("detach a.tar dl://D", 0),
    ("get -r dl://D/ out", 0),
    ("get -rn dl://D/ new", 0),
    ("export D a.erofs", 0),
    ("export -n D b.erofs", 0),
    ("export D b.tar", 0),
    ("export -n D c.tar", 0),
    ("export --format folder D folder", 0),
    ("ls", 0),
    ("ls -R D", 0),
    ("stat dl://D/latest dl://D/train", 0),
    ("find D", 0),
    ("tree D", 0),
    ("tree -d D", 0),
    ("cat dl://D/none", EXIT_USAGE),
    ("head dl://D/none", EXIT_USAGE),
    ("cp -n dl://D/none dl://D/copy", 0),
    ("cp dl://D/none dl://D/copy", 0),
    ("cp -n pets/none dl://D/copy", 0),
    ("cp dl://D/copy copy", 0),
    ("rm dl://D/copy", 0),
    ("mv -n dl://D/none dl://D/nothing", 0),
    ("mv dl://D/none dl://D/nothing", 0),
    ("rm -rn dl://D/in", 0),
    ("rm -r dl://D/in", 0),
    ("du -d 1 D", 0),
    ("du --stored D", 0),
    ("info D dl://D/train/cat.txt", 0),
    ("tag add D v1", 0),
    ("tag add -n D v2", 0),
    ("tag ls D", 0),
    ("mirror --status", 0),
    ("diff D@v1 D", 0),
    ("check pets/ dl://D/", EXIT_PARTIAL),
    ("check pets/ dl://D/ --exclude /no*", 0),
    ("verify dl://D@v1", 0),
    ("verify pets", 0),
    ("fsck D", 0),
    ("purge D", 0),
    ("purge -n D", 0),
    ("fsck --all", 0),
    ("purge --all", 0),
    ("repack D", 0),
    ("rebuild D", 0),
    ("rebuild -n D", 0),
    ("shuffle D", 0),
    ("shuffle --quality D", 0),
    ("which --step 0 --batch 2 D", 0),
    ("mounts", 0),
    ("umount nowhere", EXIT_NOT_FOUND),
    ("user add -n anna", 0),
    ("user ls", 0),
    ("group add -n vision", 0),
    ("group add -n", EXIT_USAGE),
    ("login", EXIT_USAGE),
    ("logout", EXIT_NOT_FOUND),
    ("group ls", 0),
    ("quota ls", 0),
    ("quota set -n * --size 1TB", 0),
    ("limit ls", 0),
    ("limit set -n * --rate 10MiB/s", 0),
    ("usage", 0),
    ("usage --by user", 0),
    ("server status", 0),
    ("top --once --interval 0.1s", 0),
    ("metrics", 0),
    ("doctor", 0),
    ("why nowhere --since-start", EXIT_NOT_FOUND),
    ("plan D --speeds speeds.json", 0),
    ("plan D --speeds nowhere.json", EXIT_NOT_FOUND),
    ("report nowhere -o report.html", EXIT_NOT_FOUND),
    ("config list", 0),
    ("config test", 0),
    ("config set -n tls on", 0),
    ("completion bash", 0),
    ("snapshot save D ./old.snapshot", 0),
    ("snapshot ls", 0),
    ("snapshot log D", 0),
    ("snapshot diff ./old.snapshot D", 0),
    ("snapshot prune -n", 0),
    ("tag rm -n D v1", 0),
    ("tag rm D v1", 0),
    ("rb -n D", 0),
    ("rb -y D", 0),
)
IN_OTHER_TESTS = {
    "bisect",
    "prove",
    "columns",
    "bench",
    "chaos",
    "dashboard",
    "mount",
    "upgrade",
    "warm",
    "cache",
    "run",
    "key",
    "erase",
}


@pytest.mark.timeout(1200)  # more than sixty processes, one after the other
def test_every_verb_prints_what_is_documented(tmp_path: Path) -> None:
    """In a home of its own, without the damaged datasets of other tests."""
    with private_home() as home:
        every_verb_prints_what_is_documented(Dlcmd(home, tmp_path), "documented")


def every_verb_prints_what_is_documented(dlcmd: Dlcmd, dataset: str) -> None:
    for name, size in (("train/cat.txt", 5), ("train/more/dog.bin", 4096), ("none", 0)):
        place = dlcmd.folder / "pets" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes(size))
    (dlcmd.folder / "pets" / "latest").symlink_to("none")
    (dlcmd.folder / "pets" / "\udcff").touch()
    (dlcmd.folder / "empty").mkdir()
    with tarfile.open(dlcmd.folder / "a.tar", "w") as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    write_speeds(dlcmd.folder / "speeds.json")
    for line, exit_code in RUNS:
        words = [
            word.replace("D", dataset) if word.startswith(("D", "dl://D")) else word for word in line.split()
        ]
        ran = dlcmd(*words, "--json", exit_code=exit_code)
        assert ran.summary["exit_code"] == exit_code
        assert isinstance(ran.objects, list)
    assert set(VERBS) - {line.split()[0] for line, _ in RUNS} == IN_OTHER_TESTS
