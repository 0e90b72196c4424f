"""The compiled CUDA kernels: code for each architecture, and no spills. Skipped where there is no nvcc."""
import re
import sys
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "tools"))
import ptxas_report  # noqa: E402
from run_harness import BUILD, main  # noqa: E402


class CudaReport(unittest.TestCase):
    def test_EveryCudaKernelIsCompiledForEachArchitectureWithoutSpills(self):
        module = BUILD / "kernels/cuda/libshardwright_cuda.so"
        if not module.exists():
            self.skipTest("no CUDA module: there is no nvcc, or this is a build with a sanitizer")
        asked = re.search(r"^SHARDWRIGHT_CUDA_ARCHITECTURES:\w+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.M).group(1)
        table = ptxas_report.report(BUILD)
        kernels = {(source.name, name) for source in (REPOSITORY / "kernels/cuda").glob("*.cu")
                   for name in re.findall(r"__global__ void (\w+)\(", source.read_text())}
        self.assertGreater(len(kernels), 0)
        self.assertEqual({(row["file"], row["kernel"]) for row in table}, kernels)
        if asked != "native":
            for kernel in kernels:
                found = {row["architecture"] for row in table if (row["file"], row["kernel"]) == kernel}
                self.assertEqual(found, {f"sm_{number}" for number in asked.split(";")}, kernel)
        self.assertEqual([row for row in table if row["stores"] or row["loads"]], [])

    def test_SpillsInPtxasOutputAreSeen(self):
        text = ("ptxas info    : Compiling entry function '_Z3add_kernelPf' for 'sm_90'\n"
                "ptxas info    : Function properties for _Z3add_kernelPf\n"
                "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
                "ptxas info    : Used 40 registers, used 1 barriers\n")
        self.assertEqual(ptxas_report.rows(text), [{"kernel": "add_kernel", "architecture": "sm_90", "registers": 40,
                                                   "stack": 16, "stores": 8, "loads": 12}])
        with self.assertRaises(ValueError):
            ptxas_report.rows("Compiling entry function 'a_kernel' for 'sm_80'\nsomething else\n")


if __name__ == "__main__":
    main()
