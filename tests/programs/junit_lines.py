"""Prints each test of a JUnit file with its result, a line each, sorted."""

import sys
import xml.etree.ElementTree as tree

lines = []
for case in tree.parse(sys.argv[1]).getroot().iter("testcase"):
    results = [part.tag for part in case if part.tag in ("failure", "error", "skipped")]
    lines.append(f"{case.get('classname') or ''}.{case.get('name')} {(results or ['passed'])[0]}")
print("\n".join(sorted(lines)))
