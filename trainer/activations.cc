#include "trainer/activations.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace shardwright::trainer {
namespace {

using reshard::Role;

// Hands out pieces of one block: first all are asked for, then placed.
class Block {
 public:
  void take(float*& pointer, std::int64_t count) {
    constexpr std::int64_t kAlignment = 16;  // floats
    places_.emplace_back(&pointer, total_);
    total_ += (count + kAlignment - 1) / kAlignment * kAlignment;
  }
  kernels::Memory make() const {
    kernels::Memory memory(kernels::DeviceKind::cpu, static_cast<std::size_t>(total_) * sizeof(float));
    for (const auto& [pointer, offset] : places_) *pointer = memory.floats() + offset;
    return memory;
  }

 private:
  std::vector<std::pair<float**, std::int64_t>> places_;
  std::int64_t total_ = 0;
};

std::int64_t rows_held(const Parameter* p, std::size_t dimension) {
  return p == nullptr ? 0 : static_cast<std::int64_t>(p->placed.holds.shape[dimension]);
}

}  // namespace

DecoderShape decoder_shape(Parameters& parameters, const TensorGroup& group, std::int64_t max_rows) {
  const reshard::ModelConfig& config = parameters.model().config;
  // Every stage has a layer, and all layers are cut alike.
  const auto of = [&](Role role) {
    for (Parameter& p : parameters.all())
      if (p.spec->role == role) return &p;
    assert(false);
    return static_cast<Parameter*>(nullptr);
  };
  DecoderShape shape;
  shape.channels = config.hidden;
  shape.head_size = config.hidden / config.heads;
  shape.heads = rows_held(of(Role::q), 0) / shape.head_size;
  shape.first_head = static_cast<std::int64_t>(of(Role::q)->placed.holds.offset[0]) / shape.head_size;
  shape.kv_heads = rows_held(of(Role::k), 0) / shape.head_size;
  shape.ffn = rows_held(of(Role::down), 1);
  const bool gated = config.arch == "llama";
  shape.mlp_width = gated ? 2 * shape.ffn : shape.ffn;
  const Parameter* head = parameters.find(config.tie_embeddings ? Role::embed_tokens : Role::lm_head);
  shape.vocab = rows_held(head, 0);
  shape.max_rows = max_rows;
  shape.max_local_rows = group.most_local_rows(max_rows);
  return shape;
}

StageActivations::StageActivations(const DecoderShape& shape, const reshard::StageLayers& stage)
    : layers(static_cast<std::size_t>(stage.layers)) {
  Block block;
  const std::int64_t rows = shape.max_rows;
  const std::int64_t local = shape.max_local_rows;
  const std::int64_t stream = local * shape.channels;
  const auto take_norm = [&](NormActivations& norm) {
    block.take(norm.out, stream);
    block.take(norm.mean, local);
    block.take(norm.rstd, local);
  };
  for (LayerActivations& layer : layers) {
    block.take(layer.input, stream);
    take_norm(layer.input_norm);
    block.take(layer.qkv, rows * shape.qkv_width());
    block.take(layer.attention, rows * shape.attention_width());
    block.take(layer.lse, rows * shape.heads);
    block.take(layer.middle, stream);
    take_norm(layer.post_norm);
    block.take(layer.wide, rows * shape.mlp_width);
    block.take(layer.mlp, rows * shape.ffn);
  }
  block.take(output, stream);
  block.take(gradient, stream);
  if (stage.last) {
    take_norm(final_norm);
    block.take(logits.logits, rows * shape.vocab);
    block.take(logits.row_max, rows);
    block.take(logits.sums, 2 * rows);
  }
  memory_ = block.make();
}

Workspace::Workspace(const DecoderShape& shape, bool spread) {
  Block block;
  const std::int64_t rows = shape.max_rows;
  const std::int64_t stream = shape.max_local_rows * shape.channels;
  if (spread) {
    block.take(gathered.input, rows * shape.channels);
    block.take(gathered.output, rows * shape.channels);
  }
  block.take(branch, stream);
  block.take(d_norm, stream);
  block.take(d_wide, rows * std::max(shape.mlp_width, shape.qkv_width()));
  block.take(d_mlp, rows * shape.ffn);
  block.take(d_attention, rows * shape.attention_width());
  memory_ = block.make();
}

}  // namespace shardwright::trainer
