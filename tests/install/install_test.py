"""`cmake --install`: what programs outside of this tree get, and that it is enough for them."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SHARDWRIGHT_BUILD", REPOSITORY / "build/release"))
PROGRAM = BUILD / "bin/shardwright"
EXAMPLES = REPOSITORY / "ckpt/examples"
NEEDED_BY_THE_LIBRARY = re.compile(r"nlohmann|/fmt/|hdf5|zstd|xxh|mpi|toml|CLI11")


def output(*command, environment=None, status=0):
    """Standard output of a command, which must end with `status`."""
    done = subprocess.run([str(c) for c in command], env={**os.environ, **(environment or {})}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=100)
    if done.returncode != status:
        raise AssertionError(f"{command} ended with {done.returncode}, not {status}:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(prefix, *arguments, environment=None):
    done = subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix, *arguments], text=True, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, env={**os.environ, **(environment or {})}, timeout=100)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"cmake --install ended with {done.returncode}, and is not quiet:\n{done.stderr}")


def dead_links(page):
    """Links of an installed page that lead to nothing beside it."""
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    return [t for t in targets if not re.match(r"\w+://", t) and not (page.parent / t).exists()]


class InstallTest(unittest.TestCase):
    def setUp(self):
        self.root = Path(tempfile.mkdtemp(prefix="shardwright-"))
        self.addCleanup(shutil.rmtree, self.root)

    def library(self, name="prefix"):
        install(self.root / name, "--component", "library")
        return self.root / name

    def flags(self, prefix, module):
        environment = {"PKG_CONFIG_PATH": str(prefix / "lib/pkgconfig")}
        return output("pkg-config", "--cflags", "--libs", module, environment=environment).split()

    def test_InstallPutsEverythingUnderThePrefix(self):
        install("/opt/s", environment={"DESTDIR": str(self.root / "stage")})
        self.assertEqual([p.name for p in (self.root / "stage").iterdir()], ["opt"])
        prefix = self.root / "stage/opt/s"
        files = {str(p.relative_to(prefix)) for p in prefix.rglob("*") if not p.is_dir()}
        for name in ["bin/shardwright", "include/shardwright/shardwright.h", "include/shardwright/ckpt/checkpoint.h",
                     "include/shardwright/reshard/placement.h", "lib/libshardwright_ckpt.a", "lib/libshardwright_reshard.a",
                     "lib/libshardwright.so", "lib/libshardwright.so.1", "lib/hdf5/plugin/libH5Zzstd.so",
                     "lib/cmake/shardwright/shardwright-config.cmake",
                     "lib/cmake/shardwright/shardwright-config-version.cmake", "lib/pkgconfig/shardwright-ckpt.pc",
                     "lib/pkgconfig/shardwright-reshard.pc", "lib/pkgconfig/shardwright-c.pc", "share/man/man1/shardwright.1",
                     "share/bash-completion/completions/shardwright", "share/doc/shardwright/API.md",
                     "share/doc/shardwright/FORMAT.md", "share/doc/shardwright/examples/numpy_arrays.py"]:
            self.assertIn(name, files)
        tops = {name.split("/")[0] for name in files}
        self.assertEqual(tops, {"bin", "include", "lib", "share"})
        internal = [f for f in files if re.search(r"ckpt/(hdf5|shard\.h|manifest|chunk|commit\.h|fault)", f)]
        self.assertEqual(internal, [], "what is no part of the interface stays at home")
        for name in sorted(files):
            path = prefix / name
            if path.suffix in (".h", ".cmake", ".pc"):
                for place in (REPOSITORY, BUILD, "/opt/s"):
                    self.assertNotIn(str(place), path.read_text(), name)
        for page in (prefix / "share/doc/shardwright").rglob("*.md"):
            self.assertEqual(dead_links(page), [], page)
        self.assertIn("shardwright", output(prefix / "bin/shardwright", "--version"))
        self.assertIn(".TH", (prefix / "share/man/man1/shardwright.1").read_text())

    def test_TheProgramAloneHasItsManualPageAndCompletion(self):
        install(self.root / "prefix", "--component", "program")
        files = {str(p.relative_to(self.root / "prefix")) for p in (self.root / "prefix").rglob("*") if not p.is_dir()}
        self.assertEqual(files, {"bin/shardwright", "share/man/man1/shardwright.1",
                                 "share/bash-completion/completions/shardwright"})

    def test_TheSharedLibraryShowsItsHeaderAndNothingElse(self):
        prefix = self.library()
        self.assertFalse((prefix / "bin").exists(), "the component `library` needs no program")
        library = prefix / "lib/libshardwright.so.1"
        shown = {line.split()[-1].split("@")[0] for line in
                 output("nm", "-D", "--defined-only", library).splitlines() if " A " not in line}
        header = (prefix / "include/shardwright/shardwright.h").read_text()
        self.assertEqual(shown, set(re.findall(r"\b(shardwright_\w+)\(", header)))
        self.assertIn("SONAME               libshardwright.so.1\n", output("objdump", "-p", library))
        needed = output("objdump", "-p", library)
        self.assertNotRegex(needed, "NEEDED.*(mpi|dnnl)")
        self.assertNotIn("MPI_", output("nm", "-C", "--undefined-only", prefix / "lib/libshardwright_ckpt.a"))

    def test_EveryPublicHeaderStandsAlone(self):  # timeout=300
        include = self.library() / "include"
        headers = sorted(str(p.relative_to(include)) for p in include.rglob("shardwright/*/*.h"))
        self.assertGreater(len(headers), 20)

        def compile_alone(header):
            source = self.root / (header.replace("/", "_") + ".cc")
            source.write_text(f'#include "{header}"\n')
            dependencies = self.root / (source.name + ".d")
            output("g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", include,
                   "-MD", "-MF", dependencies, source)
            return [d for d in dependencies.read_text().split() if NEEDED_BY_THE_LIBRARY.search(d)]

        with ThreadPoolExecutor(2) as pool:
            for header, needs in zip(headers, pool.map(compile_alone, headers)):
                self.assertEqual(needs, [], header)

    def particles(self, program, directory, processes, steps, status=0, fault=None):
        environment = {"SHARDWRIGHT_FAULT": fault} if fault else {}
        return output(program, "run", directory, processes, steps, environment=environment, status=status).strip()

    def differences(self, a, b):
        return json.loads(output(PROGRAM, "diff", a, b, "--json"))["differences"]

    def test_AProgramOfOthersLosesAProcessAndGoesOnWithOtherNumbers(self):  # timeout=300
        self.library("first")
        prefix = (self.root / "first").rename(self.root / "moved elsewhere")
        output("cmake", "-S", EXAMPLES / "particles", "-B", self.root / "build", "-DCMAKE_BUILD_TYPE=Release",
               f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
        output("cmake", "--build", self.root / "build")
        program = self.root / "build/particles"
        undisturbed, run = self.root / "undisturbed", self.root / "run"
        self.assertEqual(self.particles(program, undisturbed, 1, 40), "a new run")

        # One of three processes is killed in the middle of the save of step 20: that of step 10 stands.
        self.particles(program, run, 3, 40, status=1, fault="shard.mid:rank=1:step=20=kill")
        names = sorted(p.name for p in (run / "checkpoints").iterdir())
        self.assertEqual([n for n in names if re.fullmatch(r"step-\d{10}", n)], ["step-0000000010"])
        self.assertTrue(any(".tmp-" in n for n in names), names)
        for processes, steps, newest in [(2, 20, 10), (5, 30, 20), (7, 40, 30)]:
            said = self.particles(program, run, processes, steps)
            self.assertEqual(said, str(run / f"checkpoints/step-{newest:010}"))
        self.assertEqual(sorted(p.name for p in (run / "checkpoints").glob("step-*")),
                         [f"step-{step:010}" for step in (10, 20, 30, 40)])
        for step in (10, 20, 30, 40):
            path = run / f"checkpoints/step-{step:010}"
            self.assertTrue(json.loads(output(PROGRAM, "verify", path, "--json"))["ok"])
            self.assertEqual(self.differences(path, undisturbed / f"checkpoints/step-{step:010}"), [])

        # A column that crosses the processes' shares, against a reader of our format by others.
        newest = run / "checkpoints/step-0000000040"
        output(sys.executable, REPOSITORY / "tests/tools/second_reader.py", newest, self.root / "all.npz")
        expected = numpy.load(self.root / "all.npz")["state/position"][100:900, 0]
        self.assertEqual([float(x) for x in output(program, "x", newest, 100, 800).split()], expected.tolist())

    def test_PkgConfigIsEnoughToBuildInCxxAndC(self):  # timeout=300
        prefix = self.library()
        program, lister = self.root / "particles", self.root / "list_tensors"
        output("g++", "-std=c++20", "-O1", EXAMPLES / "particles/particles.cc", "-o", program,
               *self.flags(prefix, "shardwright-ckpt"))
        output("gcc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", EXAMPLES / "list_tensors.c", "-o", lister,
               *self.flags(prefix, "shardwright-c"))
        self.particles(program, self.root / "run", 2, 10)
        library_path = {"LD_LIBRARY_PATH": str(prefix / "lib")}
        lines = output(lister, self.root / "run", environment=library_path).splitlines()
        self.assertEqual(lines[0], "step 10")
        second = json.loads(output(sys.executable, REPOSITORY / "tests/tools/second_reader.py",
                                   self.root / "run/checkpoints/step-0000000010"))
        self.assertEqual(lines[1:], [f"{tensor} {kind} f64 [1000, 3] {fingerprint}"
                                     for tensor, kind, fingerprint in second["fingerprints"]])
        output(lister, self.root / "nothing", environment=library_path, status=1)
        self.assertIn("-lshardwright_reshard", self.flags(prefix, "shardwright-reshard"))

    def test_NumpyArraysAreSavedAndReadByCtypes(self):
        prefix = self.library()
        said = output(sys.executable, EXAMPLES / "numpy_arrays.py", self.root / "run",
                      environment={"SHARDWRIGHT_LIBRARY": str(prefix / "lib/libshardwright.so.1")})
        self.assertEqual(said, "equal\n")
        checkpoint = self.root / "run/checkpoints/step-0000000001"
        self.assertEqual(len(list(checkpoint.glob("rank-*.h5"))), 3)
        whole = numpy.arange(70.0).reshape(10, 7) ** 0.5
        output(sys.executable, REPOSITORY / "tests/tools/second_reader.py", checkpoint, self.root / "all.npz")
        self.assertTrue((numpy.load(self.root / "all.npz")["array/table"] == whole).all())
        # By h5py, with the installed filter.
        plugin = {"HDF5_PLUGIN_PATH": str(prefix / "lib/hdf5/plugin")}
        said = output(sys.executable, prefix / "share/doc/shardwright/examples/read_tensor.py", checkpoint, "table", "array",
                      environment=plugin)
        self.assertEqual(said, f"{whole.dtype}\n{whole.shape}\n{whole}\n")

    def test_TheLibrariesAloneAreConfiguredWithoutMpi(self):
        absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("MPI", "dnnl", "CLI11", "tomlplusplus", "GTest", "OpenMP")]
        output("cmake", "-S", REPOSITORY, "-B", self.root / "build", "-DSHARDWRIGHT_PROGRAM=OFF", *absent)

    def test_TheApiPageShowsTestedCode(self):
        page = (REPOSITORY / "ckpt/API.md").read_text()
        tested = [p.read_text() for p in EXAMPLES.rglob("*") if p.is_file()]
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.M | re.S)
        shown = [text for language, text in blocks if language in ("cpp", "c", "python", "cmake")]
        self.assertGreater(len(shown), 3)
        for text in shown:
            self.assertTrue(any(text in file for file in tested), f"in no file of ckpt/examples:\n{text}")
        for link in re.findall(r"\]\(([\w./]+)\)", page):
            self.assertTrue((REPOSITORY / "ckpt" / link).exists(), link)
        headers = set(re.findall(r"`(\w+\.h)`", page))
        listed = re.search(r"install_headers\(ckpt (.*?)\)", (REPOSITORY / "ckpt/CMakeLists.txt").read_text(), re.S)
        self.assertEqual(headers - {"shardwright.h"}, set(listed.group(1).split()))


if __name__ == "__main__":
    unittest.main()
