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


def _imported(package: str, hidden: dict[str, Any]) -> ModuleType:
    """A package that finds `hidden` in place of modules; or all of it, if another release of it needs these at once."""
    before = {*sys.modules}
    hidden = {name: module for name, module in hidden.items() if name not in before}
    sys.modules |= hidden
    try:
        return import_module(package)
    except Exception:  # any: a base class is missing, or a name
        for name in sys.modules.keys() - before:
            del sys.modules[name]
        return import_module(package)
    finally:
        for name, module in hidden.items():  # the next import of it brings all of it
            if name in sys.modules and sys.modules[name] is module:
                del sys.modules[name]


def _import_trio() -> None:
    unused = "_dtls", "_file_io", "_highlevel_ssl_helpers", "_path", "_ssl", "_subprocess"
    hidden: dict[str, Any] = {name: ModuleType(name) for name in ("ssl", "idna", "locale")}
    hidden["attr.validators"] = _Hollow("attr.validators", lambda *_: None)  # no validator, in `outcome`
    hidden |= {f"trio.{name}": _Hollow(f"trio.{name}") for name in unused}
    hidden["locale"].getencoding = getencoding  # of `subprocess`
    hidden |= {"bz2": None, "lzma": None}  # what imports these, gets an ImportError
    has_own_hashes = any(map(find_spec, ("_sha2", "_sha256")))  # some distributions build Python without them
    without_openssl: dict[str, Any] = {"_hashlib": None} if has_own_hashes else {}
    _imported("hmac", without_openssl)
    _imported("trio", hidden | without_openssl)


if not sys.modules.keys() & {"_hashlib", "hashlib", "idna", "ssl", "trio"}:
    _import_trio()


class _AnyArray:
    """In place of the types of `numpy.typing`, in annotations."""

    def __class_getitem__(cls, _: object) -> "type[_AnyArray]":
        return cls


def _import_numpy() -> None:
    types = _Hollow("numpy.typing", _AnyArray)
    parts = ModuleType("numpy._core._add_newdocs"), _Hollow("numpy.linalg"), types
    numpy = _imported("numpy", {part.__name__: part for part in parts})
    vars(numpy)["typing"] = sys.modules["numpy.typing"] = types


if "numpy" not in sys.modules:
    _import_numpy()
