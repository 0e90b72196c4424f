#include <array>
#include <cstdint>
#include <cstring>

#include "ckpt/chunk_codec.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define SHARDWRIGHT_X86 1
#else
#define SHARDWRIGHT_X86 0
#endif

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_THREAD__)
// Resolved when the program is loaded. ThreadSanitizer is not ready by then.
#define SHARDWRIGHT_CLONES [[gnu::target_clones("avx2", "default")]]
#else
#define SHARDWRIGHT_CLONES
#endif

namespace shardwright::ckpt {
namespace {

// So many words that the weighted sum of a block fits 32 bits: 65535 * 256 * 257 / 2 < 2^32.
constexpr std::size_t kBlockWords = 256;

struct BlockSums {
  std::uint32_t plain;     // sum of the words
  std::uint32_t weighted;  // sum of word j times (kBlockWords - j)
};

SHARDWRIGHT_CLONES BlockSums sum_block(const std::byte* data) {
  std::uint32_t plain = 0, weighted = 0;
  for (std::uint32_t j = 0; j < kBlockWords; ++j) {
    std::uint16_t stored;
    std::memcpy(&stored, data + 2 * j, 2);
    const auto word = static_cast<std::uint16_t>(stored << 8 | stored >> 8);
    plain += word;
    weighted += word * (static_cast<std::uint32_t>(kBlockWords) - j);
  }
  return {plain, weighted};
}

/// The residue mod 65535 that repeated folding gives: 0 only for 0, 65535 for its other multiples.
std::uint64_t fold(std::uint64_t sum) { return sum == 0 ? 0 : (sum - 1) % 65535 + 1; }

#if SHARDWRIGHT_X86

constexpr std::size_t kWideVectors = 64;  // of a wide block; far fewer than would overflow
constexpr std::size_t kWideWords = kWideVectors * 32;

/// The lanes' sum.
[[gnu::target("avx512f")]] std::uint64_t total(__m512i lanes) {
  alignas(64) std::uint32_t values[16];
  _mm512_store_si512(values, lanes);
  std::uint64_t sum = 0;
  for (const std::uint32_t value : values) sum += value;
  return sum;
}

/// Of a wide block: sum of the words, and of word j times (kWideWords - j). Bytes are summed, the high ones
/// of the words apart from the low ones, weighted by their distance to the vector's end; what comes before a
/// vector counts 32 times more with it.
[[gnu::target("avx512f,avx512bw,avx512vnni")]] void sum_wide(const std::byte* data, std::uint64_t& plain,
                                                             std::uint64_t& weighted) {
  alignas(64) static constexpr std::array<std::int8_t, 64> kWeights = [] {
    std::array<std::int8_t, 64> weights{};
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<std::int8_t>(32 - i / 2);
    return weights;
  }();
  const __m512i high_bytes = _mm512_set1_epi16(0x00ff), low_bytes = _mm512_set1_epi16(-256),
                ones = _mm512_set1_epi8(1);
  const __m512i weights = _mm512_load_si512(kWeights.data());
  const __m512i one_high = _mm512_and_si512(ones, high_bytes);
  const __m512i one_low = _mm512_and_si512(ones, low_bytes);
  const __m512i weight_high = _mm512_and_si512(weights, high_bytes);
  const __m512i weight_low = _mm512_and_si512(weights, low_bytes);
  const __m512i zero = _mm512_setzero_si512();
  __m512i high = zero, low = zero, high_before = zero, low_before = zero, high_within = zero,
          low_within = zero;
  for (std::size_t v = 0; v < kWideVectors; ++v) {
    const __m512i bytes = _mm512_loadu_si512(data + 64 * v);
    high_before = _mm512_add_epi32(high_before, high);
    low_before = _mm512_add_epi32(low_before, low);
    high = _mm512_dpbusd_epi32(high, bytes, one_high);
    low = _mm512_dpbusd_epi32(low, bytes, one_low);
    high_within = _mm512_dpbusd_epi32(high_within, bytes, weight_high);
    low_within = _mm512_dpbusd_epi32(low_within, bytes, weight_low);
  }
  plain = 256 * total(high) + total(low);
  weighted =
      256 * (32 * total(high_before) + total(high_within)) + 32 * total(low_before) + total(low_within);
}

#endif

}  // namespace

std::uint32_t fletcher32(std::span<const std::byte> data) {
  std::uint64_t sum1 = 0, sum2 = 0;
  const std::byte* at = data.data();
  std::size_t left = data.size();
#if SHARDWRIGHT_X86
  static const bool wide = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
  for (; wide && left >= 2 * kWideWords; left -= 2 * kWideWords, at += 2 * kWideWords) {
    std::uint64_t plain = 0, weighted = 0;
    sum_wide(at, plain, weighted);
    sum2 = fold(sum2 + kWideWords * sum1 + weighted);
    sum1 = fold(sum1 + plain);
  }
#endif
  for (; left >= 2 * kBlockWords; left -= 2 * kBlockWords, at += 2 * kBlockWords) {
    const BlockSums block = sum_block(at);
    sum2 = fold(sum2 + kBlockWords * sum1 + block.weighted);
    sum1 = fold(sum1 + block.plain);
  }
  for (; left >= 2; left -= 2, at += 2) {
    sum1 += std::to_integer<std::uint64_t>(at[0]) << 8 | std::to_integer<std::uint64_t>(at[1]);
    sum2 += sum1;
  }
  if (left == 1) {
    sum1 += std::to_integer<std::uint64_t>(at[0]) << 8;
    sum2 += sum1;
  }
  return static_cast<std::uint32_t>(fold(sum2) << 16 | fold(sum1));
}

}  // namespace shardwright::ckpt
