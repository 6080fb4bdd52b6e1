#!/bin/sh
# Writes bench/release.profdata anew: which way requests go, counted in a build of its own under the
# load of `make bench`. A quarter of an hour on two cores; the programs of that must be installed.
set -eu
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
target=$target/profile
rustup component add llvm-tools
rm -rf "$target/raw"
RUSTFLAGS="-Cprofile-generate=$target/raw" \
  cargo build --release --locked --bin tidegate --target-dir "$target"
# What building it has written says nothing of requests.
rm -rf "$target/raw"
TIDEGATE=$target/release/tidegate cargo run --release --locked --example bench -- \
  peers --rounds 1 --peers "tidegate" --minutes 10 --into "$target"
# Calls of gRPC, streams and WebSockets, which that load lacks.
TIDEGATE=$target/release/tidegate PYTHONPATH=tests python3 bench/messages.py --rounds 1 --only tidegate
"$(ls "$(rustc --print sysroot)"/lib/rustlib/*/bin/llvm-profdata)" \
  merge --sparse -o bench/release.profdata "$target"/raw/*.profraw
