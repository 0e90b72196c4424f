#include "reshard/model_spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "ckpt/error.h"

namespace shardwright::reshard {
namespace {

using ckpt::Dims;
using Json = nlohmann::json;

// Above this no extent is accepted, so that a product of two extents and 8 bytes an element stays within 64
// bits.
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 30;

[[noreturn]] void refuse(const std::string& key, const std::string& wrong, const std::string& right) {
  throw Error(ErrorCode::usage, fmt::format("model.{}: {}; {}", key, wrong, right));
}

void check_extent(const char* key, std::int64_t value) {
  if (value < 1 || value > kMaxExtent) refuse(key, fmt::format("is {}", value), "an integer from 1 to 2^30");
}

ModelConfig checked(ModelConfig c) {
  if (c.arch == "llama") refuse("arch", "'llama' is not built yet", "'gpt2' is");
  if (c.arch != "gpt2") refuse("arch", fmt::format("'{}' is not known", c.arch), "known: gpt2");
  check_extent("layers", c.layers);
  check_extent("hidden", c.hidden);
  check_extent("heads", c.heads);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.ffn == 0) c.ffn = 4 * c.hidden;
  check_extent("kv_heads", c.kv_heads);
  check_extent("ffn", c.ffn);
  check_extent("vocab", c.vocab);
  check_extent("seq_len", c.seq_len);
  if (c.hidden % c.heads != 0) {
    refuse("heads", fmt::format("{} heads do not divide hidden {}", c.heads, c.hidden),
           "a divisor of hidden");
  }
  if (c.kv_heads != c.heads) {
    refuse("kv_heads", fmt::format("is {} with {} heads", c.kv_heads, c.heads),
           "gpt2 has as many KV heads as heads (or 0)");
  }
  if (!(c.dropout >= 0 && c.dropout < 1)) {
    refuse("dropout", fmt::format("is {}", c.dropout), "at least 0, below 1");
  }
  return c;
}

// One line of an architecture's table.
struct Row {
  Role role;
  std::string name;
  Dims shape;
  TpCut tp;
  std::vector<std::int64_t> places;
};

// GPT-2: LayerNorm and projections with biases, learned positions. Column-parallel matrices are cut by output
// row (q, k and v by whole heads), row-parallel ones by input column; what follows a row-parallel sum is the
// same on every rank.
std::vector<Row> gpt2_rows(const ModelConfig& c) {
  const auto hidden = static_cast<std::uint64_t>(c.hidden);
  const auto ffn = static_cast<std::uint64_t>(c.ffn);
  const auto vocab = static_cast<std::uint64_t>(c.vocab);
  const auto seq_len = static_cast<std::uint64_t>(c.seq_len);
  const TpCut replicated;
  const TpCut by_head{0, c.heads};
  const TpCut by_kv_head{0, c.kv_heads};
  const TpCut by_head_column{1, c.heads};
  const TpCut by_ffn{0, c.ffn, false};
  const TpCut by_ffn_column{1, c.ffn, false};
  const TpCut by_token{0, c.vocab, false};

  std::vector<Row> rows;
  std::vector<std::int64_t> token_places{-1};
  if (c.tie_embeddings) token_places.push_back(c.layers);
  rows.push_back({Role::embed_tokens, "model.embed_tokens.weight", {vocab, hidden}, by_token, token_places});
  rows.push_back(
      {Role::embed_positions, "model.embed_positions.weight", {seq_len, hidden}, replicated, {-1}});
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const auto add = [&](Role role, const char* name, Dims shape, TpCut tp) {
      rows.push_back({role, fmt::format("model.layers.{}.{}", layer, name), shape, tp, {layer}});
    };
    add(Role::input_norm, "input_layernorm.weight", {hidden}, replicated);
    add(Role::input_norm_bias, "input_layernorm.bias", {hidden}, replicated);
    add(Role::q, "self_attn.q_proj.weight", {hidden, hidden}, by_head);
    add(Role::q_bias, "self_attn.q_proj.bias", {hidden}, by_head);
    add(Role::k, "self_attn.k_proj.weight", {hidden, hidden}, by_kv_head);
    add(Role::k_bias, "self_attn.k_proj.bias", {hidden}, by_kv_head);
    add(Role::v, "self_attn.v_proj.weight", {hidden, hidden}, by_kv_head);
    add(Role::v_bias, "self_attn.v_proj.bias", {hidden}, by_kv_head);
    add(Role::o, "self_attn.o_proj.weight", {hidden, hidden}, by_head_column);
    add(Role::o_bias, "self_attn.o_proj.bias", {hidden}, replicated);
    add(Role::post_norm, "post_attention_layernorm.weight", {hidden}, replicated);
    add(Role::post_norm_bias, "post_attention_layernorm.bias", {hidden}, replicated);
    add(Role::up, "mlp.up_proj.weight", {ffn, hidden}, by_ffn);
    add(Role::up_bias, "mlp.up_proj.bias", {ffn}, by_ffn);
    add(Role::down, "mlp.down_proj.weight", {hidden, ffn}, by_ffn_column);
    add(Role::down_bias, "mlp.down_proj.bias", {hidden}, replicated);
  }
  rows.push_back({Role::final_norm, "model.norm.weight", {hidden}, replicated, {c.layers}});
  rows.push_back({Role::final_norm_bias, "model.norm.bias", {hidden}, replicated, {c.layers}});
  if (!c.tie_embeddings) {
    rows.push_back({Role::lm_head, "lm_head.weight", {vocab, hidden}, by_token, {c.layers}});
  }
  return rows;
}

Json as_json(const ModelConfig& c) {
  return {{"arch", c.arch},      {"layers", c.layers},     {"hidden", c.hidden},
          {"heads", c.heads},    {"kv_heads", c.kv_heads}, {"ffn", c.ffn},
          {"vocab", c.vocab},    {"seq_len", c.seq_len},   {"tie_embeddings", c.tie_embeddings},
          {"dropout", c.dropout}};
}

}  // namespace

std::uint64_t ModelSpec::parameters() const {
  std::uint64_t sum = 0;
  for (const TensorSpec& t : tensors) sum += ckpt::element_count(t.shape);
  return sum;
}

std::int64_t ModelSpec::find(std::string_view name) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return static_cast<std::int64_t>(i);
  }
  return -1;
}

ModelSpec build_model(const ModelConfig& config) {
  ModelSpec model;
  model.config = checked(config);
  for (Row& row : gpt2_rows(model.config)) {
    TensorSpec tensor;
    // Matrices decay; norms and biases, the one-dimensional tensors, do not.
    tensor.decay = row.shape.size() > 1;
    tensor.name = std::move(row.name);
    tensor.shape = row.shape;
    tensor.tp = row.tp;
    tensor.role = row.role;
    tensor.places = std::move(row.places);
    model.tensors.push_back(std::move(tensor));
  }
  return model;
}

std::string to_json(const ModelConfig& config) { return as_json(config).dump(); }

ModelConfig parse_model_json(const std::string& json) {
  try {
    const Json j = Json::parse(json);
    ModelConfig c;
    j.at("arch").get_to(c.arch);
    j.at("layers").get_to(c.layers);
    j.at("hidden").get_to(c.hidden);
    j.at("heads").get_to(c.heads);
    j.at("kv_heads").get_to(c.kv_heads);
    j.at("ffn").get_to(c.ffn);
    j.at("vocab").get_to(c.vocab);
    j.at("seq_len").get_to(c.seq_len);
    j.at("tie_embeddings").get_to(c.tie_embeddings);
    j.at("dropout").get_to(c.dropout);
    return c;
  } catch (const Json::exception& e) {
    throw Error(ErrorCode::damaged,
                fmt::format("model description: {}; a JSON object with the keys of [model]", e.what()));
  }
}

std::vector<std::string> differing_fields(const ModelConfig& stored, const ModelConfig& here) {
  const Json a = as_json(stored);
  const Json b = as_json(here);
  std::vector<std::string> fields;
  for (const auto& [key, value] : a.items()) {
    if (value != b.at(key))
      fields.push_back(fmt::format("{}: {}, here {}", key, value.dump(), b.at(key).dump()));
  }
  return fields;
}

}  // namespace shardwright::reshard
