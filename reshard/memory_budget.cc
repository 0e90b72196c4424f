#include "reshard/memory_budget.h"

#include <algorithm>

namespace shardwright::reshard {
namespace {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr std::uint64_t kFixed = 24 * kMiB;
// A worker's chunk as read, decoded, cut, padded and shuffled, and two contexts of zstd.
constexpr std::uint64_t kWorker = 8 * kMiB;
constexpr std::uint64_t kLeastFiles = 32 * kMiB;
constexpr std::uint64_t kLeastChunks = 12 * kMiB;
// More than a band of rows needs no memory, and memory that is used again is in the processor's cache.
constexpr std::uint64_t kMostCache = 64 * kMiB;
constexpr std::uint64_t kMostInFlight = 64 * kMiB;

}  // namespace

MemoryBudget memory_budget(std::uint64_t max_memory, std::uint64_t raw_bytes, int jobs) {
  MemoryBudget b;
  b.fixed = kFixed;
  const std::uint64_t beyond = max_memory - kMinMemory;
  b.files = kLeastFiles + beyond / 4;
  const std::uint64_t most_workers = 2 + beyond / 2 / kWorker;
  b.threads = static_cast<int>(std::min<std::uint64_t>(static_cast<std::uint64_t>(jobs), most_workers));
  b.workers = static_cast<std::uint64_t>(b.threads) * kWorker;
  const std::uint64_t rest =
      std::max(kLeastChunks, max_memory - std::min(max_memory, b.fixed + b.files + b.workers));
  b.cache = std::min({rest / 2, kMostCache, raw_bytes});
  b.in_flight = std::min({rest / 2, kMostInFlight, raw_bytes});
  return b;
}

}  // namespace shardwright::reshard
