// Whether boxes make up a tensor: each of its elements in exactly one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ckpt/box.h"

namespace shardwright::ckpt {

/// An element that is not in exactly one box.
struct Miscount {
  Dims element;
  std::uint64_t boxes = 0;  // that hold it
};

/// The first element of a tensor of `shape`, in row-major order, that is not in exactly one of `boxes`;
/// nothing if they tile it. Each box must be inside the shape and not empty, and the shape have elements.
/// Time is bounded by 2^d n log n for n boxes of d dimensions however they lie, memory by d n. Thread-safe.
std::optional<Miscount> first_miscount(std::span<const Box* const> boxes, const Dims& shape);

}  // namespace shardwright::ckpt
