// How optimizer state lies in an offload file: what a rank's optimizer owns, in the order of ParameterMemory,
// cut into windows of equal length, each of which has a part of exp_avg, then of exp_avg_sq, then of the
// masters, so that it is read and written in one piece.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ckpt/box.h"
#include "trainer/parameter_memory.h"

namespace shardwright::trainer {

/// A run of one parameter's elements inside a window.
struct WindowPart {
  std::size_t parameter = 0;  // of ParameterMemory::tensors
  std::uint64_t first = 0;    // element of its optimizer box
  std::uint64_t count = 0;
  std::uint64_t at = 0;  // element of the window
};

struct OffloadWindows {
  std::uint64_t elements = 0;  // of a kind in a window
  std::uint64_t kinds = 2;     // 3 where values have 16 bits, and masters of their own
  std::vector<std::vector<WindowPart>> windows;

  std::uint64_t window_bytes() const { return kinds * elements * sizeof(float); }
  std::uint64_t bytes() const { return windows.size() * window_bytes(); }
  /// Of element `element` of all that is owned. `kind`: 0 exp_avg, 1 exp_avg_sq, 2 master.
  std::uint64_t offset(std::uint64_t element, std::uint64_t kind) const {
    return element / elements * window_bytes() + (kind * elements + element % elements) * sizeof(float);
  }
};

/// Elements of a window, and windows in memory at once: 24 MiB with masters.
inline constexpr std::uint64_t kWindowElements = std::uint64_t{1} << 18;
inline constexpr std::size_t kWindowSlots = 8;

/// `most`: elements of a window, a multiple of 16. Pure.
OffloadWindows offload_windows(const ParameterMemory& memory, std::uint64_t most = kWindowElements);

/// Memory that streaming needs, as a pure function.
std::uint64_t offload_buffer_bytes(const ParameterMemory& memory);

/// The boxes that a run of a dense box's elements is made of: at most three of a matrix.
struct RunBox {
  ckpt::Box box;
  std::uint64_t at = 0;  // its first element, counted from the run's
};
std::vector<RunBox> boxes_of_run(const ckpt::Box& box, std::uint64_t first, std::uint64_t count);

}  // namespace shardwright::trainer
