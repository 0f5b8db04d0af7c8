"""Asks etcd for a process that cannot do so itself, because it is a fork of one that did. This module starts processes.

Workers of a training program are such forks: gRPC, which speaks to etcd, does not live through a fork, and may hang in
the child. The helper is a new program; it takes a request as JSON on its standard input, and answers on its output.
"""

import json
import os
import subprocess
import sys

from dieselfs.errors import CODE_BY_ERROR, ERROR_BY_CODE, DieselfsError, Unavailable
from dieselfs.etcd import Etcd, EtcdAccess, is_usable
from dieselfs.limits import ETCD_TIMEOUT_S
from dieselfs.rpc.address import parse_etcd

START_TIMEOUT_S = 10.0
"""Until Python and gRPC are loaded, on a busy machine."""


def read_values(etcd: Etcd, prefix: str) -> dict[str, bytes]:
    """All values under `prefix`, by key; as `Etcd.values`, in any process."""
    return etcd.values(prefix) if is_usable() else _ask_helper(etcd, prefix)


def _ask_helper(etcd: Etcd, prefix: str) -> dict[str, bytes]:
    access = {name: getattr(etcd.access, name) for name in EtcdAccess.__slots__}
    request = json.dumps({"address": str(etcd.address), "access": access, "prefix": prefix})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dieselfs.etcd_helper"],
            input=request.encode(),
            capture_output=True,
            timeout=START_TIMEOUT_S + ETCD_TIMEOUT_S * len(etcd.address.members),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            check=False,  # what went wrong is in the answer
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(f"cannot ask etcd at {etcd.address}: {error}") from None
    if "error" in answer:
        raise ERROR_BY_CODE[answer["code"]](answer["error"])
    return {key: bytes.fromhex(value) for key, value in answer["values"].items()}


def main() -> None:
    request = json.load(sys.stdin)
    try:
        etcd = Etcd(parse_etcd(request["address"]), EtcdAccess(**request["access"]))
        values = etcd.values(request["prefix"])
        answer: dict[str, object] = {"values": {key: value.hex() for key, value in values.items()}}
    except DieselfsError as error:
        answer = {"error": str(error), "code": CODE_BY_ERROR[type(error)]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
