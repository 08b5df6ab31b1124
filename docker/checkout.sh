#!/usr/bin/env bash
# checkout.sh REPOSITORY COMMIT FOLDER RECORD: the sources at a commit, which may be short; RECORD gets its 40 digits.
set -euo pipefail
repository=$1 commit=$2 folder=$3 record=$4
mkdir -p "$folder" "$(dirname "$record")"
cd "$folder"
git init --quiet .
git remote add origin "$repository"
git fetch --quiet --filter=blob:none origin '+refs/heads/*:refs/remotes/origin/*'
full=$(git rev-parse --verify --quiet "$commit^{commit}") || {
  # A commit on no branch, a pull request's for example, is served by its whole name only.
  git fetch --quiet --filter=blob:none origin "$commit"
  full=$(git rev-parse --verify FETCH_HEAD)
}
git checkout --quiet "$full"
git submodule --quiet update --init --recursive --depth 1
echo "$full" | tee "$record"
