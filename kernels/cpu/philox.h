// The rounds of Philox4x32-10 (Salmon et al. 2011), in a form that compilers vectorise over counters.
#pragma once

#include <cstdint>

namespace shardwright::kernels::cpu {

/// Turns the counter c0 .. c3 into its four random words, for the key (k0, k1).
[[gnu::always_inline]] inline void philox_rounds(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2,
                                                 std::uint32_t& c3, std::uint32_t k0, std::uint32_t k1) {
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/// Counters made at a time: enough for two vectors of the widest kind.
inline constexpr int kPhiloxCounters = 16;

/// word[j][l] = word j of the counter (high, low + l).
[[gnu::always_inline]] inline void philox_block(std::uint64_t key, std::uint64_t high, std::uint64_t low,
                                                std::uint32_t (&word)[4][kPhiloxCounters]) {
  const auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  const auto h0 = static_cast<std::uint32_t>(high), h1 = static_cast<std::uint32_t>(high >> 32);
#pragma omp simd
  for (int l = 0; l < kPhiloxCounters; ++l) {
    const std::uint64_t counter = low + static_cast<std::uint64_t>(l);
    std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32),
                  c2 = h0, c3 = h1;
    philox_rounds(c0, c1, c2, c3, k0, k1);
    word[0][l] = c0;
    word[1][l] = c1;
    word[2][l] = c2;
    word[3][l] = c3;
  }
}

}  // namespace shardwright::kernels::cpu
