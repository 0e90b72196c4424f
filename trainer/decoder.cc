#include "trainer/decoder.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace shardwright::trainer {

using reshard::Role;

DecoderStage::DecoderStage(const DecoderParts& parts, const reshard::StageLayers& stage, std::int64_t buffers)
    : parts_(parts), stage_(stage) {
  Parameters& parameters = parts_.parameters;
  if (stage_.first) units_.push_back(parameters.find(Role::embed_tokens)->unit);
  for (std::int64_t i = 0; i < stage_.layers; ++i) {
    layers_.emplace_back(parameters, stage_.first_layer + i);
    units_.push_back(parameters.find(Role::q, stage_.first_layer + i)->unit);
  }
  if (stage_.last) units_.push_back(parameters.find(Role::final_norm)->unit);
  one_end_ = stage_.first && stage_.last && units_.front() == units_.back();
  if (stage_.first) {
    embedding_ = vocabulary_slice(*parameters.find(Role::embed_tokens));
    positions_table_ = parameters.find(Role::embed_positions);
    if (parts_.shape.embed_norm)
      embed_norm_ = make_norm(parameters, Role::embed_norm, Role::embed_norm_bias, -1);
  }
  if (stage_.last) {
    const bool tied = parameters.model().config.tie_embeddings;
    final_norm_ = make_norm(parameters, Role::final_norm, Role::final_norm_bias, -1);
    head_ = vocabulary_slice(*parameters.find(tied ? Role::embed_tokens : Role::lm_head));
  }
  for (std::int64_t i = 0; i < buffers; ++i)
    buffers_.push_back({{}, StageActivations(parts_.shape, stage_, parts_.work.recomputed), false});
}

void DecoderStage::begin(std::int64_t buffer, MicroBatch micro_batch) {
  [[maybe_unused]] const std::int64_t rows = micro_batch.batch * micro_batch.positions;
  [[maybe_unused]] const auto in_vocabulary = [&](std::int32_t token) {
    return token < parts_.parameters.model().config.vocab;
  };
  assert(rows > 0 && rows <= parts_.shape.max_rows);
  assert(!stage_.first || (std::ssize(micro_batch.tokens) == rows &&
                           std::ranges::all_of(micro_batch.tokens, [](auto t) { return t >= 0; }) &&
                           std::ranges::all_of(micro_batch.tokens, in_vocabulary)));
  assert(!stage_.last || (std::ssize(micro_batch.targets) == rows &&
                          std::ranges::all_of(micro_batch.targets, in_vocabulary)));
  buffers_[static_cast<std::size_t>(buffer)].micro_batch = std::move(micro_batch);
}

DecoderContext DecoderStage::context(const Buffer& b) {
  const reshard::ModelConfig& config = parts_.parameters.model().config;
  const MicroBatch& m = b.micro_batch;
  parts_.group.set_rows(m.batch * m.positions);
  return {parts_.stream,
          parts_.group,
          parts_.work,
          parts_.shape,
          b.training ? static_cast<float>(config.dropout) : 0.0F,
          parts_.seed,
          m.batch,
          m.positions,
          m.first_sequence};
}

std::span<float> DecoderStage::boundary(float* values, const Buffer& b) {
  parts_.group.set_rows(b.micro_batch.batch * b.micro_batch.positions);
  return {values, static_cast<std::size_t>(parts_.group.local_rows() * parts_.shape.channels)};
}

std::span<float> DecoderStage::input(std::int64_t buffer) {
  Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
  return boundary(b.kept.layers.front().input, b);
}

std::span<const float> DecoderStage::input_gradient(std::int64_t buffer) { return output_gradient(buffer); }

std::span<const float> DecoderStage::output(std::int64_t buffer) {
  Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
  return boundary(b.kept.output, b);
}

std::span<float> DecoderStage::output_gradient(std::int64_t buffer) {
  Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
  return boundary(b.kept.gradient, b);
}

void DecoderStage::embed_tokens(const DecoderContext& c, const Buffer& b) {
  float* x = b.kept.layers.front().input;
  embed(c.stream, c.group, c.work.gathered, embedding_, b.micro_batch.tokens.data(),
        embed_norm_ ? b.kept.embedded : x);
  if (positions_table_ != nullptr)
    kernels::position_forward(c.stream, positions_table_->value, x, c.group.first_row(), c.group.local_rows(),
                              c.positions, c.shape.channels);
  if (embed_norm_) norm_forward(c, *embed_norm_, b.kept.embedded, b.kept.embed_norm);
  if (c.dropout > 0) drop(c, 0, DropoutSite::embedding, x, x);
}

void DecoderStage::embed_tokens_backward(const DecoderContext& c, const Buffer& b) {
  float* dx = b.kept.gradient;
  if (c.dropout > 0) drop(c, 0, DropoutSite::embedding, dx, dx);
  if (embed_norm_) {
    // No residual branch goes past this norm: only what flows through it remains.
    const std::int64_t count = c.group.local_rows() * c.shape.channels;
    kernels::copy(c.stream, dx, c.work.d_norm, count);
    kernels::zero(c.stream, dx, count);
    norm_backward(c, *embed_norm_, b.kept.embedded, b.kept.embed_norm, dx);
  }
  if (positions_table_ != nullptr)
    kernels::position_backward(c.stream, dx, positions_table_->grad, c.group.first_row(),
                               c.group.local_rows(), c.positions, c.shape.channels);
  embed_backward(c.stream, c.group, c.work.gathered, embedding_, b.micro_batch.tokens.data(), dx);
}

double DecoderStage::forward(std::int64_t buffer, bool training) {
  Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
  b.training = training;
  const DecoderContext c = context(b);
  std::size_t unit = 0;
  const auto need_next = [&] {
    const std::size_t here = units_[unit++];
    parts_.data.need_values(here, unit < units_.size() ? units_[unit] : DataParallel::kNoUnit);
  };
  if (stage_.first) {
    need_next();
    embed_tokens(c, b);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    need_next();
    float* out = i + 1 < layers_.size() ? b.kept.layers[i + 1].input : b.kept.output;
    layers_[i].forward(c, b.kept.layers[i], out);
  }
  if (!stage_.last) {
    c.stream.synchronize();  // the output is about to be sent
    return 0;
  }
  need_next();
  norm_forward(c, final_norm_, b.kept.output, b.kept.final_norm);
  return cross_entropy_forward(c.stream, c.group, c.work.gathered, head_, b.kept.final_norm.out,
                               b.micro_batch.targets.data(), b.kept.logits);
}

void DecoderStage::backward(std::int64_t buffer, float scale) {
  Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
  const DecoderContext c = context(b);
  DataParallel& data = parts_.data;
  std::size_t unit = units_.size();
  const auto begin_previous = [&] {
    const std::size_t here = units_[--unit];
    // The embedding's backward pass reads no values but those of its norm.
    const bool more = unit > (stage_.first && !embed_norm_ ? 1 : 0);
    data.need_values(here, more ? units_[unit - 1] : DataParallel::kNoUnit);
    data.begin_gradients(here);
  };
  float* dx = b.kept.gradient;
  if (stage_.last) {
    begin_previous();
    cross_entropy_backward(c.stream, c.group, c.work.gathered, head_, b.kept.final_norm.out,
                           b.micro_batch.targets.data(), b.kept.logits, scale, c.work.d_norm);
    kernels::zero(c.stream, dx, c.group.local_rows() * c.shape.channels);
    norm_backward(c, final_norm_, b.kept.output, b.kept.final_norm, dx);
    if (!one_end_) data.end_gradients(units_.back());
  }
  for (std::size_t i = layers_.size(); i-- > 0;) {
    begin_previous();
    layers_[i].backward(c, b.kept.layers[i], dx);
    data.end_gradients(units_[unit]);
  }
  if (stage_.first) {
    if (embed_norm_) data.need_values(units_.front(), DataParallel::kNoUnit);
    if (!one_end_) data.begin_gradients(units_.front());
    embed_tokens_backward(c, b);
    data.end_gradients(units_.front());
  }
  c.stream.synchronize();  // the input's gradient is about to be sent
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
