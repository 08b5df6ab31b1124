#!/usr/bin/env bash
# sglang.sh VERSION ARCH: the engine without the packages that its metadata names for another vendor; the ROCm kernels
# from the same tag.
set -euo pipefail
version=$1 arch=$2
for name in sglang sgl-kernel; do
  ! python3 -m pip show --quiet "$name" 2>/dev/null || python3 -m pip uninstall --yes "$name"
done
git clone --quiet --depth 1 --branch "v$version" https://github.com/sgl-project/sglang /opt/sglang
python3 -m pip install --no-deps "sglang==$version"
# The launcher starts this one, whatever else is called so.
printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v sglang)" > "${ROOT:-/opt/dsv4-rocm}/bin/sglang"
chmod 755 "${ROOT:-/opt/dsv4-rocm}/bin/sglang"
cd /opt/sglang/sgl-kernel
AMDGPU_TARGET=$arch python3 setup_rocm.py install
