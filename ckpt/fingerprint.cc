#include "ckpt/fingerprint.h"

#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "ckpt/digest.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define SHARDWRIGHT_X86 1
#if defined(__clang__)  // knows the preference as an option of the command line only
#define SHARDWRIGHT_AVX512 "avx512f,avx512dq,avx512vl,avx512bw"
#else
#define SHARDWRIGHT_AVX512 "avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512"
#endif
#else
#define SHARDWRIGHT_X86 0
#endif

namespace shardwright::ckpt {
namespace {

struct Sums {
  std::uint64_t h = 0;
  std::uint64_t g = 0;
};

constexpr std::uint64_t kMix1 = 0xff51afd7ed558ccdull, kMix2 = 0xc4ceb9fe1a85ec53ull;

/// MurmurHash3's fmix64 from its first product on.
[[gnu::always_inline]] inline std::uint64_t mix_rest(std::uint64_t product) {
  product ^= product >> 33;
  product *= kMix2;
  return product ^ product >> 33;
}

/// MurmurHash3's fmix64.
[[gnu::always_inline]] inline std::uint64_t mix(std::uint64_t v) { return mix_rest((v ^ v >> 33) * kMix1); }

/// Elements `first`, `first` + 1, ... of the tensor, contiguous at `data`. Inlined into one function per
/// instruction set, where the compiler vectorises the loop. Below 2^33 the first step of mix(i + 1) changes
/// nothing and the second is a product that grows by the same each time: a multiplication less of five.
template <typename Bits, bool kLow>
[[gnu::always_inline]] inline Sums sum_run(const std::byte* data, std::uint64_t first, std::uint64_t count) {
  std::uint64_t h_sum = 0, g_sum = 0;
  std::uint64_t product = (first + 1) * kMix1;
  for (std::uint64_t k = 0; k < count; ++k) {
    Bits bits;
    std::memcpy(&bits, data + k * sizeof(Bits), sizeof(Bits));
    const std::uint64_t h = mix((kLow ? mix_rest(product) : mix(first + k + 1)) + bits);
    product += kMix1;
    std::uint64_t g = (h ^ h >> 29) * 0xbf58476d1ce4e5b9ull;
    g ^= g >> 32;
    h_sum += h;
    g_sum += g;
  }
  return {h_sum, g_sum};
}

template <typename Bits>
[[gnu::always_inline]] inline Sums sum_run(const std::byte* data, std::uint64_t first, std::uint64_t count) {
  if (first + count < std::uint64_t{1} << 33) return sum_run<Bits, true>(data, first, count);
  return sum_run<Bits, false>(data, first, count);
}

/// In blocks, asking for the memory of a later one before each: a loop of so much work reads too few cache
/// lines ahead by itself, and waits for memory half of the time.
template <typename Bits>
[[gnu::always_inline]] inline Sums sum_blocks(const std::byte* data, std::uint64_t first,
                                              std::uint64_t count) {
  constexpr std::uint64_t kBlock = 1024 / sizeof(Bits);
  constexpr std::uint64_t kAhead = 2048, kLine = 64;  // bytes
  Sums total;
  while (count >= kBlock) {
    if (count * sizeof(Bits) >= kAhead + kBlock * sizeof(Bits))
      for (std::uint64_t at = 0; at < kBlock * sizeof(Bits); at += kLine)
        __builtin_prefetch(data + kAhead + at, 0, 3);
    const Sums sums = sum_run<Bits>(data, first, kBlock);
    total.h += sums.h;
    total.g += sums.g;
    data += kBlock * sizeof(Bits);
    first += kBlock;
    count -= kBlock;
  }
  const Sums sums = sum_run<Bits>(data, first, count);
  return {total.h + sums.h, total.g + sums.g};
}

template <typename Bits>
Sums sum_portable(const std::byte* data, std::uint64_t first, std::uint64_t count) {
  return sum_run<Bits>(data, first, count);
}

#if SHARDWRIGHT_X86
template <typename Bits>
[[gnu::target("avx2")]] Sums sum_avx2(const std::byte* data, std::uint64_t first, std::uint64_t count) {
  return sum_blocks<Bits>(data, first, count);
}

// AVX-512DQ multiplies 64-bit lanes.
template <typename Bits>
[[gnu::target(SHARDWRIGHT_AVX512)]] Sums sum_avx512(const std::byte* data, std::uint64_t first,
                                                    std::uint64_t count) {
  return sum_blocks<Bits>(data, first, count);
}
#endif

using SumFunction = Sums (*)(const std::byte*, std::uint64_t, std::uint64_t);

template <typename Bits>
SumFunction pick() {
#if SHARDWRIGHT_X86
  if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw"))
    return sum_avx512<Bits>;
  if (__builtin_cpu_supports("avx2")) return sum_avx2<Bits>;
#endif
  return sum_portable<Bits>;
}

SumFunction function_for(std::size_t element_size) {
  static const SumFunction by_size[] = {pick<std::uint8_t>(), pick<std::uint16_t>(), pick<std::uint32_t>(),
                                        pick<std::uint64_t>()};
  switch (element_size) {
    case 1:
      return by_size[0];
    case 2:
      return by_size[1];
    case 4:
      return by_size[2];
    default:
      assert(element_size == 8);
      return by_size[3];
  }
}

}  // namespace

std::string to_hex(const Fingerprint& f) { return fmt::format("{:016x}{:016x}", f.h, f.g); }

Fingerprint parse_fingerprint(std::string_view hex, std::uint64_t count) {
  const Digest128 halves = parse_digest(hex);
  return {halves.high, halves.low, count};
}

Fingerprint fingerprint(const std::byte* data, std::size_t element_size, const Box& box,
                        const Dims& global_shape) {
  assert(box.shape.size() == global_shape.size());
  assert(contains(Box::whole(global_shape), box));
  Fingerprint total;
  total.count = box.elements();
  if (total.count == 0) return total;
  const SumFunction sum = function_for(element_size);

  // Trailing dimensions that the box holds whole join into one run of consecutive global indices.
  const std::size_t dims = box.shape.size();
  std::size_t outer = dims;
  std::uint64_t run = 1;
  while (outer > 0) {
    --outer;
    run *= box.shape[outer];
    if (box.shape[outer] != global_shape[outer]) break;
  }

  Dims at = box.offset;
  for (std::uint64_t done = 0; done < total.count; done += run) {
    std::uint64_t first = 0;
    for (std::size_t d = 0; d < dims; ++d) first = first * global_shape[d] + at[d];
    const Sums sums = sum(data, first, run);
    total.h += sums.h;
    total.g += sums.g;
    data += run * element_size;
    for (std::size_t d = outer; d-- > 0;) {
      if (++at[d] < box.end(d)) break;
      at[d] = box.offset[d];
    }
  }
  return total;
}

}  // namespace shardwright::ckpt
