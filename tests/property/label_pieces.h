// One tensor in the memory of a layout's writers, each element labelled with its global index, and the
// execution of a copy plan on it.
#pragma once

#include <cstdint>
#include <vector>

#include "reshard/plan.h"

namespace shardwright::reshard {

/// What the writers of a layout hold of one tensor.
struct LabelPieces {
  std::vector<ckpt::Box> boxes;
  std::vector<std::vector<std::uint32_t>> data;
};

inline LabelPieces empty_pieces(std::vector<ckpt::Box> boxes) {
  LabelPieces p{std::move(boxes), {}};
  for (const ckpt::Box& b : p.boxes) p.data.emplace_back(b.elements(), 0xFFFFFFFFu);
  return p;
}

/// Executes the plan from `from` to a layout's boxes.
inline LabelPieces moved(const LabelPieces& from, std::vector<ckpt::Box> boxes) {
  LabelPieces to = empty_pieces(std::move(boxes));
  for (const Copy& c : overlap(to.boxes, from.boxes)) {
    ckpt::copy_region(reinterpret_cast<const std::byte*>(from.data[c.from].data()), from.boxes[c.from],
                      reinterpret_cast<std::byte*>(to.data[c.to].data()), to.boxes[c.to], c.region, 4);
  }
  return to;
}

/// Row-major global index of each element of a box, as its label.
inline std::vector<std::uint32_t> labels(const ckpt::Box& box, const ckpt::Dims& shape) {
  std::vector<std::uint32_t> out;
  ckpt::Dims at = box.offset;
  for (std::uint64_t n = box.elements(); n > 0; --n) {
    std::uint64_t index = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) index = index * shape[d] + at[d];
    out.push_back(static_cast<std::uint32_t>(index));
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.end(d)) break;
      at[d] = box.offset[d];
    }
  }
  return out;
}

/// Boxes filled with the labels that belong there.
inline LabelPieces labelled_pieces(std::vector<ckpt::Box> boxes, const ckpt::Dims& shape) {
  LabelPieces p{std::move(boxes), {}};
  for (const ckpt::Box& b : p.boxes) p.data.push_back(labels(b, shape));
  return p;
}

}  // namespace shardwright::reshard
