// Linear layers cut over the ranks of a tensor-parallel group, after Megatron-LM (Shoeybi et al. 2019). A
// column-parallel layer holds rows of its weight and makes its part of the output; a row-parallel layer takes
// such parts, and one sum over the group, in fp32, completes its output. A pair of them costs one sum forward
// and one backward. `rows` are all of the micro-batch, `local rows` those of the group's residual stream that
// are here (TensorGroup).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "trainer/parameters.h"
#include "trainer/tensor_group.h"

namespace shardwright::trainer {

/// A weight (out, in) and bias (out) with their gradients, as this rank holds them; no bias is null. Not
/// owned.
struct Linear {
  kernels::ConstElements weight;
  const float* bias = nullptr;
  float* weight_grad = nullptr;
  float* bias_grad = nullptr;
  std::int64_t in = 0;
  std::int64_t out = 0;
};

/// Tensors that lie back to back in memory (q, k, v) as one layer, their outputs side by side. No biases: a
/// layer without.
Linear fuse(std::span<const Parameter* const> weights, std::span<const Parameter* const> biases);

/// Room for activations of the whole micro-batch where ranks have only some rows; unused where they have all.
struct GatherBuffers {
  void* input = nullptr;    // (rows, C) of the run's type
  float* output = nullptr;  // (rows, C)
};

/// y(rows, out) = x * weight^T + bias; x(local rows, in), y this rank's columns.
void column_parallel_forward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                             const Linear& layer, kernels::ConstElements x, kernels::Elements y);
/// dx(local rows, in) = dy(rows, out) * weight, summed over the group; the gradients of weight and bias +=.
/// Any size of `out`, zero included.
void column_parallel_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                              const Linear& layer, kernels::ConstElements dy, kernels::ConstElements x,
                              float* dx);

/// y(local rows, out) = x(rows, in) * weight^T summed over the group + bias, the bias once.
void row_parallel_forward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                          const Linear& layer, kernels::ConstElements x, float* y);
/// dx(rows, in) = dy(local rows, out) * weight; the gradients of weight and bias +=. The bias' gradient is of
/// the local rows: whole where every rank has all of them.
void row_parallel_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                           const Linear& layer, kernels::ConstElements dy, kernels::ConstElements x,
                           kernels::Elements dx);

}  // namespace shardwright::trainer
