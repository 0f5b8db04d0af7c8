"""The Debian package: an environment with the locked versions at /opt/dieselfs, units, and a user. No I/O.

Debian's own Python packages are older than what dieselfs needs, so the package has its dependencies inside.
"""

import re
from collections.abc import Mapping

from release.archives import Entries, Entry, deb

PREFIX = "opt/dieselfs"
PYTHON = "python3.11"
SYSTEM_PYTHON = f"/usr/bin/{PYTHON}"
"""Of Debian 12. The package is built with it: another 3.11 may need other packages."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names by those of the kernel."""

_LEFT_OUT = re.compile(
    # What belongs to the environment that was copied; the interpreter's links and settings are written below.
    r"(pyvenv\.cfg|include/.*|lib64|bin/([Aa]ctivate.*|python.*)|"
    # What pip has noted: dpkg manages these files, and a direct URL is a path of the machine that built them.
    r".*\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json)|(.*/)?__pycache__/.*)"
)
_LINKS = {
    **{f"usr/bin/{name}": f"/{PREFIX}/bin/{name}" for name in ("dlcmd", "dieselfs-server", "dieselfs-mount")},
    **{f"usr/sbin/{name}": f"/{PREFIX}/bin/{name}" for name in ("mount.dieselfs", "umount.dieselfs")},
    f"{PREFIX}/lib64": "lib",
    f"{PREFIX}/bin/python": SYSTEM_PYTHON,
    f"{PREFIX}/bin/python3": "python",
    f"{PREFIX}/bin/{PYTHON}": "python",
}
_SETTINGS = "home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n"
_MOVED = {
    "share/man/": "usr/share/man/",
    "share/bash-completion/": "usr/share/bash-completion/",
    "share/zsh/site-functions/": "usr/share/zsh/vendor-completions/",
    "share/fish/": "usr/share/fish/",
    "share/dieselfs/systemd/": "usr/lib/systemd/system/",
}
"""Where Debian looks for what an environment has elsewhere."""

_CONTROL = """\
Package: dieselfs
Version: {version}
Architecture: {architecture}
Maintainer: dieselfs maintainers <dieselfs@localhost>
Installed-Size: {size_kib}
Depends: {python}, passwd, ca-certificates
Recommends: fuse3
Section: admin
Priority: optional
Description: datasets of millions of small files at memory speed
 dieselfs packs a dataset of millions of small files into chunks and mounts it,
 so that any training program reads it at the speed of large sequential reads.
"""
_AFTER_INSTALLATION = f"""\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
getent passwd dieselfs > /dev/null ||
    useradd --system --user-group --home-dir /var/lib/dieselfs --shell /usr/sbin/nologin dieselfs
install -d -o dieselfs -g dieselfs -m 700 /var/lib/dieselfs /etc/dieselfs/keys
# Some packages have files for other versions of Python, which do not compile.
/{PREFIX}/bin/python -m compileall -q /{PREFIX}/lib > /dev/null || true
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
[ -z "$2" ] || systemctl try-restart dieselfs-server.service
# The version before serves the mounts that are there until somebody upgrades them.
[ -z "$2" ] || echo "dieselfs: running mounts keep their version until 'dlcmd upgrade'"
"""
_BEFORE_REMOVAL = f"""\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --quiet --now dieselfs-server.service 'dieselfs-*.timer' || true
    systemctl stop 'dieselfs-mount@*' || true
fi
find /{PREFIX} -name __pycache__ -type d -prune -exec rm -rf {{}} +
"""


def package(
    environment: Entries, place: str, settings: Mapping[str, bytes], version: str, machine: str, time_s: int
) -> bytes:
    """The package of an environment at the path `place`, with settings in /etc/dieselfs by their file names."""
    data = {f"etc/dieselfs/{name}": Entry(content) for name, content in settings.items()}
    data |= {name: Entry(link=target) for name, target in _LINKS.items()}
    data[f"{PREFIX}/pyvenv.cfg"] = Entry(_SETTINGS.encode())
    for name, entry in environment.items():
        if not _LEFT_OUT.fullmatch(name):
            data[_place_of(name)] = _moved(entry, place) if name.startswith("bin/") else entry
    size_kib = sum(len(entry.content) for entry in data.values()) >> 10
    control = _CONTROL.format(
        version=version, architecture=ARCHITECTURES[machine], size_kib=size_kib, python=PYTHON
    )
    return deb(
        {
            "control": Entry(control.encode()),
            "conffiles": Entry("".join(f"/etc/dieselfs/{name}\n" for name in settings).encode()),
            "postinst": Entry(_AFTER_INSTALLATION.encode(), is_program=True),
            "prerm": Entry(_BEFORE_REMOVAL.encode(), is_program=True),
        },
        data,
        time_s,
    )


def _place_of(name: str) -> str:
    for folder, place in _MOVED.items():
        if name.startswith(folder):
            return place + name.removeprefix(folder)
    return f"{PREFIX}/{name}"


def _moved(entry: Entry, place: str) -> Entry:
    """A program of the environment, which begins with the path of its Python."""
    return Entry(entry.content.replace(place.encode(), f"/{PREFIX}".encode()), entry.is_program, entry.link)
