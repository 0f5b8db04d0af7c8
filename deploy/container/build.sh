#!/bin/sh
# Builds the image with buildah, which needs no daemon and no root:
#
#   deploy/container/build.sh [IMAGE]        # the image's name; dieselfs:VERSION by default
#
# BASE=... names another base image with Debian 12; BUILDAH_OPTIONS=... is passed to `buildah build`. With
# SOURCE_DATE_EPOCH=... all times in the image are that one, so that the same packages give the same image.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' dieselfs/__init__.py)
image=${1:-dieselfs:$version}
revision=${REVISION:-$(git describe --always --dirty 2>/dev/null || echo unknown)}
# Docker's format, because the other one has no health checks.
# shellcheck disable=SC2086
exec buildah build --format docker --tag "$image" \
    --file deploy/container/Dockerfile --ignorefile deploy/container/Dockerfile.dockerignore \
    ${BASE:+--build-arg "BASE=$BASE"} --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
    ${SOURCE_DATE_EPOCH:+--timestamp "$SOURCE_DATE_EPOCH" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH"} \
    ${BUILDAH_OPTIONS:-} .
