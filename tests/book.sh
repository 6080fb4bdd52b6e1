#!/usr/bin/env bash
# Builds the documentation into `book` of the target folder, and fails on whatever mdBook warns of.
# mdBook is built
# once when it is not installed; --locked, and without what only serves and watches.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/again.sh
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac

mdbook=$(command -v mdbook || true)
if [ -z "$mdbook" ]; then
  tools=$target/tools
  [ -x "$tools/bin/mdbook" ] ||
    again mdBook cargo install mdbook --version 0.5.4 --locked --quiet --debug --no-default-features \
      --features search --root "$tools" --target-dir "$target/tools-build"
  mdbook=$tools/bin/mdbook
fi
said=$("$mdbook" build docs --dest-dir "$target/book" 2>&1) || { echo "$said" >&2; exit 1; }
if grep -qE 'WARN|ERROR' <<<"$said"; then
  echo "$said" >&2
  exit 1
fi
echo "the book is in $target/book/index.html"
