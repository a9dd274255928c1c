#!/bin/sh
# checkov on what a cluster gets, and on the images. What it finds is mended, or explained where it stands.
set -eu
cd "$(dirname "$0")"
checkov=${1:?"expected checkov's path: make lint-k8s"}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for overlay in overlays/*/; do
    kubectl kustomize "$overlay" >"$folder/$(basename "$overlay").yaml"
done
"$checkov" --directory "$folder" --framework kubernetes --compact --quiet --skip-download
"$checkov" --directory images --framework dockerfile --compact --quiet --skip-download
