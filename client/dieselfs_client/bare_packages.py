"""Packages of which a process needs single modules. Importing this module changes `sys.modules`, in our own programs.

`import thriftpy2` brings a parser and HTTP, and its protocols are eight modules: 2 MB in each process of a mount, which
needs one protocol alone. So its packages stay empty. In a program of a user, who may use thriftpy2, they must not.

`import trio` brings `ssl`, `hashlib` with OpenSSL, `idna`, and the names of languages: 6 MB, of which a daemon needs
OpenSSL for a server over TLS alone. Its classes for TLS, files and processes, its resolver of names, and the validators
of attrs are for programs that use them. No process of a mount does, so trio gets empty modules. `hashlib` and `hmac`
take the functions of Python, as fast for short messages.

`import numpy` brings the documentation of its functions in C and linear algebra, and annotations bring types for
checkers: 1 MB. Nobody uses them in a daemon.
"""

import sys
from _locale import getencoding
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

for _name in ("thriftpy2", "thriftpy2.protocol", "thriftpy2.transport"):
    if _name not in sys.modules and (_spec := find_spec(_name)) is not None:
        sys.modules[_name] = module_from_spec(_spec)  # not executed


class _Hollow(ModuleType):
    """A module in which everything is `value`."""

    def __init__(self, name: str, value: object = None) -> None:
        super().__init__(name)
        self.value = value

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.value


_TRIO_UNUSED = "_dtls", "_file_io", "_highlevel_ssl_helpers", "_path", "_ssl", "_subprocess"
_hidden: dict[str, Any] = {name: ModuleType(name) for name in ("ssl", "idna", "locale")}
_hidden["attr.validators"] = _Hollow("attr.validators", lambda *_: None)  # no validator, in `outcome`
_hidden |= {f"trio.{name}": _Hollow(f"trio.{name}") for name in _TRIO_UNUSED}
_hidden["locale"].getencoding = getencoding  # of `subprocess`
_hidden |= {"bz2": None, "lzma": None}  # what imports these, gets an ImportError
if any(map(find_spec, ("_sha2", "_sha256"))):  # some distributions build Python without them
    _hidden["_hashlib"] = None
if not sys.modules.keys() & {"_hashlib", "hashlib", "idna", "ssl", "trio"}:
    _hidden = {name: module for name, module in _hidden.items() if name not in sys.modules}
    sys.modules |= _hidden
    import hmac  # noqa: F401  # has the functions of Python

    import trio  # noqa: F401  # has the empty modules now

    for _name in _hidden:
        del sys.modules[_name]  # the next import of it brings all of it


class _AnyArray:
    """In place of the types of `numpy.typing`, in annotations."""

    def __class_getitem__(cls, _: object) -> "type[_AnyArray]":
        return cls


def _import_numpy() -> None:
    documents, algebra = ModuleType("numpy._core._add_newdocs"), _Hollow("numpy.linalg")
    types = _Hollow("numpy.typing", _AnyArray)
    sys.modules |= {module.__name__: module for module in (documents, algebra, types)}
    numpy = import_module("numpy")
    vars(numpy)["typing"] = types
    del sys.modules[algebra.__name__]


if "numpy" not in sys.modules:
    _import_numpy()
