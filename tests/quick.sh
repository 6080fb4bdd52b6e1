#!/bin/sh
# Formats are checked, and what changed since BASE (the merge base with main, if nothing is said) or
# is not committed yet is linted, and its unit tests run: of `src` only those of the changed rooms.
set -eu
cd "$(dirname "$0")/.."

base=$(git merge-base HEAD "${BASE:-main}" 2>/dev/null || git rev-parse HEAD)
changed=$( (git diff --name-only "$base"; git ls-files --others --exclude-standard) | sort -u)

cargo fmt --check
cargo clippy --locked --workspace --lib --bins -- -D warnings

rooms=$(printf '%s\n' "$changed" | sed -n 's|^src/\([a-z0-9_]*\)[./].*|\1::|p' | sort -u)
if [ -n "$rooms" ]; then
  # shellcheck disable=SC2086 # one filter each
  cargo test --locked --quiet --lib -- $rooms
fi
for crate in $(printf '%s\n' "$changed" | sed -n 's|^\(crates/[^/]*\)/.*|\1|p' | sort -u); do
  if [ -f "$crate/Cargo.toml" ]; then
    cargo test --locked --quiet --lib --manifest-path "$crate/Cargo.toml"
  fi
done
if printf '%s\n' "$changed" | grep -q -e '^src/' -e '^crates/' -e '\.md$'; then
  cargo test --locked --quiet --test tidy --test docs
fi
