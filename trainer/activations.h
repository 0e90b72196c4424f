// What a forward pass keeps for its backward pass, and the room both work in: blocks of device memory made
// once for the largest micro-batch and used again by each.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "reshard/layout.h"
#include "trainer/parallel_linear.h"
#include "trainer/parameters.h"
#include "trainer/tensor_group.h"
#include "trainer/vocabulary.h"

namespace shardwright::trainer {

/// Sizes of a decoder as this rank holds it. rows = batch * positions; L local rows of the residual stream
/// (all rows, unless sequence parallel); C its channels; A = local heads * head size; K = local KV heads *
/// head size; F local columns of the MLP, W the width of its first product (F, or gate and up side by side: 2
/// F); V local rows of the vocabulary.
struct DecoderShape {
  std::int64_t channels = 0;
  std::int64_t head_size = 0;
  std::int64_t heads = 0;       // local
  std::int64_t first_head = 0;  // of the model's
  std::int64_t kv_heads = 0;    // local
  std::int64_t ffn = 0;         // F
  std::int64_t mlp_width = 0;   // W
  std::int64_t vocab = 0;       // V; 0 without an output head
  std::int64_t max_rows = 0;
  std::int64_t max_local_rows = 0;

  std::int64_t attention_width() const { return heads * head_size; }
  std::int64_t kv_width() const { return kv_heads * head_size; }
  std::int64_t qkv_width() const { return attention_width() + 2 * kv_width(); }
};

/// Of a rank's parameters, for micro-batches of at most `max_rows`.
DecoderShape decoder_shape(Parameters& parameters, const TensorGroup& group, std::int64_t max_rows);

/// A norm's output and the statistics its backward needs.
struct NormActivations {
  float* out = nullptr;   // (L, C)
  float* mean = nullptr;  // (L), layer norm only
  float* rstd = nullptr;  // (L)
};

struct LayerActivations {
  float* input = nullptr;  // (L, C), the residual stream before the layer
  NormActivations input_norm;
  float* qkv = nullptr;        // (rows, A + 2 K), q and k after their rotation
  float* attention = nullptr;  // (rows, A)
  float* lse = nullptr;        // (batch, local heads, positions)
  float* middle = nullptr;     // (L, C), the residual stream between attention and MLP
  NormActivations post_norm;
  float* wide = nullptr;  // (rows, W), before the activation
  float* mlp = nullptr;   // (rows, F), after it
};

/// What one micro-batch keeps in one virtual stage. Pointers are 64-byte aligned, into memory that lives as
/// long as this object.
class StageActivations {
 public:
  StageActivations(const DecoderShape& shape, const reshard::StageLayers& stage);

  std::vector<LayerActivations> layers;
  float* output = nullptr;    // (L, C), the residual stream after the last layer
  float* gradient = nullptr;  // (L, C): of the output, and after backward of the input
  // Of the model's last stage only.
  NormActivations final_norm;
  LogitBuffers logits;

 private:
  kernels::Memory memory_;
};

/// Room that all stages of a rank share: nothing in it outlives a forward or backward pass.
class Workspace {
 public:
  explicit Workspace(const DecoderShape& shape, bool spread);

  GatherBuffers gathered;
  float* branch = nullptr;       // (L, C), a residual branch, or its gradient
  float* d_norm = nullptr;       // (L, C), of a norm's output
  float* d_wide = nullptr;       // (rows, max(W, A + 2 K)), inside MLP or attention
  float* d_mlp = nullptr;        // (rows, F)
  float* d_attention = nullptr;  // (rows, A)

 private:
  kernels::Memory memory_;
};

}  // namespace shardwright::trainer
