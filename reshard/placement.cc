#include "reshard/placement.h"

#include <algorithm>
#include <cassert>

namespace shardwright::reshard {
namespace {

using ckpt::Box;
using ckpt::Dims;

constexpr std::uint64_t kCountedBytes = 4;  // an element, whatever its type: tiles must not depend on it
constexpr std::uint64_t kTileBytes = 1u << 20;
constexpr std::uint64_t kWholeBytes = 64u << 10;
constexpr std::uint64_t kTileRowsEach = 4;

struct Range {
  std::uint64_t first = 0;
  std::uint64_t size = 0;
};

// Which of `pieces` comes first in a tensor's turn: the sum of the number's digits in base `pieces`. The
// plain remainder would give the matrices of a table in which they stand at even numbers all to the same
// piece.
std::uint64_t turn(std::uint32_t number, std::uint64_t pieces) {
  std::uint64_t sum = 0;
  if (pieces > 1) {
    for (std::uint64_t n = number; n > 0; n /= pieces) sum += n % pieces;
  }
  return pieces > 1 ? sum % pieces : 0;
}

// Rows of piece `index`, counted from the first row of the box.
Range piece_rows(std::uint64_t rows, std::uint64_t bytes, std::uint64_t tile_rows, std::uint64_t pieces,
                 std::uint32_t number, std::uint64_t index) {
  if (pieces == 1) return {0, rows};
  const std::uint64_t start = turn(number, pieces);
  if (bytes < kWholeBytes) return {index <= start ? 0 : rows, index == start ? rows : 0};

  const std::uint64_t unit = rows / tile_rows >= kTileRowsEach * pieces ? tile_rows : 1;
  const std::uint64_t units = (rows + unit - 1) / unit;
  const std::uint64_t each = units / pieces;
  const std::uint64_t extra = units % pieces;  // pieces start, start + 1, ... (wrapping) get one more
  const auto first_row = [&](std::uint64_t i) {
    std::uint64_t longer = std::min(i, start + extra) - std::min(i, start);
    if (start + extra > pieces) longer += std::min(i, start + extra - pieces);
    return std::min(rows, unit * (each * i + longer));
  };
  const std::uint64_t first = first_row(index);
  return {first, first_row(index + 1) - first};
}

Box piece_box(const Box& box, std::uint64_t tile_rows, std::uint64_t pieces, std::uint32_t number,
              std::uint64_t index) {
  const Range rows =
      piece_rows(box.shape[0], box.elements() * kCountedBytes, tile_rows, pieces, number, index);
  Box piece = box;
  piece.offset[0] += rows.first;
  piece.shape[0] = rows.size;
  return piece;
}

// The units of a cut tensor that TP rank `index` holds, and who else holds exactly those.
struct TpShare {
  Range units;
  std::uint64_t members = 1;  // TP ranks holding the same
  std::uint64_t member = 0;   // this rank's place among them
};

TpShare tp_share(const TpCut& cut, std::uint64_t tp, std::uint64_t index) {
  if (cut.dimension < 0) return {{0, 1}, tp, index};
  const auto units = static_cast<std::uint64_t>(cut.units);
  if (units >= tp || !cut.shared) {
    const std::uint64_t each = units / tp;
    const std::uint64_t extra = units % tp;
    return {{index * each + std::min(index, extra), each + (index < extra ? 1 : 0)}, 1, 0};
  }
  const auto first_member = [&](std::uint64_t unit) { return (unit * tp + units - 1) / units; };
  const std::uint64_t unit = index * units / tp;
  return {{unit, 1}, first_member(unit + 1) - first_member(unit), index - first_member(unit)};
}

Box tp_box(const TensorSpec& tensor, const TpShare& share) {
  Box box = Box::whole(tensor.shape);
  if (tensor.tp.dimension < 0) return box;
  const auto d = static_cast<std::size_t>(tensor.tp.dimension);
  const auto units = static_cast<std::uint64_t>(tensor.tp.units);
  assert(tensor.shape[d] % units == 0);
  const std::uint64_t extent = tensor.shape[d] / units;
  box.offset[d] = share.units.first * extent;
  box.shape[d] = share.units.size * extent;
  return box;
}

// The dp indices at which the sizes of pieces may change: all pieces between two of them are equal. Those
// that get more are neighbours (around the end), and the last one may have fewer rows than its units.
std::vector<std::uint64_t> size_changes(const Box& box, std::uint64_t tile_rows, std::uint64_t pieces,
                                        std::uint32_t number) {
  const std::uint64_t start = turn(number, pieces);
  const std::uint64_t rows = box.shape[0];
  const std::uint64_t unit = rows / tile_rows >= kTileRowsEach * pieces ? tile_rows : 1;
  const std::uint64_t extra = (rows + unit - 1) / unit % pieces;
  std::vector<std::uint64_t> at{0, start, start + 1, (start + extra) % pieces, pieces - 1, pieces};
  std::sort(at.begin(), at.end());
  at.erase(std::unique(at.begin(), at.end()), at.end());
  return at;
}

// The pipeline rank of each place of the model: entry p + 1 for place p, from -1 (before the first layer) to
// `layers`. Virtual stage s runs on pipeline rank s mod pp.
std::vector<int> pipeline_ranks(const ModelSpec& model, const Layout& layout) {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(model.config.layers) + 2);
  ranks.push_back(0);
  int stage = 0;
  for (const int layers : stage_layers(layout, model)) {
    ranks.insert(ranks.end(), static_cast<std::size_t>(layers), stage % layout.pp);
    ++stage;
  }
  ranks.push_back((stage - 1) % layout.pp);
  assert(ranks.size() == static_cast<std::size_t>(model.config.layers) + 2);
  return ranks;
}

// The pipeline ranks that hold a tensor, ascending.
std::vector<int> pipeline_holders(const TensorSpec& tensor, const std::vector<int>& pipeline) {
  std::vector<int> ranks;
  for (const std::int64_t place : tensor.places)
    ranks.push_back(pipeline[static_cast<std::size_t>(place + 1)]);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

// A tensor as a rank holds it, before any cut among data parallel ranks.
struct Held {
  Box box;
  Dims tile;
  std::uint64_t copies = 1;  // ranks at one dp index holding the box
  std::uint64_t writer = 0;  // this rank's place among them
};

// At the `stage`-th of the `stages` pipeline ranks that hold the tensor.
Held held_box(const TensorSpec& tensor, const TpShare& share, std::size_t stages, std::size_t stage) {
  return {tp_box(tensor, share), tile(tensor.shape), stages * share.members,
          stage * share.members + share.member};
}

// The part of a dp piece that its rank writes.
Box written_part(const Box& piece, const Held& held, std::uint32_t tensor, std::uint64_t dp) {
  // The digits that chose among the dp pieces are used up; the next ones choose among the holders.
  const auto number = static_cast<std::uint32_t>(tensor / dp);
  return piece_box(piece, held.tile[0], held.copies, number, held.writer);
}

// Extents of a stored chunk of a box that is not empty.
Dims chunk_extents(const Box& box, const Dims& tile) {
  Dims chunk = tile;
  for (std::size_t d = 0; d < chunk.size(); ++d) chunk[d] = std::min(chunk[d], box.shape[d]);
  return chunk;
}

}  // namespace

Dims tile(const Dims& global_shape) {
  Dims extents = global_shape;
  std::uint64_t inner = kCountedBytes;  // bytes of one step along the dimension, all of the later ones whole
  for (std::size_t d = global_shape.size(); d-- > 0;) {
    // Once a whole later dimension does not fit, the steps along the earlier ones are single.
    const std::uint64_t fitting = inner > kTileBytes ? 1 : kTileBytes / inner;
    extents[d] = std::clamp<std::uint64_t>(fitting, 1, std::max<std::uint64_t>(global_shape[d], 1));
    inner = extents[d] < global_shape[d] ? kTileBytes + 1 : inner * global_shape[d];
  }
  return extents;
}

std::vector<Box> cut(const Box& box, const Dims& global_shape, int pieces, std::uint32_t number) {
  assert(!global_shape.empty() && pieces >= 1);
  const std::uint64_t tile_rows = tile(global_shape)[0];
  std::vector<Box> boxes;
  boxes.reserve(static_cast<std::size_t>(pieces));
  for (int i = 0; i < pieces; ++i) {
    boxes.push_back(
        piece_box(box, tile_rows, static_cast<std::uint64_t>(pieces), number, static_cast<std::uint64_t>(i)));
  }
  return boxes;
}

std::vector<Placed> placement(const ModelSpec& model, const Layout& layout, int rank) {
  const Coordinates at = coordinates(layout, rank);
  const auto dp = static_cast<std::uint64_t>(layout.dp);
  const std::vector<int> pipeline = pipeline_ranks(model, layout);

  std::vector<Placed> placed;
  placed.reserve(model.tensors.size() / static_cast<std::size_t>(layout.pp) + 16);
  for (std::uint32_t i = 0; i < model.tensors.size(); ++i) {
    const TensorSpec& tensor = model.tensors[i];
    const auto here = [&](std::int64_t place) {
      return pipeline[static_cast<std::size_t>(place + 1)] == at.pp;
    };
    if (std::none_of(tensor.places.begin(), tensor.places.end(), here)) continue;
    std::size_t stages = 1;
    std::size_t stage = 0;
    if (tensor.places.size() > 1) {
      const std::vector<int> ranks = pipeline_holders(tensor, pipeline);
      stages = ranks.size();
      stage = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), at.pp) - ranks.begin());
    }
    const TpShare share =
        tp_share(tensor.tp, static_cast<std::uint64_t>(layout.tp), static_cast<std::uint64_t>(at.tp));
    const Held held = held_box(tensor, share, stages, stage);

    Placed& p = placed.emplace_back();
    p.tensor = i;
    p.holds = held.box;
    p.piece = piece_box(p.holds, held.tile[0], dp, i, static_cast<std::uint64_t>(at.dp));
    p.stage_copies = static_cast<std::uint32_t>(stages);
    p.copies = static_cast<std::uint32_t>(held.copies);
    p.writes = written_part(p.piece, held, i, dp);
    if (!p.writes.empty()) p.chunk = chunk_extents(p.writes, held.tile);
  }
  return placed;
}

std::vector<Written> written(const ModelSpec& model, const Layout& layout, std::uint32_t tensor) {
  const TensorSpec& spec = model.tensors[tensor];
  const auto tp = static_cast<std::uint64_t>(layout.tp);
  const auto dp = static_cast<std::uint64_t>(layout.dp);
  const std::vector<int> stages = pipeline_holders(spec, pipeline_ranks(model, layout));
  std::vector<Written> all;
  Coordinates at;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    at.pp = stages[stage];
    for (at.tp = 0; at.tp < layout.tp; ++at.tp) {
      const TpShare share = tp_share(spec.tp, tp, static_cast<std::uint64_t>(at.tp));
      const Held held = held_box(spec, share, stages.size(), stage);
      for (at.dp = 0; at.dp < layout.dp; ++at.dp) {
        const Box piece = piece_box(held.box, held.tile[0], dp, tensor, static_cast<std::uint64_t>(at.dp));
        if (piece.empty()) continue;
        const Box box = written_part(piece, held, tensor, dp);
        if (!box.empty()) all.push_back({rank_at(layout, at), box, chunk_extents(box, held.tile)});
      }
    }
  }
  return all;
}

std::vector<RankSizes> rank_sizes(const ModelSpec& model, const Layout& layout) {
  const auto tp = static_cast<std::uint64_t>(layout.tp);
  const auto dp = static_cast<std::uint64_t>(layout.dp);
  const std::vector<int> pipeline = pipeline_ranks(model, layout);
  // By pp, tp and dp index, first as differences from one dp index to the next (unsigned, they wrap).
  std::vector<RankSizes> sums(static_cast<std::size_t>(layout.ranks()));
  for (std::uint32_t i = 0; i < model.tensors.size(); ++i) {
    const TensorSpec& tensor = model.tensors[i];
    const std::vector<int> stages = pipeline_holders(tensor, pipeline);
    for (std::uint64_t t = 0; t < tp; ++t) {
      const TpShare share = tp_share(tensor.tp, tp, t);
      for (std::size_t stage = 0; stage < stages.size(); ++stage) {
        const Held held = held_box(tensor, share, stages.size(), stage);
        const std::vector<std::uint64_t> changes = size_changes(held.box, held.tile[0], dp, i);
        RankSizes* at = &sums[(static_cast<std::uint64_t>(stages[stage]) * tp + t) * dp];
        at->holds += held.box.elements();
        RankSizes before;
        for (std::size_t c = 0; c + 1 < changes.size(); ++c) {
          const Box piece = piece_box(held.box, held.tile[0], dp, i, changes[c]);
          const RankSizes now{0, piece.elements(), written_part(piece, held, i, dp).elements()};
          at[changes[c]].piece += now.piece - before.piece;
          at[changes[c]].writes += now.writes - before.writes;
          before = now;
        }
      }
    }
  }
  std::vector<RankSizes> sizes(sums.size());
  auto next = sums.begin();
  for (Coordinates at; at.pp < layout.pp; ++at.pp) {
    for (at.tp = 0; at.tp < layout.tp; ++at.tp) {
      RankSizes sum;
      for (at.dp = 0; at.dp < layout.dp; ++at.dp, ++next) {
        sum = {sum.holds + next->holds, sum.piece + next->piece, sum.writes + next->writes};
        sizes[static_cast<std::size_t>(rank_at(layout, at))] = sum;
      }
    }
  }
  return sizes;
}

std::vector<Box> dp_pieces(const ModelSpec& model, const Layout& layout, int rank, std::uint32_t tensor) {
  const TensorSpec& spec = model.tensors[tensor];
  const auto tp_index = static_cast<std::uint64_t>(coordinates(layout, rank).tp);
  const Box holds = tp_box(spec, tp_share(spec.tp, static_cast<std::uint64_t>(layout.tp), tp_index));
  return cut(holds, spec.shape, layout.dp, tensor);
}

std::vector<Box> written_boxes(const ModelSpec& model, const Layout& layout, int rank, std::uint32_t tensor) {
  const TensorSpec& spec = model.tensors[tensor];
  const auto tp_index = static_cast<std::uint64_t>(coordinates(layout, rank).tp);
  const TpShare share = tp_share(spec.tp, static_cast<std::uint64_t>(layout.tp), tp_index);
  const std::size_t stages = pipeline_holders(spec, pipeline_ranks(model, layout)).size();
  Held held = held_box(spec, share, stages, 0);
  std::vector<Box> boxes;
  for (const Box& piece : dp_pieces(model, layout, rank, tensor)) {
    for (held.writer = 0; held.writer < held.copies; ++held.writer) {
      Box part = written_part(piece, held, tensor, static_cast<std::uint64_t>(layout.dp));
      if (!part.empty()) boxes.push_back(std::move(part));
    }
  }
  return boxes;
}

std::vector<int> holders(const ModelSpec& model, const Layout& layout, int rank, std::uint32_t tensor) {
  const TensorSpec& spec = model.tensors[tensor];
  Coordinates at = coordinates(layout, rank);
  const std::vector<int> stages = pipeline_holders(spec, pipeline_ranks(model, layout));
  std::vector<int> ranks;
  if (std::find(stages.begin(), stages.end(), at.pp) == stages.end()) return ranks;
  const TpShare share =
      tp_share(spec.tp, static_cast<std::uint64_t>(layout.tp), static_cast<std::uint64_t>(at.tp));
  const int first = at.tp - static_cast<int>(share.member);
  for (const int stage : stages) {
    at.pp = stage;
    for (int member = 0; member < static_cast<int>(share.members); ++member) {
      at.tp = first + member;
      ranks.push_back(rank_at(layout, at));
    }
  }
  return ranks;
}

const Box& optimizer_box(const Placed& placed, const Layout& layout) {
  return layout.zero >= 1 ? placed.piece : placed.holds;
}

}  // namespace shardwright::reshard
