#!/usr/bin/env bash
# Resolves locks/*.in into exact pins: product first, then the test group on top of it.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
pip="$work/venv/bin/pip"
# A local-version suffix such as +cpu names a build, not a release: the index of the reader decides it.
freeze() { "$pip" freeze | sed -E 's/\+[a-z0-9.]+$//'; }
"$pip" install --quiet -r locks/product.in
freeze > locks/product.txt
"$pip" install --quiet -r locks/test.in
freeze | grep -vxF -f locks/product.txt > locks/test.txt
wc -l locks/*.txt
