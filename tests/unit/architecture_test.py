"""The rules of the source tree: who may include whom, which calls live where, and what no file may hold."""
import re
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ROOMS = {
    "ckpt": {"ckpt"},
    "reshard": {"reshard", "ckpt"},
    "kernels": {"kernels"},
    "trainer": {"trainer", "reshard", "ckpt", "kernels"},
    "cli": {"cli", "trainer", "reshard", "ckpt"},
}
SUFFIXES = {".cc", ".h", ".c", ".cu", ".cuh"}
HEAVY = re.compile(r'#include [<"](nlohmann/json\.hpp|toml\+\+|spdlog/|CLI/|hdf5\.h|mpi\.h)')
DEGREE = re.compile(r"(\.|->)(tp|pp|dp|vpp)\b(?!\()")
# What may speak of degrees: the layout, placement, the table of cut rules, and the configuration that fills a layout.
DEGREES_ALLOWED = re.compile(r"^(reshard/(layout|placement|model_spec)\w*\.|trainer/config\w*\.)")
# A communicator per axis is called by the axis' name; the group behind it comes from the layout.
COMMUNICATOR = re.compile(r"\b(comms|comms_|communicators|communicators_)(\.|->)(tp|dp)\b")


def without_texts(text):
    """Source without comments and string literals, lines kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"', re.S)
    keep = lambda m: m.group(0) if m.group(0).startswith('"') and "#include" in text[max(0, m.start() - 12):m.start()] \
        else "\n" * m.group(0).count("\n")
    return pattern.sub(keep, text)


def breaches(path, text):
    """Rules that a file breaks, by its path in the repository."""
    room = path.split("/")[0]
    code = without_texts(text)
    found = []
    if room in ROOMS:
        for other in re.findall(r'#include "(\w+)/', text):
            if other in ROOMS and other not in ROOMS[room]:
                found.append(f"{path}: includes {other}; {room} may not")
        if not DEGREES_ALLOWED.match(path) and DEGREE.search(COMMUNICATOR.sub("", code)):
            found.append(f"{path}: speaks of a parallel degree; ask the layout or placement")
        if re.search(r"\bMPI_[A-Z]\w+\s*\(", code) and path != "trainer/mpi_communicator.cc":
            found.append(f"{path}: calls MPI; only trainer/mpi_communicator.cc does")
        if re.search(r"\bH5[A-Z]{1,2}[a-z]\w*\s*\(", code) and room != "ckpt":
            found.append(f"{path}: calls HDF5; only ckpt does")
    if path.endswith((".h", ".cuh")):
        for header in HEAVY.findall(code):
            # The HDF5 wrapper is a header of ckpt's own; it is included by the few files that call HDF5.
            if not (header == "hdf5.h" and path.startswith("ckpt/")):
                found.append(f"{path}: includes {header}, which belongs in a .cc file")
    if text.count("\n") > 500:
        found.append(f"{path}: has {text.count(chr(10))} lines; over 500 is two files")
    if re.search(r"\b(TODO|FIXME|XXX)\b", text):
        found.append(f"{path}: something is left to do in it")
    if re.search(r"(^|[_/])(utils?|common|helpers?|misc)\.(cc|h|cu)$", path):
        found.append(f"{path}: is not named for a concept")
    return found


def sources(repository):
    for folder in [*ROOMS, "tests"]:
        for path in sorted((repository / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield str(path.relative_to(repository)), path.read_text()


class ArchitectureTest(unittest.TestCase):
    def test_TheSourceTreeKeepsItsRules(self):
        files = list(sources(REPOSITORY))
        self.assertGreater(len(files), 50)
        self.assertEqual([b for path, text in files for b in breaches(path, text)], [])

    def test_EachRuleOfTheSourceTreeCanFail(self):
        bad = {
            "ckpt/a.cc": '#include "reshard/layout.h"\n',
            "reshard/a.cc": '#include "trainer/config.h"\n',
            "kernels/a.cc": '#include "ckpt/error.h"\n',
            "trainer/a.cc": "int f(L l) { return l.dp; }\n",
            "trainer/b.cc": "void f() { MPI_Barrier(c); }\n",
            "trainer/c.cc": "void f() { H5Fopen(p); }\n",
            "trainer/d.h": "#include <nlohmann/json.hpp>\n",
            "ckpt/b.cc": "\n" * 501,
            "ckpt/c.cc": "// " + "TO" + "DO: later\n",
            "ckpt/utils.cc": "\n",
        }
        for path, text in bad.items():
            self.assertEqual(len(breaches(path, text)), 1, path)
        good = {
            "trainer/a.cc": 'auto s = "parallel.tp"; // layout.tp\nf(*comms_.tp, comms.dp);\n#include "ckpt/error.h"\n',
            "trainer/config_a.cc": "int f(L l) { return l.dp; }\n",
            "trainer/mpi_communicator.cc": "void f() { MPI_Barrier(c); }\n",
            "trainer/d.h": "#include <nlohmann/json_fwd.hpp>\n",
        }
        for path, text in good.items():
            self.assertEqual(breaches(path, text), [], path)


if __name__ == "__main__":
    unittest.main()
