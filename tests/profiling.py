"""What the suite costs, by file: a pytest plugin behind ``make profile``.

``python -m pytest -p tests.profiling`` adds up seconds and CPU seconds of each file's tests, over
all of xdist's workers, and prints the dearest files and tests; ``PROFILE_TO=FILE`` keeps all files
as JSON. CPU seconds are those of the test's process and of children that it waited for: processes
of Ray, and what a fork server has forked, are not among them.
"""

import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

_SHOWN = 40


def _now():
    times = os.times()
    cpu = times.user + times.system + times.children_user + times.children_system
    return time.perf_counter(), cpu


class Profile:
    """Costs by file and by test; kept by the process that prints the summary."""

    def __init__(self):
        self.files = defaultdict(lambda: {"tests": 0, "seconds": 0, "cpu": 0})
        self.tests = []
        self._began = (0.0, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self):
        self._began = _now()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == "teardown":
            cost = [end - begin for begin, end in zip(self._began, _now(), strict=True)]
            item.user_properties.append(("cost", cost))
        return (yield)

    def pytest_runtest_logreport(self, report):
        if report.when != "teardown":
            return
        seconds, cpu = dict(report.user_properties).get("cost", (0.0, 0.0))
        row = self.files[report.nodeid.partition("::")[0]]
        row["tests"] += 1
        row["seconds"] += seconds
        row["cpu"] += cpu
        self.tests.append((seconds, cpu, report.nodeid))

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("cost: seconds, CPU seconds")
        total = [sum(row[name] for row in self.files.values()) for name in ("seconds", "cpu")]
        terminalreporter.line(f"{total[0]:8.1f} {total[1]:8.1f}  altogether")
        dearest = sorted(self.files.items(), key=lambda pair: -pair[1]["seconds"])
        for name, row in dearest[:_SHOWN]:
            tests = int(row["tests"])
            terminalreporter.line(f"{row['seconds']:8.1f} {row['cpu']:8.1f}  {name} ({tests})")
        for seconds, cpu, nodeid in sorted(self.tests, reverse=True)[:_SHOWN]:
            terminalreporter.line(f"{seconds:8.1f} {cpu:8.1f}  {nodeid}")
        if target := os.environ.get("PROFILE_TO"):
            rounded = {f: {k: round(v, 1) for k, v in row.items()} for f, row in dearest}
            Path(target).write_text(json.dumps(rounded, indent=1) + "\n")


def pytest_configure(config):
    """Adds the plugin, in workers too."""
    config.pluginmanager.register(Profile(), "profile of costs")
