// A decoder over this rank's parameters: forward to the sum of the tokens' losses, backward into the gradient buffers.
// Gradients of tensors that TP ranks hold alike come out equal on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/ops.h"
#include "trainer/communicator.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

class Model {
 public:
  virtual ~Model() = default;
  /// tokens and targets (batch, positions), targets < 0 have no loss. Keeps what backward needs. Returns the sum of losses over this
  /// micro-batch, equal on all ranks of the model's copy. batch may be any up to the one it was made for; positions likewise.
  virtual double forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, std::int64_t batch,
                         std::int64_t positions) = 0;
  /// Adds scale * gradient of the last forward's loss sum to the parameters' gradients.
  virtual void backward(float scale) = 0;
};

/// GPT-2: learned positions, LayerNorm before attention and MLP (eps 1e-5), GELU, biases, tied head. Column-parallel qkv and up,
/// row-parallel o and down (Shoeybi et al. 2019), embedding and cross entropy over vocabulary slices.
std::unique_ptr<Model> make_gpt2(Parameters& parameters, Communicator& tp, kernels::Stream& stream, std::int64_t max_batch,
                                 std::int64_t max_positions);

/// Floating-point operations of one forward and backward of a token (matrix products only, attention causal), for rates.
double flops_per_token(const reshard::ModelSpec& model, std::int64_t positions);

}  // namespace shardwright::trainer
