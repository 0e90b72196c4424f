"""Prints what happened in the demo as a table, and ends with status 1 unless it happened as promised.

python3 demo_report.py DISTURBED_RUN UNDISTURBED_RUN RESHARD_STEP
"""
import json
import re
import sys
from pathlib import Path

TOLERANCE = 1e-5


def lines(path):
    """The whole lines: a full disk or a kill may have torn one."""
    found = []
    for line in Path(path).read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            pass
    return [record for record in found if isinstance(record, dict)]


def steps(run):
    """The last record of each step's highest generation."""
    best = {}
    for record in lines(Path(run) / "metrics.jsonl"):
        if record["type"] == "step":
            known = best.get(record["step"])
            if known is None or record["generation"] >= known["generation"]:
                best[record["step"]] = record
    return dict(sorted(best.items()))


def phases(records):
    """[first step, last step] of each stretch of one generation."""
    found = []
    for step, record in records.items():
        if found and records[found[-1][1]]["generation"] == record["generation"]:
            found[-1][1] = step
        else:
            found.append([step, step])
    return found


def axes(layout):
    """{"t": 2, "p": 2, "d": 2, "z": 1} of t2p2d2z1."""
    return {letter: int(number) for letter, number in re.findall("([a-z])([0-9]+)", layout)}


def main(disturbed, undisturbed, reshard_step):
    records, reference = steps(disturbed), steps(undisturbed)
    events = lines(Path(disturbed) / "events.jsonl")
    problems = []

    lost = [event for event in events if event["event"] == "rank_lost"]
    for event in events:
        if event["event"] == "rank_lost":
            print(f"generation {event['generation']}: rank {event['rank']} was lost ({event['detail']})")
        elif event["event"] == "generation_end" and event["lost_steps"]:
            print(f"generation {event['generation']}: ended; {event['lost_steps']} steps since its last checkpoint are done again")
        elif event["event"] == "resume":
            print(f"generation {event['generation']}: resumed after step {event['step']}")
    if not lost:
        problems.append("no rank was lost")
    saves = [record for record in lines(Path(disturbed) / "metrics.jsonl") if record["type"] == "checkpoint"]
    if any(save["outcome"] != "committed" for save in saves):
        problems.append("a checkpoint failed")
    elif saves:
        stall, total = (sum(save[field] for save in saves) / len(saves) for field in ("stall_ms", "total_s"))
        print(f"{len(saves)} checkpoints were written in the background: {total:.2f} s each, of which training waited {stall:.1f} ms")

    print(f"\n{'step':>6} {'ranks':>6}  {'layout':<10} {'loss':>10} {'undisturbed':>12} {'relative difference':>20}")
    worst = 0.0
    shown = set()
    for first, last in phases(records):
        shown |= {first, (first + last) // 2, last}
    previous = None
    for step, record in records.items():
        expected = reference[step]["loss"]
        difference = abs(record["loss"] - expected) / abs(expected)
        worst = max(worst, difference)
        if step in shown:
            if previous is not None and previous != record["generation"]:
                print()
            previous = record["generation"]
            print(f"{step:>6} {record['ranks']:>6}  {record['layout']:<10} {record['loss']:>10.6f} {expected:>12.6f} "
                  f"{difference:>20.1e}")

    if sorted(records) != sorted(reference):
        problems.append(f"the run has steps {len(records)}, the undisturbed one {len(reference)}")
    ranks = [records[first]["ranks"] for first, _ in phases(records)]
    if len(ranks) < 3 or not (ranks[0] == 8 and ranks[1] < 8):
        problems.append(f"the ranks did not change as they should: {ranks}")
    ways = [axes(records[first]["layout"]) for first, _ in phases(records)]
    for before, after in zip(ways, ways[1:]):
        changed = [axis for axis in "tpd" if before[axis] != after[axis]]
        if len(changed) < 2:
            problems.append(f"only {changed} changed between {before} and {after}; at least two axes should")
    layouts = {record["layout"] for step, record in records.items() if step > reshard_step}
    if len(layouts) != 1 or layouts == {records[reshard_step]["layout"]}:
        problems.append(f"the last steps ran in {sorted(layouts)}")
    if not worst <= TOLERANCE:
        problems.append(f"losses differ by {worst:.1e}, more than {TOLERANCE:g}")

    print(f"\nLargest relative difference over {len(records)} steps: {worst:.1e} (allowed: {TOLERANCE:g})")
    for problem in problems:
        print(f"demo: error: {problem}", file=sys.stderr)
    if not problems:
        print("The run lost a rank, went on with fewer, was resharded, and its losses are those of the undisturbed run.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
