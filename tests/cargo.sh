#!/usr/bin/env bash
# Runs `cargo test` for the workspace. All targets run, also after one has failed. The simulation
# (tests/sim) runs meanwhile with the lowest priority, because most tests wait most of the time.
#
# Tests of `it` start servers and processes beside each other, and a shared machine can stop all of them
# for a moment. So at most two failed tests of `it` run once more, alone. They are named at the end, also
# if they pass then. Any other failure counts at once.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

cargo test --locked --workspace --no-run || exit

logs=$(mktemp -d)
# A process group of its own, which the trap can end.
set -m
nice -n 19 ./tests/suites.sh sim >"$logs/sim" 2>&1 &
set +m
sim=$!
trap 'kill -- -"$sim" 2>/dev/null; rm -rf "$logs"' EXIT

# Ends the script: with `$1`, or with the result of the simulation if `$1` is 0.
end() {
  wait "$sim"
  local result=$?
  cat "$logs/sim"
  [ "$1" -eq 0 ] || result=$1
  exit "$result"
}

log=$logs/tests
cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$log"
result=${PIPESTATUS[0]}
[ "$result" -ne 0 ] || end 0

# Cargo lists the targets that failed, one a line, below this line.
targets=$(sed -n '/^error: [0-9]* targets\? failed:$/,$p' "$log" | sed -n 's/^ *`\(.*\)`$/\1/p')
mapfile -t failed < <(sed -n 's/^test \([a-z0-9_:]*\) \.\.\. FAILED$/\1/p' "$log" | sort -u)
[ "$targets" = "-p tidegate --test it" ] || end "$result"
[ ${#failed[@]} -ge 1 ] && [ ${#failed[@]} -le 2 ] || end "$result"
echo "== failed beside others, and runs again alone: ${failed[*]}"
RUST_TEST_THREADS=1 cargo test --locked --workspace --test it -- --exact "${failed[@]}"
result=$?
[ "$result" -eq 0 ] && echo "== passed alone, after a failure beside others: ${failed[*]}"
end "$result"
