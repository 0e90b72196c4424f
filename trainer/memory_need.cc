#include "trainer/memory_need.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "trainer/planner.h"

namespace shardwright::trainer {
namespace {

// Of sizes up to here all 64-bit counts hold: a rank needs less than a hundred times the bound below.
constexpr double kCountable = 0x1p56;

// Less than any layout of the model needs: masters and moments once, of each micro-batch in work the streams
// between layers, what is inside the MLP, and logits, of each once over the ranks that share them.
double lower_bound(const reshard::ModelSpec& model, const reshard::Layout& layout,
                   const TrainingShape& shape) {
  double parameters = 0;
  for (const reshard::TensorSpec& tensor : model.tensors) {
    double elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= static_cast<double>(extent);
    parameters += elements;
  }
  const reshard::ModelConfig& config = model.config;
  const auto rows = static_cast<double>(shape.batch.micro_batch) * static_cast<double>(shape.positions);
  const auto alive = static_cast<double>(
      shape.schedule == ScheduleKind::gpipe ? reshard::micro_batches(layout, shape.batch) : 1);
  const auto layers = static_cast<double>(config.layers);
  const double mlps = shape.recompute == "full" ? 1 : layers * alive;
  constexpr double kFloat = 4, kHalf = 2;
  // Of offloaded state the values and gradients stay.
  const double of_parameter = shape.offload ? kHalf + kFloat : kCheckpointBytes;
  return of_parameter * parameters + rows * (kFloat * alive * (static_cast<double>(config.hidden) * layers) +
                                             kHalf * mlps * static_cast<double>(config.ffn) +
                                             kFloat * alive * static_cast<double>(config.vocab));
}

/// In words; what no machine has is said as the most that 64 bits hold.
std::string text(double bytes) {
  return ckpt::size_text(static_cast<std::uint64_t>(std::min(bytes, 0x1p63)));
}

}  // namespace

double least_memory(const reshard::ModelSpec& model, const reshard::Layout& layout,
                    const TrainingShape& shape) {
  const double least = lower_bound(model, layout, shape);
  if (least > kCountable) return least;
  double bytes = 0;
  for (int rank = 0; rank < layout.ranks(); ++rank)
    bytes += static_cast<double>(memory_of_rank(model, layout, rank, shape).total());
  return bytes;
}

double machine_memory() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) throw_errno(errno, "cannot be asked for its memory", "this machine");
  double bytes = (static_cast<double>(info.totalram) + static_cast<double>(info.totalswap)) * info.mem_unit;
  double limit = 0;  // "max" is no number and leaves it so
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) bytes = std::min(bytes, limit);
  return bytes;
}

void check_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, const TrainingShape& shape,
                  double available) {
  const double needed = least_memory(model, layout, shape);
  if (needed <= available) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("[model]: training it in layout {} needs at least {} of memory, and this machine has {}; a "
                  "smaller model, less dp, or more zero",
                  layout.string(), text(needed), text(available)));
}

}  // namespace shardwright::trainer
