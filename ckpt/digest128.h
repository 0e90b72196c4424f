// A 128-bit digest of stored bytes (XXH3, seed 0), as a value.
#pragma once

#include <cstdint>
#include <string>

namespace shardwright::ckpt {

struct Digest128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Digest128&, const Digest128&) = default;
};

/// 32 hex digits, high half first (xxhsum's canonical order).
std::string to_hex(const Digest128& digest);

}  // namespace shardwright::ckpt
