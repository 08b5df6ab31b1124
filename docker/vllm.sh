#!/usr/bin/env bash
# vllm.sh VERSION: the base brings the engine; it is the pinned one, or the build ends.
set -euo pipefail
found=$(python3 -c 'import vllm; print(vllm.__version__.split("+")[0])')
[[ $found == "$1" ]] || { echo "vllm: pinned is $1, found is $found" >&2; exit 1; }
