"""Reads etcd in a new program, for a process that must not use gRPC itself. This module starts processes.

Such processes are forks, for example workers of a training program: gRPC may hang after a fork. The helper reads a
request as JSON from its standard input, and writes the reply to its standard output. Clients without etcd import this
module too, so its functions import what they need.
"""

import sys

from dieselfs.errors import ERROR_BY_CODE, DieselfsError, Unavailable, code_of
from dieselfs.etcd.client import Etcd, EtcdAccess, is_usable
from dieselfs.limits import ETCD_TIMEOUT_S
from dieselfs.net.address import parse_etcd

START_TIMEOUT_S = 10.0
"""Time to load Python and gRPC on a busy machine."""


def read_values(etcd: Etcd, prefix: str) -> dict[str, bytes]:
    """All values under `prefix`, by key; as `Etcd.values`, in any process."""
    return etcd.values(prefix) if is_usable() else read_values_apart(etcd, prefix)


def read_values_apart(etcd: Etcd, prefix: str) -> dict[str, bytes]:
    """The same without the use of gRPC in this process, so that its forks may use it."""
    import json
    import subprocess

    from dieselfs.process.launch import module_environment, python_command

    access = {name: getattr(etcd.access, name) for name in EtcdAccess.__slots__}
    request = json.dumps({"address": str(etcd.address), "access": access, "prefix": prefix})
    try:
        done = subprocess.run(
            python_command("dieselfs.etcd.helper"),
            input=request.encode(),
            capture_output=True,
            timeout=START_TIMEOUT_S + ETCD_TIMEOUT_S * len(etcd.address.members),
            env=module_environment(),
            check=False,  # errors are in the reply
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unavailable(f"cannot ask etcd at {etcd.address}: {error}") from None
    if "error" in answer:
        raise ERROR_BY_CODE[answer["code"]](answer["error"])
    return {key: bytes.fromhex(value) for key, value in answer["values"].items()}


def main() -> None:
    import json

    request = json.load(sys.stdin)
    try:
        etcd = Etcd(parse_etcd(request["address"]), EtcdAccess(**request["access"]))
        values = etcd.values(request["prefix"])
        answer: dict[str, object] = {"values": {key: value.hex() for key, value in values.items()}}
    except DieselfsError as error:
        answer = {"error": str(error), "code": code_of(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
