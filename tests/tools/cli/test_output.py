"""What is printed, for people and for programs."""

import json
from pathlib import Path

import pytest

from dieselfs.errors import InvalidInput
from dieselfs_tools.cli.output import FAILURES_SHOWN_MAX, Output, name_fields, replace_file


def test_a_name_that_is_not_utf8_comes_with_its_bytes() -> None:
    assert name_fields("ü\n".encode()) == {"path": "ü\n"}
    assert name_fields(b"\xff/a", "target") == {"target": "\\xff/a", "target_bytes": "/y9h"}


def test_json_is_one_object_a_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(is_json=True)
    output.record("entry", "for people", {"path": "a\nb"})
    output.note("for people")
    output.failures([("b", "is gone")], 1)
    assert output.summary("for people", {"entries": 1}, 2) == 2
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"type": "entry", "path": "a\nb"},
        {"type": "failure", "path": "b", "reason": "is gone"},
        {"type": "summary", "exit_code": 2, "entries": 1},
    ]
    assert err == "dlcmd: b: is gone\n"


@pytest.mark.parametrize("together", [1, 2, 7])
def test_many_results_are_those_of_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("dieselfs_tools.cli.output.RECORDS_TOGETHER", together)
    for output in (Output(), Output(is_json=True)):
        for number in range(5):
            output.record("n", f"number {number}", {"number": number})
        expected = capsys.readouterr().out
        count = output.records(
            "n", range(5), lambda number: f"number {number}", lambda number: {"number": number}
        )
        assert (count, capsys.readouterr().out) == (5, expected)
        assert output.records("n", range(0), str, lambda number: {}) == 0
        assert capsys.readouterr().out == ""


def test_quiet_keeps_results_and_errors(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(is_quiet=True)
    output.note("note")
    output.detail("entry", "detail", {})
    output.record("entry", "result", {})
    output.error("wrong")
    output.summary("summary", {})
    assert capsys.readouterr() == ("result\n", "dlcmd: wrong\n")


def test_an_error_is_one_line_of_printable_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output().error("first\nsecond \x1b[31m \udcff")
    assert capsys.readouterr().err == "dlcmd: first second \\x1b[31m \\xff\n"


def test_of_many_failures_the_first_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Output().failures([(str(n), "gone") for n in range(1000)], 5000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == FAILURES_SHOWN_MAX + 1
    assert lines[-1] == f"dlcmd: ... and {5000 - FAILURES_SHOWN_MAX} more like these"


def test_sizes_are_exact_on_request() -> None:
    assert (Output().size(2048), Output(is_exact=True).size(2048)) == ("2.0 KiB", "2048")


def test_a_file_is_replaced_whole_whatever_its_text_is(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    replace_file(path, "old")
    replace_file(path, "a name with \udcff in it")
    assert path.read_text() == "a name with \\udcff in it"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("name", ["/", ".", "missing/file", ".."])
def test_a_place_that_is_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="name a file"):
        replace_file(Path(name), "text")
    assert [*tmp_path.iterdir()] == []


def test_colours_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Output().coloured("+ f", "green") == "+ f"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert Output().coloured("+ f", "green") == "\x1b[32m+ f\x1b[0m"
    assert Output(is_json=True).coloured("+ f", "green") == "+ f"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Output().coloured("+ f", "green") == "+ f"
