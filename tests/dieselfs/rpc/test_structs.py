"""The compiled IDL is that of the IDL, and its classes are those that thriftpy2 makes."""

import subprocess
import sys
from typing import Any

import pytest
from thriftpy2.thrift import TException, TType, gen_init

from dieselfs.rpc.structs import Structs, thrift
from tests.support.compiled_idl import COMPILED, compiled, parsed, structs_of

PARSED = structs_of(parsed())


def described(spec: dict[int, tuple[object, ...]]) -> dict[int, object]:
    """A spec with the names of classes: there are two of each."""

    def part(of: object) -> object:
        if isinstance(of, tuple):
            return tuple(map(part, of))
        return of.__name__ if isinstance(of, type) else of

    return {number: part(field) for number, field in spec.items()}


def test_the_file_is_that_of_the_idl() -> None:
    assert COMPILED.read_text(encoding="utf-8") == compiled(), (
        "write it again: python -m tests.support.compiled_idl"
    )


@pytest.mark.parametrize("name", sorted(PARSED))
def test_a_class_is_that_of_thriftpy2(name: str) -> None:
    made, wanted = getattr(thrift, name), PARSED[name]
    assert list(described(made.thrift_spec).items()) == list(described(wanted.thrift_spec).items())
    assert issubclass(made, TException) == issubclass(wanted, TException)
    kinds = {spec[1]: spec[0] for spec in wanted.thrift_spec.values()}
    for field, default in wanted.default_spec:
        is_text = kinds[field] == TType.BINARY and default is not None
        assert getattr(made(), field) == (default.encode() if is_text else default)


def test_a_class_is_made_once_and_an_unknown_one_is_named() -> None:
    assert thrift.Bulk is thrift.Bulk
    with pytest.raises(AttributeError, match="no Bulky"):
        _ = thrift.Bulky


def test_threads_that_make_a_class_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a reply would have another class than the struct in it, for as long as the process lives."""
    shared = Structs(COMPILED.read_text(encoding="utf-8"))
    make = gen_init
    others: list[type] = []

    def interrupted(made: type, spec: Any, defaults: Any) -> None:
        if made.__name__ == "PayloadFile":
            monkeypatch.undo()
            others.append(shared.PayloadFile)  # as another thread, meanwhile
        make(made, spec, defaults)

    monkeypatch.setattr("dieselfs.rpc.structs.gen_init", interrupted)
    _, _, files = shared.PayloadFiles.thrift_spec[1][:3]
    assert [files[1]] == [shared.PayloadFile] == others


def test_messages_need_no_parser() -> None:
    """Only the classes that are used are made."""
    program = (
        "from dieselfs.rpc.messages import encode_call, thrift; encode_call('status', 1, {}); "
        "import sys; print('dieselfs_rpc_thrift' in sys.modules, len(vars(thrift)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "False 5\n"
