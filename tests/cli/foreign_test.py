"""Checkpoints of other programs: each command shows what is there, or says in one line which checkpoint is no transformer's."""
import json
import shutil
import sys
from pathlib import Path

import h5py
import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from forge import remake, resign  # noqa: E402
from run_harness import TINY, RunTestCase, main, sign  # noqa: E402

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "v1"

class ForeignTestCase(RunTestCase):
    def one_line(self, status, *args, **more):
        result = self.fails(status, *args, **more)
        self.assertEqual(len(result.stderr.splitlines()), 1, result)
        self.assertNotIn("json.exception", result.stderr)
        self.assertNotIn("defect", result.stderr)
        return result.stderr

    def foreign(self, name="boxes-7-writers"):
        path = self.dir / "foreign" / "step-1000000007"
        shutil.copytree(GOLDEN / name, path)
        return path

    def with_document(self, source, name, text):
        target = self.dir / f"{name}-{len(list(self.dir.iterdir()))}"
        shutil.copytree(source, target)
        with h5py.File(target / "manifest.h5", "r+") as manifest:
            data = numpy.frombuffer(text.encode("utf-8", "surrogateescape"), "u1")
            remake(manifest, name, lambda _: data)
        resign(target)
        return target

    def test_WhatNeedsATransformerNamesTheCheckpoint(self):
        config = self.config("run", TINY, train={"steps": 4, "global_batch": 4})
        path = self.foreign()
        for command in (["reshard", path, self.dir / "out", "--layout", "d2"], ["reshard", path, self.dir / "out"],
                        ["eval", path, "--data", __file__], ["train", config, "--resume", path]):
            line = self.one_line(2, *command)
            self.assertIn(f"{path}: is no transformer's checkpoint (its model: field 'layers' is missing); one that ", line)
        self.assertFalse((self.dir / "out").exists())
        # In the run's own directory it is another model's, too.
        shutil.copytree(path, self.dir / "run" / "checkpoints" / path.name)
        self.assertIn(f"{path.name}: is no transformer's checkpoint", self.one_line(2, "train", config))

    def test_WhatNeedsNoneTakesIt(self):
        path = self.foreign()
        self.ok("verify", path)
        self.ok("diff", path, path)
        self.ok("view", path, self.dir / "view.h5")
        self.ok("inspect", path, "--draw", self.dir / "who.svg", "--tensors", "--ranks")
        self.assertRegex(self.ok("list", path.parent).stdout, r"\n1,000,000,007  valid  ")
        self.ok("prune", path.parent, "--keep", "1")

    def test_InspectShowsWhatIsThere(self):
        lines = lambda path: dict(line.split(None, 1) for line in self.ok("inspect", path).stdout.splitlines()[1:])
        shown = lines(self.foreign("integers-2-writers"))
        self.assertEqual(shown["layout"], '{"string":"golden"}: 2 writers')
        self.assertEqual(shown["model"], '{"arch":"none"}')
        self.assertNotIn("parameters", shown)
        self.assertRegex(shown["tensors"], r"^\d+ tensors?, [\d,]+ values? in all$")
        bare = self.with_document(self.with_document(self.dir / "foreign" / "step-1000000007", "layout", ""), "model", "")
        shown = lines(bare)
        self.assertEqual((shown["layout"], shown["model"]), ("none said: 2 writers", "none said"))

    def test_ATrainingStateThatIsNoneIsNamed(self):
        config = self.config("run", TINY, train={"steps": 4, "global_batch": 4})
        self.train(config, "t1")
        config.write_text(config.read_text().replace(f'"{self.dir}/run"', f'"{self.dir}/other"'))
        for text, wrong in (('{"step":4}', "field 'samples' is missing"), ("", "empty"), ('{"step":4,"samples":-1}', "field 'samples' is no whole number"),
                            ('{"step":4,"samples":16,"seed":7,"dtype":3}', "field 'dtype' is no text")):
            path = self.with_document(self.checkpoint(self.dir / "run", 4), "training", text)
            line = self.one_line(2, "train", config, "--resume", path)
            self.assertIn(f"{path}: has no training state to go on from ({wrong}); one that ", line)
        # A layout of other words is no obstacle.
        path = self.with_document(self.checkpoint(self.dir / "run", 4), "layout", '{"string":5}')
        self.ok("train", config, "--resume", path)

    def test_RecordsOfOtherFieldsSayWhich(self):
        config = self.config("run", TINY, train={"steps": 4, "global_batch": 4})
        self.train(config, "t1")
        path = self.checkpoint(self.dir / "run", 4)
        for fields, wrong in (({"step": None}, "field 'step' is missing"), ({"attempt": 7}, "field 'attempt' is no text"),
                              ({"manifest": {}}, "field 'name' is missing"), ({"generation": -1}, "field 'generation' is no whole number")):
            with self.subTest(fields=fields):
                shutil.copytree(path, self.dir / "copy")
                record = json.loads((path / "COMMIT").read_text().splitlines()[0])
                record = {key: value for key, value in {**record, **fields}.items() if value is not None}
                (self.dir / "copy" / "COMMIT").write_text(sign(record))
                self.assertIn(f"copy/COMMIT: not the fields of a COMMIT ({wrong}); ", self.one_line(1, "inspect", self.dir / "copy"))
                shutil.rmtree(self.dir / "copy")


if __name__ == "__main__":
    main()
