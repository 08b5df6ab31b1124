#!/usr/bin/env bash
# The launcher in an environment of its own: its packages never replace those that the engine was built with. It sees
# the engine's behind its own; the engine sees our sources, for its plugin, and none of our packages.
set -euo pipefail
root=${ROOT:-/opt/dsv4-rocm} launcher=${LAUNCHER:-/opt/dsv4}
engine=$(command -v python3)
"$engine" -m venv "$launcher"
packages=$(mktemp)
sed -E '/^(torch|triton|numpy)==/d' "$root/locks/product.txt" > "$packages"
"$launcher/bin/pip" install --no-deps -r "$packages"
rm "$packages"
site=$("$launcher/bin/python" -c 'import site; print(site.getsitepackages()[0])')
# Through `site`, so that the engine's own .pth files count: editable packages and runtime patches are found by them.
"$engine" -c 'import site; print("import site;", *(f"site.addsitedir({path!r});" for path in site.getsitepackages()))' \
  > "$site/engine.pth"
mkdir -p "$root/bin"
write() { printf '#!/bin/sh\nexec %s "$@"\n' "$2" > "$1"; chmod 755 "$1"; }
write "$launcher/bin/dsv4" "$launcher/bin/python -m dsv4_serve.cli"
# A wrapper, not a link: an interpreter finds its packages by the path that it was started with.
write "$root/bin/python3" "$engine"
