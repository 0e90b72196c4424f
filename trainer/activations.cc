#include "trainer/activations.h"

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "kernels/ops.h"
#include "reshard/placement.h"

namespace shardwright::trainer {
namespace {

using reshard::Role;

// Hands out pieces of one block: first all are asked for, then placed.
class Block {
 public:
  void take(float*& pointer, std::int64_t count) {
    floats_.emplace_back(&pointer, reserve(count, kernels::ElementType::f32));
  }
  void take(kernels::Elements& pointer, kernels::ElementType type, std::int64_t count) {
    pointer.type = type;
    elements_.emplace_back(&pointer, reserve(count, type));
  }
  std::int64_t bytes() const { return bytes_; }
  kernels::Memory make() const {
    kernels::Memory memory(kernels::DeviceKind::cpu, static_cast<std::size_t>(bytes_),
                           kernels::MemoryUse::activation);
    for (const auto& [pointer, offset] : floats_) *pointer = reinterpret_cast<float*>(memory.data() + offset);
    for (const auto& [pointer, offset] : elements_) pointer->data = memory.data() + offset;
    return memory;
  }

 private:
  std::int64_t reserve(std::int64_t count, kernels::ElementType type) {
    constexpr std::int64_t kAlignment = 64;
    const std::int64_t offset = bytes_;
    const std::int64_t size = count * static_cast<std::int64_t>(kernels::element_size(type));
    bytes_ += (size + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  }

  std::vector<std::pair<float**, std::int64_t>> floats_;
  std::vector<std::pair<kernels::Elements*, std::int64_t>> elements_;
  std::int64_t bytes_ = 0;
};

void take_statistics(Block& block, const DecoderShape& shape, NormActivations& norm) {
  block.take(norm.mean, shape.max_local_rows);
  block.take(norm.rstd, shape.max_local_rows);
}

void take_norm(Block& block, const DecoderShape& shape, NormActivations& norm) {
  block.take(norm.out, shape.type, shape.max_local_rows * shape.channels);
  take_statistics(block, shape, norm);
}

// What a layer keeps, or else what it does not and all layers share.
void take_layer(Block& block, const DecoderShape& shape, LayerActivations& layer, bool kept) {
  const std::int64_t rows = shape.max_rows;
  const std::int64_t stream = shape.max_local_rows * shape.channels;
  if (kept) block.take(layer.input, stream);
  if ((shape.recompute < Recompute::selective) == kept) {
    take_norm(block, shape, layer.input_norm);
    block.take(layer.attention, shape.type, rows * shape.attention_width());
    block.take(layer.lse, rows * shape.heads);
    take_norm(block, shape, layer.post_norm);
    block.take(layer.mlp, shape.type, rows * shape.ffn);
  }
  if ((shape.recompute < Recompute::full) == kept) {
    block.take(layer.qkv, shape.type, rows * shape.qkv_width());
    block.take(layer.middle, stream);
    block.take(layer.wide, shape.type, rows * shape.mlp_width);
  }
}

/// The pointers of a StageActivations.
struct StagePointers {
  float*& embedded;
  NormActivations& embed_norm;
  std::vector<LayerActivations>& layers;
  float*& output;
  float*& gradient;
  NormActivations& final_norm;
  LogitBuffers& logits;
};

Block lay_out(const DecoderShape& shape, const reshard::StageLayers& place, const StagePointers& stage) {
  Block block;
  if (place.first && shape.embed_norm) {
    block.take(stage.embedded, shape.max_local_rows * shape.channels);
    take_statistics(block, shape, stage.embed_norm);
  }
  for (LayerActivations& layer : stage.layers) take_layer(block, shape, layer, true);
  block.take(stage.output, shape.max_local_rows * shape.channels);
  block.take(stage.gradient, shape.max_local_rows * shape.channels);
  if (place.last) {
    take_norm(block, shape, stage.final_norm);
    block.take(stage.logits.logits, shape.max_rows * shape.vocab);
    block.take(stage.logits.row_max, shape.max_rows);
    block.take(stage.logits.sums, 2 * shape.max_rows);
  }
  return block;
}

/// The pointers of a Workspace.
struct WorkPointers {
  kernels::Elements& gathered_input;
  float*& gathered_output;
  kernels::Elements& branch;
  float*& d_norm;
  kernels::Elements& d_wide;
  kernels::Elements& d_mlp;
  kernels::Elements& d_attention;
  LayerActivations& recomputed;
  float*& slopes;
};

Block lay_out(const DecoderShape& shape, bool spread, const WorkPointers& work) {
  Block block;
  const std::int64_t rows = shape.max_rows;
  const std::int64_t stream = shape.max_local_rows * shape.channels;
  if (spread) {
    block.take(work.gathered_input, shape.type, rows * shape.channels);
    block.take(work.gathered_output, rows * shape.channels);
  }
  block.take(work.branch, shape.type, stream);
  block.take(work.d_norm, stream);
  block.take(work.d_wide, shape.type, rows * std::max(shape.mlp_width, shape.qkv_width()));
  block.take(work.d_mlp, shape.type, rows * shape.ffn);
  block.take(work.d_attention, shape.type, rows * shape.attention_width());
  take_layer(block, shape, work.recomputed, false);
  if (shape.alibi) block.take(work.slopes, shape.heads);
  return block;
}

}  // namespace

Recompute recompute_named(const std::string& name) {
  if (name == "none") return Recompute::none;
  if (name == "selective") return Recompute::selective;
  if (name == "full") return Recompute::full;
  throw Error(ErrorCode::usage, "recompute: \"" + name + "\" is no mode; give none, selective or full");
}

DecoderShape decoder_shape(const reshard::ModelSpec& model, const reshard::Layout& layout, int rank,
                           bool spread, std::int64_t max_rows, kernels::ElementType type,
                           Recompute recompute) {
  const reshard::ModelConfig& config = model.config;
  const std::vector<reshard::Placed> placed = reshard::placement(model, layout, rank);
  // Every stage has a layer, and all layers are cut alike. What is not held has no rows.
  const auto box = [&](Role role) {
    for (const reshard::Placed& p : placed)
      if (model.tensors[p.tensor].role == role) return p.holds;
    return ckpt::Box{{0, 0}, {0, 0}};
  };
  const auto size = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
  const ckpt::Box q = box(Role::q);
  DecoderShape shape;
  shape.channels = config.hidden;
  shape.head_size = config.hidden / config.heads;
  shape.heads = size(q.shape[0]) / shape.head_size;
  shape.all_heads = config.heads;
  shape.first_head = size(q.offset[0]) / shape.head_size;
  shape.kv_heads = size(box(Role::k).shape[0]) / shape.head_size;
  shape.ffn = size(box(Role::down).shape[1]);
  const bool gated = config.arch == "llama";
  shape.mlp_width = gated ? 2 * shape.ffn : shape.ffn;
  shape.alibi = shape.embed_norm = config.arch == "bloom";
  shape.vocab = size(box(config.tie_embeddings ? Role::embed_tokens : Role::lm_head).shape[0]);
  shape.max_rows = max_rows;
  const int ranks = spread ? reshard::axis_size(layout, reshard::Axis::tp) : 1;
  shape.max_local_rows = TensorGroup::most_local_rows(max_rows, ranks);
  shape.type = type;
  shape.recompute = recompute;
  return shape;
}

DecoderShape decoder_shape(const Parameters& parameters, const TensorGroup& group, std::int64_t max_rows,
                           Recompute recompute) {
  const auto matrix =
      std::ranges::find_if(parameters.all(), [](const Parameter& p) { return p.spec->role == Role::q; });
  return decoder_shape(parameters.model(), parameters.layout(), parameters.rank(), group.spread(), max_rows,
                       matrix->value.type, recompute);
}

StageActivations::StageActivations(const DecoderShape& shape, const reshard::StageLayers& stage,
                                   const LayerActivations& shared)
    : layers(static_cast<std::size_t>(stage.layers), shared) {
  memory_ =
      lay_out(shape, stage, StagePointers{embedded, embed_norm, layers, output, gradient, final_norm, logits})
          .make();
  if (embedded != nullptr) embed_norm.out = layers.front().input;
}

std::int64_t activation_bytes(const DecoderShape& shape, const reshard::StageLayers& stage) {
  std::vector<LayerActivations> layers(static_cast<std::size_t>(stage.layers));
  float *embedded = nullptr, *output = nullptr, *gradient = nullptr;
  NormActivations embed_norm, final_norm;
  LogitBuffers logits;
  return lay_out(shape, stage,
                 StagePointers{embedded, embed_norm, layers, output, gradient, final_norm, logits})
      .bytes();
}

Workspace::Workspace(const DecoderShape& shape, bool spread) {
  kernels::Elements input;
  memory_ = lay_out(shape, spread,
                    WorkPointers{input, gathered.output, branch, d_norm, d_wide, d_mlp, d_attention,
                                 recomputed, slopes})
                .make();
  gathered.input = input.data;
  if (!shape.alibi) return;
  kernels::Stream stream(kernels::DeviceKind::cpu);
  kernels::alibi_slopes(stream, slopes, shape.first_head, shape.heads, shape.all_heads);
}

std::int64_t workspace_bytes(const DecoderShape& shape, bool spread) {
  kernels::Elements input, branch, d_wide, d_mlp, d_attention;
  float *output = nullptr, *d_norm = nullptr, *slopes = nullptr;
  LayerActivations recomputed;
  return lay_out(shape, spread,
                 WorkPointers{input, output, branch, d_norm, d_wide, d_mlp, d_attention, recomputed, slopes})
      .bytes();
}

}  // namespace shardwright::trainer
