#!/usr/bin/env bash
# nginx's own tests against tidegate: run.sh [FILE...]. Writes docs/nginx-tests.md. Fails if a file
# passes fewer tests than its row in reasons.toml says. About five minutes.
#
# NGINX_TESTS is the folder of the suite: git clone https://github.com/nginx/nginx-tests. TIDEGATE is
# the binary to try; without it the debug build is made. AT_ONCE files run at a time, 4 without it.
# With ACCEPT=1 the rows get the numbers of this run. With names of files only these run, and are
# shown. RECORD names a file for what each test printed and what the import said, as JSON. Needs
# nginx, perl and python3.
set -euo pipefail
cd "$(dirname "$0")"
source ../outside.sh

if [ ! -f "${NGINX_TESTS:-}/lib/Test/Nginx.pm" ]; then
  echo "NGINX_TESTS is not the suite: git clone https://github.com/nginx/nginx-tests" >&2
  exit 1
fi
need=()
command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || need+=(nginx)
perl -MIO::Socket::SSL -e 1 2>/dev/null || need+=(libio-socket-ssl-perl)
perl -MProtocol::WebSocket -e 1 2>/dev/null || need+=(libprotocol-websocket-perl)
perl -MCryptX -e 1 2>/dev/null || need+=(libcryptx-perl)
if [ ${#need[@]} -gt 0 ]; then
  echo "installing: ${need[*]}" >&2
  again packages apt-get install -qq -y --no-install-recommends "${need[@]}" >/dev/null
fi
NGINX=$(command -v nginx || echo /usr/sbin/nginx)
export NGINX
exec timeout -k 5 3000 python3 suite.py "$root/docs/nginx-tests.md" "$@"
