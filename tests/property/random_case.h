// Random models and layouts with fixed seeds, and what a checkpoint of one looks like: who holds and who
// writes what.
#pragma once

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "reshard/placement.h"

namespace shardwright::reshard {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  /// Uniform in [low, high].
  std::uint64_t from(std::uint64_t low, std::uint64_t high) {
    return std::uniform_int_distribution<std::uint64_t>(low, high)(engine_);
  }
  int number(int low, int high) {
    return static_cast<int>(from(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high)));
  }
  bool chance(int percent) { return number(1, 100) <= percent; }

 private:
  std::mt19937_64 engine_;
};

/// A table of a few tensors of odd sizes: cut along any dimension in any number of units, replicated, tied
/// over several places. `max_elements` bounds each tensor.
inline ModelSpec random_model(Random& random, std::uint64_t max_elements) {
  ModelSpec model;
  model.config.layers = random.number(1, 9);
  const int count = random.number(1, 6);
  for (int i = 0; i < count; ++i) {
    TensorSpec t;
    t.name = "tensor." + std::to_string(i);
    const int dims = random.number(1, 3);
    std::uint64_t left = random.chance(50) ? max_elements : std::min<std::uint64_t>(max_elements, 3000);
    for (int d = 0; d < dims; ++d) {
      const std::uint64_t extent =
          random.from(1, d + 1 == dims ? left : std::max<std::uint64_t>(1, left / 7));
      t.shape.push_back(extent);
      left = std::max<std::uint64_t>(1, left / extent);
    }
    if (random.chance(70)) {
      t.tp.dimension = random.number(0, dims - 1);
      const std::uint64_t extent = t.shape[static_cast<std::size_t>(t.tp.dimension)];
      const std::uint64_t size = random.from(1, std::min<std::uint64_t>(extent, 12));  // of a unit
      t.tp.shared = random.chance(50);
      t.tp.units = static_cast<std::int64_t>(extent % size == 0 ? extent / size : extent);
    }
    const int places = random.chance(25) ? random.number(2, 3) : 1;
    for (int p = 0; p < places; ++p)
      t.places.push_back(random.number(0, static_cast<int>(model.config.layers) + 1) - 1);
    model.tensors.push_back(std::move(t));
  }
  return model;
}

inline Layout random_layout(Random& random, const ModelSpec& model) {
  const int layers = static_cast<int>(model.config.layers);
  Layout l;
  l.tp = random.number(1, 7);
  l.pp = random.number(1, std::min(layers, 4));
  l.dp = random.chance(10) ? random.number(9, 33) : random.number(1, 8);
  l.zero = random.number(0, 3);
  if (l.pp > 1) l.vpp = random.number(1, layers / l.pp);
  if (random.chance(50)) {  // uneven stages, each with at least one layer
    l.stages.assign(static_cast<std::size_t>(l.pp * l.vpp), 1);
    for (int i = l.pp * l.vpp; i < layers; ++i) {
      ++l.stages[static_cast<std::size_t>(random.number(0, l.pp * l.vpp - 1))];
    }
  }
  return l;
}

/// Placement of every rank.
inline std::vector<std::vector<Placed>> all_placements(const ModelSpec& model, const Layout& layout) {
  std::vector<std::vector<Placed>> all;
  for (int rank = 0; rank < layout.ranks(); ++rank) all.push_back(placement(model, layout, rank));
  return all;
}

/// Non-empty writer boxes of each tensor, in rank order.
inline std::vector<std::vector<ckpt::Box>> written_boxes(const ModelSpec& model, const Layout& layout) {
  std::vector<std::vector<ckpt::Box>> boxes(model.tensors.size());
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    for (const Placed& p : placement(model, layout, rank)) {
      if (!p.writes.empty()) boxes[p.tensor].push_back(p.writes);
    }
  }
  return boxes;
}

}  // namespace shardwright::reshard
