#!/usr/bin/env bash
# image.sh sglang|vllm|embedded|router [more words for docker build]: an image with every pin from versions.lock.
# ALLOW_UNRESOLVED=1 builds with what nobody has resolved yet; without it such a build is refused. CHANNEL=audited
# takes that channel of AITER instead of the lock's default.
set -euo pipefail
cd "$(dirname "$0")/.."
engine=${1:?usage: image.sh sglang|vllm|embedded|router}; shift
dsv4=.venv/bin/dsv4
options=(--engine "$engine"); [[ ${ALLOW_UNRESOLVED:-} == 1 ]] && options+=(--allow-unresolved)
[[ -n ${CHANNEL:-} ]] && options+=(--channel "$CHANNEL")
mapfile -t arguments < <("$dsv4" pins build-args "${options[@]}")
((${#arguments[@]})) || exit 1
case $engine in
  embedded)
    # Wheels are fetched outside, with the index that this machine is set up for: the CPU build of torch among them.
    mkdir -p build/wheels
    echo "fetching the wheels of locks/product.txt into build/wheels"
    .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest build/wheels -r locks/product.txt
    file=Dockerfile.cpu ;;
  router) file=Dockerfile.router ;;
  *) file=Dockerfile.rocm ;;
esac
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
tag=dsv4-rocm:$version-$engine; [[ $engine == router ]] && tag=dsv4-rocm-router:$version
DOCKER_BUILDKIT=1 docker build --file "$file" --tag "$tag" "${arguments[@]}" "$@" .
echo "built $tag"
