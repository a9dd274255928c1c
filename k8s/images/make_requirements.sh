#!/bin/sh
# Pins what the images hold: requirements-*.txt, with the hashes of all files of each release.
#
# Needs uv (pip install uv). Only what pyproject.toml does not allow any more is changed; with --upgrade,
# everything is taken anew.
set -eu
cd "$(dirname "$0")/../.."
export UV_CUSTOM_COMPILE_COMMAND="k8s/images/make_requirements.sh"

# The images' Python, on Debian 12 (glibc 2.36).
pin() {
    file=k8s/images/requirements-$1.txt
    shift
    uv pip compile --quiet --no-config --generate-hashes --only-binary :all: --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --output-file "$file" "$@"
}

pin build "$@" k8s/images/build.in
pin actor "$@" --extra atari pyproject.toml
# The learner describes its environment by a child process that is an actor: it has the same ones.
pin learner-cpu "$@" --extra learner --extra atari pyproject.toml
# The same, but for TensorFlow itself: two packages of one name in Python, of which one knows GPUs.
pin learner-gpu "$@" --extra learner --extra atari --no-emit-package tensorflow-cpu \
    --constraint k8s/images/requirements-learner-cpu.txt pyproject.toml k8s/images/gpu.in
