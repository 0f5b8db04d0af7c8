"""Options, environment, configuration file: which one wins, and what a broken file says."""

from pathlib import Path

import pytest

from dieselfs.cache.job import JobSettings
from dieselfs.config import Settings
from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB


def settings(
    tmp_path: Path, config: str = "", environment: dict[str, str] | None = None, **options: str
) -> Settings:
    folder = tmp_path / ".config" / "dieselfs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(config)
    return Settings.load(environment={"HOME": str(tmp_path), **(environment or {})}, **options)


def test_with_nothing_configured_all_is_embedded_in_the_home(tmp_path: Path) -> None:
    loaded = settings(tmp_path)
    assert loaded.server is None
    assert loaded.home == tmp_path / ".local/share/dieselfs"
    assert loaded.cache == tmp_path / ".cache/dieselfs"


def test_options_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    config = 'server = "tcp://file:1"\nkey_file = "/file"\ntls_ca = "/ca"\n'
    environment = {"DIESELFS_SERVER": "tcp://env:1", "DIESELFS_KEY_FILE": "/env"}
    loaded = settings(tmp_path, config, environment, server="tcp://option:1")
    assert (loaded.server, loaded.key_file, loaded.tls_ca) == ("tcp://option:1", "/env", "/ca")


def test_embedded_can_be_asked_for_where_a_server_is_configured(tmp_path: Path) -> None:
    assert settings(tmp_path, 'server = "tcp://file:1"', server="embedded").server is None


def test_everything_of_a_home_lies_in_it(tmp_path: Path) -> None:
    loaded = settings(tmp_path, environment={"DIESELFS_HOME": str(tmp_path / "own")})
    assert loaded.home == tmp_path / "own"
    assert loaded.cache == tmp_path / "own" / "cache"


def test_another_file_can_be_named(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('server = "tcp://other:1"')
    assert settings(tmp_path, environment={"DIESELFS_CONFIG": str(other)}).server == "tcp://other:1"


@pytest.mark.parametrize(
    ("config", "said"),
    [("server = ?", "line 1"), ("servr = 'x'", "unknown setting 'servr'"), ("server = 5", "must be text")],
)
def test_a_broken_file_is_named_with_what_is_wrong(tmp_path: Path, config: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        settings(tmp_path, config)
    assert "config.toml" in str(caught.value)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        settings(tmp_path, environment={"DIESELFS_CONFIG": str(tmp_path / "none.toml")})


def test_a_job_is_configured_like_everything_else(tmp_path: Path) -> None:
    config = 'job = "auto"\njob_secret = "~/secret"\njob_memory = "2GiB"\njob_nodes = "4"\n'
    loaded = settings(tmp_path, config, {"DIESELFS_JOB": "mine", "DIESELFS_JOB_NODE": "rack-1"})
    assert loaded.job == JobSettings("mine", "~/secret", 2 * GIB, 4, "rack-1")
    changed = loaded.in_job("", Path("/secret"), MIB).job
    assert changed == JobSettings("", "/secret", MIB, 4, "rack-1")
    assert loaded.in_job(None, None, None) == loaded
    assert settings(tmp_path).job == JobSettings()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('job_memory = "much"', "DIESELFS_JOB_MEMORY.: 'much' is not a size"),
        ('job_memory = "1MiB"', "DIESELFS_JOB_MEMORY. is 1MiB, and must be at least 8MiB"),
        ('job_nodes = "four"', "DIESELFS_JOB_NODES. is 'four', and should be a number"),
        ("job_nodes = 4", "must be text in quotes"),
    ],
)
def test_what_cannot_be_said_of_a_job(tmp_path: Path, wrong: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        settings(tmp_path, wrong)
