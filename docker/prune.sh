#!/usr/bin/env bash
# prune.sh FOLDER ARCH: of the code objects that AITER brings, a folder an architecture, only this one's stay.
set -euo pipefail
folder=$1 arch=$2
while read -r hsa; do
  [[ -d $hsa/$arch ]] || { echo "$hsa: no folder $arch" >&2; exit 1; }
  find "$hsa" -mindepth 1 -maxdepth 1 -type d -name 'gfx*' ! -name "$arch" -print -exec rm -r {} +
done < <(find "$folder" -type d -name hsa)
