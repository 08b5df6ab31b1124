#!/usr/bin/env bash
# patch.sh PROJECT FOLDER: the diff for people, then the patches with proof, and those that are applied on import.
set -euo pipefail
project=$1 folder=$2
share=${SHARE:-/usr/share/dsv4-rocm}
mkdir -p "$share"
patches=(--project "$project" --tree "$folder")
[[ -z ${PATCHES:-} ]] || patches+=(--patches "$PATCHES")
dsv4 patches show "${patches[@]}" > "$share/$project.diff"
dsv4 patches apply "${patches[@]}" --record "$share/applied.json"
python3 -m dsv4_serve.patches.at_import --record "$share/applied.json" ${SITE:+--site "$SITE"}
