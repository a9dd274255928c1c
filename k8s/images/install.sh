#!/bin/sh
# The steps that fill an image; tests/k8s/test_images.py runs the same ones without a container engine.
#
#   install.sh dependencies ROLE VENV    an empty environment, and what requirements-ROLE.txt pins
#   install.sh program SOURCE VENV       the program: its wheel, built of SOURCE
#
# Two steps, so that a change of the program does not install TensorFlow again.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

# Wheels of known contents alone: no package's code runs here, and nothing changes its meaning later.
install_pinned() {
    "$python" -m pip --python "$1/bin/python" install --quiet --no-cache-dir --disable-pip-version-check \
        --no-deps --only-binary :all: --require-hashes --requirement "$here/requirements-$2.txt"
}

case "${1:-}" in
dependencies)
    "$python" -m venv --without-pip "$3"
    install_pinned "$3" "$2"
    ;;
program)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "$python" -m venv --without-pip "$scratch/venv"
    install_pinned "$scratch/venv" build
    # The build writes beside the source, which may be read-only.
    mkdir "$scratch/source"
    for each in pyproject.toml README.md LICENSE protos actor learner; do
        cp -R "$2/$each" "$scratch/source/"
    done
    "$python" -m pip --python "$scratch/venv/bin/python" wheel --quiet --no-cache-dir \
        --disable-pip-version-check --no-deps --no-build-isolation \
        --wheel-dir "$scratch/dist" "$scratch/source"
    "$python" -m pip --python "$3/bin/python" install --quiet --no-cache-dir --disable-pip-version-check \
        --no-deps --no-index "$scratch"/dist/seedbed-*.whl
    # What is pinned must be what the program asks for.
    "$python" -m pip --python "$3/bin/python" check
    ;;
*)
    echo "install.sh: expected 'dependencies ROLE VENV' or 'program SOURCE VENV', found: $*" >&2
    exit 2
    ;;
esac
