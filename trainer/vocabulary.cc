#include "trainer/vocabulary.h"

#include <cmath>

#include "trainer/parallel_linear.h"

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

void embed(kernels::Stream& stream, Communicator& tp, const VocabularySlice& slice,
           const std::int32_t* tokens, float* y, std::int64_t rows) {
  kernels::embedding_forward(stream, tokens, slice.table, y, rows, slice.channels, slice.first, slice.held);
  reduce_over(tp, y, rows * slice.channels);  // one rank has the row, the others zeros: exact
}

double cross_entropy_forward(kernels::Stream& stream, Communicator& tp, const VocabularySlice& slice,
                             const float* x, const std::int32_t* targets, const LogitBuffers& buffers,
                             std::int64_t rows) {
  column_parallel_forward(stream, projection(slice), x, buffers.logits, rows);
  kernels::logits_max(stream, buffers.logits, buffers.row_max, rows, slice.held);
  if (tp.size() > 1) tp.all_reduce_max(std::span<float>(buffers.row_max, static_cast<std::size_t>(rows)));
  float* target_logits = buffers.sums + rows;
  kernels::logits_sum(stream, buffers.logits, targets, buffers.row_max, buffers.sums, target_logits, rows,
                      slice.held, slice.first);
  reduce_over(tp, buffers.sums, 2 * rows);
  stream.synchronize();
  double loss = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets[row] < 0) continue;
    loss += std::log(static_cast<double>(buffers.sums[row])) - static_cast<double>(target_logits[row]);
  }
  return loss;
}

void cross_entropy_backward(kernels::Stream& stream, Communicator& tp, const VocabularySlice& slice,
                            const float* x, const std::int32_t* targets, const LogitBuffers& buffers,
                            float scale, float* dx, std::int64_t rows) {
  kernels::logits_backward(stream, buffers.logits, targets, buffers.sums, scale, rows, slice.held,
                           slice.first);
  column_parallel_backward(stream, tp, projection(slice), buffers.logits, x, dx, rows);
}

}  // namespace shardwright::trainer
