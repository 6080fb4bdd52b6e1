# shellcheck shell=bash
# Sourced by checks that need a program from the registry of cargo.
source tests/again.sh
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac

# cargo_tool PROGRAM PACKAGE VERSION [OPTION...]: sets `tool` to the path of the program. It is built once
# if it is not installed. A build of another process is waited for. Debug builds take less time.
cargo_tool() {
  local tools=$target/tools
  tool=$(type -P "$1" || true)
  [ -z "$tool" ] || return 0
  tool=$tools/bin/$1
  mkdir -p "$tools"
  (
    flock 9
    [ -x "$tool" ] ||
      again "$2" cargo install "$2" --version "$3" --locked --quiet --debug "${@:4}" \
        --root "$tools" --target-dir "$target/tools-build" 9>&-
  ) 9>"$tools/lock"
}

find_cargo_deny() {
  cargo_tool cargo-deny cargo-deny 0.20.2
}

# Without what only serves and watches.
find_mdbook() {
  cargo_tool mdbook mdbook 0.5.4 --no-default-features --features search
}
