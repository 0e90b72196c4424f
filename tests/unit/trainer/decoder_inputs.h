// What the tests of decoders feed them with: models, values of their tensors and batches, each a pure
// function of what it is for and of the element.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "reshard/model_spec.h"
#include "trainer/decoder.h"
#include "trainer/parameters.h"

namespace shardwright::trainer {

struct TestShape {
  std::int64_t layers, hidden, heads, kv_heads, ffn, vocab, seq_len;
};

inline reshard::ModelSpec test_model(const char* arch, const TestShape& shape, bool tied,
                                     double dropout = 0) {
  reshard::ModelConfig config;
  config.arch = arch;
  config.layers = shape.layers;
  config.hidden = shape.hidden;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.ffn = shape.ffn;
  config.vocab = shape.vocab;
  config.seq_len = shape.seq_len;
  config.tie_embeddings = tied;
  config.dropout = dropout;
  return reshard::build_model(config);
}

inline reshard::ModelSpec test_model(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                                     std::int64_t ffn, std::int64_t vocab, std::int64_t seq_len,
                                     bool tied = true) {
  return test_model("gpt2", {layers, hidden, heads, heads, ffn, vocab, seq_len}, tied);
}

/// Uniform in [-1, 1) by a 64-bit mix of (stream, i).
inline double test_uniform(std::uint64_t stream, std::uint64_t i) {
  std::uint64_t h = (stream + 1) * 0x9E3779B97F4A7C15U + i * 0xBF58476D1CE4E5B9U;
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9U;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBU;
  h ^= h >> 31;
  return static_cast<double>(h >> 11) * 0x1p-52 - 1.0;
}

/// So large that no nonlinearity is idle.
inline float test_value(const reshard::ModelSpec& model, std::size_t tensor, std::uint64_t i) {
  const reshard::TensorSpec& spec = model.tensors[tensor];
  const double u = test_uniform(tensor, i);
  using reshard::Role;
  if (spec.role == Role::embed_norm || spec.role == Role::input_norm || spec.role == Role::post_norm ||
      spec.role == Role::final_norm)
    return static_cast<float>(1 + 0.4 * u);
  if (spec.shape.size() == 1) return static_cast<float>(0.3 * u);
  return static_cast<float>(u * std::sqrt(3.0 / static_cast<double>(spec.shape[1])));
}

/// Calls visit(global element index, index in the box) for each element of a box of one or two dimensions.
template <typename Visit>
void for_each_element(const reshard::TensorSpec& spec, const ckpt::Box& box, const Visit& visit) {
  const bool matrix = spec.shape.size() == 2;
  const std::uint64_t columns = matrix ? box.shape[1] : 1;
  const std::uint64_t row_stride = matrix ? spec.shape[1] : 1;
  for (std::uint64_t r = 0; r < box.shape[0]; ++r)
    for (std::uint64_t c = 0; c < columns; ++c)
      visit((box.offset[0] + r) * row_stride + (matrix ? box.offset[1] + c : 0), r * columns + c);
}

inline void fill_parameters(Parameters& parameters) {
  for (Parameter& p : parameters.all()) {
    for_each_element(*p.spec, p.optimizer_box, [&](std::uint64_t global, std::uint64_t local) {
      p.master[local] = test_value(parameters.model(), p.placed.tensor, global);
    });
  }
}

/// A global batch of `samples` sequences; about a fifth of the targets is masked, an unequal number in each
/// sequence, if asked.
struct TestBatch {
  std::vector<std::int32_t> tokens, targets;
  std::int64_t samples, positions;

  TestBatch(std::int64_t vocab, std::int64_t sample_count, std::int64_t position_count, bool masked)
      : samples(sample_count), positions(position_count) {
    for (std::int64_t i = 0; i < samples * positions; ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      const auto draw = [&](std::uint64_t stream) {
        const double u = (test_uniform(stream, at) + 1) / 2;
        return static_cast<std::int32_t>(u * static_cast<double>(vocab));
      };
      tokens.push_back(draw(1000));
      const double share = 0.4 * static_cast<double>(i / positions) / static_cast<double>(samples);
      const bool hidden = masked && (test_uniform(1002, at) + 1) / 2 < share;
      targets.push_back(hidden ? -1 : draw(1001));
    }
  }
  /// Samples [first, first + count), the first of them being sequence `first` of the run.
  MicroBatch micro_batch(std::int64_t first, std::int64_t count) const {
    const auto part = [&](const std::vector<std::int32_t>& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first * positions);
      return std::vector<std::int32_t>(begin, begin + static_cast<std::ptrdiff_t>(count * positions));
    };
    return {part(tokens), part(targets), count, positions, static_cast<std::uint64_t>(first)};
  }
};

}  // namespace shardwright::trainer
