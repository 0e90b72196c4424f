"""People who install h5py and the zstd filter with pip, a libhdf5 of their own among it, read our shards with either filter: the
public one of hdf5plugin, or ours. Skipped where pip cannot fetch them."""
import fcntl
import os
import re
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BUILD, T1, RunTestCase, main  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "ckpt" / "plugin" / "read_tensor.py"
PLACE = BUILD / "wheels"
PYTHON = PLACE / "bin" / "python"
FETCH_S = 150


def fetch():
    """A virtual environment with both, kept for the next run; why there is none, if so."""
    with open(BUILD / "wheels.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side; whoever holds it ends in time
        return fetch_alone()


def fetch_alone():
    ready, until = PLACE / "ready", time.monotonic() + FETCH_S
    if ready.exists():
        return None
    steps = [["/usr/bin/python3", "-m", "venv", "--clear", str(PLACE)],
             [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:",
              "--timeout", "15", "--retries", "1", "h5py", "hdf5plugin"]]
    for step in steps:
        try:
            done = subprocess.run(step, timeout=max(1, until - time.monotonic()), capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return f"{step[2]} took longer than {FETCH_S} s"
        if done.returncode != 0:
            return (done.stderr or done.stdout).strip().splitlines()[-1]
    ready.touch()
    return None


class WheelsTestCase(RunTestCase):
    @classmethod
    def setUpClass(cls):
        if why := fetch():
            raise unittest.SkipTest(f"h5py and hdf5plugin cannot be had with pip here: {why}")

    def setUp(self):
        super().setUp()
        # Python imports this by itself when it starts.
        (self.dir / "sitecustomize.py").write_text("import hdf5plugin\n")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HDF5_"))}
        nowhere = str(self.dir / "nowhere")
        self.none = {**environment, "HDF5_PLUGIN_PATH": nowhere}
        self.ours = {**environment, "HDF5_PLUGIN_PATH": str(BUILD / "plugin")}
        self.public = {**self.none, "PYTHONPATH": str(self.dir)}

    def python(self, env, *args):
        return subprocess.run([PYTHON, *map(str, args)], env=env, timeout=60, capture_output=True, text=True)

    def shown(self, env, *args):
        done = self.python(env, *args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_WheelsBringALibhdf5OfTheirOwn(self):  # timeout=300
        said = self.shown(self.ours, "-c", "import h5py; print(h5py.__file__, h5py.version.hdf5_version)")
        self.assertTrue(said.startswith(str(PLACE)), said)
        print(said.strip())
        # Ours links none, or that one would be loaded beside it.
        linked = subprocess.run(["ldd", BUILD / "plugin" / "libH5Zzstd.so"], check=True, capture_output=True, text=True)
        self.assertNotIn("hdf5", linked.stdout)

    def test_WheelsReadEveryTypeWithEitherFilter(self):  # timeout=300
        test = [BUILD / "bin" / "unit_ckpt", "--gtest_filter=StockTools.H5pyRebuildsEveryTensorFromAttributes"]
        for what, env in (("ours", self.ours), ("public", self.public)):
            with self.subTest(filter=what):
                words = [f"{key}={env[key]}" for key in ("HDF5_PLUGIN_PATH", "PYTHONPATH") if key in env]
                done = subprocess.run(test, env={**env, "SHARDWRIGHT_STOCK_PYTHON": " ".join(["env", *words, str(PYTHON)])},
                                      timeout=120, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn("[  PASSED  ] 1 test", done.stdout)

    def test_WheelsReadTheExampleWithEitherFilterAndNotWithout(self):  # timeout=300
        path = self.labelled(T1, "t3d2z1")
        debian = subprocess.run(["/usr/bin/python3", EXAMPLE, path, "lm_head.weight", "exp_avg"], env=self.ours, check=True,
                                timeout=60, capture_output=True, text=True).stdout

        def values(text):  # each numpy prints floats in its own way
            dtype, shape, *rows = text.split("\n")
            return dtype, shape, [float(number) for number in re.findall(r"[0-9][0-9.e+]*", " ".join(rows))]
        for env in (self.ours, self.public):
            self.assertEqual(values(self.shown(env, EXAMPLE, path, "lm_head.weight", "exp_avg")), values(debian))
        self.assertNotEqual(self.python(self.none, EXAMPLE, path, "lm_head.weight").returncode, 0)


if __name__ == "__main__":
    main()
