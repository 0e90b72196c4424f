// A virtual pipeline stage of a decoder: a run of its layers, with the embedding if it is the model's first
// and the output head and loss if it is the last. One stage may be the whole model.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "trainer/data_parallel.h"
#include "trainer/decoder_layer.h"
#include "trainer/vocabulary.h"

namespace shardwright::trainer {

/// Sequences that are computed at once. All ranks of a model's copy give the same; only the first stage uses
/// the tokens, only the last the targets.
struct MicroBatch {
  std::vector<std::int32_t> tokens;   // (batch, positions)
  std::vector<std::int32_t> targets;  // (batch, positions); < 0 has no loss
  std::int64_t batch = 0;
  std::int64_t positions = 0;
  std::uint64_t first_sequence = 0;  // its number in the run, which dropout masks are a function of
};

/// What the stages of a rank share.
struct DecoderParts {
  Parameters& parameters;
  DataParallel& data;
  TensorGroup& group;
  kernels::Stream& stream;
  const DecoderShape& shape;
  Workspace& work;
  std::uint64_t seed = 0;  // of dropout masks
};

/// Keeps the activations of several micro-batches at once, each in a buffer of a number. Not thread-safe.
/// Between stages go (L, C) floats: L the local rows of the group for the micro-batch in question.
class DecoderStage {
 public:
  DecoderStage(const DecoderParts& parts, const reshard::StageLayers& stage, std::int64_t buffers);

  std::int64_t buffers() const { return static_cast<std::int64_t>(buffers_.size()); }
  bool first() const { return stage_.first; }
  bool last() const { return stage_.last; }

  /// Gives the buffer to a micro-batch of at most the size the stage was made for.
  void begin(std::int64_t buffer, MicroBatch micro_batch);
  /// Where the previous stage's output goes, and its gradient comes from after backward(). Not for the first
  /// stage.
  std::span<float> input(std::int64_t buffer);
  std::span<const float> input_gradient(std::int64_t buffer);
  /// What the next stage needs, and where the gradient of it goes before backward(). Not for the last stage.
  std::span<const float> output(std::int64_t buffer);
  std::span<float> output_gradient(std::int64_t buffer);

  /// Last stage: the sum of the tokens' losses, equal on all ranks of the group. Others: 0. Collective over
  /// the group. Elements are dropped only with `training`.
  double forward(std::int64_t buffer, bool training);
  /// Adds scale * gradient of the loss sum to the parameters' gradients, once after forward(). Gradients of
  /// tensors that several ranks hold may be partial: the optimizer sums them (copy_sum.h).
  void backward(std::int64_t buffer, float scale);

 private:
  struct Buffer {
    MicroBatch micro_batch;
    StageActivations kept;
    bool training = false;
  };
  /// Sets the group's rows too.
  DecoderContext context(const Buffer& b);
  std::span<float> boundary(float* values, const Buffer& b);
  void embed_tokens(const DecoderContext& c, const Buffer& b);
  void embed_tokens_backward(const DecoderContext& c, const Buffer& b);

  DecoderParts parts_;
  reshard::StageLayers stage_;
  /// Of the units in the order of the forward pass: embedding (first stage), layers, head (last stage).
  std::vector<std::size_t> units_;
  bool one_end_ = false;  // the first and the last of them are one (tied embeddings on one rank)
  std::vector<DecoderLayer> layers_;
  VocabularySlice embedding_;             // first stage
  Parameter* positions_table_ = nullptr;  // first stage, learned positions only
  std::optional<Norm> embed_norm_;        // first stage, BLOOM only
  Norm final_norm_;                       // last stage
  VocabularySlice head_;  // last stage; tied on one rank: the embedding's own slice, both add to one gradient
  std::vector<Buffer> buffers_;
};

/// Floating-point operations of one forward and backward of a token (matrix products only, attention causal),
/// for rates.
double flops_per_token(const reshard::ModelSpec& model, std::int64_t positions);

}  // namespace shardwright::trainer
