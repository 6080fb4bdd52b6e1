#!/usr/bin/env bash
# Proxies, store, network and clients in virtual time: five minutes of seeds, from 1 on
# (crates/core/src/sim.rs). A seed that fails is printed with the command that runs it again.
# docs/outages.md has the first seeds that are known to fail: a fast machine does not reach them.
set -euo pipefail
cd "$(dirname "$0")/../.."
# The whole workspace, so that nothing is built again after its tests.
SIM_SECONDS=${SIM_SECONDS:-300} SIM_SEEDS=${SIM_SEEDS:-6000} \
  exec cargo test --locked --quiet --workspace --lib -- sim::invariants --nocapture
