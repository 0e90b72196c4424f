// What a forward pass keeps for its backward pass: one block of device memory, made once for the largest
// micro-batch and used again by each (micro-batches run forward and backward one after the other).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.h"

namespace shardwright::trainer {

/// Sizes as this rank holds them: rows = batch * positions; C channels of the residual stream; A = local
/// heads * head size; F local columns of the MLP; V local rows of the vocabulary.
struct ActivationShape {
  std::int64_t layers = 0;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  std::int64_t local_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t local_ffn = 0;
  std::int64_t local_vocab = 0;
};

/// A layer norm's output and the statistics its backward needs.
struct NormActivations {
  float* out = nullptr;   // (rows, C)
  float* mean = nullptr;  // (rows)
  float* rstd = nullptr;  // (rows)
};

struct LayerActivations {
  float* input = nullptr;  // (rows, C), the residual stream before the layer
  NormActivations input_norm;
  float* qkv = nullptr;        // (rows, 3 A)
  float* attention = nullptr;  // (rows, A)
  float* lse = nullptr;        // (batch, local heads, positions)
  float* middle = nullptr;     // (rows, C), the residual stream between attention and MLP
  NormActivations post_norm;
  float* up = nullptr;    // (rows, F), before the GELU
  float* gelu = nullptr;  // (rows, F)
};

/// Pointers are 64-byte aligned, into memory that lives as long as this object.
class Activations {
 public:
  explicit Activations(const ActivationShape& shape);

  std::vector<LayerActivations> layers;
  float* output = nullptr;  // (rows, C), the residual stream after the last layer
  NormActivations final_norm;
  float* logits = nullptr;   // (rows, V)
  float* row_max = nullptr;  // (rows)
  float* sums = nullptr;     // (2, rows)

  // Backward only.
  float* d_residual = nullptr;   // (rows, C), the gradient of the residual stream
  float* d_norm = nullptr;       // (rows, C), of a norm's output
  float* d_wide = nullptr;       // (rows, max(F, 3 A)), inside MLP or attention
  float* d_attention = nullptr;  // (rows, A)

 private:
  kernels::Memory memory_;
};

}  // namespace shardwright::trainer
