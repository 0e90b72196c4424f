// The one idea: placement(model, layout, rank) says which boxes of which tensors a rank holds, which part of
// them its optimizer owns, and which part it writes. Over all ranks each element has exactly one writer.
//
// Rules (design, "The one idea"):
// - A tensor's tile is a function of its global shape alone, counted at 4 bytes an element: whole rows up to
// 1 MiB, two-
//   dimensional only where one global row exceeds 1 MiB. Tile rows count from the first row of the TP box.
// - ZeRO and writer cuts run along dimension 0 of the TP box. With N pieces, a box of at least 4 N tile rows
// is cut on tile
//   rows, a smaller one anywhere, one under 64 KiB goes whole to one rank. Remainders rotate with the
//   tensor's number: the pieces that get one more, and the one that gets a small box, start at the digit sum
//   of the number in base N.
// - A box is first cut in dp pieces (ZeRO's, at every ZeRO stage); each piece is cut by the same rule among
// its other
//   holders (TP copies, KV group, tied stages). An empty box is legal. Chunk = min(tile, box).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/source.h"
#include "reshard/layout.h"
#include "reshard/model_spec.h"

namespace shardwright::reshard {

/// What one rank has to do with one tensor. All boxes are in global coordinates and dense in memory.
struct Placed {
  std::uint32_t tensor = 0;  // row in ModelSpec::tensors
  ckpt::Box holds;           // needed for forward and backward: the TP box
  ckpt::Box piece;           // this rank's dp piece of `holds`: its optimizer state with ZeRO >= 1
  ckpt::Box writes;          // part of `piece` that this rank writes; may be empty
  ckpt::Dims chunk;          // extents of a stored chunk of `writes`; none if that is empty
  std::uint32_t copies = 1;  // ranks (at one dp index) holding exactly `holds`, this one included: TP copies,
                             // KV group, tied stages
  std::uint32_t stage_copies =
      1;  // of those, at one tp index: 2 for tied embeddings over different first and last stages
};

/// The tensors that a rank holds, in the model's order. Pure, thread-safe, and takes no longer for more
/// ranks; legal layouts only (checked with assertions). Every tensor has at least one dimension.
std::vector<Placed> placement(const ModelSpec& model, const Layout& layout, int rank);

/// A box that a rank writes.
struct Written {
  int rank = 0;
  ckpt::Box box;
  ckpt::Dims chunk;  // extents of a stored chunk of it
};

/// What placement() has all ranks write of one tensor: disjoint, together the tensor, none empty; for plans
/// that go through the tensors, not the ranks. Pure, thread-safe; legal layouts only.
std::vector<Written> written(const ModelSpec& model, const Layout& layout, std::uint32_t tensor);

/// Elements of a rank's boxes, summed over its tensors.
struct RankSizes {
  std::uint64_t holds = 0;
  std::uint64_t piece = 0;
  std::uint64_t writes = 0;
};

/// The sums of placement() for every rank, by rank, in far less time than as many calls: pieces of one tensor
/// come in runs of equal sizes, so time grows with the tensors times the tp degree, and only additions with
/// the ranks. Pure, thread-safe; legal layouts only.
std::vector<RankSizes> rank_sizes(const ModelSpec& model, const Layout& layout);

/// All dp pieces of the box that `rank` holds of a tensor, by dp index: disjoint, in order, together `holds`.
std::vector<ckpt::Box> dp_pieces(const ModelSpec& model, const Layout& layout, int rank,
                                 std::uint32_t tensor);

/// The boxes in which what `rank` holds of a tensor is written, by whichever rank that holds the same, at any
/// dp index: disjoint, together `holds`, none empty.
std::vector<ckpt::Box> written_boxes(const ModelSpec& model, const Layout& layout, int rank,
                                     std::uint32_t tensor);

/// The ranks at `rank`'s dp index that hold exactly the same box of a tensor, `rank` included, in the order
/// in which they write it; Placed::copies of them. None if `rank` does not hold the tensor. An empty box is
/// held by its own tp index only.
std::vector<int> holders(const ModelSpec& model, const Layout& layout, int rank, std::uint32_t tensor);

/// Optimizer state box of a placed tensor: `holds` with ZeRO 0, `piece` above.
const ckpt::Box& optimizer_box(const Placed& placed, const Layout& layout);

/// The tile of a global shape.
ckpt::Dims tile(const ckpt::Dims& global_shape);

/// `box` of a tensor of shape `global_shape`, split along dimension 0 into `pieces` by the rule above;
/// `number` rotates the remainder: the tensor's number for dp pieces, that number / dp for the cut of a piece
/// among its holders.
std::vector<ckpt::Box> cut(const ckpt::Box& box, const ckpt::Dims& global_shape, int pieces,
                           std::uint32_t number);

}  // namespace shardwright::reshard
