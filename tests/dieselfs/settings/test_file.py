"""Changes of the configuration file: one setting changes, everything else stays."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dieselfs.errors import DieselfsError, InvalidInput
from dieselfs.settings.file import changed, checked_text, client_setting, names, write_setting

FILE = """\
# the cluster
server = "tcp://a:1"   # old storage
key_file = '~/key#1'

job = "auto"
"""


def test_comments_and_other_lines_stay() -> None:
    assert changed(FILE, "server", "tcp://b:2") == FILE.replace("tcp://a:1", "tcp://b:2")
    assert changed(FILE, "key_file", "~/k") == FILE.replace("'~/key#1'", '"~/k"')
    assert changed(FILE, "job", None) == FILE.replace('job = "auto"\n', "")
    assert changed(FILE.rstrip(), "tls", "off") == FILE + 'tls = "off"\n'
    assert changed(FILE, "tls", None) == FILE
    assert changed("", "tls", "off") == 'tls = "off"\n'


@pytest.mark.parametrize(
    "text", ["[table]\nx = 1\n", 'job = """a\nb"""\n', "job = \n", '[job]\nx = "a"\n', "job = [1,\n2]\n"]
)
def test_a_text_that_would_change_its_meaning_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        changed(text, "job", "x")


ANY_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\t\n\r\"'\\#"))


@given(st.dictionaries(st.sampled_from(names()), ANY_TEXT), st.sampled_from(names()), ANY_TEXT | st.none())
def test_what_was_set_is_read_again(start: dict[str, str], name: str, value: str | None) -> None:
    text = "# mine\n"
    for known, old in start.items():
        text = changed(text, known, old)
    after = tomllib.loads(changed(text, name, value))
    assert after == {key: old for key, old in start.items() if key != name} | (
        {} if value is None else {name: value}
    )


def test_the_file_is_private_and_a_link_to_it_stays(tmp_path: Path) -> None:
    link, real = tmp_path / "config" / "config.toml", tmp_path / "dotfiles.toml"
    assert write_setting(link, "tls", "off", is_dry_run=True) and not link.exists()
    link.parent.mkdir()
    link.symlink_to(real)
    assert write_setting(link, "tls", "off")
    assert link.is_symlink() and real.read_text() == 'tls = "off"\n'
    assert real.stat().st_mode & 0o777 == 0o600
    assert not write_setting(link, "tls", "off")


def test_a_file_that_cannot_be_changed_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "config.toml"
    broken.write_text("server = \n")
    with pytest.raises(InvalidInput, match=r"config\.toml: it is not valid TOML"):
        write_setting(broken, "tls", "off")
    broken.write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match=r"config\.toml"):
        write_setting(broken, "tls", "off")
    with pytest.raises(DieselfsError, match=r"config\.toml: (File exists|Not a directory)"):
        (tmp_path / "file").touch()
        write_setting(tmp_path / "file" / "config.toml", "tls", "off")


def test_values_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert client_setting("job-memory").name == "job_memory"
    assert checked_text(client_setting("key_file"), "key") == str(tmp_path / "key")
    assert checked_text(client_setting("key_file"), "~/key") == "~/key"
    for name, text in (("tls", "maybe"), ("job_memory", "many"), ("server", "")):
        with pytest.raises(InvalidInput, match=name):
            checked_text(client_setting(name), text)
    with pytest.raises(InvalidInput, match="unknown setting 'memory'"):
        client_setting("memory")
