#!/usr/bin/env bash
# run.sh SECONDS [1]: every fuzz target for so long, with random inputs; or guided by coverage, which
# needs a C++ compiler and no more: it builds as `cargo bolero` would, which cannot build one test alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=$1

# What fuzzing needs of the release profile is its speed, not its last percent.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true

if [ -z "${2:-}" ]; then
  export BOLERO_RANDOM_TEST_TIME_MS=${seconds}000
  cargo test --locked --release --test fuzz -- --nocapture
  exec cargo test --locked --release --lib -- any_bytes_are any_text_is --nocapture
fi

folder=${CARGO_TARGET_DIR:-target}/guided
mkdir -p "$folder"
folder=$(realpath "$folder")
# The proxy itself is linked with what the targets are made of, and has no fuzzer in it to tell.
for name in 8bit_counters_init pcs_init trace_pc_indir trace_cmp1 trace_cmp2 trace_cmp4 trace_cmp8 trace_switch \
  trace_const_cmp1 trace_const_cmp2 trace_const_cmp4 trace_const_cmp8; do
  echo "__attribute__((weak)) void __sanitizer_cov_$name(void) {}"
done >"$folder/nobody.c"
cc -c -o "$folder/nobody.o" "$folder/nobody.c"
# Only what is ours guides: the crate, and the targets.
cat >"$folder/rustc" <<'EOF'
#!/bin/sh
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares
EOF
# Others' crates make themselves weaker for fuzzers (`cfg(fuzzing)`), which is told to the one that asks.
cat >"$folder/rustc-of-all" <<'EOF'
#!/bin/sh
case " $* " in *" --crate-name bolero "*) exec "$@" --cfg fuzzing ;; esac
exec "$@"
EOF
chmod +x "$folder/rustc" "$folder/rustc-of-all"
export RUSTC_WRAPPER=$folder/rustc-of-all RUSTC_WORKSPACE_WRAPPER=$folder/rustc BOLERO_FUZZER=libfuzzer
export RUSTFLAGS="--cfg fuzzing_libfuzzer -Clink-arg=$folder/nobody.o"
host=$(rustc -vV | sed -n 's/^host: //p')
binary=$(cargo test --locked --release --target "$host" --target-dir "$folder" --test fuzz --no-run \
  --message-format=json-render-diagnostics | sed -n 's/.*"name":"fuzz".*"executable":"\([^"]*\)".*/\1/p')
unset RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER

for target in $("$binary" --list | sed -n 's/: test$//p' | grep -v '^support::'); do
  for name in $(sed -n "/fn ${target##*::}(/,/^}/p" "tests/fuzz/${target%%::*}.rs" |
    sed -n 's/.*check!(name = "\([a-z_]*\)").*/\1/p'); do
    echo "== $target"
    mkdir -p "$folder/$name/found" "$folder/$name/broke"
    # Parted by single spaces.
    export BOLERO_LIBFUZZER_ARGS="$folder/$name/found tests/fuzz/__fuzz__/$name/corpus"
    BOLERO_LIBFUZZER_ARGS+=" -artifact_prefix=$folder/$name/broke/ -timeout=20"
    BOLERO_LIBFUZZER_ARGS+=" -max_total_time=$seconds -print_final_stats=1"
    BOLERO_TEST_NAME=$target BOLERO_LIBTEST_HARNESS=1 \
      "$binary" "$target" --exact --nocapture --quiet --test-threads 1
  done
done
