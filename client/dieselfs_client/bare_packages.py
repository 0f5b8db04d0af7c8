"""Packages of which a process needs single modules. Importing this module changes `sys.modules`, in our own programs.

`import thriftpy2` brings a parser and HTTP, and its protocols are eight modules: 2 MB in each process of a mount, which
needs one protocol alone. So its packages stay empty. In a program of a user, who may use thriftpy2, they must not.

`import trio` brings `ssl` and OpenSSL: 1 MB, which a daemon needs for a server over TLS alone. Its own classes for TLS
are for programs that use them, and no process of a mount does, so trio gets an empty module.
"""

import sys
from importlib.util import find_spec, module_from_spec
from types import ModuleType

for _name in ("thriftpy2", "thriftpy2.protocol", "thriftpy2.transport"):
    if _name not in sys.modules and (_spec := find_spec(_name)) is not None:
        sys.modules[_name] = module_from_spec(_spec)  # not executed

if not sys.modules.keys() & {"ssl", "trio"}:
    sys.modules["ssl"] = ModuleType("ssl")
    import trio  # noqa: F401  # has the empty module now

    del sys.modules["ssl"]  # the next import of it brings all of it
