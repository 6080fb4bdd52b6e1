#!/usr/bin/env bash
# Builds the Debian package with cargo-deb into target/debian, for this machine's architecture.
#
# PROFILE=dev packages the debug build. cargo-deb is built once when it is not installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
profile=${PROFILE:-release}
target=${CARGO_TARGET_DIR:-target}
case $profile in dev) built=$target/debug ;; *) built=$target/$profile ;; esac

deb=$(command -v cargo-deb || true)
if [ -z "$deb" ]; then
  [ -x "$target/tools/bin/cargo-deb" ] ||
    cargo install cargo-deb --locked --quiet --debug --root "$target/tools" --target-dir "$target/tools-build"
  deb=$target/tools/bin/cargo-deb
fi
cargo build --locked --profile "$profile" --bin tidegate

# The version that the binary reports. Assets of cargo-deb that begin with target/ are in the target folder.
made=$target/deb
rm -rf "$made"
mkdir -p "$made/man"
"$built/tidegate" man "$made/man" 2>/dev/null
gzip -9n "$made"/man/*.1
"$built/tidegate" completions bash >"$made/tidegate.bash"
"$built/tidegate" completions zsh >"$made/_tidegate"
"$built/tidegate" completions fish >"$made/tidegate.fish"
# The unit of deploy/systemd, with the path that packages install to.
sed 's|/usr/local/bin/|/usr/bin/|; /^#   /d; s|^# tidegate under systemd. Install:|# tidegate under systemd.|' \
  deploy/systemd/tidegate.service >"$made/tidegate.service"
"$deb" --no-build --profile "$profile" --locked "$@"
