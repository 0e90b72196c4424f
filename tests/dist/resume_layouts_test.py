"""Saved at step 3 in one layout of all axes: bit for bit in the same layout, to 1e-5 in others, directly and through reshard."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import BL1, G1, L1, L2, T1, U1, RunTestCase, main  # noqa: E402

# Of each model: the layout that saves, and five others; the first goes on directly, the second through reshard, and with
# the label `long` all do both.
CASES = {
    "G1": (G1, "t2p2d2z1", ["p4 gpipe", "t4d2z1 sp", "p2d3z1v2", "t1d1z0", "t2p3"]),
    "G1Dropout": (dict(G1, dropout=0.1), "t2p2d2z1 sp", ["t1d3z2", "p2v2d2z0", "t4p2 gpipe", "t4d2z1 sp", "t1d1z0"]),
    "L1": (L1, "t4p2", ["t2p3v2 sp", "p2d3z1", "p6 gpipe", "t2p2d2z2", "d4z3"]),
    "L2": (L2, "t4d2z1 sp", ["t2p2d2v2", "p3 stages=2,1,1", "t8", "d6z1", "t4p2 gpipe"]),
    "U1": (U1, "p4d2z1 stages=1,2,2,2", ["t5 sp", "p7", "p3d2 gpipe", "p2v3", "p4 stages=3,1,2,1"]),
    "BL1": (BL1, "t2p2d2z1 stages=4,2", ["t3p2 sp", "p4d2z3 stages=1,2,2,1", "d4z2", "t6", "p3v2 gpipe"]),
    "T1": (T1, "d6z1", ["t3p2 sp", "p2d3z1", "t3d2z1", "p2 gpipe", "d4z0"]),
}


class ResumeLayoutsTestCase(RunTestCase):
    def saved(self, name):
        """A run that saved at step 3, and one that goes on from there in the same layout as if nothing had happened."""
        model, layout, self.others = CASES[name]
        self.start_from = config, source, expected = self.saved_run(model, layout)
        run = self.go_on(config, layout, source, expected, relative=0, name="same")
        whole = source.parents[1]
        self.assertEqual(self.fingerprints(self.checkpoint(whole, 6)), self.fingerprints(self.checkpoint(run, 6)))
        self.assertEqual({s: ids for s, ids in self.samples(whole).items() if s > 3}, self.samples(run))

    def direct(self, layout):
        config, source, expected = self.start_from
        return self.go_on(config, layout, source, expected, name="direct")

    def through_reshard(self, layout):
        config, source, expected = self.start_from
        return self.go_on(config, layout, self.reshard(source, layout), expected, name="through")

    def both_ways(self, layout):
        direct, through = self.direct(layout), self.through_reshard(layout)
        # The same state in the same layout: how it came there makes no difference to a single bit.
        self.assertEqual(self.losses(direct), self.losses(through))
        self.same_state(self.checkpoint(direct, 6), self.checkpoint(through, 6))

    def some(self, name):
        self.saved(name)
        self.direct(self.others[0])
        self.through_reshard(self.others[1])

    def all(self, name):
        self.saved(name)
        for layout in self.others:
            with self.subTest(layout=layout):
                self.both_ways(layout)

    def test_B22_GoesOnInOtherLayoutsG1(self):
        self.some("G1")

    def test_B22_B73_GoesOnInOtherLayoutsG1Dropout(self):
        self.some("G1Dropout")

    def test_GoesOnInOtherLayoutsL1(self):
        self.some("L1")

    def test_GoesOnInOtherLayoutsL2(self):
        self.some("L2")

    def test_GoesOnInOtherLayoutsU1(self):
        self.some("U1")

    def test_GoesOnInOtherLayoutsBL1(self):
        self.some("BL1")

    def test_GoesOnInOtherLayoutsT1(self):
        self.some("T1")
        self.both_ways(self.others[2])

    def test_GoesOnInAllLayoutsG1(self):  # long
        self.all("G1")

    def test_GoesOnInAllLayoutsG1Dropout(self):  # long
        self.all("G1Dropout")

    def test_GoesOnInAllLayoutsL1(self):  # long
        self.all("L1")

    def test_GoesOnInAllLayoutsL2(self):  # long
        self.all("L2")

    def test_GoesOnInAllLayoutsU1(self):  # long
        self.all("U1")

    def test_GoesOnInAllLayoutsBL1(self):  # long
        self.all("BL1")

    def test_GoesOnInAllLayoutsT1(self):  # long
        self.all("T1")


if __name__ == "__main__":
    main()
