// Optimizer state in a file instead of in memory: moments, and with 16-bit values the masters.
//
// The file has room for the state twice where training goes on beside a save. A save reads one copy, and the
// first optimizer step after it writes the other: it neither waits for the save nor keeps what was not read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "ckpt/source.h"
#include "kernels/device.h"
#include "trainer/offload_file.h"
#include "trainer/offload_windows.h"
#include "trainer/parameter_memory.h"

namespace shardwright::trainer {

struct OffloadOptions {
  std::string directory;
  bool two_copies = true;  // saves run beside optimizer steps
  std::uint64_t window_elements = kWindowElements;
};

/// A part of one parameter's state, in memory while rewrite() hands it out.
struct OffloadedPart {
  std::size_t parameter = 0;  // of ParameterMemory::tensors
  std::uint64_t first = 0;    // element of its optimizer box
  std::int64_t count = 0;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  float* master = nullptr;  // of a value of 16 bits, else null
};

/// One thread calls; sources are thread-safe.
class OffloadedState {
 public:
  enum class Old : std::uint8_t { read, zero };

  /// All zero. `memory` is kept by reference. Errors as of OffloadFile.
  OffloadedState(const ParameterMemory& memory, int rank, const OffloadOptions& options);

  /// Hands out every part, in order, window by window, with its old values or zeros, and keeps what `change`
  /// leaves in it. Those of a parameter come in the order of its elements. After an error of the file or of
  /// `change` the state is undefined until another rewrite from zeros.
  void rewrite(Old old, const std::function<void(std::span<const OffloadedPart>)>& change);
  /// A parameter of which the last rewrite left a value that is not finite.
  std::optional<std::size_t> not_finite() const { return not_finite_; }

  /// A parameter's optimizer box as it is now, however often it is rewritten (frozen). Not to outlive this.
  std::shared_ptr<const ckpt::Source> source(std::size_t parameter, const std::string& kind) const;

 private:
  class Reader;
  /// One of the copies. Sources share it, so the count of its owners says whether a save still reads it.
  struct Copy {
    std::uint64_t start = 0;  // in the file
  };
  const Copy& free_copy();
  void look_for_not_finite(std::span<const OffloadedPart> parts);

  const ParameterMemory& memory_;
  OffloadWindows windows_;
  OffloadFile file_;
  kernels::Memory ring_;
  std::shared_ptr<Copy> now_, other_;  // other_: null without two copies
  std::optional<std::size_t> not_finite_;
};

}  // namespace shardwright::trainer
