#!/usr/bin/env python3
"""Stands where a test of nginx-tests expects the binary of nginx, and starts tidegate.

The test writes an nginx.conf. `tidegate import nginx` translates it, and tidegate serves the result.
A real nginx behind it serves files and answers with variables. An address that only the proxy itself
asks, and whose servers proxy nothing, is an origin: the real nginx serves it alone.
"""

import copy
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import conf
from conf import Directive

NGINX = os.environ.get("NGINX", "/usr/sbin/nginx")
TIDEGATE = os.environ["TIDEGATE"]
# The release that the suite is written for. Modules that tidegate has nothing like are not told.
VERSION = """nginx version: nginx/1.31.0
built with OpenSSL 3.0.0 1 Jan 2022
TLS SNI support enabled
configure arguments: --with-http_ssl_module --with-http_v2_module --with-http_realip_module \
--with-http_auth_request_module --with-http_dav_module --with-http_sub_module \
--with-http_gunzip_module --with-http_gzip_static_module --with-http_stub_status_module \
--without-http_tunnel_module --without-http_upstream_sticky --with-http_addition_module \
"""
# The port that the client of the test asks most.
ASKED_PORT = os.environ.get("ASKED_PORT", "8080")
PROXIES = ("proxy_pass", "grpc_pass")
# A location with one of these does something else than serving a file.
HANDLES = (*PROXIES, "fastcgi_pass", "uwsgi_pass", "scgi_pass", "memcached_pass", "stub_status",
           "internal", "dav_methods", "empty_gif", "mp4", "flv")
# Variables that only the proxy in front knows.
OF_PROXY = r"\$\{?(upstream_|ssl_|proxy_protocol|server_protocol|scheme|https|http2|remote_|realip_|connection_)"
# The proxy does these, so the server behind it must not do them again.
FRONT = ("limit_req", "limit_conn", "limit_rate", "allow", "deny", "auth_basic", "auth_request",
         "satisfy", "limit_except", "if", "rewrite", "add_header", "add_trailer", "error_page",
         "set_real_ip_from", "real_ip_header", "client_max_body_size", "access_log", "ssl",
         "listen", "http2", "keepalive_timeout", "keepalive_requests", "proxy_pass", "grpc_pass",
         "limit_conn_status", "limit_req_status", "limit_req_dry_run", "ssl_certificate",
         "ssl_certificate_key", "ssl_verify_client", "ssl_client_certificate", "internal",
         "client_header_timeout", "client_body_timeout", "send_timeout", "max_headers",
         "absolute_redirect", "port_in_redirect", "server_name_in_redirect")


def addresses(server):
    """The addresses of a server, as `listen` writes them."""
    listens = [one.args() for one in server.named("listen")]
    return {re.sub(r"^\*:|^\[::\]:|^(?=\d+$)", "0.0.0.0:", args[0])
            for args in listens if args} or {"0.0.0.0:80"}


def groups(servers):
    """The servers, together with those that share an address with them."""
    found = []
    for server in servers:
        own = [server]
        met = [group for group in found
               if any(addresses(one) & addresses(server) for one in group)]
        for group in met:
            own = group + own
            found.remove(group)
        found.append(own)
    return found


def proxies(group):
    return any(one.name in PROXIES for server in group for one in server.everywhere())


def is_asked_by_proxy(group, http):
    """Whether an upstream or a `proxy_pass` names an address of these servers."""
    named = [one for one in http.everywhere() if one.name in (*PROXIES, "server", "set")]
    text = " ".join(" ".join(one.words) for one in named)
    own = [address for server in group for address in addresses(server)]
    return any(address.replace("0.0.0.0", "127.0.0.1") in text or address in text
               for address in own)


def is_of_proxy(one):
    """Whether only the proxy in front does this."""
    return one.name in FRONT or re.match("proxy_(?!cache_path)|grpc_", one.name)


def with_answering_location(server):
    """The same server with a text of its own `return`, which answers for all paths, in a location."""
    if server.named("rewrite", "if") or not is_file(server):
        return server
    names = ("return", "location")
    rest = [one for one in server.block if one.name not in names]
    return Directive(server.words, [*rest, Directive(["location", "/"], server.named("return"))])


def behind(server, socket):
    """The same server for what the proxy does not do itself, at a socket."""
    twin = copy.deepcopy(server)
    for one in list(twin.everywhere()):
        if one.block is not None:
            one.block = [inner for inner in one.block if not is_of_proxy(inner)]
    # `return` of a server would answer for all its locations.
    twin.block = [one for one in twin.block if one.name != "return"]
    twin.block.insert(0, Directive(["listen", f"unix:{socket}"]))
    # The proxy in front knows the port that the client asked.
    twin.block.append(Directive(["absolute_redirect", "off"]))
    return twin


def with_outer(server, outer):
    """An origin with the directives around it that servers behind a proxy must not have."""
    names = {one.name for one in server.block}
    moved = [one for one in outer if one.name in FRONT and one.name not in names]
    return Directive(server.words, [*moved, *server.block])


def with_old_http2(server, http):
    """The same server with HTTP/2 as a parameter of `listen`, as nginx before 1.25.1 has it. Without
    TLS it speaks HTTP/2 alone then, so the proxy must do so."""
    asks = any(one.name == "grpc_pass" or one.words == ["proxy_http_version", "2"]
               for one in http.everywhere())
    if not asks or not any(one.args() == ["on"] for one in server.named("http2")):
        return server
    listens = [Directive([*one.words, "http2"]) for one in server.named("listen")]
    rest = [one for one in server.block if one.name not in ("http2", "listen")]
    return Directive(server.words, [*listens, *rest])


def take_parts_of_segments(server):
    """Writes prefixes of files as expressions, where no other location is below them."""
    locations = [one for one in server.everywhere() if one.name == "location"]
    paths = [one.words[-1] for one in locations]
    for one in locations:
        path = one.words[1]
        is_prefix = len(one.words) == 2 and re.fullmatch(r"/[\w/-]*\w", path)
        is_lowest = sum(other.startswith(path) for other in paths) == 1
        if is_prefix and is_lowest and is_file(one) and not one.named("return", "location"):
            one.words = ["location", "~", f"^{path}"]


def pass_files(server, socket):
    """Sends what the proxy does not serve itself to the server behind it. Returns whether any is."""
    to = [Directive(["proxy_pass", f"http://unix:{socket}"]),
          Directive(["proxy_set_header", "Host", "$http_host"]),
          # In nginx no proxy slows these files down.
          Directive(["proxy_limit_rate", "0"]),
          # Its places are those of the server in front.
          Directive(["proxy_redirect", "/", "/"]),
          # The errors of the server behind are nginx's own.
          Directive(["proxy_intercept_errors", "on"])]
    any_location = False
    for one in list(server.everywhere()):
        if one.name != "location" or one.words[1].startswith("@"):
            continue
        if is_file(one):
            one.block = [inner for inner in one.block if inner.name not in
                         ("return", "root", "alias", "try_files", "index", "proxy_set_header",
                          "set")]
            one.block += to
            any_location = True
    whole = any(one.args()[:1] == ["/"] for one in server.named("location"))
    if not whole and not server.named("return"):
        server.block.append(Directive(["location", "/"], list(to)))
        any_location = True
    return any_location


def is_file(location):
    """Whether it serves files, or answers with a text that the server behind can fill in."""
    answer = location.named("return")
    if answer:
        args = answer[0].args()
        is_text = args[0].isdigit() and args[0] not in ("301", "302", "303", "307", "308")
        text = " ".join(args[1:])
        return is_text and "$" in text and not re.search(OF_PROXY, text)
    if any(one.args()[-1].startswith("@") for one in location.named("try_files")):
        return False
    rewrites = [one for one in location.named("rewrite") if "break" not in one.words[3:]]
    return not rewrites and not location.named(*HANDLES)


def split(main, folder):
    """The files of tidegate, and the one of nginx; None if nginx has nothing to do."""
    https = [one for one in main if one.name == "http"]
    if not https:
        raise ValueError("no http block")
    http = https[0]
    rest = [one for one in http.block if one.name != "server"]
    any_proxies = proxies(http.named("server"))
    fronts, origins = [], []
    for number, group in enumerate(groups(http.named("server"))):
        is_main = any(address.endswith(f":{ASKED_PORT}")
                      for server in group for address in addresses(server))
        asked = is_main or proxies(group) or not is_asked_by_proxy(group, http)
        if any_proxies and not asked:
            origins += [with_old_http2(with_outer(server, rest), http) for server in group]
            continue
        socket = folder / f"behind-{number}.sock"
        group = [with_answering_location(server) if server.named("return") else server
                 for server in group]
        twins = [behind(server, socket) for server in group]
        for server in group:
            take_parts_of_segments(server)
        passes = [pass_files(server, socket) for server in group]
        if any(passes):
            origins += twins
        outer = [one for one in main if one.name not in ("http", "stream", "mail")]
        fronts.append([*outer, Directive(["http"], [*rest, *group])])
    if not origins:
        return fronts, None
    kept = [one for one in rest if not is_of_proxy(one)]
    main = [Directive(["daemon", "off"]), Directive(["pid", str(folder / "nginx-behind.pid")]),
            Directive(["user", "root"]), Directive(["error_log", str(folder / "error.log")]),
            Directive(["events"], []),
            Directive(["http"], [Directive(["access_log", "off"]), *kept, *origins])]
    return fronts, main


def check_nginx(tree, path, folder):
    """Writes the file of nginx without directives that its release does not know."""
    for _ in range(30):
        path.write_text(conf.written(tree) + "\n")
        run = subprocess.run([NGINX, "-t", "-p", f"{folder}/", "-c", path],
                             capture_output=True, text=True)
        unknown = re.search(r'unknown directive "([^"]+)"', run.stderr)
        if not unknown:
            return run.returncode, run.stderr
        for one in [inner for top in tree for inner in top.everywhere()]:
            if one.block is not None:
                one.block = [inner for inner in one.block if inner.name != unknown[1]]
    return 1, "too many unknown directives"


def unverified(text):
    """The same file with upstreams whose certificates are not verified."""
    tables = re.split(r"(?m)^(?=\[)", text)
    for number, table in enumerate(tables):
        if not table.startswith("[upstream.") or "https:" not in table:
            continue
        if "\ntls " in table:
            table = re.sub(r"(?m)^(tls +=) \{ ", r"\1 { verify = false, ", table)
        else:
            table = table.replace("\n", "\ntls = { verify = false }\n", 1)
        tables[number] = table
    return "".join(tables)


def unkept(text):
    """The same file with one request for each connection to an upstream without `keepalive`."""
    tables = re.split(r"(?m)^(?=\[)", text)
    for number, table in enumerate(tables):
        if table.startswith("[upstream.") and not re.search(r"(?m)^max_idle\b", table):
            tables[number] = table.replace("\n", "\nconnection_requests = 1\n", 1)
    return "".join(tables)


def imported(front, number, folder, log):
    """The proxy.toml of some servers; fails as nginx does with a file that it refuses."""
    source, target = folder / f"front-{number}.conf", folder / f"front-{number}.toml"
    source.write_text(conf.written(front) + "\n")
    run = subprocess.run([TIDEGATE, "import", "nginx", source, "-o", f"{target}.new"],
                         cwd=folder, capture_output=True, text=True)
    log.write(run.stdout + run.stderr)
    if run.returncode:
        raise ValueError(run.stderr)
    text = pathlib.Path(f"{target}.new").read_text()
    pathlib.Path(f"{target}.new").unlink()
    # The note of the import says that nginx verifies no certificate here. This is how to do the same.
    if "proxy_ssl_verify on" not in conf.written(front):
        text = unverified(text)
    text = unkept(text)
    # So does the note about the PROXY protocol, which tidegate reads from trusted peers only.
    wants = re.search(r"(?m)^ *listen .*\bproxy_protocol\b", conf.written(front))
    if wants and not re.search("(?m)^proxy_protocol", text):
        text = re.sub("(?m)^listen", 'trusted_proxies = ["127.0.0.1", "::1"]\n'
                      'proxy_protocol = "optional"\nlisten', text, count=1)
    text, found = re.subn(r"(?m)^\[server\]$", "[server]\nworkers = 1", text)
    text += "" if found else "\n[server]\nworkers = 1\n"
    target.write_text(text)
    return target


class Master:
    def __init__(self, prefix, path, settings):
        self.folder = pathlib.Path(prefix)
        self.path = self.folder / path
        self.settings = settings
        self.fronts, self.origin = [], None
        self.log = open(self.folder / "tidegate.log", "a", buffering=1)

    def prepare(self):
        main = conf.parse(self.path.read_text())
        main += conf.parse(self.settings)
        pids = [one.args()[0] for one in main if one.name == "pid"]
        self.pid_file = self.folder / (pids[-1] if pids else "nginx.pid")
        fronts, behind = split(main, self.folder.resolve())
        files = [imported(front, number, self.folder, self.log)
                 for number, front in enumerate(fronts)]
        if behind:
            self.behind = self.folder / "behind.conf"
            code, said = check_nginx(behind, self.behind, self.folder)
            self.log.write(said)
            if code:
                raise ValueError(said)
        for file in files:
            run = subprocess.run([TIDEGATE, "check", "-c", file], capture_output=True, text=True)
            if run.returncode:
                self.log.write(run.stdout + run.stderr)
                raise ValueError(run.stderr)
        return files, bool(behind)

    def start(self):
        files, behind = self.prepare()
        (self.folder / "error.log").touch()
        if behind:
            self.start_origin()
        for file in files:
            self.start_front(file)

    def start_origin(self):
        words = [NGINX, "-p", f"{self.folder}/", "-c", self.behind, "-e", "error.log"]
        self.origin = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        self.wait(lambda: (self.folder / "nginx-behind.pid").exists(), self.origin)

    def start_front(self, file):
        log = file.with_suffix(".log")
        with open(log, "wb") as out:
            words = [TIDEGATE, "run", "--alongside", "-c", file]
            process = subprocess.Popen(words, cwd=self.folder, stdout=out, stderr=out)
        self.fronts.append((process, file))
        self.wait(lambda: b"listening" in log.read_bytes(), process)

    @staticmethod
    def wait(is_ready, process):
        for _ in range(500):
            if is_ready():
                return
            if process.poll() is not None:
                break
            time.sleep(0.02)
        raise ValueError(f"{process.args} did not start")

    def reload(self):
        try:
            files, behind = self.prepare()
        except (ValueError, OSError) as error:
            self.log.write(f"reload: {error}\n")
            return
        if behind and self.origin:
            self.origin.send_signal(signal.SIGHUP)
        elif behind:
            self.start_origin()
        known = [file for _, file in self.fronts]
        for process, file in self.fronts:
            process.send_signal(signal.SIGHUP)
        for file in files:
            if file not in known:
                self.start_front(file)

    def stop(self, number):
        for process, _ in self.fronts:
            process.send_signal(signal.SIGTERM)
            if number != signal.SIGQUIT:
                process.send_signal(signal.SIGTERM)
        if self.origin:
            self.origin.send_signal(number)
        for process in [one for one, _ in self.fronts] + ([self.origin] if self.origin else []):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
        self.pid_file.unlink(missing_ok=True)

    def run(self):
        signals = {signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1,
                   signal.SIGWINCH, signal.SIGCHLD}
        try:
            self.start()
        except (ValueError, OSError) as error:
            self.log.write(f"{error}\n")
            for process in [one for one, _ in self.fronts] + [self.origin]:
                if process:
                    process.kill()
            print(f"nginx: [emerg] {error}", file=sys.stderr)
            return 1
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self.pid_file.write_text(f"{os.getpid()}\n")
        while True:
            number = signal.sigwait(signals)
            if number == signal.SIGHUP:
                self.reload()
            elif number == signal.SIGUSR1:
                if self.origin:
                    self.origin.send_signal(number)
            elif number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGINT):
                self.stop(number)
                return 0


def options(words):
    found, flags = {}, set()
    words = iter(words)
    for word in words:
        if word in ("-p", "-c", "-e", "-g", "-s"):
            found[word] = next(words, "")
        else:
            flags.add(word)
    return found, flags


def main():
    found, flags = options(sys.argv[1:])
    if flags & {"-V", "-v"}:
        print(VERSION, file=sys.stderr)
        return 0
    settings = found.get("-g", "")
    master = Master(found.get("-p", "."), found.get("-c", "nginx.conf"), settings)
    if "-s" in found:
        number = {"stop": signal.SIGTERM, "quit": signal.SIGQUIT, "reload": signal.SIGHUP,
                  "reopen": signal.SIGUSR1}[found["-s"]]
        os.kill(int((master.folder / "nginx.pid").read_text()), number)
        return 0
    if flags & {"-t", "-T"}:
        try:
            master.prepare()
        except (ValueError, OSError) as error:
            print(f"nginx: [emerg] {error}", file=sys.stderr)
            return 1
        print(f"nginx: configuration file {master.path} test is successful", file=sys.stderr)
        if "-T" in flags:
            print(f"# configuration file {master.path}:\n{master.path.read_text()}")
        return 0
    return master.run()


if __name__ == "__main__":
    sys.exit(main())
