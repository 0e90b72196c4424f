#include "trainer/bench_state.h"

#include <cassert>

#include "kernels/ops.h"

namespace shardwright::trainer {

void fill_state(float* to, std::uint64_t count, std::uint64_t tensor, std::size_t kind, std::uint64_t first) {
  constexpr std::array<float, 3> kScale{0.02f, 1e-4f, 1e-4f};
  kernels::Stream stream(kernels::DeviceKind::cpu);
  kernels::fill_normal(stream, to, static_cast<std::int64_t>(count), tensor, kind, first, kScale[kind]);
  if (kind < 2) return;
  for (float* v = to; v < to + count; ++v) *v *= *v;
}

void StateSource::read(const ckpt::Box& region, std::byte* dst) const {
  assert(shape_.size() == 1 || shape_.size() == 2);
  auto* to = reinterpret_cast<float*>(dst);
  const std::uint64_t columns = shape_.size() == 1 ? 1 : shape_[1];
  const std::uint64_t width = shape_.size() == 1 ? 1 : region.shape[1];
  const std::uint64_t first = region.offset[0] * columns + (shape_.size() == 1 ? 0 : region.offset[1]);
  if (width == columns) {
    fill_state(to, region.elements(), tensor_, kind_, first);
    return;
  }
  for (std::uint64_t row = 0; row < region.shape[0]; ++row)
    fill_state(to + row * width, width, tensor_, kind_, first + row * columns);
}

}  // namespace shardwright::trainer
