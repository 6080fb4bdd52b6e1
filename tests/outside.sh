# Sourced by the run.sh of each folder of tests that other people's programs do: the binary to try,
# what is installed for them, and that nothing leaves the machine.
#
# Sets `root`, the checkout, and `target`, its build folder; exports TIDEGATE, the debug build unless
# the caller names another.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/tests/again.sh"
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$root/$target ;; esac
if [ -z "${TIDEGATE:-}" ]; then
  (cd "$root" && cargo build --locked)
  TIDEGATE=$target/debug/tidegate
fi
export TIDEGATE

# Loopback only: a proxy of the machine must not stand between.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/tests

# What is installed carries a stamp, a copy of what was asked for, written last: half an installation
# is made again.

# python_modules VENV [OPTION...]: the requirements.txt of this folder, with options of pip.
python_modules() {
  cmp -s requirements.txt "$1/stamp" && return
  echo "installing Python modules under $1" >&2
  rm -rf "$1"
  mkdir -p "$(dirname "$1")"
  python3 -m venv "$1"
  again "Python modules" timeout 300 "$1/bin/pip" --disable-pip-version-check install --quiet \
    --retries 5 --timeout 30 --no-deps "${@:2}" -r requirements.txt
  cp requirements.txt "$1/stamp"
}

# node_modules FOLDER: the package-lock.json of this folder.
node_modules() {
  cmp -s package-lock.json "$1/stamp" && return
  echo "installing Node.js modules under $1" >&2
  mkdir -p "$1"
  rm -f "$1/stamp"
  cp package.json package-lock.json .npmrc "$1/"
  (cd "$1" && again "Node.js modules" timeout 300 npm ci --loglevel=error \
    --fetch-retries=5 --fetch-timeout=60000)
  cp package-lock.json "$1/stamp"
}
