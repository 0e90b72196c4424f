#!/usr/bin/python3
"""What ptxas said of each CUDA kernel when it was compiled: ptxas_report.py BUILD_DIRECTORY

Prints a table of file, kernel, architecture, registers, and bytes of stack and spills. Status 1 if a kernel spills; 2 if nothing was compiled."""
import re
import sys
from pathlib import Path

KERNEL = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)' for '(?P<architecture>sm_\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers", re.S)


def rows(text):
    """A dictionary for each kernel and architecture in ptxas' output."""
    found = []
    # Each match begins at its own entry function, so that none takes another's numbers.
    for part in re.split(r"(?=Compiling entry function)", text)[1:]:
        match = KERNEL.search(part)
        if not match:
            raise ValueError(f"ptxas' output is not understood: {part[:200]!r}")
        row = match.groupdict()
        named = re.search(r"([a-z_]+_kernel)", row["kernel"])
        found.append({"kernel": named.group(1) if named else row["kernel"], "architecture": row["architecture"],
                      **{key: int(row[key]) for key in ("registers", "stack", "stores", "loads")}})
    return found


def report(build):
    """All rows of a build directory, each with its file."""
    return [{"file": log.stem + ".cu", **row}
            for log in sorted(Path(build).glob("kernels/cuda/*.ptxas")) for row in rows(log.read_text())]


def main(build):
    table = report(build)
    if not table:
        print(f"no CUDA kernels were compiled in {build}", file=sys.stderr)
        return 2
    columns = ("file", "kernel", "architecture", "registers", "stack", "stores", "loads")
    widths = [max(len(str(row[c])) for row in [dict(zip(columns, columns)), *table]) for c in columns]
    for row in [dict(zip(columns, columns)), *table]:
        print("  ".join(str(row[c]).ljust(w) for c, w in zip(columns, widths)).rstrip())
    return int(any(row["stores"] or row["loads"] for row in table))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
