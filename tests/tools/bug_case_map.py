"""Writes the table of tests/README.md: which test covers which public report, from the names that CTest knows (B07_...).

python3 tests/tools/bug_case_map.py BUILD_DIRECTORY          writes the table
python3 tests/tools/bug_case_map.py BUILD_DIRECTORY --check  status 1 if it is not up to date
"""
import csv
import json
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS / "README.md"

TABLE = "| case | report | symptom | tests | waits for |\n"


def ctest_names(build):
    """{id: [test names]} of all tests of a build directory."""
    listing = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True,
                             text=True)
    found = {}
    for test in json.loads(listing.stdout)["tests"]:
        # Instances of a parameterised test (Suite/Name/0) count as one.
        name = re.sub(r"/\d+$", "", test["name"])
        for case in re.findall(r"(?<![A-Za-z0-9])B\d+(?=_)", name):
            found.setdefault(case, [])
            if name not in found[case]:
                found[case].append(name)
    return found


def page(build):
    names = ctest_names(build)
    with open(TESTS / "tools" / "bug_cases.tsv", newline="") as file:
        cases = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    unknown = sorted(set(names) - {case["id"] for case in cases})
    if unknown:
        sys.exit(f"bug_case_map.py: tests are named for {', '.join(unknown)}, which bug_cases.tsv does not have")
    # What stands above the table is written by hand.
    text = PAGE.read_text().split(TABLE)[0] + TABLE + "|---|---|---|---|---|\n"
    for case in cases:
        tests = ", ".join(f"`{name}`" for name in sorted(names.get(case["id"], []))) or "none yet"
        symptom = case["symptom"].replace("|", "\\|")
        text += f"| {case['id']} | {case['report']} | {symptom} | {tests} | {case['waits for']} |\n"
    covered = sum(1 for case in cases if case["id"] in names)
    waiting = sum(1 for case in cases if case["id"] not in names and case["waits for"])
    return text + (f"\n{covered} of {len(cases)} cases have tests; {waiting} of the others wait for a feature.\n")


def main(build, check):
    text = page(build)
    if not check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"tests/README.md is not up to date; run python3 tests/tools/bug_case_map.py {build}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--check" in sys.argv[2:]))
