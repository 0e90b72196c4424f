// The two ends of a decoder whose vocabulary is cut over the ranks of a tensor-parallel group: the embedding,
// and the output projection with its cross entropy. A rank holds the rows [first, first + held) of a table,
// as placement says: any number, none included. No rank ever holds a whole row of logits, and there are no
// padded rows.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "trainer/parallel_linear.h"
#include "trainer/parameters.h"
#include "trainer/tensor_group.h"

namespace shardwright::trainer {

/// A table (held, channels) with its gradient. Not owned.
struct VocabularySlice {
  kernels::ConstElements table;
  float* grad = nullptr;
  std::int64_t first = 0;
  std::int64_t held = 0;
  std::int64_t channels = 0;
};
VocabularySlice vocabulary_slice(const Parameter& table);

/// y(local rows, C) = the tokens' rows of the whole table.
void embed(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
           const VocabularySlice& slice, const std::int32_t* tokens, float* y);
/// The table's gradient += dy(local rows, C) of the tokens held here.
void embed_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                    const VocabularySlice& slice, const std::int32_t* tokens, const float* dy);

/// What a cross entropy keeps between its passes.
struct LogitBuffers {
  float* logits = nullptr;   // (rows, held): the logits, then their exponentials, then their gradient
  float* row_max = nullptr;  // (rows)
  float* sums = nullptr;     // (2, rows): the sums of exponentials, and the targets' logits
};

/// Sum over all rows of -log softmax(x * table^T)[target], equal on all ranks; rows with targets < 0 count
/// nothing. x(local rows, C), targets(rows); logits and all that follows are fp32.
double cross_entropy_forward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                             const VocabularySlice& slice, kernels::ConstElements x,
                             const std::int32_t* targets, const LogitBuffers& logits);
/// dx(local rows, C) = scale * gradient, summed over the group; the table's gradient +=. Uses up `logits`.
void cross_entropy_backward(kernels::Stream& stream, TensorGroup& group, const GatherBuffers& buffers,
                            const VocabularySlice& slice, kernels::ConstElements x,
                            const std::int32_t* targets, const LogitBuffers& logits, float scale, float* dx);

}  // namespace shardwright::trainer
