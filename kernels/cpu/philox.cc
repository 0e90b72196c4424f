// Philox of many counters. Compilers widen 32-bit products with shuffles that cost more than the products;
// the AVX2 version keeps each word in the low half of a 64-bit lane, where a product needs none.
#include "kernels/cpu/philox.h"

#include <algorithm>

#include "kernels/ops.h"

#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__SANITIZE_THREAD__)
#define SHARDWRIGHT_PHILOX_AVX2 1
#include <immintrin.h>
#endif

namespace shardwright::kernels {

#ifdef SHARDWRIGHT_PHILOX_AVX2
namespace {

// Four counters; the upper half of a lane is undefined.
struct Lanes {
  __m256i c0, c1, c2, c3;
};

__attribute__((target("avx2"), always_inline)) inline __m256i broadcast(std::uint64_t value) {
  return _mm256_set1_epi64x(static_cast<long long>(value));
}

__attribute__((target("avx2"), always_inline)) inline void lanes_round(Lanes& x, __m256i k0, __m256i k1) {
  const __m256i p0 = _mm256_mul_epu32(x.c0, broadcast(0xD2511F53u));
  const __m256i p1 = _mm256_mul_epu32(x.c2, broadcast(0xCD9E8D57u));
  x.c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), x.c1), k0);
  x.c1 = p1;
  x.c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), x.c3), k1);
  x.c3 = p0;
}

// The 16 words in order of counters.
__attribute__((target("avx2"), always_inline)) inline void store(const Lanes& x, std::uint32_t* words) {
  const __m256i low = _mm256_blend_epi32(x.c0, _mm256_slli_epi64(x.c1, 32), 0xAA);
  const __m256i high = _mm256_blend_epi32(x.c2, _mm256_slli_epi64(x.c3, 32), 0xAA);
  const __m256i even = _mm256_unpacklo_epi64(low, high), odd = _mm256_unpackhi_epi64(low, high);
  auto* const to = reinterpret_cast<__m256i*>(words);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

__attribute__((target("avx2"))) void avx2(std::uint64_t key, std::uint64_t high, std::uint64_t low,
                                          std::uint32_t* words, std::int64_t counters) {
  const __m256i order = _mm256_set_epi64x(3, 2, 1, 0);
  for (std::int64_t i = 0; i < counters; i += cpu::kPhiloxGroup) {
    const std::uint64_t counter = low + static_cast<std::uint64_t>(i);
    const __m256i first = _mm256_add_epi64(broadcast(counter), order);
    const __m256i second = _mm256_add_epi64(first, broadcast(4));
    Lanes a{first, _mm256_srli_epi64(first, 32), broadcast(high), broadcast(high >> 32)};
    Lanes b{second, _mm256_srli_epi64(second, 32), broadcast(high), broadcast(high >> 32)};
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      lanes_round(a, broadcast(k0), broadcast(k1));
      lanes_round(b, broadcast(k0), broadcast(k1));
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    store(a, words + 4 * i);
    store(b, words + 4 * i + 16);
  }
}

}  // namespace
#endif

void cpu::philox_words(std::uint64_t key, std::uint64_t high, std::uint64_t low, std::uint32_t* words,
                       std::int64_t counters) {
#ifdef SHARDWRIGHT_PHILOX_AVX2
  static const bool wide = __builtin_cpu_supports("avx2");
  if (wide) return avx2(key, high, low, words, counters);
#endif
  for (std::int64_t i = 0; i < counters; ++i) {
    const PhiloxWords four = philox(key, high, low + static_cast<std::uint64_t>(i));
    std::copy(four.w, four.w + 4, words + 4 * i);
  }
}

}  // namespace shardwright::kernels
