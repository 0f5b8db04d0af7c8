#!/bin/sh
# Builds the image with buildah, which needs no daemon and no root:
#
#   deploy/container/build.sh [IMAGE]        # the image's name; dieselfs:VERSION by default
#
# BASE=... names another base image with Debian 12. BASE=debian makes one from Debian's packages with mmdebstrap, so that
# no registry of images is needed; SOURCES=FILE is a sources.list with their mirrors (snapshot.debian.org has those of any
# day). BUILDAH_OPTIONS=... is passed to `buildah build`. With SOURCE_DATE_EPOCH=... all times in the image are that one,
# so that the same packages give the same image.
set -eu
sources=${SOURCES:+$(realpath "$SOURCES")}
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' dieselfs/__init__.py)
image=${1:-dieselfs:$version}
revision=${REVISION:-$(git describe --always --dirty 2>/dev/null || echo unknown)}

# Docker's format, because the other one has no health checks.
build() { buildah build --format docker ${SOURCE_DATE_EPOCH:+--timestamp "$SOURCE_DATE_EPOCH"} "$@"; }

if [ "${BASE:-}" = debian ]; then
    command -v mmdebstrap >/dev/null || { echo "build.sh: BASE=debian needs the package mmdebstrap" >&2; exit 1; }
    BASE=localhost/dieselfs-base:bookworm
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"; buildah rmi --force "$BASE" >/dev/null 2>&1 || true' EXIT
    trap 'exit 130' INT TERM
    if [ -n "$sources" ]; then
        cp "$sources" "$scratch/sources.list"
    else
        for each in debian\ bookworm debian\ bookworm-updates debian-security\ bookworm-security; do
            echo "deb http://deb.debian.org/$each main"
        done > "$scratch/sources.list"
    fi
    # As small as Debian's own slim image: no pages, no translations; licenses stay. Name and resolver are this machine's.
    mmdebstrap --quiet --variant=minbase --include=ca-certificates \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --customize-hook='rm "$1/etc/hostname" "$1/etc/resolv.conf"' \
        bookworm "$scratch/base.tar" "$scratch/sources.list"
    printf 'FROM scratch\nADD base.tar /\n' > "$scratch/Dockerfile"
    build --quiet --tag "$BASE" --file "$scratch/Dockerfile" "$scratch" >/dev/null
    rm "$scratch/base.tar"
fi
# shellcheck disable=SC2086
build --tag "$image" \
    --file deploy/container/Dockerfile --ignorefile deploy/container/Dockerfile.dockerignore \
    ${BASE:+--build-arg "BASE=$BASE"} --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
    ${SOURCE_DATE_EPOCH:+--build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH"} \
    ${BUILDAH_OPTIONS:-} .
