#!/usr/bin/env bash
# Runs `cargo test` for the workspace. All targets run, also after one has failed.
#
# Tests of `it` start servers and processes beside each other, and a shared machine can stop all of them
# for a moment. So at most two failed tests of `it` run once more, alone. They are named at the end, also
# if they pass then. Any other failure counts at once.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

log=$(mktemp)
trap 'rm -f "$log"' EXIT

cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$log"
result=${PIPESTATUS[0]}
[ "$result" -eq 0 ] && exit 0

# Cargo lists the targets that failed, one a line, below this line.
targets=$(sed -n '/^error: [0-9]* targets\? failed:$/,$p' "$log" | sed -n 's/^ *`\(.*\)`$/\1/p')
mapfile -t failed < <(sed -n 's/^test \([a-z0-9_:]*\) \.\.\. FAILED$/\1/p' "$log" | sort -u)
[ "$targets" = "-p tidegate --test it" ] || exit "$result"
[ ${#failed[@]} -ge 1 ] && [ ${#failed[@]} -le 2 ] || exit "$result"
echo "== failed beside others, and runs again alone: ${failed[*]}"
RUST_TEST_THREADS=1 cargo test --locked --workspace --test it -- --exact "${failed[@]}"
result=$?
[ "$result" -eq 0 ] && echo "== passed alone, after a failure beside others: ${failed[*]}"
exit "$result"
