// A 128-bit fingerprint of a tensor's values that does not depend on how the tensor is cut.
//
// For element i (row-major index in the global, unpadded shape) with bits x zero-extended to 64:
//   h = mix(mix(i + 1) + x),   mix = MurmurHash3's fmix64
//   g = (h ^ h >> 29) * 0xBF58476D1CE4E5B9,   g ^= g >> 32
// and the fingerprint is (sum of h, sum of g) mod 2^64, kept with the element count. It adds up over disjoint
// boxes and sees missing zeros, swaps and any single changed bit. It guards against faults, not against an
// adversary. Portable and vectorised code give the same values (a test pins vectors).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ckpt/box.h"
#include "ckpt/dtype.h"

namespace shardwright::ckpt {

struct Fingerprint {
  std::uint64_t h = 0;
  std::uint64_t g = 0;
  std::uint64_t count = 0;  // elements summed

  Fingerprint& operator+=(const Fingerprint& other) {
    h += other.h;
    g += other.g;
    count += other.count;
    return *this;
  }
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

/// 32 hex digits: sum of h, then sum of g.
std::string to_hex(const Fingerprint& f);

/// Inverse of the hexadecimal form, with its count; Error(damaged) for any other text.
Fingerprint parse_fingerprint(std::string_view hex, std::uint64_t count);

/// Fingerprint of `box` of a tensor of shape `global_shape`, its elements dense and row-major at `data`.
/// An element's bits are its `element_size` bytes (1, 2, 4 or 8), little-endian. Thread-safe.
Fingerprint fingerprint(const std::byte* data, std::size_t element_size, const Box& box,
                        const Dims& global_shape);

}  // namespace shardwright::ckpt
