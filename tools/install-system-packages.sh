#!/usr/bin/env bash
# Debian packages that tests of this project need beyond Python, make, gcc and git. Run as root.
set -euo pipefail
packages=(chromium chromium-driver llvm-22 prometheus docker.io containerd runc iptables mmdebstrap)
missing=()
for p in "${packages[@]}"; do dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p"); done
if ((${#missing[@]} == 0)); then echo "system packages: all present"; exit 0; fi
echo "system packages: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Tests start what they need on ports of their own: no package may start a service of the machine.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' > "$policy"
  chmod 755 "$policy"
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
