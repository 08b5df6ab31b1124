#!/usr/bin/env bash
# The base is what versions.lock says it is, or nothing is built on it. Stands on Python alone.
set -euo pipefail
root=${ROOT:-/opt/dsv4-rocm}
PYTHONPATH="$root/serve" python3 -m dsv4_serve.pins.drift "$root/versions.lock" "${ROCM_PATH:-/opt/rocm}/.info/version"
