#!/usr/bin/env bash
# The suites that are not written in Rust, two at a time, since they mostly wait. With three at a time,
# answers come too late for a test of times. Each suite prints its output when it ends. All run, also
# after one has failed. The last lines name those that failed. Arguments name the suites to run. Without
# them all run but the simulation, which runs beside the tests in Rust (tests/cargo.sh).
set -euo pipefail
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- usage clients browser deploy decide admin otlp prometheus editor traefik

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs

run_suite() {
  local began=$SECONDS result=passed
  "./$1/run.sh" >"$logs/$1" 2>&1 </dev/null || result=FAILED
  # One suite at a time prints.
  flock "$logs" sh -c 'echo "== tests/$1: $2 in $3 s"; cat "$logs/$1"' - \
    "$1" "$result" $((SECONDS - began))
  [ "$result" = passed ] || echo "$1: $(tail -n 1 "$logs/$1")" >>"$logs/failed"
}
export -f run_suite
touch "$logs/failed"
printf '%s\n' "$@" | xargs -P 2 -I{} bash -c 'run_suite "$1"' - {}
sed 's/^/FAILED: /' "$logs/failed"
[ ! -s "$logs/failed" ]
