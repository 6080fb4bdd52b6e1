#!/usr/bin/env bash
# The Debian package on this machine, for real: what lintian says of it, installed, started as its
# user with its configuration, upgraded, removed, purged, and nothing left behind. As root, on a machine
# without tidegate; DEB names another package than the last one that was built.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
deb=${DEB:-$(ls -t "$target"/debian/tidegate_*.deb | head -1)}
fail() { echo "deb: $*" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "has to be run by root"
! dpkg -s tidegate >/dev/null 2>&1 || fail "a tidegate is installed here; it stays as it is"
export DEBIAN_FRONTEND=noninteractive
command -v lintian >/dev/null ||
  { apt-get update -qq; apt-get install -y -qq --no-install-recommends lintian >/dev/null; }
command -v adduser >/dev/null || apt-get install -y -qq --no-install-recommends adduser >/dev/null

# An unstripped debug build and a package without a bug that it closes are no mistakes of ours.
lintian --fail-on error --suppress-tags unstripped-binary-or-object,initial-upload-closes-no-bugs \
  "$deb" || fail "lintian"

places() { find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path "$PWD" \) -prune -o \
  -name '*tidegate*' -not -path '*/target*' -not -path '/root/*' -print | sort; }
places >/tmp/deb-before.$$
trap 'dpkg --purge tidegate >/dev/null 2>&1 || true; rm -f /tmp/deb-before.$$ /tmp/deb-after.$$' EXIT

dpkg -i "$deb" >/dev/null
[ "$(stat -c '%U:%G %a' /etc/tidegate)" = "root:tidegate 750" ] || fail "/etc/tidegate"
getent passwd tidegate | grep -q ':/usr/sbin/nologin$' || fail "the user may log in"
systemd-analyze verify /lib/systemd/system/tidegate.service
man -l /usr/share/man/man1/tidegate-import.1.gz >/dev/null 2>&1 || zcat /usr/share/man/man1/tidegate-import.1.gz | grep -q TH

# As the unit starts it, as far as this goes without systemd.
as() { setpriv --reuid=tidegate --regid=tidegate --init-groups --no-new-privs --bounding-set=-all \
  --inh-caps=-all "$@"; }
as tidegate check -c /etc/tidegate/proxy.toml --deny-warnings >/dev/null
if [ -d /run/systemd/system ]; then
  systemctl is-active --quiet tidegate || fail "the service does not run"
else
  install -d -o tidegate -g tidegate -m 700 /run/tidegate /var/lib/tidegate
  (cd /var/lib/tidegate && exec setpriv --reuid=tidegate --regid=tidegate --init-groups \
    --no-new-privs --bounding-set=-all --inh-caps=-all \
    tidegate run -c /etc/tidegate/proxy.toml) >/dev/null 2>/tmp/deb-said.$$ &
  pid=$!
fi
for _ in $(seq 100); do
  as tidegate health -c /etc/tidegate/proxy.toml 2>/dev/null && break
  sleep 0.1
done
as tidegate health --ready -c /etc/tidegate/proxy.toml || { cat /tmp/deb-said.$$; fail "it is not ready"; }
# Nobody is behind it: that is the answer of a proxy that runs.
[ "$(curl -s -o /dev/null -w '%{http_code}' --noproxy '*' http://127.0.0.1:8080/)" = 502 ] ||
  fail "no answer on port 8080"
as tidegate reload -c /etc/tidegate/proxy.toml >/dev/null || fail "reload"

# An upgrade keeps what was changed.
echo '# ours' >>/etc/tidegate/proxy.toml
dpkg -i --force-confold "$deb" >/dev/null
grep -q '^# ours$' /etc/tidegate/proxy.toml || fail "the upgrade has changed the configuration"
if [ -n "${pid:-}" ]; then
  kill "$pid"
  wait "$pid" || fail "it did not end in order"
  rm -f /tmp/deb-said.$$
fi
dpkg -r tidegate >/dev/null 2>&1
[ -e /etc/tidegate/proxy.toml ] || fail "removing has taken the configuration away"
dpkg --purge tidegate >/dev/null 2>&1
places >/tmp/deb-after.$$
left=$(comm -13 /tmp/deb-before.$$ /tmp/deb-after.$$)
[ -z "$left" ] || fail "the purge has left $left"
! getent passwd tidegate >/dev/null || fail "the user is still there"
echo "deb: installs, runs, upgrades, goes"
