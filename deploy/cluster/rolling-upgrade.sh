#!/bin/bash
# Upgrades the servers of a cluster one after the other, while clients read and write: they use the others meanwhile.
#
#     PACKAGE=dieselfs-0.2.0-py3-none-any.whl deploy/cluster/rolling-upgrade.sh 10.0.0.5 10.0.0.6 10.0.0.7
#
#   ON       how to run a command on a host (ssh -l root); the address and the command follow
#   PACKAGE  the wheel to install, or a folder with it and all it needs (install.sh); empty: only restart
#
# A server is ready when `systemctl restart` returns. If one does not start, the script stops, and the others go on with
# the old version.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 1; }
ON=${ON:-ssh -l root}
PACKAGE=${PACKAGE:-}
for host in "$@"; do
    [ -z "$PACKAGE" ] || ON=$ON PACKAGE=$PACKAGE "$(dirname "$0")/install.sh" "$host"
    $ON "$host" systemctl restart dieselfs-server
    $ON "$host" /opt/dieselfs/bin/dlcmd --server "unix:/run/dieselfs/server.sock" --quiet server status
    echo "$(date +%T) $host: upgraded" >&2
done
