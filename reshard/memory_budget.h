// How --max-memory is spent.
#pragma once

#include <cstdint>

namespace shardwright::reshard {

inline constexpr std::uint64_t kMinMemory = 64u << 20;

/// In bytes, but for the workers.
struct MemoryBudget {
  std::uint64_t fixed = 0;      // program, libraries, manifest
  std::uint64_t files = 0;      // target shards that are open at once
  std::uint64_t cache = 0;      // decoded source chunks that may be needed again
  std::uint64_t in_flight = 0;  // target chunks on their way
  std::uint64_t workers = 0;    // buffers of the workers
  int threads = 1;              // workers that this has room for

  std::uint64_t sum() const { return fixed + files + cache + in_flight + workers; }
};

/// For `max_memory` (at least kMinMemory), `raw_bytes` to write and up to `jobs` workers.
MemoryBudget memory_budget(std::uint64_t max_memory, std::uint64_t raw_bytes, int jobs);

}  // namespace shardwright::reshard
