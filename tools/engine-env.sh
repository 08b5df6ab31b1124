#!/usr/bin/env bash
# engine-env.sh ENGINE: the environment of tests/ENGINE, as tests/ENGINE/.venv.
#
# It lives in the user's cache under the hash of its lock file, so that every clone on a machine shares one,
# and a changed lock makes another. Every line of the lock is exact and installed with --no-deps.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${1:?usage: engine-env.sh ENGINE}
lock=tests/$engine/requirements.lock
python=${PYTHON:-python3}
[[ -f $lock ]] || { echo "engine-env.sh: $lock does not exist" >&2; exit 2; }

interpreter=$("$python" -c 'import sys, sysconfig; print(sys.version_info[:3], sysconfig.get_platform())')
hash=$({ cat "$lock"; echo "$interpreter"; } | sha256sum | cut -c1-16)
home=${XDG_CACHE_HOME:-$HOME/.cache}/dsv4-rocm/envs
venv=$home/$engine-$hash
link=tests/$engine/.venv

install() {
    local total
    total=$(grep -vc '^#' "$lock" || true)
    echo "setting up the $engine environment: $total packages into $venv (2 to 3 GB; a few minutes the first time)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/pip" install --no-deps --progress-bar off -r "$lock" 2>&1 |
        awk -v total="$total" -v tty="$([[ -t 1 ]] && echo 1 || echo 0)" '
            /^ERROR/ { print; next }
            /^Collecting/ { if (tty) printf "\r  %d of %d: %-50s", ++n, total, $2; next }
            /^Installing/ { printf (tty ? "\r  %-60s\n" : "  %s\n"), "unpacking" }'
    touch "$venv/.complete"
}

if [[ -e $link && ! -L $link ]]; then
    echo "engine-env.sh: $link is not a link of mine; remove it" >&2
    exit 1
fi
mkdir -p "$home"
exec 9>"$home/$engine.lock"
flock 9
[[ -e $venv/.complete ]] || install
[[ $(readlink "$link" || true) == "$venv" ]] || ln -sfn "$venv" "$link"
