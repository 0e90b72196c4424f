// The GPT-2 decoder. Letters: rows = batch * positions, C channels, A = local heads * head size, F local
// columns of the MLP.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "ckpt/error.h"
#include "trainer/activations.h"
#include "trainer/model.h"
#include "trainer/parallel_linear.h"
#include "trainer/vocabulary.h"

namespace shardwright::trainer {
namespace {

using kernels::Stream;
using reshard::Role;

constexpr float kNormEpsilon = 1e-5F;

struct Norm {
  const float* weight;
  const float* bias;
  float* weight_grad;
  float* bias_grad;
};

struct Layer {
  Norm input_norm;
  Linear qkv;  // (3 A, C)
  Linear o;    // (C, A)
  Norm post_norm;
  Linear up;    // (F, C)
  Linear down;  // (C, F)
};

class Gpt2 final : public Model {
 public:
  Gpt2(Parameters& parameters, Communicator& tp, Stream& stream, std::int64_t max_batch,
       std::int64_t max_positions)
      : parameters_(parameters),
        tp_(tp),
        stream_(stream),
        channels_(parameters.model().config.hidden),
        head_size_(channels_ / parameters.model().config.heads),
        layers_(make_layers()),
        embedding_(vocabulary_slice(at(Role::embed_tokens))),
        positions_table_(at(Role::embed_positions)),
        final_norm_(norm(Role::final_norm, Role::final_norm_bias, -1)),
        head_(parameters.find(Role::lm_head) ? vocabulary_slice(at(Role::lm_head)) : embedding_),
        local_heads_(layers_.front().o.in / head_size_),
        max_rows_(max_batch * max_positions),
        kept_({parameters.model().config.layers, max_rows_, channels_, local_heads_, head_size_,
               layers_.front().up.out, head_.held}) {
    assert(max_positions <= parameters.model().config.seq_len);
    assert(local_heads_ * head_size_ == layers_.front().o.in);
  }

  double forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                 std::int64_t batch, std::int64_t positions) override {
    batch_ = batch;
    positions_ = positions;
    rows_ = batch * positions;
    assert(rows_ > 0 && rows_ <= max_rows_ && std::ssize(tokens) == rows_ && std::ssize(targets) == rows_);
    assert(
        std::ranges::all_of(tokens, [&](auto t) { return t >= 0 && t < parameters_.model().config.vocab; }));
    assert(std::ranges::all_of(targets, [&](auto t) { return t < parameters_.model().config.vocab; }));
    tokens_.assign(tokens.begin(), tokens.end());
    targets_.assign(targets.begin(), targets.end());

    float* x = kept_.layers.front().input;
    embed(stream_, tp_, embedding_, tokens_.data(), x, rows_);
    kernels::position_forward(stream_, positions_table_.value, x, 0, rows_, positions, channels_);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      float* out = i + 1 < layers_.size() ? kept_.layers[i + 1].input : kept_.output;
      layer_forward(layers_[i], kept_.layers[i], out);
    }
    norm_forward(final_norm_, kept_.output, kept_.final_norm);
    return cross_entropy_forward(stream_, tp_, head_, kept_.final_norm.out, targets_.data(), logit_buffers(),
                                 rows_);
  }

  void backward(float scale) override {
    assert(rows_ > 0);
    float* dx = kept_.d_residual;
    cross_entropy_backward(stream_, tp_, head_, kept_.final_norm.out, targets_.data(), logit_buffers(), scale,
                           kept_.d_norm, rows_);
    kernels::zero(stream_, dx, rows_ * channels_);
    norm_backward(final_norm_, kept_.output, kept_.final_norm);
    for (std::size_t i = layers_.size(); i-- > 0;) layer_backward(layers_[i], kept_.layers[i]);
    kernels::position_backward(stream_, dx, positions_table_.grad, 0, rows_, positions_, channels_);
    kernels::embedding_backward(stream_, tokens_.data(), dx, embedding_.grad, rows_, channels_,
                                embedding_.first, embedding_.held);
    rows_ = 0;  // the logits are used up
  }

 private:
  Parameter& at(Role role, std::int64_t layer = -1) {
    Parameter* found = parameters_.find(role, layer);
    assert(found != nullptr);
    return *found;
  }

  Norm norm(Role weight, Role bias, std::int64_t layer) {
    const Parameter& w = at(weight, layer);
    const Parameter& b = at(bias, layer);
    return {w.value, b.value, w.grad, b.grad};
  }

  std::vector<Layer> make_layers() {
    std::vector<Layer> layers;
    for (std::int64_t n = 0; n < parameters_.model().config.layers; ++n) {
      layers.push_back({norm(Role::input_norm, Role::input_norm_bias, n),
                        fuse({&at(Role::q, n), &at(Role::k, n), &at(Role::v, n)},
                             {&at(Role::q_bias, n), &at(Role::k_bias, n), &at(Role::v_bias, n)}),
                        fuse({&at(Role::o, n)}, {&at(Role::o_bias, n)}),
                        norm(Role::post_norm, Role::post_norm_bias, n),
                        fuse({&at(Role::up, n)}, {&at(Role::up_bias, n)}),
                        fuse({&at(Role::down, n)}, {&at(Role::down_bias, n)})});
    }
    return layers;
  }

  LogitBuffers logit_buffers() const { return {kept_.logits, kept_.row_max, kept_.sums}; }
  float softmax_scale() const { return 1.0F / std::sqrt(static_cast<float>(head_size_)); }

  void norm_forward(const Norm& n, const float* x, const NormActivations& kept) {
    kernels::layernorm_forward(stream_, x, n.weight, n.bias, kept.out, kept.mean, kept.rstd, rows_, channels_,
                               kNormEpsilon);
  }

  /// d_residual += what flows through the norm from d_norm.
  void norm_backward(const Norm& n, const float* x, const NormActivations& kept) {
    kernels::layernorm_backward(stream_, kept_.d_norm, x, n.weight, kept.mean, kept.rstd, kept_.d_residual,
                                n.weight_grad, n.bias_grad, rows_, channels_);
  }

  /// out(rows, C) = middle + MLP(norm(middle)), middle = input + attention(norm(input)).
  void layer_forward(const Layer& layer, const LayerActivations& kept, float* out) {
    const std::int64_t width = layer.o.in;  // A
    norm_forward(layer.input_norm, kept.input, kept.input_norm);
    column_parallel_forward(stream_, layer.qkv, kept.input_norm.out, kept.qkv, rows_);
    kernels::attention_forward(stream_, kept.qkv, kept.qkv + width, kept.qkv + 2 * width, 3 * width,
                               kept.attention, kept.lse, batch_, positions_, local_heads_, local_heads_,
                               head_size_, softmax_scale());
    row_parallel_forward(stream_, tp_, layer.o, kept.attention, kept.input, kept.middle, rows_);

    norm_forward(layer.post_norm, kept.middle, kept.post_norm);
    column_parallel_forward(stream_, layer.up, kept.post_norm.out, kept.up, rows_);
    kernels::gelu_forward(stream_, kept.up, kept.gelu, rows_ * layer.up.out);
    row_parallel_forward(stream_, tp_, layer.down, kept.gelu, kept.middle, out, rows_);
  }

  /// d_residual holds the gradient of the layer's output, and then of its input: each branch adds its part.
  void layer_backward(const Layer& layer, const LayerActivations& kept) {
    const std::int64_t width = layer.o.in;
    row_parallel_backward(stream_, layer.down, kept_.d_residual, kept.gelu, kept_.d_wide, rows_);
    kernels::gelu_backward(stream_, kept_.d_wide, kept.up, kept_.d_wide, rows_ * layer.up.out);
    column_parallel_backward(stream_, tp_, layer.up, kept_.d_wide, kept.post_norm.out, kept_.d_norm, rows_);
    norm_backward(layer.post_norm, kept.middle, kept.post_norm);

    row_parallel_backward(stream_, layer.o, kept_.d_residual, kept.attention, kept_.d_attention, rows_);
    float* dqkv = kept_.d_wide;  // (rows, 3 A), as qkv
    kernels::attention_backward(stream_, kept_.d_attention, kept.qkv, kept.qkv + width, kept.qkv + 2 * width,
                                3 * width, kept.attention, kept.lse, dqkv, dqkv + width, dqkv + 2 * width,
                                3 * width, batch_, positions_, local_heads_, local_heads_, head_size_,
                                softmax_scale());
    column_parallel_backward(stream_, tp_, layer.qkv, dqkv, kept.input_norm.out, kept_.d_norm, rows_);
    norm_backward(layer.input_norm, kept.input, kept.input_norm);
  }

  Parameters& parameters_;
  Communicator& tp_;
  Stream& stream_;
  std::int64_t channels_;
  std::int64_t head_size_;
  std::vector<Layer> layers_;
  VocabularySlice embedding_;
  Parameter& positions_table_;
  Norm final_norm_;
  VocabularySlice head_;  // the embedding's own slice where they are tied: both add to one gradient
  std::int64_t local_heads_;
  std::int64_t max_rows_;
  Activations kept_;

  // The micro-batch that `kept_` belongs to; rows_ is 0 when there is none.
  std::int64_t batch_ = 0;
  std::int64_t positions_ = 0;
  std::int64_t rows_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
};

}  // namespace

std::unique_ptr<Model> make_gpt2(Parameters& parameters, Communicator& tp, kernels::Stream& stream,
                                 std::int64_t max_batch, std::int64_t max_positions) {
  return std::make_unique<Gpt2>(parameters, tp, stream, max_batch, max_positions);
}

double flops_per_token(const reshard::ModelSpec& model, std::int64_t positions) {
  // A product with a weight takes 2 operations per element forward, and twice that backward.
  double weights = 0;
  for (const reshard::TensorSpec& tensor : model.tensors) {
    const bool lookup = tensor.role == Role::embed_positions ||
                        (tensor.role == Role::embed_tokens && !model.config.tie_embeddings);
    if (tensor.shape.size() == 2 && !lookup)
      weights += static_cast<double>(ckpt::element_count(tensor.shape));
  }
  // Scores and their product with the values: (positions + 1) / 2 keys a token on average, for each channel
  // of the heads.
  const double keys = static_cast<double>(positions + 1) / 2;
  const double attention = 2 * keys * static_cast<double>(model.config.hidden * model.config.layers);
  return 3 * 2 * (weights + attention);
}

}  // namespace shardwright::trainer
