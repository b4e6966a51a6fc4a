"""What pytest left out and why: `python -m tests.support.skipped REPORT.xml...` reads its JUnit reports.

One line for each reason, the most tests first: `3 tests of interop: no Go: install golang`. Imports nothing but the
standard library. A report that is not there says nothing: that pytest failed is told elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

LONGEST_REASON = 200


def reasons(reports: Sequence[Path]) -> list[str]:
    """The lines."""
    where: dict[str, list[str]] = {}
    for report in reports:
        try:
            cases = ElementTree.parse(report).iter("testcase")
        except (OSError, ElementTree.ParseError):
            continue
        for case in cases:
            for skipped in case.iter("skipped"):
                if skipped.get("type") == "pytest.skip":
                    # Its first line: the rest may be a log.
                    told = skipped.get("message", "").strip().partition("\n")[0]
                    where.setdefault(told[:LONGEST_REASON], []).append(case.get("classname", ""))
    lines = []
    for told, cases_of in sorted(where.items(), key=lambda item: -len(item[1])):
        # tests.interop.test_pion -> interop; a class or a file that is no package has no second part
        folders = {name.split(".")[1] for name in cases_of if name.count(".") > 1}
        count = f"{len(cases_of)} test{'s' if len(cases_of) > 1 else ''}"
        of = f" of {', '.join(sorted(folders))}" if folders else ""
        lines.append(f"{count}{of}: {told or 'no reason given'}")
    return lines


if __name__ == "__main__":
    print(*reasons([Path(name) for name in sys.argv[1:]]), sep="\n")
