#include "trainer/offload_windows.h"

#include <algorithm>

namespace shardwright::trainer {

OffloadWindows offload_windows(const ParameterMemory& memory, std::uint64_t most) {
  OffloadWindows layout;
  layout.kinds = memory.master_elements > 0 ? 3 : 2;
  if (memory.piece_elements == 0) return layout;
  layout.elements = std::min(most, memory.piece_elements);
  layout.windows.resize((memory.piece_elements + layout.elements - 1) / layout.elements);
  for (std::size_t i = 0; i < memory.tensors.size(); ++i) {
    const TensorMemory& tensor = memory.tensors[i];
    const std::uint64_t owned = tensor.optimizer_box.elements();
    for (std::uint64_t first = 0; first < owned;) {
      const std::uint64_t place = tensor.piece + first;
      const std::uint64_t at = place % layout.elements;
      const std::uint64_t count = std::min(owned - first, layout.elements - at);
      layout.windows[place / layout.elements].push_back({i, first, count, at});
      first += count;
    }
  }
  return layout;
}

std::uint64_t offload_buffer_bytes(const ParameterMemory& memory) {
  const OffloadWindows layout = offload_windows(memory);
  return std::min(kWindowSlots, layout.windows.size()) * layout.window_bytes();
}

std::vector<RunBox> boxes_of_run(const ckpt::Box& box, std::uint64_t first, std::uint64_t count) {
  std::vector<RunBox> boxes;
  const std::uint64_t width = box.shape.size() < 2 ? 1 : box.shape[1];
  for (std::uint64_t done = 0; done < count;) {
    const std::uint64_t row = (first + done) / width;
    const std::uint64_t column = (first + done) % width;
    const std::uint64_t left = count - done;
    RunBox run{box, done};
    run.box.offset[0] += row;
    if (column == 0 && left >= width) {
      run.box.shape[0] = left / width;
    } else {
      run.box.shape[0] = 1;
      run.box.offset[1] += column;
      run.box.shape[1] = std::min(left, width - column);
    }
    done += run.box.elements();
    boxes.push_back(run);
  }
  return boxes;
}

}  // namespace shardwright::trainer
