// One layer of a decoder, forward and backward by hand, in all families: GPT-2 (LayerNorm, GELU, biases),
// BLOOM (the same with ALiBi) and Llama (RMSNorm, rotary positions, grouped-query attention, SwiGLU).
// Column-parallel qkv and first MLP product, row-parallel o and down.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "trainer/activations.h"
#include "trainer/parallel_linear.h"
#include "trainer/parameters.h"
#include "trainer/tensor_group.h"

namespace shardwright::trainer {

/// A norm's weight and bias (null: RMS norm) with their gradients. Not owned.
struct Norm {
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* weight_grad = nullptr;
  float* bias_grad = nullptr;
};

/// Where in a layer elements are dropped; each has masks of its own.
enum class DropoutSite : std::uint8_t { embedding, attention, attention_output, mlp_output };
/// The counter that keeps the masks of a place apart from all other draws (kernels::Dropout). `layer` counts
/// in the whole model; 0 for the embedding.
std::uint64_t dropout_purpose(std::int64_t layer, DropoutSite site);

/// What the layers of a rank compute with, and the micro-batch they compute on.
struct DecoderContext {
  kernels::Stream& stream;
  TensorGroup& group;
  Workspace& work;
  const DecoderShape& shape;
  float dropout = 0;       // 0 while evaluating
  std::uint64_t seed = 0;  // of dropout masks
  std::int64_t batch = 0;
  std::int64_t positions = 0;
  /// Number in the run of the micro-batch's first sequence: masks are a function of it and of the place in
  /// the sequence.
  std::uint64_t first_sequence = 0;
};

Norm make_norm(Parameters& parameters, reshard::Role weight, reshard::Role bias, std::int64_t layer);
void norm_forward(const DecoderContext& c, const Norm& norm, const float* x, const NormActivations& kept);
/// dx(L, C) += what flows through the norm from `d_norm` of the workspace.
void norm_backward(const DecoderContext& c, const Norm& norm, const float* x, const NormActivations& kept,
                   float* dx);

/// y(L, C) = x with dropped elements; y may be x. Its own backward.
void drop(const DecoderContext& c, std::int64_t layer, DropoutSite site, const float* x, kernels::Elements y);

class DecoderLayer {
 public:
  /// `layer` counts in the whole model. The parameters outlive this object.
  DecoderLayer(Parameters& parameters, std::int64_t layer);

  /// out(L, C) = middle + MLP(norm(middle)), middle = input + attention(norm(input)).
  void forward(const DecoderContext& c, const LayerActivations& kept, float* out) const;
  /// Computes again what `kept` does not keep (Recompute), which with tensor parallelism takes collectives.
  /// d_residual(L, C) holds the gradient of the layer's output, and then of its input: each branch adds its
  /// part. Gradients of the parameters +=.
  void backward(const DecoderContext& c, const LayerActivations& kept, float* d_residual) const;

 private:
  // The parts of forward().
  void qkv_forward(const DecoderContext& c, const LayerActivations& kept) const;
  void attention_forward(const DecoderContext& c, const LayerActivations& kept) const;
  void middle_forward(const DecoderContext& c, const LayerActivations& kept) const;
  void wide_forward(const DecoderContext& c, const LayerActivations& kept) const;
  void mlp_forward(const DecoderContext& c, const LayerActivations& kept) const;
  /// What is not kept, as forward() made it.
  void recompute(const DecoderContext& c, const LayerActivations& kept) const;
  /// y = residual + dropout(branch), the branch having been computed in y.
  void add_branch(const DecoderContext& c, DropoutSite site, const float* residual, float* y) const;
  void attention_backward(const DecoderContext& c, const LayerActivations& kept) const;

  std::int64_t layer_;
  bool rotary_;
  bool gated_;
  Norm input_norm_;
  Linear qkv_;  // (A + 2 K, C)
  Linear o_;    // (C, A)
  Norm post_norm_;
  Linear wide_;  // (W, C): up, or gate and up
  Linear down_;  // (C, F)
};

}  // namespace shardwright::trainer
