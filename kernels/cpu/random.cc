// Philox4x32-10 and normal numbers from it. Only exact or correctly rounded float64 operations are used, and
// the file is compiled without fused multiply-add, so the values are the same on every machine and in any
// vector width.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/cpu/clones.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"

namespace shardwright::kernels {
namespace {

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

// A non-negative integer below 2^52 as a double: placed in the mantissa of 2^52, which is then taken away.
[[gnu::always_inline]] inline double to_double(std::uint64_t integer) {
  return std::bit_cast<double>(integer | 0x4330000000000000u) - 0x1p52;
}

// Natural logarithm of a normal positive number, to 1e-11.
[[gnu::always_inline]] inline double logarithm(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  // Taking the exponent of x * sqrt(2)'s neighbourhood centres the mantissa on 1: m in [sqrt(1/2), sqrt(2)).
  constexpr std::uint64_t kRootHalf = 0x3FE6A09E667F3BCDu;
  const std::uint64_t shifted = bits - kRootHalf + 0x3FF0000000000000u;
  const double exponent = to_double(shifted >> 52) - 1023.0;
  const double m = std::bit_cast<double>((shifted & 0x000FFFFFFFFFFFFFu) + kRootHalf);
  const double f = (m - 1.0) / (m + 1.0), f2 = f * f;
  double p = 1.0 / 15;
  p = p * f2 + 1.0 / 13;
  p = p * f2 + 1.0 / 11;
  p = p * f2 + 1.0 / 9;
  p = p * f2 + 1.0 / 7;
  p = p * f2 + 1.0 / 5;
  p = p * f2 + 1.0 / 3;
  p = p * f2 + 1.0;
  return exponent * 0.69314718055994530942 + 2.0 * f * p;
}

constexpr int kCounters = 16;
constexpr int kBlock = 4 * kCounters;  // normal numbers made at a time, always all of them

// out[64 values] of counters counter .. counter + 15.
SHARDWRIGHT_CLONES void normal_block(std::uint64_t seed, std::uint64_t purpose, std::uint64_t counter,
                                     double stddev, float* __restrict out) {
  std::uint32_t word[4][kCounters];
  const auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  const auto p0 = static_cast<std::uint32_t>(purpose), p1 = static_cast<std::uint32_t>(purpose >> 32);
#pragma omp simd
  for (int l = 0; l < kCounters; ++l) {
    const std::uint64_t low = counter + static_cast<std::uint64_t>(l);
    std::uint32_t c0 = static_cast<std::uint32_t>(low), c1 = static_cast<std::uint32_t>(low >> 32), c2 = p0,
                  c3 = p1;
    philox_rounds(c0, c1, c2, c3, k0, k1);
    word[0][l] = c0;
    word[1][l] = c1;
    word[2][l] = c2;
    word[3][l] = c3;
  }
  // Box and Muller: words 0 and 1 give values 0 and 1 of a counter, words 2 and 3 the others.
  for (int pair = 0; pair < 2; ++pair) {
    const std::uint32_t* const radius_word = word[2 * pair];
    const std::uint32_t* const angle_word = word[2 * pair + 1];
    float cosines[kCounters], sines[kCounters];
#pragma omp simd
    for (int l = 0; l < kCounters; ++l) {
      const double uniform = (to_double(radius_word[l]) + 1.0) * 0x1p-32;  // (0, 1]
      const double radius = std::sqrt(-2.0 * logarithm(uniform)) * stddev;
      // The angle as a quarter turn plus a rest of at most an eighth of a turn.
      const std::uint32_t quarter = (angle_word[l] + 0x20000000u) >> 30;
      const auto rest = static_cast<std::int32_t>(angle_word[l] - (quarter << 30));
      const double a = static_cast<double>(rest) * (2 * 3.14159265358979323846 * 0x1p-32), a2 = a * a;
      double s = 1.0 / 6227020800;
      s = s * a2 - 1.0 / 39916800;
      s = s * a2 + 1.0 / 362880;
      s = s * a2 - 1.0 / 5040;
      s = s * a2 + 1.0 / 120;
      s = s * a2 - 1.0 / 6;
      s = (s * a2 + 1.0) * a;
      double c = 1.0 / 479001600;
      c = c * a2 - 1.0 / 3628800;
      c = c * a2 + 1.0 / 40320;
      c = c * a2 - 1.0 / 720;
      c = c * a2 + 1.0 / 24;
      c = c * a2 - 1.0 / 2;
      c = c * a2 + 1.0;
      const bool odd = (quarter & 1u) != 0;
      const double cosine = odd ? s : c, sine = odd ? c : s;
      const double cosine_sign = quarter == 1 || quarter == 2 ? -1.0 : 1.0;
      const double sine_sign = quarter >= 2 ? -1.0 : 1.0;
      cosines[l] = static_cast<float>(radius * cosine * cosine_sign);
      sines[l] = static_cast<float>(radius * sine * sine_sign);
    }
    for (int l = 0; l < kCounters; ++l) {
      out[4 * l + 2 * pair] = cosines[l];
      out[4 * l + 2 * pair + 1] = sines[l];
    }
  }
}

}  // namespace

PhiloxWords philox(std::uint64_t key, std::uint64_t counter_high, std::uint64_t counter_low) {
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low),
                c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high),
                c3 = static_cast<std::uint32_t>(counter_high >> 32);
  philox_rounds(c0, c1, c2, c3, static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32));
  return {{c0, c1, c2, c3}};
}

void fill_normal(Stream&, float* y, std::int64_t n, std::uint64_t seed, std::uint64_t purpose,
                 std::uint64_t first, float stddev) {
  if (n <= 0) return;
  const std::uint64_t end = first + static_cast<std::uint64_t>(n);
  const std::uint64_t first_block = first / kBlock, last_block = (end - 1) / kBlock;
  cpu::for_ranges(
      static_cast<std::int64_t>(last_block - first_block) + 1, 32, [&](std::int64_t from, std::int64_t to) {
        float block[kBlock];
        for (std::int64_t b = from; b < to; ++b) {
          const std::uint64_t start = (first_block + static_cast<std::uint64_t>(b)) * kBlock;
          normal_block(seed, purpose, start / 4, static_cast<double>(stddev), block);
          const std::uint64_t lower = std::max(start, first), upper = std::min(start + kBlock, end);
          std::copy(block + (lower - start), block + (upper - start), y + (lower - first));
        }
      });
}

}  // namespace shardwright::kernels
