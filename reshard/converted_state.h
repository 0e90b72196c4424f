// A state of the target whose values are not the source's as they stand: cast, or with other rows than there
// were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/chunk_cache.h"
#include "ckpt/fingerprint.h"
#include "reshard/cast.h"

namespace shardwright::reshard {

/// Rows are along dimension 0. The source's first rows are kept, as many as both shapes have; new ones all
/// are the mean of those, each column summed in double in the order of rows and rounded once, or zero.
/// Thread-safe.
class ConvertedState {
 public:
  enum class NewRows : std::uint8_t { mean, zero };

  /// `state`: row of the source's states. `shape` differs from the source's in dimension 0 at most.
  ConvertedState(const ckpt::Manifest& source, std::uint32_t state, ckpt::DType dtype,
                 const ckpt::Dims& shape, NewRows new_rows);

  bool is_cast() const { return dtype_ != source_dtype_; }
  /// Rows of the source that the target keeps; all of a scalar.
  std::uint64_t kept_rows() const { return kept_rows_; }

  /// Copies `region` of the target densely to `dst`. Error(mismatch) for a value too large for the target's
  /// type.
  void read(ckpt::ChunkCache& source, const ckpt::Box& region, std::byte* dst) const;
  /// As Source::read_stored: only what is stored in the same type and wholly kept.
  bool read_stored(ckpt::ChunkCache& source, const ckpt::Box& region, const ckpt::Dims& chunk,
                   ckpt::StoredChunk& out) const;

  struct Expected {
    ckpt::Fingerprint fingerprint;  // of the target's values before encoding
    std::uint64_t underflows = 0;   // values other than zero that the cast made zero
    std::uint64_t read_bytes = 0;   // stored bytes of the source
  };
  /// What the target must hold, found by another way than writing takes: chunk by chunk as the source has
  /// them, with up to `threads` threads. Error(damaged) if the source's values are not those of its own
  /// fingerprint.
  Expected expected(const std::shared_ptr<const ckpt::Checkpoint>& source, int threads) const;

 private:
  // Of kept rows. Returns the underflows.
  std::uint64_t convert(const std::byte* from, std::byte* to, std::size_t count) const;
  // The values of each new row, in the target's type; empty where they are zero.
  std::vector<std::byte> mean_row(ckpt::ChunkCache& source) const;
  void fill(const std::vector<std::byte>& row, const ckpt::Box& region, std::byte* dst) const;
  bool has_new_rows() const { return !shape_.empty() && shape_[0] > kept_rows_; }

  std::uint32_t state_;
  std::string name_;  // for errors
  ckpt::DType source_dtype_, dtype_;
  ckpt::Dims source_shape_, shape_;
  std::uint64_t kept_rows_ = 1;
  NewRows new_rows_;
  mutable std::once_flag once_;
  mutable std::vector<std::byte> new_row_;  // mean_row(), found by who first needs it
};

/// A Source of `box` of a converted state.
std::shared_ptr<const ckpt::Source> converted_source(std::shared_ptr<const ConvertedState> state,
                                                     std::shared_ptr<ckpt::ChunkCache> cache);

}  // namespace shardwright::reshard
