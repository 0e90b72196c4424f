#include "trainer/decoder_layer.h"

#include <cmath>
#include <initializer_list>
#include <optional>
#include <vector>

namespace shardwright::trainer {
namespace {

using reshard::Role;

constexpr float kNormEpsilon = 1e-5F;
constexpr float kRopeTheta = 10000.0F;

// High half of the Philox counter ("drop"): keeps these draws apart from those of weights and sample order.
constexpr std::uint64_t kDropoutPurpose = 0x64726f70'00000000;
constexpr std::uint64_t kSites = 4;

// The parameters of these roles in a layer; those that the model does not have are left out.
std::vector<const Parameter*> found(Parameters& parameters, std::initializer_list<Role> roles,
                                    std::int64_t layer) {
  std::vector<const Parameter*> list;
  for (const Role role : roles)
    if (const Parameter* p = parameters.find(role, layer)) list.push_back(p);
  return list;
}

Linear linear(Parameters& parameters, std::initializer_list<Role> weights, std::initializer_list<Role> biases,
              std::int64_t layer) {
  return fuse(found(parameters, weights, layer), found(parameters, biases, layer));
}

float softmax_scale(const DecoderContext& c) {
  return 1.0F / std::sqrt(static_cast<float>(c.shape.head_size));
}

kernels::Dropout mask(const DecoderContext& c, std::int64_t layer, DropoutSite site) {
  return {c.dropout, c.seed, dropout_purpose(layer, site)};
}

std::optional<kernels::AttentionDropout> attention_dropout(const DecoderContext& c, std::int64_t layer) {
  if (c.dropout == 0) return std::nullopt;
  return kernels::AttentionDropout{mask(c, layer, DropoutSite::attention), c.first_sequence,
                                   c.shape.all_heads, c.shape.first_head};
}

// q and k of each row turned by its position, or back.
void rotate(const DecoderContext& c, kernels::Elements qkv, bool inverse) {
  const std::int64_t stride = c.shape.qkv_width();
  kernels::rope(c.stream, qkv, stride, c.group.rows(), c.positions, c.shape.heads, c.shape.head_size,
                kRopeTheta, inverse);
  kernels::rope(c.stream, qkv + c.shape.attention_width(), stride, c.group.rows(), c.positions,
                c.shape.kv_heads, c.shape.head_size, kRopeTheta, inverse);
}

}  // namespace

std::uint64_t dropout_purpose(std::int64_t layer, DropoutSite site) {
  return kDropoutPurpose + static_cast<std::uint64_t>(layer) * kSites + static_cast<std::uint64_t>(site);
}

Norm make_norm(Parameters& parameters, Role weight, Role bias, std::int64_t layer) {
  const Parameter* w = parameters.find(weight, layer);
  const Parameter* b = parameters.find(bias, layer);
  return {w->value.f32(), b == nullptr ? nullptr : b->value.f32(), w->grad, b == nullptr ? nullptr : b->grad};
}

void norm_forward(const DecoderContext& c, const Norm& norm, const float* x, const NormActivations& kept) {
  const std::int64_t rows = c.group.local_rows();
  if (norm.bias == nullptr) {
    kernels::rmsnorm_forward(c.stream, x, norm.weight, kept.out, kept.rstd, rows, c.shape.channels,
                             kNormEpsilon);
  } else {
    kernels::layernorm_forward(c.stream, x, norm.weight, norm.bias, kept.out, kept.mean, kept.rstd, rows,
                               c.shape.channels, kNormEpsilon);
  }
}

void norm_backward(const DecoderContext& c, const Norm& norm, const float* x, const NormActivations& kept,
                   float* dx) {
  const std::int64_t rows = c.group.local_rows();
  if (norm.bias == nullptr) {
    kernels::rmsnorm_backward(c.stream, c.work.d_norm, x, norm.weight, kept.rstd, dx, norm.weight_grad, rows,
                              c.shape.channels);
  } else {
    kernels::layernorm_backward(c.stream, c.work.d_norm, x, norm.weight, kept.mean, kept.rstd, dx,
                                norm.weight_grad, norm.bias_grad, rows, c.shape.channels);
  }
}

void drop(const DecoderContext& c, std::int64_t layer, DropoutSite site, const float* x,
          kernels::Elements y) {
  const std::int64_t channels = c.shape.channels;
  const std::uint64_t first_row = c.first_sequence * static_cast<std::uint64_t>(c.positions) +
                                  static_cast<std::uint64_t>(c.group.first_row());
  kernels::dropout(c.stream, mask(c, layer, site), x, y, c.group.local_rows() * channels,
                   first_row * static_cast<std::uint64_t>(channels));
}

DecoderLayer::DecoderLayer(Parameters& parameters, std::int64_t layer)
    : layer_(layer),
      rotary_(parameters.model().config.arch == "llama"),
      gated_(rotary_),
      input_norm_(make_norm(parameters, Role::input_norm, Role::input_norm_bias, layer)),
      qkv_(
          linear(parameters, {Role::q, Role::k, Role::v}, {Role::q_bias, Role::k_bias, Role::v_bias}, layer)),
      o_(linear(parameters, {Role::o}, {Role::o_bias}, layer)),
      post_norm_(make_norm(parameters, Role::post_norm, Role::post_norm_bias, layer)),
      wide_(linear(parameters, {Role::gate, Role::up}, {Role::up_bias}, layer)),
      down_(linear(parameters, {Role::down}, {Role::down_bias}, layer)) {}

void DecoderLayer::attention_forward(const DecoderContext& c, const LayerActivations& kept) const {
  const DecoderShape& s = c.shape;
  const kernels::Elements k = kept.qkv + s.attention_width();
  const auto dropout = attention_dropout(c, layer_);
  kernels::attention_forward(c.stream, kept.qkv, k, k + s.kv_width(), s.qkv_width(), kept.attention, kept.lse,
                             c.batch, c.positions, s.heads, s.kv_heads, s.head_size, softmax_scale(c),
                             dropout ? &*dropout : nullptr, c.work.slopes);
}

void DecoderLayer::attention_backward(const DecoderContext& c, const LayerActivations& kept) const {
  const DecoderShape& s = c.shape;
  const kernels::Elements k = kept.qkv + s.attention_width();
  const kernels::Elements dq = c.work.d_wide;  // (rows, A + 2 K), as qkv
  const kernels::Elements dk = dq + s.attention_width();
  const auto dropout = attention_dropout(c, layer_);
  kernels::attention_backward(c.stream, c.work.d_attention, kept.qkv, k, k + s.kv_width(), s.qkv_width(),
                              kept.attention, kept.lse, dq, dk, dk + s.kv_width(), s.qkv_width(), c.batch,
                              c.positions, s.heads, s.kv_heads, s.head_size, softmax_scale(c),
                              dropout ? &*dropout : nullptr, c.work.slopes);
}

void DecoderLayer::add_branch(const DecoderContext& c, DropoutSite site, const float* residual,
                              float* y) const {
  if (c.dropout > 0) drop(c, layer_, site, y, y);
  kernels::add(c.stream, residual, y, c.group.local_rows() * c.shape.channels);
}

void DecoderLayer::qkv_forward(const DecoderContext& c, const LayerActivations& kept) const {
  column_parallel_forward(c.stream, c.group, c.work.gathered, qkv_, kept.input_norm.out, kept.qkv);
  if (rotary_) rotate(c, kept.qkv, false);
}

void DecoderLayer::middle_forward(const DecoderContext& c, const LayerActivations& kept) const {
  row_parallel_forward(c.stream, c.group, c.work.gathered, o_, kept.attention, kept.middle);
  add_branch(c, DropoutSite::attention_output, kept.input, kept.middle);
}

void DecoderLayer::wide_forward(const DecoderContext& c, const LayerActivations& kept) const {
  column_parallel_forward(c.stream, c.group, c.work.gathered, wide_, kept.post_norm.out, kept.wide);
}

void DecoderLayer::mlp_forward(const DecoderContext& c, const LayerActivations& kept) const {
  if (gated_) {
    kernels::swiglu_forward(c.stream, kept.wide, kept.mlp, c.group.rows(), c.shape.ffn);
  } else {
    kernels::gelu_forward(c.stream, kept.wide, kept.mlp, c.group.rows() * c.shape.ffn);
  }
}

void DecoderLayer::forward(const DecoderContext& c, const LayerActivations& kept, float* out) const {
  norm_forward(c, input_norm_, kept.input, kept.input_norm);
  qkv_forward(c, kept);
  attention_forward(c, kept);
  middle_forward(c, kept);
  norm_forward(c, post_norm_, kept.middle, kept.post_norm);
  wide_forward(c, kept);
  mlp_forward(c, kept);
  row_parallel_forward(c.stream, c.group, c.work.gathered, down_, kept.mlp, out);
  add_branch(c, DropoutSite::mlp_output, kept.middle, out);
}

void DecoderLayer::recompute(const DecoderContext& c, const LayerActivations& kept) const {
  const Recompute mode = c.shape.recompute;
  if (mode == Recompute::none) return;
  norm_forward(c, input_norm_, kept.input, kept.input_norm);
  if (mode == Recompute::full) qkv_forward(c, kept);
  attention_forward(c, kept);
  if (mode == Recompute::full) middle_forward(c, kept);
  norm_forward(c, post_norm_, kept.middle, kept.post_norm);
  if (mode == Recompute::full) wide_forward(c, kept);
  mlp_forward(c, kept);
}

void DecoderLayer::backward(const DecoderContext& c, const LayerActivations& kept, float* d_residual) const {
  // The gradient of a branch: the residual's own, or what dropout lets through, in the type of the run.
  const auto branch = [&](DropoutSite site) -> kernels::ConstElements {
    const kernels::Elements room = c.work.branch;
    if (c.dropout > 0) {
      drop(c, layer_, site, d_residual, room);
    } else if (room.type != kernels::ElementType::f32) {
      kernels::convert(c.stream, d_residual, room, c.group.local_rows() * c.shape.channels);
    } else {
      return d_residual;
    }
    return room;
  };
  recompute(c, kept);
  Workspace& work = c.work;
  row_parallel_backward(c.stream, c.group, work.gathered, down_, branch(DropoutSite::mlp_output), kept.mlp,
                        work.d_mlp);
  if (gated_) {
    kernels::swiglu_backward(c.stream, work.d_mlp, kept.wide, work.d_wide, c.group.rows(), c.shape.ffn);
  } else {
    kernels::gelu_backward(c.stream, work.d_mlp, kept.wide, work.d_wide, c.group.rows() * c.shape.ffn);
  }
  column_parallel_backward(c.stream, c.group, work.gathered, wide_, work.d_wide, kept.post_norm.out,
                           work.d_norm);
  norm_backward(c, post_norm_, kept.middle, kept.post_norm, d_residual);

  row_parallel_backward(c.stream, c.group, work.gathered, o_, branch(DropoutSite::attention_output),
                        kept.attention, work.d_attention);
  attention_backward(c, kept);
  if (rotary_) rotate(c, work.d_wide, true);
  column_parallel_backward(c.stream, c.group, work.gathered, qkv_, work.d_wide, kept.input_norm.out,
                           work.d_norm);
  norm_backward(c, input_norm_, kept.input, kept.input_norm, d_residual);
}

}  // namespace shardwright::trainer
