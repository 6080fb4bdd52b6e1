# The two commands of the README, and what CI adds to them.

.PHONY: release install uninstall static static-check profile run quick test ci fmt lint structure deny docs book image deb deb-check instructions fuzz faults sim-night conformance endurance garden nginx-tests
.PHONY: bench bench-accuracy bench-words bench-decisions bench-growth bench-soak bench-streams

# What is fetched is asked for again where a registry does not answer.
export CARGO_NET_RETRY ?= 10

# A release is compiled by which way requests went when that was counted (docs/performance/method.md), if the
# compiler is the one that counted: another may not read it. What has changed since goes without. Flags
# are told apart by spaces, so a folder with one in its name goes without as well.
COUNTED := $(if $(word 2,$(CURDIR)),,$(findstring rustc 1.95.,$(shell rustc --version 2>/dev/null)))
WAYS := $(if $(COUNTED),-Cprofile-use=$(CURDIR)/bench/release.profdata -Cllvm-args=-no-pgo-warn-mismatch)
release static static-check bench bench-streams bench-growth bench-soak: export RUSTFLAGS ?= $(WAYS)
deb deb-check: export RUSTFLAGS ?= $(if $(filter dev,$(PROFILE)),,$(WAYS))

# Where cargo builds: a relative folder begins at this one.
TARGET := $(if $(CARGO_TARGET_DIR),$(if $(filter /%,$(CARGO_TARGET_DIR)),,$(CURDIR)/)$(CARGO_TARGET_DIR),$(CURDIR)/target)

# Builds the proxy and shows it limiting requests: proxy.toml, a built-in echo upstream, clients of
# its own, no Redis.
# Compiled without optimization and with the system's allocator: `make release` builds what ships.
run:
	cargo build --profile demo --locked --bin tidegate --no-default-features
	"$(TARGET)/demo/tidegate" demo

release:
	cargo build --release --locked

# The release build below PREFIX, /usr/local without one; DESTDIR is put before it. Nothing is built:
# `make release && sudo make install`.
install uninstall:
	./deploy/install.sh $@

# A release build that needs no library: one file for a scratch image or a bare machine.
static:
	./deploy/static.sh

# Builds it, and as root runs it on a root without any other file.
static-check: static
	./tests/deploy/static.sh

# Counts anew which way requests go.
profile:
	./bench/profile.sh

# While you work, in seconds: format, lints, and the unit tests of the rooms that changed since the merge
# base with main (or since BASE) or are not committed yet.
quick:
	./tests/quick.sh

# Everything the tests need is installed when it is missing. Inputs made by chance are the same each
# time, and as many on a slow machine: what a run says is said of a change. `make fuzz` tries others.
# A failed test shows its message, not the way to it.
test: export RUST_BACKTRACE = 0
# Most tests wait most of the time.
test: export RUST_TEST_THREADS ?= 3
test: export PROPTEST_RNG_SEED ?= 1
test: export BOLERO_RANDOM_SEED ?= 1
test: export BOLERO_RANDOM_ITERATIONS ?= 1000
test:
	./tests/install.sh
	./tests/cargo.sh
# The binary that the tests above ran: `cargo build` would compile it again with fewer features.
	TIDEGATE="$${TIDEGATE:-$(TARGET)/debug/tidegate}" ./tests/suites.sh

ci: fmt lint test deny docs book

fmt:
	cargo fmt --check

lint:
	cargo clippy --locked --workspace --all-targets -- -D warnings
# The library alone, without Redis: the workspace builds it with the features that the proxy needs.
	cargo clippy --locked -p tidegate-limiter -- -D warnings

# Counts files, lines, public items, functions with tuple parameters, type names for more than one type,
# and circles of files.
structure:
	cargo test --locked --quiet --test tidy -- the_structure --nocapture

# The advisory database comes over the network; without it, licences, bans and sources are checked.
deny:
	./tests/deny.sh

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items

# docs/ as a book, in `book` of the target folder.
book:
	./tests/book.sh

image:
	docker build -t tidegate .

# The Debian package, in `debian` of the target folder. PROFILE=dev packages the debug build.
deb:
	./deploy/debian/build.sh

# Builds it, and as root installs, starts, upgrades, removes and purges it on this machine.
deb-check: deb
	./tests/deploy/deb.sh

# Every fault of docs/faults.md, for two seconds each, on a quiet machine; the figures go there.
faults: release
	TIDEGATE_PROGRAM="$(TARGET)/release/tidegate" TIDEGATE_FAULTS=2 TIDEGATE_FAULTS_WRITE=1 \
	  cargo test --locked --test it -- matrix::whatever --nocapture

# testssl.sh, sslyze, tlsfuzzer, httplint and openssl against the proxy with TLS, in some minutes. Writes
# docs/conformance.md; fails if a finding has no row in tests/conformance/reasons.toml.
conformance:
	./tests/conformance/run.sh

# Everything at once for SECONDS, an hour without it. Prints a report of one page, and fails if a check
# of the report does not hold.
endurance: export TIDEGATE ?= $(TARGET)/release/tidegate
endurance: release
	./tests/endurance/run.sh $(if $(filter file,$(origin SECONDS)),3600,$(SECONDS))

# Every HTTP client before every origin of Debian, PyPI and npm, in five minutes. Writes docs/garden.md;
# fails if a pair differs and tests/garden/known.toml has no row for it.
garden:
	./tests/garden/run.sh

# nginx's own tests (NGINX_TESTS=FOLDER) against the import and the proxy, in five minutes. Writes
# docs/nginx-tests.md; fails if a file passes fewer tests than tests/nginx/reasons.toml says.
nginx-tests:
	./tests/nginx/run.sh $(FILES)

# Each fuzz target for SECONDS with random inputs. With GUIDED=1 coverage guides them (libFuzzer, which
# needs a C++ compiler); what they find is kept in `guided` of the target folder, what breaks something in `broke` there.
fuzz:
	./tests/fuzz/run.sh $(SECONDS) $(GUIDED)

# Proxies, store, network and clients from one seed each, in virtual time: a night of seeds that no night
# has tried, compiled with optimization: 4,000 seeds a minute. SECONDS=60 is a minute, FIRST=1000 begins with that
# seed. A seed that fails is printed with the command that runs it again.
sim-night: SECONDS = 28800
sim-night: FIRST = $(shell date +%s)000
sim-night:
	CARGO_PROFILE_DEV_OPT_LEVEL=2 SIM_SECONDS=$(SECONDS) SIM_FIRST=$(FIRST) SIM_FAILURES=20 \
	  cargo test --locked --target-dir "$(TARGET)/sim" -p tidegate-core --lib sim::invariants -- --nocapture

# What the pure parts of a request's path cost, in instructions, beside what was agreed on; with
# ACCEPT=1 the new numbers are.
instructions:
	./tests/install.sh
	cargo run --quiet --locked --profile words --example words -- $(if $(ACCEPT),--accept)

# The same in nanoseconds.
bench-words:
	cargo run --quiet --locked --profile words --example words -- --time

# tidegate beside nginx and HAProxy, in fifteen to twenty minutes. It writes the figures and the picture
# of docs/performance.md and docs/performance/figures.md. `make bench ARGS="--rounds 1 --only c64"` is shorter and prints them
# only; `ARGS=--help` says what else there is.
bench: release
	cargo run --release --locked --example bench -- peers --write $(ARGS)

# Every limiter of docs/decisions.md beside ours, in under three minutes; the figures go there.
bench-decisions:
	cargo run --release --locked --example bench -- decisions --write

# How full windows are, over time: the picture and the table of docs/algorithms.md, in seconds.
bench-accuracy:
	cargo run --locked --example bench -- accuracy --write

# Calls, messages, very large bodies and many connections through the proxy, beside nginx where it
# is installed; four minutes.
bench-streams: release
	cargo run --release --locked --example bench -- streams

# How cost grows with routes, limits, keys, connections, proxies and workers: ten minutes, and the tables
# of docs/performance/growth.md. `make bench-growth CURVES="keys idle"` measures some of them.
bench-growth: release
	cargo run --release --locked --example bench -- growth --write $(CURVES)

# Memory under a load of everything; fails if it grows. SECONDS=3600 is an hour.
SECONDS ?= 300
bench-soak: release
	cargo run --release --locked --example bench -- soak --seconds $(SECONDS)
