"""Runs nginx's own tests against tidegate, and writes the page. Usage: suite.py PAGE [FILE...]

With names of files only these run, their output is shown, and no page is written.
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).parent
SUITE = pathlib.Path(os.environ["NGINX_TESTS"]).resolve()
SECONDS = 150
AT_ONCE = int(os.environ.get("AT_ONCE", "4"))


@dataclasses.dataclass
class Outcome:
    file: str
    planned: int = 0
    passed: int = 0
    skipped: str = ""
    failures: list = dataclasses.field(default_factory=list)
    output: str = ""
    # What the import said.
    imports: str = ""

    def whole(self):
        return self.planned > 0 and self.passed == self.planned


def run(file):
    """What a file of the suite says, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        environment = {**os.environ, "TEST_NGINX_BINARY": str(HERE / "shim.py"),
                       "TMPDIR": folder, "TEST_NGINX_LEAVE": "1",
                       "PATH": f"{HERE}/bin:{os.environ['PATH']}"}
        output = pathlib.Path(folder, "output")
        with open(output, "wb") as out:
            process = subprocess.Popen(
                ["perl", f"-I{SUITE}/lib", f"-I{HERE}", "-MClient", file], cwd=SUITE,
                env=environment, start_new_session=True, stdout=out, stderr=out)
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                out.write(b"# over the time limit\n")
        # Servers of a test that died are in its session.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        said = output.read_bytes()
        outcome = judged(file, said.decode(errors="replace"))
        logs = pathlib.Path(folder).glob("*/tidegate.log")
        outcome.imports = "".join(log.read_text(errors="replace") for log in logs)
    return outcome


def judged(file, said):
    outcome = Outcome(file, output=said)
    if skip := re.search(r"^1\.\.0 # SKIP (.*)", said, re.M):
        outcome.skipped = skip[1]
        return outcome
    plan = re.search(r"^1\.\.(\d+)", said, re.M)
    # A test whose nginx does not start says no plan. The module adds two tests to each.
    text = (SUITE / file).read_text(errors="replace")
    stated = re.search(r"plan\((\d+)\)", text)
    outcome.planned = int(plan[1]) if plan else int(stated[1]) + 2 if stated else 1
    for sign, number, name in re.findall(r"^(not ok|ok) (\d+)(?: - )?(.*)", said, re.M):
        if sign == "ok" or "# TODO" in name:
            outcome.passed += 1
        else:
            outcome.failures.append(name)
    outcome.passed = min(outcome.passed, outcome.planned)
    return outcome


def left_out(file, rules):
    return next((why for pattern, why in rules.items()
                 if re.fullmatch(pattern, file.removesuffix(".t"))), None)


def table(outcomes, reasons):
    lines = ["| file | tests | passed | kind | why |", "|---|--:|--:|---|---|"]
    for it in outcomes:
        row = reasons.get(it.file.removesuffix(".t"), {})
        kind = row.get("kind", "" if it.whole() else "**no row**")
        why = row.get("why", "" if it.whole() else "Not examined.")
        lines.append(f"| {it.file} | {it.planned} | {it.passed} | {kind} | {why} |")
    return lines


def kind_of(it, reasons):
    return reasons.get(it.file.removesuffix(".t"), {}).get("kind", "not examined")


def page(outcomes, out, reasons, commit):
    whole = [it for it in outcomes if it.whole()]
    tests, passed = sum(it.planned for it in outcomes), sum(it.passed for it in outcomes)
    could = [it for it in outcomes
             if it.whole() or kind_of(it, reasons) in ("proxy", "importer")]
    kinds = {}
    for it in outcomes:
        if not it.whole():
            kinds.setdefault(kind_of(it, reasons), []).append(it)
    lines = [(HERE / "page.md").read_text().rstrip(), "", "## Score", "",
             f"The suite is at commit `{commit}`.", "",
             "| | files | whole | tests | passed |", "|---|--:|--:|--:|--:|",
             f"| applicable | {len(outcomes)} | {len(whole)} | {tests} | {passed} |",
             f"| of these expressible | {len(could)} | {sum(it.whole() for it in could)} | "
             f"{sum(it.planned for it in could)} | {sum(it.passed for it in could)} |",
             "", "| files that do not pass whole | files | tests that fail |", "|---|--:|--:|"]
    for kind, list_ in sorted(kinds.items()):
        failed = sum(it.planned - it.passed for it in list_)
        lines.append(f"| {kind} | {len(list_)} | {failed} |")
    lines += ["", "## Files that do not pass whole", "",
              *table([it for it in outcomes if not it.whole()], reasons),
              "", "## Files that pass whole", "",
              "| file | tests |", "|---|--:|",
              *(f"| {it.file} | {it.planned} |" for it in whole), "", "## Files that do not run", "",
              "| why | files |", "|---|---|"]
    lines += [f"| {why} | {', '.join(files)} |" for why, files in sorted(out.items())]
    return "\n".join(lines) + "\n"


def accept(outcomes):
    """Writes how many tests pass into the rows, and removes rows of files that pass whole."""
    path = HERE / "reasons.toml"
    text = path.read_text()
    for it in outcomes:
        name = re.escape(it.file.removesuffix(".t"))
        row = rf'(?m)^("{name}" = \{{ passes = )\d+'
        text = re.sub(row, rf"\g<1>{it.passed}", text)
        if it.whole():
            text = re.sub(rf'(?m)^"{name}" = .*passes.*\n', "", text)
    path.write_text(text)


def worse(outcomes, reasons):
    """Files that pass fewer tests than their row says, or fail without a row."""
    found = []
    for it in outcomes:
        row = reasons.get(it.file.removesuffix(".t"))
        least = row["passes"] if row else it.planned
        if it.passed < least:
            found.append(f"{it.file}: {it.passed} of {it.planned} pass, expected {least}")
    return found


def main():
    rules = tomllib.loads((HERE / "reasons.toml").read_text())
    names = [name.removesuffix(".t") + ".t" for name in sys.argv[2:]]
    if names:
        for name in names:
            it = run(name)
            print(it.output, f"{name}: {it.passed} of {it.planned}", sep="\n")
        return 0
    out, files = {}, []
    for file in sorted(path.name for path in SUITE.glob("*.t")):
        if why := left_out(file, rules["left_out"]):
            out.setdefault(why, []).append(file)
        else:
            files.append(file)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(run, files))
    if record := os.environ.get("RECORD"):
        pathlib.Path(record).write_text(json.dumps([dataclasses.asdict(it) for it in outcomes]))
    for it in outcomes:
        if it.skipped:
            out.setdefault(f"The file itself skips: {it.skipped}.", []).append(it.file)
    outcomes = [it for it in outcomes if not it.skipped]
    if os.environ.get("ACCEPT"):
        accept(outcomes)
        rules = tomllib.loads((HERE / "reasons.toml").read_text())
    commit = subprocess.run(["git", "-C", SUITE, "rev-parse", "--short=12", "HEAD"],
                            capture_output=True, text=True).stdout.strip() or "unknown"
    pathlib.Path(sys.argv[1]).write_text(page(outcomes, out, rules["file"], commit))
    passed = sum(it.passed for it in outcomes)
    print(f"{sum(it.whole() for it in outcomes)} of {len(outcomes)} files pass whole, "
          f"{passed} of {sum(it.planned for it in outcomes)} tests", file=sys.stderr)
    found = worse(outcomes, rules["file"])
    return "\n".join(["worse than their rows:", *found]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
