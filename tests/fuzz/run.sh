#!/usr/bin/env bash
# run.sh SECONDS [1]: every fuzz target for so long, with random inputs, or guided by coverage.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1

# What fuzzing needs of the release profile is its speed, not its last percent.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true

if [ -z "${2:-}" ]; then
  export BOLERO_RANDOM_TEST_TIME_MS=${seconds}000
  cargo test --locked --release --test fuzz -- --nocapture
  exec cargo test --locked --release --lib -- any_bytes_are_read_alike --nocapture
fi
targets=$(cargo test --locked --test fuzz -- --list 2>/dev/null |
  sed -n 's/: test$//p' | grep -v '^support::')
for target in $targets; do
  cargo bolero test --rustc-bootstrap --sanitizer NONE --engine libfuzzer --profile release \
    --test fuzz --time "${seconds}s" "$target"
done
