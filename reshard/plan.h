// Copy plans: which part of which saved box goes to which needed box.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ckpt/box.h"

namespace shardwright::reshard {

struct Copy {
  std::uint32_t from = 0;  // index in the sources
  std::uint32_t to = 0;    // index in the targets
  ckpt::Box region;
};

/// All non-empty intersections of `targets` with `sources` (boxes of one tensor), by sorted interval search along dimension
/// 0: time grows with the number of copies, not with the product. Ordered by target, then source.
std::vector<Copy> overlap(std::span<const ckpt::Box> targets, std::span<const ckpt::Box> sources);

}  // namespace shardwright::reshard
