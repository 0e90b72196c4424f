"""Labelled checkpoints of every layout family: each value tells where it belongs, and a check that shares no code with
placement, plans or the loader finds each one there after any change of layout."""
import os
import sys
import xml.etree.ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from run_harness import G1, L1, L2, T1, U1, RunTestCase, main  # noqa: E402


class LabelLayoutsTestCase(RunTestCase):
    def resharded(self, source, layout, name, *more):
        """Resharded and checked, value by value."""
        target = self.reshard(source, layout, name, *more)
        self.labels_are_right(target)
        return target

    def chain(self, model, layouts):
        """From each layout to the next; the last is the first again, with the same boxes in the same files."""
        first = at = self.labelled(model, layouts[0], "from")
        for i, layout in enumerate([*layouts[1:], layouts[0]]):
            at = self.resharded(at, layout, f"hop{i}-{layout}")
        self.assertEqual(self.boxes(first), self.boxes(at))
        self.assertEqual(self.fingerprints(first), self.fingerprints(at))

    def boxes(self, path):
        """{(file, kind, tensor): [(offset, shape)]}"""
        found = {}
        for file in self.ok("inspect", path, "--ranks", "--json").json()["files"]:
            for box in file["boxes"]:
                found.setdefault((file["name"], box["kind"], box["tensor"]), []).append((box["offset"], box["shape"]))
        return found

    def layers(self, path):
        """{file: numbers of the layers in it}"""
        found = {}
        for file, _, tensor in self.boxes(path):
            numbers = found.setdefault(file, set())
            if tensor.startswith("model.layers."):
                numbers.add(int(tensor.split(".")[2]))
        return found

    def elements(self, path, tensor, kind="param"):
        total = 0
        for (_, k, t), boxes in self.boxes(path).items():
            for _, shape in boxes if (k, t) == (kind, tensor) else []:
                count = 1
                for extent in shape:
                    count *= extent
                total += count
        return total

    def test_B01_OneKvHeadOnEveryRank(self):
        model = dict(L2, kv_heads=1)
        self.chain(model, ["t1", "t4", "t2", "t8"])
        for name in ("k_proj", "v_proj"):
            self.assertEqual(self.elements(self.dir / "hop0-t4", f"model.layers.3.self_attn.{name}.weight"), 8 * 64)

    def test_B03_MoreRanksThanKvHeads(self):
        self.chain(L2, ["t1", "t4d2z1", "t8", "t2p2"])
        self.chain_of_groups()

    def chain_of_groups(self):
        source = self.labelled(L1, "t12z0", "groups")
        for layout in ("t4d3", "t2p2d2z1", "t1"):
            self.resharded(source, layout, f"groups-{layout}")

    def test_B03_RefusedWithWhatWouldDo(self):
        source = self.labelled(L1, "t2", "l1")
        result = self.fails(2, "reshard", source, self.dir / "no", "--layout", "t6d2")
        self.assertEqual(result.stderr, "shardwright: error: layout t6p1d2z0: tp 6: and the 4 KV heads do not divide each "
                         "other; possible with 12 heads and 4 KV heads: 1, 2, 4, 12; nearest legal layouts of 12 ranks: "
                         "t4p1d3z0, t12p1d1z0, t2p1d6z0\n")
        self.assertFalse((self.dir / "no").exists())

    def test_B04_GateAndUpAreMergedApart(self):
        self.chain(L1, ["t4p2", "t1", "t2p3", "t4d3z1"])

    def test_B06_PiecesOfDataParallelRanks(self):
        source = self.labelled(L1, "d8z3", "d8z3")
        for layout in ("d1", "d2z3", "d3z1", "d4z2", "d6z3"):
            self.resharded(source, layout, layout)

    def test_B07_RowsOfEachPackedPart(self):
        source = self.labelled(L1, "t1", "t1")
        for tp in (2, 4):
            target = self.resharded(source, f"t{tp}", f"t{tp}")
            rows = {}
            for (file, kind, tensor), boxes in self.boxes(target).items():
                if kind == "param" and tensor.startswith("model.layers.2.self_attn.") and "o_proj" not in tensor:
                    rows[file, tensor.split(".")[4]] = sum(shape[0] for _, shape in boxes)
            for rank in range(tp):
                for name, all_rows in (("q_proj", 96), ("k_proj", 32), ("v_proj", 32)):
                    self.assertEqual(rows[f"rank-{rank:05}.h5", name], all_rows // tp)

    def test_B14_TiedOverThePipeline(self):
        for zero in (0, 1):
            with self.subTest(zero=zero):
                self.dir = self.dir / f"z{zero}"
                self.dir.mkdir()
                self.chain(G1, [f"p1z{zero}", f"p2z{zero}", f"p4z{zero}", f"p2d2z{zero}"])

    def test_B15_TheTiedPairIsOneState(self):
        source = self.labelled(G1, "t4d2z1", "from")
        target = self.resharded(source, "t2p2d2z1", "to")
        names = [t["name"] for t in self.ok("inspect", target, "--tensors", "--json").json()["tensors"]]
        self.assertNotIn("lm_head.weight", names)
        self.assertEqual(names.count("model.embed_tokens.weight"), 1)
        for kind in ("param", "exp_avg", "exp_avg_sq"):
            self.assertEqual(self.elements(target, "model.embed_tokens.weight", kind), 97 * 64)

    def test_B17_SevenLayersInAnyStages(self):
        source = self.labelled(U1, "p1", "p1")
        for layout in ("p2", "p3", "p4", "p7", "t5p2d3z1"):
            target = self.resharded(source, layout, layout)
            layers = list(self.layers(target).values())
            self.assertEqual(set().union(*layers), set(range(7)))
        uneven = self.resharded(source, "p3", "uneven", "--stages", "1,4,2")
        self.assertEqual(list(self.layers(uneven).values()), [{0}, {1, 2, 3, 4}, {5, 6}])
        self.resharded(uneven, "t5p1d2z1", "even")

    def test_B19_VirtualStages(self):
        self.chain(dict(L2, layers=8), ["p2", "p2v2", "p4", "p2v4", "t2p2v2d2z1"])
        self.assertEqual(list(self.layers(self.dir / "hop0-p2v2").values()), [{0, 1, 4, 5}, {2, 3, 6, 7}])

    def test_B20_NamesAreGlobal(self):
        source = self.labelled(L2, "d2z3", "from")
        target = self.resharded(source, "p2z3", "to")
        self.assertEqual(list(self.layers(target).values()), [{0, 1}, {2, 3}])
        self.resharded(target, "d2z3", "back")
        self.assertEqual(self.boxes(source), self.boxes(self.dir / "back"))

    def test_B27_AnyRemainderAndNoMissingElement(self):
        """Element counts of all five remainders over five ranks; then a shard that is four bytes short."""
        for vocab in range(33, 38):
            with self.subTest(vocab=vocab):
                source = self.labelled(dict(T1, vocab=vocab), "d5z2", f"v{vocab}")
                self.resharded(source, "t1", f"whole{vocab}")
        shard = source / "rank-00003.h5"
        os.truncate(shard, shard.stat().st_size - 4)
        result = self.fails(1, "reshard", source, self.dir / "no", "--layout", "t1")
        self.assertIn(str(shard), result.stderr)
        self.assertFalse((self.dir / "no").exists())

    def test_B30_MoreRanksThanRowsOfAnything(self):
        self.chain(T1, ["d16z3", "t3d5z2", "d1", "t3p2d3z1", "d24z1"])

    def test_RankOrders(self):
        source = self.labelled(L1, "t2p2d3z1", "from", "--rank-order", "pdt")
        self.assertEqual(self.layers(source)["rank-00001.h5"], {3, 4, 5})
        self.resharded(source, "t2p2d3z1", "usual")
        same = self.resharded(source, "t2p2d3z1", "same", "--rank-order", "pdt")
        self.assertEqual(self.boxes(source), self.boxes(same))
        # Single degrees keep the source's order.
        kept = self.ok("reshard", source, self.dir / "kept", "--dp", "1", "--json").json()
        self.assertEqual((kept["to"]["order"], kept["to"]["string"]), ("pdt", "t2p2d1z1"))
        self.fails(2, "reshard", source, self.dir / "no", "--rank-order", "tdd")

    def test_UnevenStagesOfMixedLayouts(self):
        source = self.labelled(L1, "t4p3d2z1", "from", "--stages", "3,1,2")
        self.resharded(source, "t2p2d2z0v2", "a", "--stages", "1,2,2,1")
        self.resharded(self.dir / "a", "t12", "b")

    SVG = "{http://www.w3.org/2000/svg}"

    def picture(self, path):
        """{(tensor, column): sorted [(rank, offset, shape)]}, and all texts."""
        root = xml.etree.ElementTree.parse(path).getroot()
        self.assertEqual(root.tag, self.SVG + "svg")
        parts = {}
        for rect in root.iter(self.SVG + "rect"):
            if rect.get("class") != "writes":
                continue
            numbers = [[int(n) for n in rect.get(a).split(",")] for a in ("data-offset", "data-shape")]
            parts.setdefault((rect.get("data-tensor"), int(rect.get("data-column"))), []).append(
                (int(rect.get("data-rank")), *numbers))
            self.assertEqual(rect[0].text.split(" writes ")[0], f"rank {rect.get('data-rank')}")
            for side in ("width", "height"):
                self.assertGreater(float(rect.get(side)), 0)
        texts = ["".join(t.itertext()) for t in root.iter(self.SVG + "text")]
        return {key: sorted(value) for key, value in parts.items()}, texts

    def written(self, path, tensor):
        return sorted((int(file[5:10]), offset, shape) for (file, kind, name), boxes in self.boxes(path).items()
                      if (kind, name) == ("param", tensor) for offset, shape in boxes)

    def test_DrawShowsTheBoxesOfBothLayouts(self):
        cases = [(L1, "t12", "d5z1"), (G1, "t2p2d2z1", "t4p4"), (U1, "t5p2d3z1", "p7"), (T1, "d24z1", "t3p2"),
                 (L2, "t4p2d2z1", "t1")]
        for i, (model, before, after) in enumerate(cases):
            with self.subTest(before=before, after=after):
                source = self.labelled(model, before, f"from{i}")
                target = self.resharded(source, after, f"to{i}")
                svg = self.dir / f"{i}.svg"
                self.ok("inspect", source, "--draw", svg, "--layout", after)
                parts, texts = self.picture(svg)
                tensors = {tensor for tensor, _ in parts}
                self.assertEqual(len(tensors), 6 if model is G1 else 7)
                for tensor in tensors:
                    self.assertEqual(parts[tensor, 0], self.written(source, tensor))
                    self.assertEqual(parts[tensor, 1], self.written(target, tensor))
                for word in ("before: ", "after: ", "Fill: "):
                    self.assertTrue(any(t.startswith(word) for t in texts), word)

    def test_DrawOneTensor(self):
        source = self.labelled(G1, "t2p2d2", "a <b> & \"c\"")
        svg = self.dir / "one.svg"
        name = "model.layers.3.mlp.down_proj.bias"
        svg.write_text("an older picture")
        document = self.ok("inspect", source, "--draw", svg, "--tensor", name, "--json").json()
        self.assertEqual(document["drawn"], str(svg))
        parts, texts = self.picture(svg)
        self.assertEqual(parts, {(name, 0): self.written(source, name)})
        self.assertIn("a <b> & \"c\", step 0", texts)
        self.assertIn("all of it held by ranks 4, 5, 6, 7", texts)
        self.assertEqual([p.name for p in self.dir.iterdir() if "svg" in p.name], ["one.svg"])

    def test_DrawRefusals(self):
        source = self.labelled(L2, "t2", "from")
        for args, words in ((["--draw", self.dir], "is no file"), (["--draw", "/dev/null"], "is no file"),
                            (["--draw", self.dir / "no" / "x.svg"], "directory does not exist"),
                            (["--draw", ""], "the name is empty"),
                            (["--tensor", "model.norm.weight"], "no --draw FILE.svg"),
                            (["--layout", "t1"], "no --draw FILE.svg"),
                            (["--draw", self.dir / "x.svg", "--tensor", "model.norm"], "model.norm.weight"),
                            (["--draw", self.dir / "x.svg", "--layout", "t3"], "possible with 8 heads and 2 KV heads")):
            result = self.fails(2, "inspect", source, *args)
            self.assertEqual(len(result.stderr.splitlines()), 1, result)
            self.assertIn(words, result.stderr)
        self.assertFalse((self.dir / "x.svg").exists())


if __name__ == "__main__":
    main()
