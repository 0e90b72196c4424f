// What a forward pass keeps for its backward pass, and the room both work in: blocks of device memory made
// once for the largest micro-batch and used again by each.
//
// In a run of bf16 or f16 what products read has that type; what is summed over many layers or over ranks
// stays fp32: the residual stream, its gradient, logits, statistics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/elements.h"
#include "reshard/layout.h"
#include "trainer/parallel_linear.h"
#include "trainer/parameters.h"
#include "trainer/tensor_group.h"
#include "trainer/vocabulary.h"

namespace shardwright::trainer {

/// What backward computes again instead of keeping it.
enum class Recompute : std::uint8_t {
  none,
  /// What costs little to compute and much to keep: attention with its statistics from qkv, what follows the
  /// MLP's nonlinearity from what comes before it, the norms.
  selective,
  /// All but the layer's input: its whole forward pass but the last product.
  full
};
/// "none", "selective", "full"; Error(usage) for others.
Recompute recompute_named(const std::string& name);

/// Sizes of a decoder as this rank holds it, and how its activations lie. rows = batch * positions; L local
/// rows of the residual stream (all rows, unless sequence parallel); C its channels; A = local heads * head
/// size; K = local KV heads * head size; F local columns of the MLP, W the width of its first product (F, or
/// gate and up side by side: 2 F); V local rows of the vocabulary.
struct DecoderShape {
  std::int64_t channels = 0;
  std::int64_t head_size = 0;
  std::int64_t heads = 0;       // local
  std::int64_t all_heads = 0;   // of the model
  std::int64_t first_head = 0;  // of those
  std::int64_t kv_heads = 0;    // local
  std::int64_t ffn = 0;         // F
  std::int64_t mlp_width = 0;   // W
  std::int64_t vocab = 0;       // V; 0 without an output head
  std::int64_t max_rows = 0;
  std::int64_t max_local_rows = 0;
  bool alibi = false;                                     // positions as distances in the scores
  bool embed_norm = false;                                // a norm after the embedding
  kernels::ElementType type = kernels::ElementType::f32;  // of what products read
  Recompute recompute = Recompute::none;

  std::int64_t attention_width() const { return heads * head_size; }
  std::int64_t kv_width() const { return kv_heads * head_size; }
  std::int64_t qkv_width() const { return attention_width() + 2 * kv_width(); }
};

/// Of a rank, for micro-batches of at most `max_rows`; `spread`: sequence parallel over more than one rank.
DecoderShape decoder_shape(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                           bool spread, std::int64_t max_rows, kernels::ElementType type,
                           Recompute recompute);
/// Of a rank's parameters.
DecoderShape decoder_shape(const Parameters& parameters, const TensorGroup& group, std::int64_t max_rows,
                           Recompute recompute = Recompute::none);

/// A norm's output and the statistics its backward needs.
struct NormActivations {
  kernels::Elements out;  // (L, C)
  float* mean = nullptr;  // (L), layer norm only
  float* rstd = nullptr;  // (L)
};

/// Elements are of the run's type. A pointer to what is computed again is to room that all layers share.
struct LayerActivations {
  float* input = nullptr;  // (L, C), the residual stream before the layer
  NormActivations input_norm;
  kernels::Elements qkv;        // (rows, A + 2 K), q and k after their rotation
  kernels::Elements attention;  // (rows, A)
  float* lse = nullptr;         // (batch, local heads, positions)
  float* middle = nullptr;      // (L, C), the residual stream between attention and MLP
  NormActivations post_norm;
  kernels::Elements wide;  // (rows, W), before the activation
  kernels::Elements mlp;   // (rows, F), after it
};

/// What one micro-batch keeps in one virtual stage. Pointers are 64-byte aligned, into memory that lives as
/// long as this object.
class StageActivations {
 public:
  /// `shared` is the workspace's, which must outlive this.
  StageActivations(const DecoderShape& shape, const reshard::StageLayers& stage,
                   const LayerActivations& shared);

  // Of the model's first stage only, with a norm after the embedding: what it reads, and where it writes, the
  // first layer's input.
  float* embedded = nullptr;  // (L, C)
  NormActivations embed_norm;
  std::vector<LayerActivations> layers;
  float* output = nullptr;    // (L, C), the residual stream after the last layer
  float* gradient = nullptr;  // (L, C): of the output, and after backward of the input
  // Of the model's last stage only.
  NormActivations final_norm;
  LogitBuffers logits;

 private:
  kernels::Memory memory_;
};

/// Bytes that a StageActivations allocates: those of one micro-batch in work.
std::int64_t activation_bytes(const DecoderShape& shape, const reshard::StageLayers& stage);

/// Room that all stages of a rank share: nothing in it but the slopes outlives a forward or backward pass.
class Workspace {
 public:
  explicit Workspace(const DecoderShape& shape, bool spread);

  GatherBuffers gathered;
  kernels::Elements branch;       // (L, C), the gradient of a residual branch
  float* d_norm = nullptr;        // (L, C), of a norm's output
  kernels::Elements d_wide;       // (rows, max(W, A + 2 K)), inside MLP or attention
  kernels::Elements d_mlp;        // (rows, F)
  kernels::Elements d_attention;  // (rows, A)
  LayerActivations recomputed;    // what no layer keeps
  float* slopes = nullptr;        // (local heads), with ALiBi only

 private:
  kernels::Memory memory_;
};

/// Bytes that a Workspace allocates.
std::int64_t workspace_bytes(const DecoderShape& shape, bool spread);

}  // namespace shardwright::trainer
