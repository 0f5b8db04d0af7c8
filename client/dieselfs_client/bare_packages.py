"""Packages of which a process needs single modules. Importing this module changes `sys.modules`, in our own programs.

`import thriftpy2` brings a parser and HTTP, and its protocols are eight modules: 2 MB in each process of a mount, which
needs one protocol alone. So its packages stay empty. In a program of a user, who may use thriftpy2, they must not.

`import trio` brings `ssl`, `hashlib` with OpenSSL, and `idna`: 5 MB, of which a daemon needs OpenSSL for a server over
TLS alone. The classes of trio for TLS and its resolver of names are for programs that use them, and no process of a
mount does, so trio gets empty modules. `hashlib` and `hmac` take the functions of Python, as fast for short messages.

`import numpy` brings the documentation of its functions in C, half a MB that nobody reads in a daemon.
"""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

for _name in ("thriftpy2", "thriftpy2.protocol", "thriftpy2.transport"):
    if _name not in sys.modules and (_spec := find_spec(_name)) is not None:
        sys.modules[_name] = module_from_spec(_spec)  # not executed

_hidden: dict[str, Any] = {"ssl": ModuleType("ssl"), "idna": ModuleType("idna")}
if any(map(find_spec, ("_sha2", "_sha256"))):  # some distributions build Python without them
    _hidden["_hashlib"] = None  # what imports it, gets an ImportError
if not sys.modules.keys() & {*_hidden, "hashlib", "trio"}:
    sys.modules |= _hidden
    import trio  # noqa: F401  # has the empty modules now

    for _name in _hidden:
        del sys.modules[_name]  # the next import of it brings all of it

if "numpy" not in sys.modules:
    sys.modules["numpy._core._add_newdocs"] = ModuleType("numpy._core._add_newdocs")
