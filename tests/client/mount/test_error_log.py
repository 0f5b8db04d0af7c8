from dieselfs_client.mount.error_log import REPEAT_NS, ErrorLog

AT_NS = 1_700_000_000_123_456_789


def test_a_line_has_time_path_and_reason() -> None:
    errors = ErrorLog(clock_ns=lambda: AT_NS)
    errors.note("train/cat.txt", "the server\nis gone")
    assert errors.text() == "2023-11-14T22:13:20.123+00:00\ttrain/cat.txt\tthe server is gone\n"


def test_the_oldest_make_room() -> None:
    errors = ErrorLog(errors_max=2, clock_ns=lambda: AT_NS)
    assert errors.text() == ""
    for number in range(5):
        errors.note(str(number), "gone")
    assert [line.split("\t")[1] for line in errors.text().splitlines()] == ["3", "4"]


def test_an_error_that_is_repeated_at_once_is_listed_once() -> None:
    now_ns = [AT_NS]
    errors = ErrorLog(clock_ns=lambda: now_ns[0])
    for number, path in enumerate(("a", "b", "a", "b")):
        errors.note(path, str(number))
    assert [line.split("\t")[1:] for line in errors.text().splitlines()] == [["a", "2"], ["b", "3"]]
    now_ns[0] += REPEAT_NS
    errors.note("a", "connection refused")
    assert len(errors.text().splitlines()) == 3
