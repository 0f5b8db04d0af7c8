"""The classes of `dieselfs.thrift`: structs, and the arguments and results of calls. No I/O.

Parsing the IDL takes longer than most commands, and the classes of all calls take 2 MB. So `dieselfs.thrift.json` has
what the parser of thriftpy2 makes of the IDL, a line for each class, and a line is decoded when its class is first
used. After a change of the IDL, `python -m tests.support.compiled_idl` writes that file again.
"""

import json
from pkgutil import get_data
from typing import Any

from thriftpy2.thrift import TException, TPayload, TType, gen_init


class Structs:
    """Each class is an attribute; those of a call are `CALL_args` and `CALL_result`.

    `services`: the names of the calls of each service.
    """

    def __init__(self, compiled: str) -> None:
        head, _, self._lines = compiled.partition(', "structs": {')
        about = json.loads(head + "}")
        self.PROTOCOL_VERSION: int = about["PROTOCOL_VERSION"]
        self.services: dict[str, list[str]] = about["services"]
        self._exceptions: list[str] = about["exceptions"]

    def __getattr__(self, name: str) -> Any:
        """The class of this name, made now. Several threads may make one: the first stays."""
        _, is_known, line = self.__dict__["_lines"].partition(f'\n"{name}": ')
        if not is_known:
            raise AttributeError(f"dieselfs.thrift has no {name}")
        fields: list[list[Any]] = json.JSONDecoder().raw_decode(line)[0]
        base = TException if name in self._exceptions else TPayload
        made: Any = type(name, (base,), {"__module__": __name__})
        spec, defaults = {}, []
        for number, kind, field, of, is_required, default in fields:
            spec[number] = (kind, field, *([] if of is None else [self._content(of)]), is_required)
            # The default of a binary field is text in the IDL.
            is_text = kind == TType.BINARY and default is not None
            defaults.append((field, default.encode() if is_text else default))
        made.default_spec = defaults
        gen_init(made, spec, defaults)
        return self.__dict__.setdefault(name, made)

    def _content(self, of: Any) -> Any:
        """What a struct, list or map has, as in a `thrift_spec`: types, and classes in place of their names."""
        if isinstance(of, list):
            return tuple(map(self._content, of))
        return getattr(self, of) if isinstance(of, str) else of


thrift = Structs((get_data("dieselfs.rpc", "dieselfs.thrift.json") or b"").decode())
