#!/bin/sh
# Builds the images: seedbed-actor:VERSION, seedbed-learner:VERSION and seedbed-learner:VERSION-gpu.
#
# With DEVICES=cpu or DEVICES=gpu only that one of the learner's, which are large; if not given, both.
# With REGISTRY=registry.example.org/team the names begin with it, and `ENGINE push` sends them there.
# ENGINE=docker, podman or buildah; if not given, the first that works.
set -eu
cd "$(dirname "$0")/../.."

works() {
    case "$1" in
    buildah) buildah version ;;
    # docker without its daemon builds nothing.
    *) "$1" info ;;
    esac >/dev/null 2>&1
}

choose_engine() {
    for each in docker podman buildah; do
        if works "$each"; then
            echo "$each"
            return
        fi
    done
    echo "build.sh: expected docker (with its daemon), podman or buildah, found none that works: install" \
        "one, or say ENGINE=..." >&2
    exit 1
}

devices=${DEVICES:-cpu gpu}
for device in $devices; do
    case "$device" in
    cpu | gpu) ;;
    *)
        echo "build.sh: DEVICES=$devices: expected cpu, gpu or both, found $device" >&2
        exit 2
        ;;
    esac
done
engine=${ENGINE:-$(choose_engine)}
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
prefix=${REGISTRY:+$REGISTRY/}

build() {
    tag=$1 file=$2
    shift 2
    echo "building $prefix$tag" >&2
    "$engine" build --file "k8s/images/$file" --tag "$prefix$tag" "$@" .
}

build "seedbed-actor:$version" actor.Dockerfile
for device in $devices; do
    case "$device" in
    cpu) build "seedbed-learner:$version" learner.Dockerfile --build-arg DEVICE=cpu ;;
    gpu) build "seedbed-learner:$version-gpu" learner.Dockerfile --build-arg DEVICE=gpu ;;
    esac
done
