#!/bin/sh
# Runs compose.yaml as a user would: a new store, the servers, an upload, a mount inside of a container; then `down` and
# `up`, after which everything is still there. Needs root or a user who may run containers, /dev/fuse, and Docker or
# podman-compose. At the end nothing of it is left, and no other project is touched.
#
#   deploy/compose/try.sh [IMAGE]          # dieselfs:VERSION by default; REDIS_IMAGE names another Redis
set -eu
cd "$(dirname "$0")"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' ../../dieselfs/__init__.py)
export DIESELFS_IMAGE="${1:-dieselfs:$version}" DIESELFS_PORT="${DIESELFS_PORT:-17070}"
if [ -z "${COMPOSE:-}" ]; then
    if docker compose version >/dev/null 2>&1; then COMPOSE="docker compose"; else COMPOSE=podman-compose; fi
fi
engine=docker
case $COMPOSE in *podman*) engine=podman ;; esac
project=dieselfs-try-$$
scratch=$(mktemp -d)

# shellcheck disable=SC2086
compose() { $COMPOSE --project-name "$project" "$@"; }
clean() {
    compose down --volumes >/dev/null 2>&1 || true
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
status() { compose exec -T server dlcmd --server unix:/var/lib/dieselfs/server.sock server status; }
# What a mount in a container shows of both files.
# shellcheck disable=SC2016
mounted() {
    compose --profile client run --rm -T client dlcmd run dl://tried -- sh -c 'cd "$DIESELFS_MOUNT" && sha256sum first second' |
        tr -d '\r' | grep -E '^[0-9a-f]{64} '
}

chmod 755 "$scratch"
head -c 300000 /dev/urandom > "$scratch/first"; head -c 9000000 /dev/urandom > "$scratch/second"
chmod 644 "$scratch/first" "$scratch/second"
expected=$(cd "$scratch" && sha256sum first second)

step "a server does not start on a store that is not there"
if compose run --rm -T server > "$scratch/said" 2>&1; then fail "it started on an empty volume"; fi
grep -q "no marker" "$scratch/said" || { cat "$scratch/said" >&2; fail "it failed for another reason"; }
rm "$scratch/said"

step "a new store"
compose --profile init run --rm -T init

step "up"
compose up --detach
wait_for 60 status

step "an upload"
compose --profile client run --rm -T --volume "$scratch:/source:ro" client dlcmd put -r /source/ dl://tried/

step "a mount in a container"
[ "$(mounted)" = "$expected" ] || fail "the mount has other bytes"

step "down: the volumes are kept"
compose down
[ -z "$("$engine" ps --all --quiet --filter "label=com.docker.compose.project=$project")" ] || fail "containers are left"
"$engine" volume inspect "${project}_chunks" "${project}_keys" >/dev/null

step "up again: everything is there"
compose up --detach
wait_for 60 status
compose --profile client run --rm -T client dlcmd verify dl://tried
[ "$(mounted)" = "$expected" ] || fail "the mount has other bytes"
echo "all of it works with $DIESELFS_IMAGE"
