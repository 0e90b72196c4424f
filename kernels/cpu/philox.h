// Philox4x32-10 (Salmon et al. 2011) of many counters at once.
#pragma once

#include <cstdint>

namespace shardwright::kernels::cpu {

/// Counters that philox_words makes at a time.
inline constexpr std::int64_t kPhiloxGroup = 8;

/// words[4 * i + j] = word j of the counter (high, low + i), for i < counters, a multiple of kPhiloxGroup.
void philox_words(std::uint64_t key, std::uint64_t high, std::uint64_t low, std::uint32_t* words,
                  std::int64_t counters);

}  // namespace shardwright::kernels::cpu
