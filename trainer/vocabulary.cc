#include "trainer/vocabulary.h"

#include <cmath>
#include <span>

namespace shardwright::trainer {
namespace {

/// The output projection is a column-parallel layer without bias.
Linear projection(const VocabularySlice& slice) {
  return {slice.table, nullptr, slice.grad, nullptr, slice.channels, slice.held};
}

}  // namespace

VocabularySlice vocabulary_slice(const Parameter& table) {
  const ckpt::Box& box = table.placed.holds;
  return {table.value, table.grad, static_cast<std::int64_t>(box.offset[0]),
          static_cast<std::int64_t>(box.shape[0]), static_cast<std::int64_t>(box.shape[1])};
}

void embed(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
           const VocabularySlice& slice, const std::int32_t* tokens, float* y) {
  kernels::embedding_forward(stream, tokens, slice.table, group.partial(y, buffers.output), group.rows(),
                             slice.channels, slice.first, slice.held);
  group.sum(buffers.output, y, slice.channels);  // one rank has the row, the others zeros: exact
}

void embed_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                    const VocabularySlice& slice, const std::int32_t* tokens, const float* dy) {
  const kernels::ConstElements all = group.gather(dy, buffers.output, slice.channels);
  kernels::embedding_backward(stream, tokens, all.f32(), slice.grad, group.rows(), slice.channels,
                              slice.first, slice.held);
}

double cross_entropy_forward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                             const VocabularySlice& slice, kernels::ConstElements x,
                             const std::int32_t* targets, const LogitBuffers& logits) {
  const std::int64_t rows = group.rows();
  column_parallel_forward(stream, group, buffers, projection(slice), x, logits.logits);
  kernels::logits_max(stream, logits.logits, logits.row_max, rows, slice.held);
  if (group.size() > 1)
    group.comm().all_reduce_max(std::span<float>(logits.row_max, static_cast<std::size_t>(rows)));
  float* target_logits = logits.sums + rows;
  kernels::logits_sum(stream, logits.logits, targets, logits.row_max, logits.sums, target_logits, rows,
                      slice.held, slice.first);
  if (group.size() > 1)
    group.comm().all_reduce_sum(std::span<float>(logits.sums, static_cast<std::size_t>(2 * rows)));
  stream.synchronize();
  double loss = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    loss += std::log(static_cast<double>(logits.sums[row])) - static_cast<double>(target_logits[row]);
  }
  return loss;
}

void cross_entropy_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                            const VocabularySlice& slice, kernels::ConstElements x,
                            const std::int32_t* targets, const LogitBuffers& logits, float scale, float* dx) {
  kernels::logits_backward(stream, logits.logits, targets, logits.sums, scale, group.rows(), slice.held,
                           slice.first);
  column_parallel_backward(stream, group, buffers, projection(slice), logits.logits, x, dx);
}

}  // namespace shardwright::trainer
