"""SSH from a host to machines, as administrators have it: OpenSSH at both ends. This module starts processes.

Each machine has its own key, which the host knows; the host's root has a key, and may log in as root of the machines.
All commands for a machine use one connection, which ends with the host.

Needs Debian's packages openssh-server and openssh-client.
"""

import shutil
from collections.abc import Sequence

from lab.machine import Machine
from lab.network import Host, Unsuitable

_KEY = "/etc/ssh/ssh_host_ed25519_key"
_CONFIG = """\
Host *
IdentityFile {folder}/ssh-key
UserKnownHostsFile {folder}/known-hosts
StrictHostKeyChecking yes
BatchMode yes
ControlMaster auto
ControlPath {folder}/ssh-%C
ControlPersist yes
"""


def why_not() -> str | None:
    """Why no SSH is possible here, or None."""
    needed = {"sshd": "openssh-server", "ssh": "openssh-client"}
    if missing := [package for program, package in needed.items() if shutil.which(program) is None]:
        return f"needs OpenSSH: apt-get install {' '.join(missing)}"
    return None


def connect(host: Host, machines: Sequence[Machine]) -> list[str]:
    """Start an SSH server on each of `machines`, and return the command line of a client on `host`. It lacks the
    address and the command. Raises Unsuitable.
    """
    if (reason := why_not()) is not None:
        raise Unsuitable(reason)
    host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", host.folder / "ssh-key"])
    key = (host.folder / "ssh-key.pub").read_text()
    known = []
    for machine in machines:
        machine.write("/root/.ssh/authorized_keys", key, 0o600)
        machine.shell(
            f"rm -f /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f {_KEY}; systemctl start ssh"
        )
        known.append(f"{machine.host.address} {machine.path(f'{_KEY}.pub').read_text()}")
    (host.folder / "known-hosts").write_text("".join(known))
    (host.folder / "ssh-config").write_text(_CONFIG.format(folder=host.folder))
    return ["ssh", "-F", str(host.folder / "ssh-config"), "-l", "root"]
