#include "trainer/memory_need.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

constexpr double kFloat = 4;

std::string size_text(double bytes) {
  constexpr std::array<const char*, 7> kUnits{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

}  // namespace

double least_memory(const reshard::ModelSpec& model, const reshard::Layout& layout,
                    std::int64_t micro_batch) {
  double parameters = 0;
  for (const reshard::TensorSpec& tensor : model.tensors) {
    double elements = 1;
    for (const std::uint64_t extent : tensor.shape) elements *= static_cast<double>(extent);
    parameters += elements;
  }
  const double copies = reshard::axis_size(layout, reshard::Axis::dp);
  const double moments = layout.zero > 0 ? 2 : 2 * copies;
  const double logits = static_cast<double>(micro_batch) * static_cast<double>(model.config.seq_len) *
                        static_cast<double>(model.config.vocab);
  return kFloat * (parameters * (2 * copies + moments + 3) + copies * logits);
}

double machine_memory() {
  struct sysinfo info {};
  if (::sysinfo(&info) != 0) throw_errno(errno, "cannot be asked for its memory", "this machine");
  double bytes = (static_cast<double>(info.totalram) + static_cast<double>(info.totalswap)) * info.mem_unit;
  double limit = 0;  // "max" is no number and leaves it so
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && limit > 0) bytes = std::min(bytes, limit);
  return bytes;
}

void check_memory(const reshard::ModelSpec& model, const reshard::Layout& layout, std::int64_t micro_batch,
                  double available) {
  const double needed = least_memory(model, layout, micro_batch);
  if (needed <= available) return;
  throw Error(
      ErrorCode::usage,
      fmt::format("[model]: training it in layout {} needs at least {} of memory, and this machine has {}; a "
                  "smaller model, less dp, or zero = 1",
                  layout.string(), size_text(needed), size_text(available)));
}

}  // namespace shardwright::trainer
