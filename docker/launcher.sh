#!/usr/bin/env bash
# Our launcher's packages and our sources. torch, Triton and numpy are the base's.
set -euo pipefail
root=${ROOT:-/opt/dsv4-rocm}
packages=$(mktemp)
grep -vE '^(torch|triton|numpy)==' "$root/locks/product.txt" > "$packages"
python3 -m pip install --no-deps -r "$packages"
python3 -m pip install --no-deps --no-build-isolation --editable "$root"
rm "$packages"
