#include "trainer/parallel_linear.h"

#include <cassert>

namespace shardwright::trainer {

Linear fuse(std::span<const Parameter* const> weights, std::span<const Parameter* const> biases) {
  const Parameter& weight = *weights.front();
  Linear fused;
  fused.weight = weight.value;
  fused.weight_grad = weight.grad;
  fused.in = static_cast<std::int64_t>(weight.placed.holds.shape[1]);
  for (const Parameter* part : weights) {
    assert(kernels::ConstElements(part->value) == fused.weight + fused.out * fused.in &&
           part->grad == fused.weight_grad + fused.out * fused.in);
    fused.out += static_cast<std::int64_t>(part->placed.holds.shape[0]);
  }
  if (biases.empty()) return fused;
  fused.bias = biases.front()->value.f32();
  fused.bias_grad = biases.front()->grad;
  [[maybe_unused]] std::int64_t biased = 0;
  for ([[maybe_unused]] const Parameter* part : biases) {
    assert(part->value.f32() == fused.bias + biased && part->grad == fused.bias_grad + biased);
    biased += static_cast<std::int64_t>(part->placed.holds.shape[0]);
  }
  assert(biased == fused.out);
  return fused;
}

void column_parallel_forward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                             const Linear& layer, kernels::ConstElements x, kernels::Elements y) {
  const kernels::ConstElements all = group.gather(x, buffers.input, layer.in);
  if (layer.out == 0) return;
  kernels::linear_forward(stream, all, layer.weight, layer.bias, y, group.rows(), layer.in, layer.out);
}

void column_parallel_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                              const Linear& layer, kernels::ConstElements dy, kernels::ConstElements x,
                              float* dx) {
  const kernels::ConstElements all = group.gather(x, buffers.input, layer.in);
  float* partial = group.partial(dx, buffers.output);
  if (layer.out == 0) {
    kernels::zero(stream, partial, group.rows() * layer.in);
  } else {
    kernels::linear_backward(stream, dy, all, layer.weight, partial, layer.weight_grad, layer.bias_grad,
                             group.rows(), layer.in, layer.out);
  }
  group.sum(buffers.output, dx, layer.in);
}

void row_parallel_forward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                          const Linear& layer, kernels::ConstElements x, float* y) {
  float* partial = group.partial(y, buffers.output);
  // In a group of one the product may add the bias on its way.
  const bool alone = group.size() == 1;
  if (layer.in == 0) {
    kernels::zero(stream, partial, group.rows() * layer.out);
  } else {
    kernels::linear_forward(stream, x, layer.weight, alone ? layer.bias : nullptr, partial, group.rows(),
                            layer.in, layer.out);
  }
  group.sum(buffers.output, y, layer.out);
  if (!alone && layer.bias != nullptr)
    kernels::add_bias(stream, layer.bias, y, group.local_rows(), layer.out);
}

void row_parallel_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                           const Linear& layer, kernels::ConstElements dy, kernels::ConstElements x,
                           kernels::Elements dx) {
  const kernels::ConstElements all = group.gather(dy, buffers.output, layer.out);
  float* bias_grad = layer.bias_grad;
  if (bias_grad != nullptr && (group.spread() || layer.in == 0)) {
    kernels::bias_backward(stream, dy, bias_grad, group.local_rows(), layer.out);
    bias_grad = nullptr;
  }
  if (layer.in == 0) return;
  kernels::linear_backward(stream, all, x, layer.weight, dx, layer.weight_grad, bias_grad, group.rows(),
                           layer.in, layer.out);
}

}  // namespace shardwright::trainer
