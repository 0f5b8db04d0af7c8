#!/bin/bash
# Installs dieselfs into /opt/dieselfs of a host, or replaces it there. The other scripts call it.
#
#     PACKAGE=dieselfs-0.1.0-py3-none-any.whl deploy/cluster/install.sh 10.0.0.5
#
#   ON       how to run a command on a host (ssh -l root); the address and the command follow
#   PACKAGE  the wheel; or, for hosts without Internet, a folder with the wheel and all it needs:
#                python3 -m pip download --require-hashes --dest FOLDER -r deploy/requirements.txt
set -euo pipefail
[ $# = 1 ] && [ -n "${PACKAGE:-}" ] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 1; }
ON=${ON:-ssh -l root}
WHEELS=/opt/dieselfs/wheels
if [ -d "$PACKAGE" ]; then
    found=$(find "$PACKAGE" -maxdepth 1 -name 'dieselfs-*.whl' | wc -l)
    [ "$found" = 1 ] || { echo "install.sh: $PACKAGE must have one dieselfs-*.whl, it has $found" >&2; exit 1; }
    packed=(-C "$PACKAGE" .) offline="--no-index --find-links $WHEELS"
else
    locked=$(dirname "$0")/../requirements.txt
    packed=(-C "$(dirname "$PACKAGE")" "$(basename "$PACKAGE")" -C "$(cd "$(dirname "$locked")" && pwd)" requirements.txt)
    offline=
fi
tar -cf - "${packed[@]}" | $ON "$1" "umask 022; rm -rf $WHEELS; mkdir -p $WHEELS; tar -xf - --no-same-owner -C $WHEELS"
$ON "$1" bash --norc -euo pipefail -s <<SCRIPT
umask 022
wheel=\$(echo $WHEELS/dieselfs-*.whl)
install() { /opt/dieselfs/bin/pip install --quiet --disable-pip-version-check $offline "\$@"; }
[ -x /opt/dieselfs/bin/pip ] || python3 -m venv /opt/dieselfs
if [ -z "$offline" ]; then
    install --require-hashes -r $WHEELS/requirements.txt # the versions and digests of this file, and nothing else
else
    install "\$wheel[etcd]"
fi
install --no-deps --force-reinstall "\$wheel" # else pip leaves a build of the same version as it is
SCRIPT
