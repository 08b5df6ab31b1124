#!/usr/bin/env bash
# kernels.sh FOLDER ARCH: every kernel of ours as a code object for one architecture, on a machine without a GPU.
# PROFILE: only what that profile launches.
set -euo pipefail
folder=$1 arch=$2
python=${PYTHON:-python3}
"$python" -m dsv4_serve.cli kernels build --out "$folder" --arch "$arch" ${PROFILE:+--profile "$PROFILE"}
"$python" -m dsv4_serve.image.code_objects "$arch" "$folder"
