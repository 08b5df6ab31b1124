#!/usr/bin/env bash
# checkout.sh REPOSITORY COMMIT FOLDER RECORD: the sources at a commit, which may be short; RECORD gets its 40 digits.
set -euo pipefail
repository=$1 commit=$2 folder=$3 record=$4
mkdir -p "$folder" "$(dirname "$record")"
cd "$folder"
git init --quiet .
git remote add origin "$repository"
if [[ ${#commit} -eq 40 ]]; then
  git fetch --quiet --depth 1 origin "$commit"
else
  # Only history tells what a short one stands for; files come with the checkout.
  git fetch --quiet --filter=blob:none origin '+refs/heads/*:refs/remotes/origin/*'
fi
full=$(git rev-parse --verify "$commit^{commit}")
git checkout --quiet "$full"
git submodule --quiet update --init --recursive --depth 1
echo "$full" | tee "$record"
