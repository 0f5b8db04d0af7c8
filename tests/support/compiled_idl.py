"""The compiled form of `dieselfs.thrift`. This module writes files.

`python -m tests.support.compiled_idl` writes `dieselfs/rpc/dieselfs.thrift.json`, which `dieselfs.rpc.structs` reads:
one line for each struct, with `[number, type, name, content, is required, default]` of each field.
"""

import json
from pathlib import Path
from typing import Any

import thriftpy2

REPOSITORY = Path(__file__).parents[2]
IDL = REPOSITORY / "dieselfs" / "rpc" / "dieselfs.thrift"
COMPILED = IDL.with_suffix(".thrift.json")


def parsed() -> Any:
    """What the parser of thriftpy2 makes of the IDL."""
    with IDL.open(encoding="utf-8") as file:
        return thriftpy2.load_fp(file, module_name="parsed_dieselfs_thrift")


def structs_of(module: Any) -> dict[str, Any]:
    """All classes of a parsed IDL, by their names."""
    found = {kind.__name__: kind for kind in module.__thrift_meta__["structs"]}
    found |= {kind.__name__: kind for kind in module.__thrift_meta__["exceptions"]}
    for service in module.__thrift_meta__["services"]:
        for call in service.thrift_services:
            for name in (f"{call}_args", f"{call}_result"):
                kind = getattr(service, name)
                assert found.get(name, kind) is kind, f"two services have a call {call}"
                found[name] = kind
    return found


def compiled() -> str:
    """The content of the file."""
    module = parsed()
    services = {one.__name__: one.thrift_services for one in module.__thrift_meta__["services"]}
    exceptions = [kind.__name__ for kind in module.__thrift_meta__["exceptions"]]
    structs = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(_fields(kind))}" for name, kind in structs_of(module).items()
    )
    head = {"PROTOCOL_VERSION": module.PROTOCOL_VERSION, "services": services, "exceptions": exceptions}
    return f'{json.dumps(head)[:-1]}, "structs": {{\n{structs}\n}}}}\n'


def _fields(kind: Any) -> list[list[Any]]:
    defaults = dict(kind.default_spec)
    return [
        [number, spec[0], spec[1], _content(spec[2]) if len(spec) == 4 else None, spec[-1], defaults[spec[1]]]
        for number, spec in kind.thrift_spec.items()
    ]


def _content(of: Any) -> Any:
    if isinstance(of, tuple):
        return [_content(each) for each in of]
    return of.__name__ if isinstance(of, type) else of


if __name__ == "__main__":
    COMPILED.write_text(compiled(), encoding="utf-8")
