#include <cstdint>
#include <cstring>

#include "ckpt/chunk_codec.h"

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

}  // namespace

std::uint32_t fletcher32(std::span<const std::byte> data) {
  std::uint64_t sum1 = 0, sum2 = 0;
  const std::byte* at = data.data();
  std::size_t left = data.size();
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
