#include <fmt/format.h>

#include <bit>
#include <cassert>

#include "ckpt/error.h"
#include "kernels/ops.h"
#include "trainer/data.h"

namespace shardwright::trainer {
namespace {

constexpr int kRounds = 8;
// High half of the Philox counter: keeps these draws apart from those of weight initialisation under the same
// seed.
constexpr std::uint64_t kPurpose = 0x73616d70'00000000;  // "samp"

/// One value through a balanced Feistel network of 2 * half_bits bits: a bijection whatever the round
/// function is.
std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t seed, std::uint64_t epoch) {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits;
  std::uint64_t right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const kernels::PhiloxWords words = kernels::philox(seed, kPurpose + epoch, round << 32 | right);
    const std::uint64_t next = left ^ (words.w[0] & mask);
    left = right;
    right = next;
  }
  return left << half_bits | right;
}

}  // namespace

SampleOrder::SampleOrder(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed)
    : samples_(samples), per_epoch_(samples - samples % global_batch), seed_(seed) {
  if (samples < global_batch)
    throw Error(
        ErrorCode::usage,
        fmt::format(
            "[data] train: {} samples are fewer than one global batch of {}; give more data, or lower "
            "[train] global_batch or [model] seq_len",
            samples, global_batch));
  const auto bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(samples - 1)));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

std::int64_t SampleOrder::sample(std::int64_t position) const {
  assert(position >= 0);
  const auto epoch = static_cast<std::uint64_t>(position / per_epoch_);
  auto value = static_cast<std::uint64_t>(position % per_epoch_);
  // Cycle walking: the network permutes fewer than 8 * samples_ values; following it until the value is a
  // sample again gives a permutation of the samples alone.
  do {
    value = feistel(value, half_bits_, seed_, epoch);
  } while (value >= static_cast<std::uint64_t>(samples_));
  return static_cast<std::int64_t>(value);
}

}  // namespace shardwright::trainer
