#!/bin/sh
# Runs the image as a cluster would: a server, a mount of a node, and a pod that reads it. The mount's container is
# killed and started again, and the pod, which stays, reads on. Needs root, /dev/fuse, and podman or docker.
#
#   deploy/container/try.sh [IMAGE]          # dieselfs:VERSION by default
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' dieselfs/__init__.py)
image=${1:-dieselfs:$version}
engine=${ENGINE:-$(command -v podman || command -v docker)}
name=dieselfs-try-$$
scratch=$(mktemp -d)
mounts=$scratch/mounts

clean() {
    for each in pod node server; do "$engine" rm --force --volumes "$name-$each" >/dev/null 2>&1 || true; done
    "$engine" volume rm "$name-chunks" "$name-state" >/dev/null 2>&1 || true
    umount --lazy --recursive "$mounts" 2>/dev/null || true
    rm -rf --one-file-system "$scratch"
}
trap clean EXIT
trap 'exit 130' INT TERM

step() { printf '%s\n' "== $1"; }
fail() { printf '%s\n' "try.sh: $1" >&2; exit 1; }
# wait_for SECONDS COMMAND...
wait_for() {
    seconds=$1; shift
    until "$@" >/dev/null 2>&1; do
        seconds=$((seconds - 1)); [ "$seconds" -gt 0 ] || fail "still fails: $*"
        sleep 1
    done
}
volumes="--volume $name-chunks:/srv/chunks --volume $name-state:/var/lib/dieselfs"
locked="--read-only --cap-drop ALL --security-opt no-new-privileges"

step "a new store"
# shellcheck disable=SC2086
"$engine" run --rm --no-healthcheck $locked $volumes "$image" \
    dieselfs-server --config /etc/dieselfs/server.toml --init-only

step "a server, without rights and with a read-only root"
# shellcheck disable=SC2086
"$engine" run --detach --no-healthcheck --name "$name-server" $locked $volumes "$image" >/dev/null
status="dlcmd --server unix:/var/lib/dieselfs/server.sock server status"
# shellcheck disable=SC2086
wait_for 30 "$engine" exec "$name-server" $status
address=$("$engine" inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$name-server")

mkdir -m 700 "$scratch/keys"
"$engine" cp "$name-server:/var/lib/dieselfs/keys/admin.key" "$scratch/keys/key"
chown 0:0 "$scratch/keys/key"
client="--env DIESELFS_SERVER=tcp://$address:7070 --env DIESELFS_KEY_FILE=/etc/dieselfs/keys/key
    --volume $scratch/keys:/etc/dieselfs/keys:ro --user 0"

step "an upload"
head -c 300000 /dev/urandom > "$scratch/first"; head -c 9000000 /dev/urandom > "$scratch/second"
# shellcheck disable=SC2086
"$engine" run --rm --no-healthcheck $client --volume "$scratch:/source:ro" "$image" \
    dlcmd put /source/first /source/second dl://tried/

step "the mount of a node, below a folder that stays"
mkdir "$mounts"
mount --bind "$mounts" "$mounts"
mount --make-shared "$mounts"
# shellcheck disable=SC2086
"$engine" run --detach --no-healthcheck --name "$name-node" --privileged $client \
    --volume "$mounts:$mounts:rshared" "$image" \
    sh -c "mkdir -p $mounts/tried; exec dieselfs-mount dl://tried $mounts/tried --foreground -o allow_other" >/dev/null
wait_for 30 test -s "$mounts/tried/.dieselfs/info"

step "a pod reads it"
"$engine" run --detach --no-healthcheck --name "$name-pod" --network none --volume "$mounts:/data:ro,rslave" "$image" \
    sleep 3600 >/dev/null
"$engine" exec "$name-pod" cat /data/tried/first | cmp - "$scratch/first"

step "the mount's container is killed: the pod gets an error, never an empty folder"
"$engine" kill --signal KILL "$name-node" >/dev/null
if "$engine" exec "$name-pod" cat /data/tried/second >/dev/null 2>&1; then fail "a file was read without a daemon"; fi

step "it is started again: the pod reads on"
"$engine" start "$name-node" >/dev/null
# shellcheck disable=SC2016
wait_for 30 "$engine" exec "$name-pod" sh -c 'test "$(stat -c %s /data/tried/second)" = 9000000 && cat /data/tried/second'
"$engine" exec "$name-pod" cat /data/tried/second | cmp - "$scratch/second"

step "it is stopped: nothing stays mounted"
"$engine" stop --time 20 "$name-node" >/dev/null
if grep -q " $mounts/tried" /proc/mounts; then fail "still mounted"; fi
echo "all of it works with $image"
