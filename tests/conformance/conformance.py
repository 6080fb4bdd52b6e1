"""Runs the tools, and writes the page. Usage: conformance.py PAGE"""

import collections
import concurrent.futures
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import tomllib

from tlslite.api import HandshakeSettings, TLSConnection, TLSRemoteAlert

from stage import openssl, start

HERE = pathlib.Path(__file__).parent
TOOLS = pathlib.Path(sys.executable).parent
SUITE = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
# They need a client's key, measure time, or make files.
LEFT_OUT = re.compile("bleichenbacher|lucky13|minerva|timing|client-cert|openssl-3712")


@dataclasses.dataclass
class Score:
    tool: str
    version: str
    cases: int
    failures: list
    without: list = dataclasses.field(default_factory=list)
    # What most failures of a script have in common.
    seen: dict = dataclasses.field(default_factory=dict)


def run(*words, seconds=600, **more):
    try:
        done = subprocess.run(list(map(str, words)), capture_output=True, timeout=seconds, **more)
    except subprocess.TimeoutExpired:
        return ""
    return (done.stdout + done.stderr).decode(errors="replace")


def post_quantum(port):
    """Whether the proxy agrees to X25519MLKEM768. OpenSSL 3.0 does not know it, tlslite-ng does."""
    settings = HandshakeSettings()
    settings.minVersion = (3, 4)
    settings.keyShares = settings.eccCurves = ["x25519mlkem768"]
    settings.dhGroups = []
    with socket.create_connection(("127.0.0.1", port)) as stream:
        try:
            TLSConnection(stream).handshakeClientCert(settings=settings, serverName="localhost")
        except TLSRemoteAlert:
            return False
    return True


def with_openssl(folder, port):
    """ALPN, SNI, certificates, renegotiation and tickets."""
    ca, to = folder / "ca.pem", ("s_client", "-connect", f"127.0.0.1:{port}")

    def says(what, *words, given=b"Q\n"):
        return re.search(what, openssl(*to, "-CAfile", ca, *words, given=given)) is not None

    def resumes(version):
        saved = folder / f"session{version}"
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        openssl(*to, version, "-ign_eof", "-sess_out", saved, given=request)
        return says("Reused, TLS", version, "-sess_in", saved)

    cases = {
        "ALPN h2": says("ALPN protocol: h2", "-alpn", "h2,http/1.1"),
        "ALPN http/1.1": says("ALPN protocol: http/1.1", "-alpn", "http/1.1"),
        "ALPN, none in common": says("no application protocol", "-alpn", "spdy/3"),
        "no ALPN": says("No ALPN negotiated"),
        "SNI of another certificate": says("subject=CN = other.test", "-servername", "other.test"),
        "SNI of no certificate": says("subject=CN = localhost", "-servername", "none.test"),
        "no SNI": says("subject=CN = localhost", "-noservername"),
        "certificate of P-256": says("type: ECDSA", "-sigalgs", "ecdsa_secp256r1_sha256"),
        "certificate of RSA": says("type: RSA-PSS", "-sigalgs", "rsa_pss_rsae_sha256"),
        "chain that verifies": says("Verify return code: 0"),
        "TLS 1.1 is refused": not says(
            "Cipher is [^(]", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"),
        "TLS 1.2 renegotiation is refused": says(
            r"RENEGOTIATING(?![\s\S]*ServerHello)", "-tls1_2", "-msg", given=b"R\n"),
        "ticket of TLS 1.2": resumes("-tls1_2"),
        "ticket of TLS 1.3": resumes("-tls1_3"),
        "early data is not offered": "Max Early Data: 0" in openssl(
            "sess_id", "-in", folder / "session-tls1_3", "-noout", "-text"),
        "group X25519": says("X25519", "-groups", "X25519"),
        "group P-256": says("P-256|prime256v1", "-groups", "P-256"),
        "group X25519MLKEM768": post_quantum(port),
        "group P-384": says("P-384|secp384r1", "-groups", "P-384"),
    }
    version = openssl("version").split()[1]
    version += f", {importlib.metadata.version('tlslite-ng')}"
    return Score("openssl, tlslite-ng", version, len(cases),
                 [name for name in cases if not cases[name]])


def testssl(folder, port):
    found = folder / "testssl.json"
    run("testssl", "--quiet", "--color", "0", "--warnings", "off", "--add-ca", folder / "ca.pem",
        "--jsonfile", found, f"localhost:{port}")
    # "OK" and worse are judgements; "INFO" is none.
    rows = json.loads(found.read_text())
    judged = [row for row in rows if row["severity"] not in ("INFO", "DEBUG")]
    failures = [f"{row['id']}: {row['finding']}" for row in judged if row["severity"] != "OK"]
    version = run("dpkg-query", "-W", "-f", "${Version}", "testssl.sh")
    return Score("testssl.sh", version, len(judged), failures)


def sslyze(folder, port):
    found = folder / "sslyze.json"
    program = TOOLS / "sslyze"
    where = f"localhost:{port}"
    said = run(program, where, "--mozilla_config=intermediate", "--certinfo_ca_file",
               folder / "ca.pem", f"--json_out={found}")
    scans = json.loads(found.read_text())["server_scan_results"][0]["scan_result"]
    done = [scan for scan in scans.values() if scan["status"] != "NOT_SCHEDULED"]
    failures = [line.strip(" *") for line in said.splitlines() if line.startswith("        * ")]
    failures += [name for name, scan in scans.items() if scan["status"].startswith("ERROR")]
    more = run(program, where, "--resum", "--early_data", "--mozilla_config=disable")
    for name, expected in [
        ("session IDs", "Session IDs: OK"),
        ("tickets", "TLS Tickets: OK"),
        ("early data", r"Early Data:\s+Not Supported"),
    ]:
        if not re.search(expected, more):
            failures.append(name)
    return Score("sslyze", importlib.metadata.version("sslyze"), len(done) + 3, failures)


def httplint(_, port):
    """Notes on answers of the upstream and of the proxy."""
    cases, failures = 0, []
    for words in (["/"], ["-I", "/"], ["/said"], ["-I", "/said"], ["/denied"], ["/denied"],
                  ["-X", "TRACE", "/"], ["/a%00"]):
        target = f"http://127.0.0.1:{port}{words[-1]}"
        answer = subprocess.run(
            ["curl", "-s", "-i", *words[:-1], target], capture_output=True, timeout=20).stdout
        notes = run(TOOLS / "httplint", "--now", input=answer)
        found = re.findall(r"\[(GOOD|INFO|WARN|BAD)\] (.*)", notes)
        cases += len(found)
        status = answer.split()[1].decode()
        failures += [f"{' '.join(words)} ({status}): {text}" for kind, text in found
                     if kind in ("WARN", "BAD")]
    return Score("httplint", importlib.metadata.version("httplint"), cases, failures)


def conversations(port, script):
    """What a script of tlsfuzzer prints."""
    root = script.parent.parent
    source = script.stem.replace("-", "_")
    text = (root / "tlsfuzzer" / "_apps" / f"{source}.py").read_text()
    suite = ["-C", SUITE] if re.search(r"[\"']-C[\"']", text) else []
    return run(sys.executable, script, "-h", "127.0.0.1", "-p", port, *suite, seconds=60,
               cwd=root, env={**os.environ, "PYTHONPATH": str(root)})


def tlsfuzzer(_, port):
    root = pathlib.Path(os.environ["TLSFUZZER"])
    score = Score("tlsfuzzer", os.environ["TLSFUZZER_COMMIT"][:12], 0, [])
    scripts = sorted(root.glob("scripts/test-*.py"))
    scripts = [script for script in scripts if not LEFT_OUT.search(script.name)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda script: conversations(port, script), scripts))
    for script, said in zip(scripts, runs):
        total = re.search(r"^TOTAL: (\d+)", said, re.M)
        failed = re.findall(r"^\t['\"](.*)['\"]$", said.partition("\nFAILED:")[2], re.M)
        # Its first conversation must work, or the others say nothing.
        if not total or "sanity" in failed:
            score.without.append(script.stem)
            continue
        score.cases += int(total[1])
        errors = collections.Counter(re.findall(r"^AssertionError: (.*)", said, re.M))
        if failed and errors:
            score.seen[script.stem] = errors.most_common(1)[0][0]
        score.failures += [f"{script.stem}: {name}" for name in failed]
    return score


def explained(reasons, tool, failure):
    known = reasons.get(tool, {}).items()
    return next((why for begin, why in known if failure.startswith(begin)), None)


def page(scores, reasons):
    lines = [(HERE / "page.md").read_text().rstrip(), "",
             "| tool | version | cases | passed | failed |", "|---|---|--:|--:|--:|"]
    for it in scores:
        passed = it.cases - len(it.failures)
        lines.append(f"| {it.tool} | {it.version} | {it.cases} | {passed} | {len(it.failures)} |")
    for it in scores:
        if it.failures:
            lines += ["", f"## {it.tool}", "", "| finding | cases | why |", "|---|--:|---|"]
        rows = {}
        for failure in it.failures:
            known = next((k for k in reasons.get(it.tool, {}) if failure.startswith(k)), failure)
            rows[known] = rows.get(known, 0) + 1
        for known, count in rows.items():
            why = explained(reasons, it.tool, known) or "**not explained**"
            if seen := it.seen.get(known.partition(":")[0]):
                why += f" Seen: `{seen[:90]}`."
            lines.append(f"| {known.replace('|', ' ').rstrip(':')} | {count} | {why} |")
        if it.without:
            many = len(it.without)
            lines += ["", f"{many} scripts do not count, because their first conversation fails or",
                      "takes too long. Many need an argument, or a suite that the proxy does not offer."]
    return "\n".join(lines) + "\n"


def main():
    reasons = tomllib.loads((HERE / "reasons.toml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        process, plain, tls = start(folder)
        try:
            scores = []
            for tool, port in [(with_openssl, tls), (testssl, tls), (sslyze, tls),
                               (httplint, plain), (tlsfuzzer, tls)]:
                began = time.monotonic()
                scores.append(tool(folder, port))
                print(f"{tool.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr)
                for failure in scores[-1].failures:
                    print(f"  {failure}", file=sys.stderr)
        finally:
            process.terminate()
            process.wait()
    pathlib.Path(sys.argv[1]).write_text(page(scores, reasons))
    unknown = [f"{it.tool}: {failure}" for it in scores for failure in it.failures
               if not explained(reasons, it.tool, failure)]
    sys.exit("\n".join(["not explained:", *unknown]) if unknown else 0)


main()
