#!/usr/bin/env bash
# finish.sh PROJECT FOLDER CONSTRAINTS ARCH RECORD-FIELD... -- MODULE...: after everything else. The patches are in what
# an import runs, the versions are still the pinned ones, the modules import, every code object is for one architecture.
set -euo pipefail
project=$1 folder=$2 constraints=$3 arch=$4
shift 4
share=${SHARE:-/usr/share/dsv4-rocm}
fields=()
while [[ $# -gt 0 && $1 != -- ]]; do fields+=("$1"); shift; done
shift
patches=(--project "$project" --tree "$folder")
[[ -z ${PATCHES:-} ]] || patches+=(--patches "$PATCHES")
dsv4 patches verify "${patches[@]}" --record "$share/patches.json"
python3 -m dsv4_serve.image.constraints "$constraints" "$@"
python3 -m dsv4_serve.image.code_objects "$arch" "${CODE_OBJECTS:-/opt/dsv4-rocm/code-objects}" "$folder"
python3 -m dsv4_serve.image.record "$share/image.json" "${fields[@]}"
