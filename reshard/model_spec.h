// A model as a table of tensors: global names and shapes, and for each the rule by which it may be cut. Placement is a
// function of this table and a Layout; nothing in it depends on ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/source.h"

namespace shardwright::reshard {

/// The `[model]` section that defines a table.
struct ModelConfig {
  std::string arch = "gpt2";
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as heads
  std::int64_t ffn = 0;       // 0: 4 * hidden; llama: 8/3 * hidden, up to a multiple of 8
  std::int64_t vocab = 0;
  std::int64_t seq_len = 0;
  bool tie_embeddings = true;
  double dropout = 0;
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// How tensor parallelism cuts a tensor.
struct TpCut {
  int dimension = -1;        // -1: every rank of the axis holds all of it
  std::int64_t units = 1;    // indivisible units along the dimension (heads, KV heads, rows); spread over the axis
  /// With fewer units than ranks: each unit is held by a group of ranks, by placement's rule (KV heads); or, not shared, some
  /// ranks hold nothing, because what each unit gives is summed over the axis (vocabulary, MLP).
  bool shared = true;
};

/// What a tensor is for, so that the trainer finds its parameters without parsing names.
enum class Role : std::uint8_t {
  embed_tokens, embed_positions, embed_norm, embed_norm_bias,
  input_norm, input_norm_bias, q, q_bias, k, k_bias, v, v_bias, o, o_bias,
  post_norm, post_norm_bias, gate, up, up_bias, down, down_bias,
  final_norm, final_norm_bias, lm_head,
};

struct TensorSpec {
  std::string name;
  ckpt::Dims shape;
  TpCut tp;
  Role role = Role::embed_tokens;
  /// Places in model order where the tensor is used: -1 before the first layer, 0..layers-1 a layer, `layers` after the last.
  /// A pipeline stage holds the tensor if it holds one of its places; tied embeddings have two.
  std::vector<std::int64_t> places;
  bool decay = true;  // weight decay applies (matrices), or not (norms, biases)

  std::int64_t layer() const { return places.front(); }
  /// Whether every tensor-parallel rank holds all of it.
  bool replicated() const { return tp.dimension < 0; }
};

struct ModelSpec {
  ModelConfig config;
  std::vector<TensorSpec> tensors;  // in model order; index = the tensor's number in placement's rules

  /// Number of elements, each tied tensor counted once.
  std::uint64_t parameters() const;
  /// Row of a name; -1 if there is none.
  std::int64_t find(std::string_view name) const;
};

/// Fills defaults (kv_heads, ffn) and checks the numbers; Error(usage) names the key. Tables: gpt2, llama,
/// bloom.
ModelSpec build_model(const ModelConfig& config);

/// JSON object of the `[model]` section as kept in checkpoints, and back. Error(damaged) for a bad one.
std::string to_json(const ModelConfig& config);
ModelConfig parse_model_json(const std::string& json);

/// Names of the fields in which two models differ, as "layers: 4, here 6".
std::vector<std::string> differing_fields(const ModelConfig& stored, const ModelConfig& here);

/// Kinds of state in a training checkpoint.
inline constexpr const char* kParam = "param";
inline constexpr const char* kExpAvg = "exp_avg";
inline constexpr const char* kExpAvgSq = "exp_avg_sq";

}  // namespace shardwright::reshard
