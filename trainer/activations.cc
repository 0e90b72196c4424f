#include "trainer/activations.h"

#include <algorithm>
#include <utility>

namespace shardwright::trainer {

Activations::Activations(const ActivationShape& shape) : layers(static_cast<std::size_t>(shape.layers)) {
  constexpr std::int64_t kAlignment = 16;  // floats
  std::vector<std::pair<float**, std::int64_t>> places;
  std::int64_t total = 0;
  const auto take = [&](float*& pointer, std::int64_t count) {
    places.emplace_back(&pointer, total);
    total += (count + kAlignment - 1) / kAlignment * kAlignment;
  };
  const std::int64_t rows = shape.rows;
  const std::int64_t stream = rows * shape.channels;
  const std::int64_t attention = rows * shape.local_heads * shape.head_size;
  const std::int64_t ffn = rows * shape.local_ffn;
  const auto take_norm = [&](NormActivations& norm) {
    take(norm.out, stream);
    take(norm.mean, rows);
    take(norm.rstd, rows);
  };
  for (LayerActivations& layer : layers) {
    take(layer.input, stream);
    take_norm(layer.input_norm);
    take(layer.qkv, 3 * attention);
    take(layer.attention, attention);
    take(layer.lse, rows * shape.local_heads);
    take(layer.middle, stream);
    take_norm(layer.post_norm);
    take(layer.up, ffn);
    take(layer.gelu, ffn);
  }
  take(output, stream);
  take_norm(final_norm);
  take(logits, rows * shape.local_vocab);
  take(row_max, rows);
  take(sums, 2 * rows);
  take(d_residual, stream);
  take(d_norm, stream);
  take(d_wide, std::max(ffn, 3 * attention));
  take(d_attention, attention);

  memory_ = kernels::Memory(kernels::DeviceKind::cpu, static_cast<std::size_t>(total) * sizeof(float));
  for (const auto& [pointer, offset] : places) *pointer = memory_.floats() + offset;
}

}  // namespace shardwright::trainer
