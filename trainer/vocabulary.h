// The two ends of a decoder whose vocabulary is cut over the ranks of a tensor-parallel group: the embedding,
// and the output projection with its cross entropy. A rank holds the rows [first, first + held) of a table,
// as placement says: any number, none included. No rank ever holds a whole row of logits, and there are no
// padded rows.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "trainer/communicator.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

/// A table (held, channels) with its gradient. Not owned.
struct VocabularySlice {
  const float* table = nullptr;
  float* grad = nullptr;
  std::int64_t first = 0;
  std::int64_t held = 0;
  std::int64_t channels = 0;
};
VocabularySlice vocabulary_slice(const Parameter& table);

/// y(rows, C) = the tokens' rows of the whole table, on all ranks.
void embed(kernels::Stream& stream, Communicator& tp, const VocabularySlice& slice,
           const std::int32_t* tokens, float* y, std::int64_t rows);

/// What a cross entropy keeps between its passes.
struct LogitBuffers {
  float* logits = nullptr;   // (rows, held): the logits, then their exponentials, then their gradient
  float* row_max = nullptr;  // (rows)
  float* sums = nullptr;     // (2, rows): the sums of exponentials, and the targets' logits
};

/// Sum over the rows of -log softmax(x * table^T)[target], equal on all ranks; rows with targets < 0 count
/// nothing. x(rows, C).
double cross_entropy_forward(kernels::Stream& stream, Communicator& tp, const VocabularySlice& slice,
                             const float* x, const std::int32_t* targets, const LogitBuffers& buffers,
                             std::int64_t rows);
/// dx(rows, C) = scale * gradient, summed over the group; the table's gradient +=. Uses up `buffers`.
void cross_entropy_backward(kernels::Stream& stream, Communicator& tp, const VocabularySlice& slice,
                            const float* x, const std::int32_t* targets, const LogitBuffers& buffers,
                            float scale, float* dx, std::int64_t rows);

}  // namespace shardwright::trainer
