// Training data: one position (an integer) and a seed say which sample is next; any rank computes its share
// alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace shardwright::trainer {

/// Tokens of one or more files, joined in order and memory-mapped. Immutable, thread-safe. The files must not
/// be cut short while they are open.
class TokenData {
 public:
  /// format: "text" (bytes), "u16" (little-endian token numbers, as nanoGPT), "auto" (u16 for names ending in
  /// .bin, else text). All files have one format. Error(missing) names a file that is not there; Error(usage)
  /// one of another kind, of half a token, or with a token outside [0, vocab), and its position; Error(io)
  /// one that cannot be read.
  static TokenData open(const std::vector<std::string>& files, const std::string& format, std::int64_t vocab);
  ~TokenData();
  TokenData(TokenData&&) noexcept;

  std::int64_t tokens() const;
  /// Samples of `positions` inputs and their targets, cut one after the other: (tokens - 1) / positions.
  std::int64_t samples(std::int64_t positions) const;
  /// Inputs and targets (positions) of sample `index`, which is less than samples(positions).
  void read(std::int64_t index, std::int64_t positions, std::int32_t* inputs, std::int32_t* targets) const;
  /// "<format>:<tokens>:<32 hex digits of XXH3-128>" of the joined tokens, independent of paths and of how
  /// files are cut; kept in checkpoints. Reads everything.
  std::string digest() const;

 private:
  struct State;
  explicit TokenData(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// The order of samples: a permutation of each epoch, a pure function of (seed, position), in constant time
/// and memory (a Feistel network over the sample count), so that resuming at any position costs nothing. Only
/// whole global batches are dealt: an epoch has samples - samples mod global_batch positions, and which
/// samples are left out differs by epoch.
class SampleOrder {
 public:
  /// Error(usage) if there are fewer samples than one global batch.
  SampleOrder(std::int64_t samples, std::int64_t global_batch, std::uint64_t seed);
  /// Sample number of the position-th sequence of the run; positions count from 0 over all epochs.
  std::int64_t sample(std::int64_t position) const;

 private:
  std::int64_t samples_;
  std::int64_t per_epoch_;
  std::uint64_t seed_;
  int half_bits_;  // the network permutes 2 * half_bits_ bits, the least that hold samples_ values
};

}  // namespace shardwright::trainer
