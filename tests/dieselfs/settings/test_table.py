"""One table: which place wins, what a broken value or file says, and the forms in which settings travel."""

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs.limits import GIB, MIB
from dieselfs.settings.__main__ import reference
from dieselfs.settings.table import (
    BY_NAME,
    SETTINGS,
    CacheOptions,
    JobSettings,
    Place,
    Settings,
    given_at,
)
from tests.support.documents import REPOSITORY

ALL = JobSettings("train", 8, "node-3", 0, "10.0.0.3", "/run/secret")


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
    [
        ("server = ?", "line 1"),
        ("servr = 'x'", r"unknown setting 'servr' \(known: .*key_file.*server"),
        ("memory = '1G'", "unknown setting 'memory'"),
        ("server = 5", "must be a string"),
    ],
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
    assert loaded.job == JobSettings("mine", 4, "rack-1", job_secret="~/secret")
    assert loaded.job_memory_bytes == 2 * GIB
    changed = loaded.in_job("", Path("/secret"), MIB)
    assert changed.job == JobSettings("", 4, "rack-1", job_secret="/secret")
    assert changed.job_memory_bytes == MIB
    assert loaded.in_job(None, None, None) == loaded
    assert settings(tmp_path).job == JobSettings()


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1TiB", 1024 * GIB), ("64GB", 64 * 10**9), ("1.5G", 3 * GIB // 2)]
)
def test_the_memory_of_a_job_is_any_size(tmp_path: Path, text: str, size_bytes: int) -> None:
    assert settings(tmp_path, environment={"DIESELFS_JOB_MEMORY": text}).job_memory_bytes == size_bytes
    assert settings(tmp_path, f'job_memory = "{text}"').job_memory_bytes == size_bytes


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job_memory", "much", "'much' is not a size: write for example 512MiB"),
        ("job_memory", "1MiB", "1MiB is too small: it must be at least 8MiB"),
        ("job_nodes", "four", "'four' is not a whole number: write for example 8"),
    ],
)
def test_a_broken_value_is_named_as_it_was_given(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"config.toml: {name}: {said}"):
        settings(tmp_path, f'{name} = "{text}"')
    with pytest.raises(InvalidInput, match=f"^DIESELFS_{name.upper()}: {said}"):
        settings(tmp_path, environment={f"DIESELFS_{name.upper()}": text})


def test_values_in_a_file_are_texts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="job_nodes must be a string in quotes"):
        settings(tmp_path, "job_nodes = 4")


@pytest.mark.parametrize("part", [{"job_nodes": 3}, {"job_rank": 0}, {"job_secret": "file"}])
def test_nothing_can_be_said_of_no_job(part: dict[str, object]) -> None:
    said = replace(JobSettings(), **part)  # type: ignore[arg-type]  # each is of the type of its field
    (name,) = part
    with pytest.raises(InvalidInput, match=f"--{name.replace('_', '-')} belongs to a job: give --job NAME"):
        said.check()
    replace(said, job="train").check()


def test_files_are_found_from_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert replace(ALL, job_secret="secret").absolute() == replace(ALL, job_secret=f"{tmp_path}/secret")
    assert JobSettings().absolute() == JobSettings()
    assert replace(ALL, job_secret="~/secret").absolute() == replace(ALL, job_secret="~/secret")
    assert CacheOptions(home="home", key_file="/key").absolute() == CacheOptions(
        home=f"{tmp_path}/home", key_file="/key"
    )


def test_a_setting_says_how_it_can_be_given() -> None:
    assert BY_NAME["job"].ways() == "--job NAME, -o job=NAME or DIESELFS_JOB=NAME"
    assert BY_NAME["tls_ca"].ways() == "DIESELFS_TLS_CA=FILE"


def test_every_field_has_one_row() -> None:
    rows = [row.field for row in SETTINGS]
    assert len(set(rows)) == len(rows)
    assert {each.name for each in fields(CacheOptions)} == {
        row.field for row in given_at(Place.CACHE | Place.DAEMON | Place.VERB)
    }


def test_the_document_holds_the_table() -> None:
    document = (REPOSITORY / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    _, _, rest = document.partition("<!-- python -m dieselfs.settings -->\n\n")
    table, _, _ = rest.partition("\n<!-- end -->")
    assert table == reference(), "write it again: python -m dieselfs.settings"


def test_settings_and_flags_are_cheap_to_import() -> None:
    heavy = ("numpy", "trio", "thriftpy2")
    program = f"import sys, dieselfs.settings.flags; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_configured_disk_is_used_unless_another_or_none_is_named(tmp_path: Path) -> None:
    loaded = settings(tmp_path, 'disk = "/nvme/own"\ndisk_size = "500GiB"\n')
    assert loaded.with_disk(CacheOptions()) == CacheOptions(disk="/nvme/own", disk_size_bytes=500 * GIB)
    assert loaded.with_disk(CacheOptions(disk_size_bytes=GIB)).disk_size_bytes == GIB
    for named in (CacheOptions(disk="/other"), CacheOptions(disk="")):
        assert loaded.with_disk(named) == named
    assert settings(tmp_path).with_disk(CacheOptions()) == CacheOptions()
    assert CacheOptions(disk="").absolute().disk == ""
    assert CacheOptions(disk="tier").absolute().disk == str(Path("tier").absolute())


def test_a_size_of_the_disk_without_a_disk_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--disk FOLDER"):
        CacheOptions(disk_size_bytes=GIB).check()
    CacheOptions(disk="/nvme", disk_size_bytes=GIB).check()
