#!/usr/bin/env bash
# Builds the documentation into `book` of the target folder, and fails if mdBook warns.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/tool.sh

find_mdbook
said=$("$tool" build docs --dest-dir "$target/book" 2>&1) || { echo "$said" >&2; exit 1; }
if grep -qE 'WARN|ERROR' <<<"$said"; then
  echo "$said" >&2
  exit 1
fi
echo "the book is in $target/book/index.html"
