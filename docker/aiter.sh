#!/usr/bin/env bash
# aiter.sh FOLDER ARCH: AITER from its patched sources, its kernels compiled for one architecture, and its variables.
set -euo pipefail
folder=$1 arch=$2
share=${SHARE:-/usr/share/dsv4-rocm}
for name in aiter amd-aiter; do
  ! python3 -m pip show --quiet "$name" 2>/dev/null || python3 -m pip uninstall --yes "$name"
done
cd "$folder"
PREBUILD_KERNELS=1 GPU_ARCHS=$arch AITER_USE_SYSTEM_TRITON=1 \
  python3 -m pip install --no-deps --no-build-isolation --editable .
python3 -m dsv4_serve.image.variables "$folder" AITER_ > "$share/aiter-variables.json"
