#include "ckpt/byte_shuffle.h"

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace shardwright::ckpt {
namespace {

/// Elements [first, count) one by one; what the vector code leaves, and all of it without SSE2.
void shuffle_plain(const std::byte* from, std::size_t size, std::size_t first, std::size_t count,
                   std::byte* to) {
  for (std::size_t i = first; i < count; ++i)
    for (std::size_t k = 0; k < size; ++k) to[k * count + i] = from[i * size + k];
}

void unshuffle_plain(const std::byte* from, std::size_t size, std::size_t first, std::size_t count,
                     std::byte* to) {
  for (std::size_t i = first; i < count; ++i)
    for (std::size_t k = 0; k < size; ++k) to[i * size + k] = from[k * count + i];
}

#if defined(__SSE2__)

// Sixteen elements of kSize bytes are kSize vectors. One round splits their byte stream into its even and its
// odd bytes; after log2(kSize) rounds each vector is one byte plane, in bit-reversed order. Every processor
// of x86-64 has SSE2.
constexpr std::size_t kLanes = 16;

constexpr std::size_t plane(std::size_t vector, std::size_t size) {
  std::size_t reversed = 0;
  for (std::size_t bit = 1; bit < size; bit <<= 1) reversed = reversed << 1 | ((vector & bit) ? 1 : 0);
  return reversed;
}

template <std::size_t kSize>
struct Vectors {
  __m128i at[kSize];
  __m128i& operator[](std::size_t j) { return at[j]; }
};

/// body(0), body(1), ... written out: compilers keep vectors in memory where they leave the loop a loop, and
/// that takes five times as long.
template <std::size_t kCount, typename Body>
[[gnu::always_inline]] inline void each(const Body& body) {
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) __attribute__((always_inline)) {
    (body(std::integral_constant<std::size_t, kIndex>{}), ...);
  }
  (std::make_index_sequence<kCount>{});
}

/// One round: of each block of kSpan vectors, the halves become its even and its odd bytes.
template <std::size_t kSpan, std::size_t kSize>
[[gnu::always_inline]] inline void split(Vectors<kSize>& v) {
  const __m128i low = _mm_set1_epi16(0xff);
  Vectors<kSize> next;
  each<kSize / 2>([&](auto pair) {
    constexpr std::size_t start = pair / (kSpan / 2) * kSpan, j = pair % (kSpan / 2);
    const __m128i a = v[start + 2 * j], b = v[start + 2 * j + 1];
    next[start + j] = _mm_packus_epi16(_mm_and_si128(a, low), _mm_and_si128(b, low));
    next[start + kSpan / 2 + j] = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
  });
  v = next;
  if constexpr (kSpan > 2) split<kSpan / 2>(v);
}

/// The same backwards, from kSpan on to all of them.
template <std::size_t kSpan, std::size_t kSize>
[[gnu::always_inline]] inline void join(Vectors<kSize>& v) {
  Vectors<kSize> next;
  each<kSize / 2>([&](auto pair) {
    constexpr std::size_t start = pair / (kSpan / 2) * kSpan, j = pair % (kSpan / 2);
    const __m128i even = v[start + j], odd = v[start + kSpan / 2 + j];
    next[start + 2 * j] = _mm_unpacklo_epi8(even, odd);
    next[start + 2 * j + 1] = _mm_unpackhi_epi8(even, odd);
  });
  v = next;
  if constexpr (kSpan < kSize) join<kSpan * 2>(v);
}

__m128i load(const std::byte* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
void store(std::byte* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }

template <std::size_t kSize>
std::size_t shuffle_vectors(const std::byte* from, std::size_t count, std::byte* to) {
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    Vectors<kSize> v;
    each<kSize>([&](auto j) { v[j] = load(from + i * kSize + j * kLanes); });
    split<kSize>(v);
    each<kSize>([&](auto j) { store(to + plane(j, kSize) * count + i, v[j]); });
  }
  return whole;
}

template <std::size_t kSize>
std::size_t unshuffle_vectors(const std::byte* from, std::size_t count, std::byte* to) {
  // Ahead of the writing: what is loaded goes to memory that is in no cache, and the processor's own
  // prefetching ends with each page.
  constexpr std::size_t kAhead = 4096 / kSize;
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    Vectors<kSize> v;
    if (i + kAhead < whole) __builtin_prefetch(to + (i + kAhead) * kSize, 1);
    each<kSize>([&](auto j) { v[j] = load(from + plane(j, kSize) * count + i); });
    join<2>(v);
    each<kSize>([&](auto j) { store(to + i * kSize + j * kLanes, v[j]); });
  }
  return whole;
}

/// Elements of four bytes are most of a checkpoint, and a shuffle within vectors takes them in half the time.
[[gnu::target("avx2")]] std::size_t shuffle_four_avx2(const std::byte* from, std::size_t count,
                                                      std::byte* to) {
  // In each half of a vector, byte k of its four elements together; then both halves' together.
  const __m256i planes = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12,
                                          1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i halves = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const std::size_t whole = count / 32 * 32;
  for (std::size_t i = 0; i < whole; i += 32) {
    const auto* in = reinterpret_cast<const __m256i*>(from + i * 4);
    const __m256i a =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_loadu_si256(in), planes), halves);
    const __m256i b =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_loadu_si256(in + 1), planes), halves);
    const __m256i c =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_loadu_si256(in + 2), planes), halves);
    const __m256i d =
        _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(_mm256_loadu_si256(in + 3), planes), halves);
    // Eight bytes of each plane a vector: planes 0 and 2 of two vectors, planes 1 and 3, and so on.
    const __m256i ab_even = _mm256_unpacklo_epi64(a, b), ab_odd = _mm256_unpackhi_epi64(a, b);
    const __m256i cd_even = _mm256_unpacklo_epi64(c, d), cd_odd = _mm256_unpackhi_epi64(c, d);
    auto* out = reinterpret_cast<__m256i*>(to + i);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(ab_even, cd_even, 0x20));
    out = reinterpret_cast<__m256i*>(to + count + i);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(ab_odd, cd_odd, 0x20));
    out = reinterpret_cast<__m256i*>(to + 2 * count + i);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(ab_even, cd_even, 0x31));
    out = reinterpret_cast<__m256i*>(to + 3 * count + i);
    _mm256_storeu_si256(out, _mm256_permute2x128_si256(ab_odd, cd_odd, 0x31));
  }
  return whole;
}

std::size_t shuffle_fast(const std::byte* from, std::size_t size, std::size_t count, std::byte* to) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  switch (size) {
    case 2:
      return shuffle_vectors<2>(from, count, to);
    case 4:
      return avx2 ? shuffle_four_avx2(from, count, to) : shuffle_vectors<4>(from, count, to);
    case 8:
      return shuffle_vectors<8>(from, count, to);
    default:
      return 0;
  }
}

std::size_t unshuffle_fast(const std::byte* from, std::size_t size, std::size_t count, std::byte* to) {
  switch (size) {
    case 2:
      return unshuffle_vectors<2>(from, count, to);
    case 4:
      return unshuffle_vectors<4>(from, count, to);
    case 8:
      return unshuffle_vectors<8>(from, count, to);
    default:
      return 0;
  }
}

#else

std::size_t shuffle_fast(const std::byte*, std::size_t, std::size_t, std::byte*) { return 0; }
std::size_t unshuffle_fast(const std::byte*, std::size_t, std::size_t, std::byte*) { return 0; }

#endif

void copy_rest(std::span<const std::byte> from, std::size_t begin, std::byte* to) {
  if (begin < from.size()) std::memcpy(to + begin, from.data() + begin, from.size() - begin);
}

}  // namespace

void byte_shuffle(std::span<const std::byte> from, std::size_t element_size, std::byte* to) {
  const std::size_t count = element_size > 1 ? from.size() / element_size : 0;
  const std::size_t done = shuffle_fast(from.data(), element_size, count, to);
  shuffle_plain(from.data(), element_size, done, count, to);
  copy_rest(from, count * element_size, to);
}

void byte_unshuffle(std::span<const std::byte> from, std::size_t element_size, std::byte* to) {
  const std::size_t count = element_size > 1 ? from.size() / element_size : 0;
  const std::size_t done = unshuffle_fast(from.data(), element_size, count, to);
  unshuffle_plain(from.data(), element_size, done, count, to);
  copy_rest(from, count * element_size, to);
}

}  // namespace shardwright::ckpt
