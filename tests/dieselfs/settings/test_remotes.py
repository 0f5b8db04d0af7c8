"""Remotes: each has its own server and key, and the settings of others are not used there."""

from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput, NotFound
from dieselfs.names import Location, parse_location, split_remote
from dieselfs.settings.remotes import at_remote
from dieselfs.settings.table import Settings


def loaded(folder: Path, text: str, remote: str) -> Settings:
    config = folder / "config.toml"
    config.write_text(f'server = "tcp://own:1"\nkey_file = "/own.key"\ntls_ca = "/own.pem"\n{text}')
    environment = {"DIESELFS_CONFIG": str(config), "HOME": str(folder)}
    return at_remote(Settings.load(environment=environment), remote, environment)


def test_a_remote_has_its_own_key_and_no_other(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[remotes.a]\nserver = "tcp://a:7"\nkey_file = "/a.key"\n', "a")
    assert (found.server, found.key_file, found.tls_ca, found.tls) == ("tcp://a:7", "/a.key", None, "on")
    near = loaded(tmp_path, '[remotes.b]\nserver = "unix:/s"\n', "b")
    assert (near.server, near.key_file) == ("unix:/s", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[remotes.a]\nserver = "tcp://a:7"\n', "key_file is missing"),
        ('[remotes.a]\nkey_file = "/k"\n', "server is missing"),
        ('[remotes.a]\nserver = "embedded"\n', "not another site"),
        ('[remotes.a]\nserver = "tcp://a:7"\nhome = "/h"\n', "unknown setting 'home'"),
        ("[remotes.a]\nserver = 7\n", "string in quotes"),
        ('[remotes]\na = "tcp://a:7"\n', "must be a table"),
    ],
)
def test_what_a_remote_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        loaded(tmp_path, text, "a")


def test_a_remote_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no remote 'a'"):
        loaded(tmp_path, "", "a")


def test_locations_with_a_remote() -> None:
    assert split_remote("dl://site1:pets@v1/a:b") == ("site1", "dl://pets@v1/a:b")
    assert split_remote("dl://pets/a:b") == ("", "dl://pets/a:b")
    assert split_remote("./site1:pets") == ("", "./site1:pets")
    assert str(Location("pets", b"a", False, "v1", "site1")) == "dl://site1:pets@v1/a"
    for text in ("dl://:pets", "dl://-x:pets"):
        with pytest.raises(InvalidInput, match="name of a remote"):
            split_remote(text)
    with pytest.raises(InvalidInput, match="has no remote"):
        parse_location("dl://site1:pets")
