#include "trainer/offload_state.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "reshard/placement.h"
#include "trainer/offload_stream.h"

namespace shardwright::trainer {
namespace {

enum Kind : std::uint64_t { kAvg, kAvgSq, kMaster };

}  // namespace

/// Reads a copy of the file for a save, on its threads.
class OffloadedState::Reader : public ckpt::Source {
 public:
  Reader(const OffloadFile& file, std::shared_ptr<const Copy> copy, const OffloadWindows& windows,
         const TensorMemory& tensor, Kind kind)
      : file_(file),
        copy_(std::move(copy)),
        windows_(windows),
        owned_(tensor.optimizer_box),
        piece_(tensor.piece),
        kind_(kind) {}

  void read(const ckpt::Box& region, std::byte* dst) const override {
    if (region.empty()) return;
    if (const auto start = ckpt::dense_start(owned_, region)) {
      read_run(*start, region.elements(), dst);
      return;
    }
    ckpt::Box row = region;
    row.shape[0] = 1;
    for (; row.offset[0] < region.end(0); ++row.offset[0]) {
      read_run(*ckpt::dense_start(owned_, row), row.elements(), dst);
      dst += row.elements() * sizeof(float);
    }
  }
  bool frozen() const override { return true; }

 private:
  void read_run(std::uint64_t first, std::uint64_t count, std::byte* dst) const {
    while (count > 0) {
      const std::uint64_t element = piece_ + first;
      const std::uint64_t here = std::min(count, windows_.elements - element % windows_.elements);
      file_.read(copy_->start + windows_.offset(element, kind_), {dst, here * sizeof(float)});
      first += here;
      count -= here;
      dst += here * sizeof(float);
    }
  }

  const OffloadFile& file_;
  const std::shared_ptr<const Copy> copy_;
  const OffloadWindows& windows_;
  const ckpt::Box owned_;
  const std::uint64_t piece_;
  const Kind kind_;
};

OffloadedState::OffloadedState(const ParameterMemory& memory, int rank, const OffloadOptions& options)
    : memory_(memory),
      windows_(offload_windows(memory, options.window_elements)),
      file_(options.directory, rank, (options.two_copies ? 2 : 1) * windows_.bytes()),
      ring_(kernels::DeviceKind::cpu,
            std::min(kWindowSlots, windows_.windows.size()) * windows_.window_bytes(),
            kernels::MemoryUse::buffers),
      now_(std::make_shared<Copy>()) {
  if (options.two_copies) other_ = std::make_shared<Copy>(Copy{windows_.bytes()});
}

const OffloadedState::Copy& OffloadedState::free_copy() {
  if (now_.use_count() == 1) return *now_;
  // A save begins only when the one before it has ended, and frees its copy before it says so.
  if (!other_ || other_.use_count() > 1)
    throw Error(ErrorCode::busy, "offloaded state: a save reads what is about to be overwritten");
  return *other_;
}

void OffloadedState::rewrite(Old old, const std::function<void(std::span<const OffloadedPart>)>& change) {
  const Copy& to = free_copy();
  not_finite_.reset();
  std::vector<OffloadedPart> parts;
  stream_windows(file_,
                 {windows_.windows.size(), windows_.window_bytes(), now_->start, to.start, old == Old::read},
                 {ring_.data(), ring_.bytes()}, [&](std::size_t window, std::span<std::byte> bytes) {
                   auto* const values = reinterpret_cast<float*>(bytes.data());
                   const auto place = [&](Kind kind, std::uint64_t at) {
                     return values + kind * windows_.elements + at;
                   };
                   parts.clear();
                   for (const WindowPart& part : windows_.windows[window]) {
                     const bool own = memory_.tensors[part.parameter].type != kernels::ElementType::f32;
                     parts.push_back({part.parameter, part.first, static_cast<std::int64_t>(part.count),
                                      place(kAvg, part.at), place(kAvgSq, part.at),
                                      own ? place(kMaster, part.at) : nullptr});
                   }
                   change(parts);
                   look_for_not_finite(parts);
                 });
  if (&to != now_.get()) std::swap(now_, other_);
}

void OffloadedState::look_for_not_finite(std::span<const OffloadedPart> parts) {
  kernels::Stream stream(kernels::DeviceKind::cpu);
  for (const OffloadedPart& part : parts)
    for (const float* values : {part.exp_avg, part.exp_avg_sq, part.master})
      if (values != nullptr && !kernels::all_finite(stream, values, part.count)) not_finite_ = part.parameter;
}

std::shared_ptr<const ckpt::Source> OffloadedState::source(std::size_t parameter,
                                                           const std::string& kind) const {
  const Kind which = kind == reshard::kExpAvg ? kAvg : kind == reshard::kExpAvgSq ? kAvgSq : kMaster;
  return std::make_shared<Reader>(file_, now_, windows_, memory_.tensors[parameter], which);
}

}  // namespace shardwright::trainer
