"""Runs every test_*.py beside it, two files at a time since they mostly wait, and ends with one
line: `python: N passed, N failed in N s`.

Arguments choose tests as unittest does, in this process: `run.py test_curl.Limits`. A test that
skips itself counts as failed: what these tests need is installed for them.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys
import time
import unittest

HERE = pathlib.Path(__file__).parent
AT_ONCE = 2


class Report(unittest.TestResult):
    """One line for each test as it ends, then what is wrong with it."""

    passed = 0
    failed = 0

    def startTest(self, test):
        super().startTest(test)
        self._started = time.monotonic()

    def addSuccess(self, test):
        self.passed += 1
        print(f"ok    {test.id()}  ({time.monotonic() - self._started:.1f} s)", flush=True)

    def addSkip(self, test, reason):
        self._fail(test, f"skipped: {reason}\n")

    def addError(self, test, err):
        super().addError(test, err)
        self._fail(test, self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._fail(test, self.failures[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._fail(subtest, self._exc_info_to_string(err, subtest))

    def _fail(self, test, text):
        self.failed += 1
        print(f"FAIL  {test.id()}\n{text}", flush=True)


def run_here(names):
    """Counts of the tests with these names."""
    sys.path.insert(0, str(HERE))
    report = Report()
    unittest.TestLoader().loadTestsFromNames(names).run(report)
    return report.passed, report.failed


def run_apart(name):
    """Counts of one file, run in a process of its own, whose output is shown when it ends."""
    command = [sys.executable, __file__, name]
    ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    shown, _, summary = ran.stdout.rpartition("python: ")
    print(shown or ran.stdout, end="", flush=True)
    found = re.match(r"(\d+) passed, (\d+) failed", summary)
    # A file that could not even finish has failed as a whole.
    return (int(found[1]), int(found[2])) if found else (0, 1)


def run_all():
    names = sorted((path.stem for path in HERE.glob("test_*.py")), reverse=True)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        counts = list(pool.map(run_apart, names))
    return sum(passed for passed, _ in counts), sum(failed for _, failed in counts)


def main(names):
    started = time.monotonic()
    passed, failed = run_here(names) if names else run_all()
    seconds = time.monotonic() - started
    print(f"python: {passed} passed, {failed} failed in {seconds:.1f} s", flush=True)
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
