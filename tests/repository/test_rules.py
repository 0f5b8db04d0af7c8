"""Each rule finds its offender, and nothing else."""

import pytest

from tests.repository.rules import (
    circle_fault,
    danger_faults,
    effect_faults,
    layer_faults,
    length_faults,
    linked_files,
    mentioned_documents,
    sleep_faults,
    suppression_faults,
    swallowing_faults,
    two_way_faults,
)


@pytest.mark.parametrize(
    ("package", "source", "is_right"),
    [
        ("dieselfs", "import os\nfrom dieselfs.names import printable", True),
        ("dieselfs", "import dieselfs_server", False),
        ("dieselfs", "def f():\n    from dieselfs_client.main import main", False),
        ("dieselfs_server", "from dieselfs.errors import Damaged", True),
        ("dieselfs_server", "import dieselfs_client.main", False),
        ("dieselfs_client", "import dieselfs_server.main", False),
        ("dieselfs_tools", "import dieselfs_client, dieselfs", True),
        ("dieselfs_tools", "import dieselfs_server", False),
        ("dieselfs_client", "from tests.support import trees", False),
    ],
)
def test_layers(package: str, source: str, is_right: bool) -> None:
    assert (not list(layer_faults(source, package))) == is_right


def test_two_way_imports() -> None:
    down = {"d.a.x": "from d.b.y import f", "d.b.y": "import os", "d.limits": "import d.a.x"}
    assert not list(two_way_faults(down))
    assert [
        fault.partition(" import ")[0] for fault in two_way_faults({**down, "d.b.z": "import d.a.x"})
    ] == ["d.a and d.b"]


def test_circles_of_imports() -> None:
    down = {"d.a": "from d.b import f", "d.b": "import os, d.c", "d.c": ""}
    assert circle_fault(down) is None
    fault = circle_fault({**down, "d.c": "def f():\n    import d.a"})
    assert fault is not None
    assert {"d.a", "d.b", "d.c"} == {*fault.partition(":")[0].split(" <- ")}


@pytest.mark.parametrize(
    ("source", "is_right"),
    [
        ('"""Arithmetic. No I/O."""\nimport os\nx = os.fsencode("a"), os.path.join("a", "b")', True),
        ('"""Arithmetic. No I/O."""\nfrom urllib.parse import quote', True),
        ('"""Arithmetic."""\nimport urllib.request', False),
        ('"""Arithmetic."""\nimport socket', False),
        ('"""Arithmetic."""\nfrom pathlib import Path', False),
        ('"""Arithmetic."""\nimport os\nos.stat("a")', False),
        ('"""Arithmetic."""\nimport os\nos.path.exists("a")', False),
        ('"""Arithmetic."""\ndef f():\n    return open("a")', False),
        ('"""Arithmetic."""\ndef f():\n    import subprocess', False),
        ("import mmap", False),
        ('"""Maps files. This module opens files."""\nimport mmap', True),
        ('"""Maps files.\n\nThis module opens files.\n"""\nimport mmap', False),
    ],
)
def test_effects(source: str, is_right: bool) -> None:
    assert (not list(effect_faults(source))) == is_right


def test_lengths() -> None:
    body = "    x = 1\n" * 70
    assert not list(length_faults(f"def f():\n{body}"))
    assert not list(length_faults(f'def f():\n    """Why.\n\n    And how.\n    """\n{body}'))
    assert list(length_faults(f"async def f():\n{body}    y = 1\n")) == [
        "1: the body of f has 71 lines, limit 70: split it"
    ]
    assert not list(length_faults("x = 1\n" * 700))
    assert len(list(length_faults("x = 1\n" * 701))) == 1


@pytest.mark.parametrize(
    ("source", "is_right"),
    [
        ("import json\nretrieval(1)\nsubprocess.run(['a'], shell=False)", True),
        ("import pickle", False),
        ("from marshal import loads", False),
        ("x = eval('1')", False),
        ("yaml.load(text)", False),
        ("yaml.safe_load(text)", True),
        ("subprocess.run('a', shell=True)", False),
        ("numpy.load('a', allow_pickle=True)", False),
    ],
)
def test_dangers(source: str, is_right: bool) -> None:
    assert (not list(danger_faults(source))) == is_right


@pytest.mark.parametrize(
    ("source", "is_right"),
    [
        ("import time\ntime.monotonic()", True),
        ("import time\ntime.sleep(1)", False),
        ("from time import sleep\nsleep(1)", False),
        ("import time\nwhile not is_there():\n    time.sleep(0.01)", True),
        ("import time\nwhile True:\n    time.sleep(0.01)", False),
        ("from trio import sleep\nsleep(1)", True),
    ],
)
def test_sleeps(source: str, is_right: bool) -> None:
    assert (not list(sleep_faults(source))) == is_right


@pytest.mark.parametrize(
    ("comment", "is_right"),
    [
        ("type: ignore[arg-type]  # checked two lines above", True),
        ("type: ignore[arg-type, misc]  # checked two lines above", True),
        ("type: ignore[arg-type]", False),
        ("type: ignore  # checked two lines above", False),
        ("type: ignore[arg-type]  # ok", False),
        ("noqa: E501  # an address that cannot be broken", True),
        ("noqa: E501, F401  # an address that cannot be broken", True),
        ("noqa: E501", False),
        ("noqa", False),
        ("noqa  # an address that cannot be broken", False),
        ("TODO", False),
        ("a comment about noquantity", True),
    ],
)
def test_suppressions(comment: str, is_right: bool) -> None:
    assert (not list(suppression_faults(f"x = 1  # {comment}\n"))) == is_right
    assert not list(suppression_faults(f"x = '# {comment}'\n"))


@pytest.mark.parametrize(
    ("line", "is_right"),
    [
        ("except Exception:", False),
        ("except Exception as error:", False),
        ("except Exception:  # a bug ends this connection, not the server", True),
        ("except BaseException:", True),
        ("except ExceptionGroup:", True),
    ],
)
def test_swallowed_errors(line: str, is_right: bool) -> None:
    assert (not list(swallowing_faults(f"try:\n    f()\n{line}\n    pass\n"))) == is_right


def test_links() -> None:
    assert list(mentioned_documents("a\nsee `docs/a-b.md` and docs/c.md.")) == [
        (2, "docs/a-b.md"),
        (2, "docs/c.md"),
    ]
    text = "[a](docs/a.md#part) [b](https://example.org/b.md)\n[c](#here) ![d](d.png)"
    assert list(linked_files(text)) == [(1, "docs/a.md"), (2, "d.png")]
