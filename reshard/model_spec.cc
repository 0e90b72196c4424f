#include "reshard/model_spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/record_fields.h"

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

// Two thirds of 4 * hidden, which gives a gated MLP the size of one without a gate, up to a multiple of 8.
std::int64_t default_llama_ffn(std::int64_t hidden) {
  const std::int64_t two_thirds = (8 * hidden + 2) / 3;
  return (two_thirds + 7) / 8 * 8;
}

ModelConfig checked(ModelConfig c) {
  const bool llama = c.arch == "llama";
  if (!llama && c.arch != "gpt2" && c.arch != "bloom") {
    refuse("arch", fmt::format("'{}' is not known", c.arch), "known: gpt2, llama, bloom");
  }
  check_extent("layers", c.layers);
  check_extent("hidden", c.hidden);
  check_extent("heads", c.heads);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.ffn == 0) c.ffn = llama ? default_llama_ffn(c.hidden) : 4 * c.hidden;
  check_extent("kv_heads", c.kv_heads);
  check_extent("ffn", c.ffn);
  check_extent("vocab", c.vocab);
  check_extent("seq_len", c.seq_len);
  if (c.hidden % c.heads != 0) {
    refuse("heads", fmt::format("{} heads do not divide hidden {}", c.heads, c.hidden),
           "a divisor of hidden");
  }
  if (!llama && c.kv_heads != c.heads) {
    refuse("kv_heads", fmt::format("is {} with {} heads", c.kv_heads, c.heads),
           fmt::format("{} has as many KV heads as heads (or 0)", c.arch));
  }
  if (c.heads % c.kv_heads != 0) {
    refuse("kv_heads", fmt::format("{} KV heads do not divide the {} heads", c.kv_heads, c.heads),
           fmt::format("each KV head serves as many heads: a divisor of {}", c.heads));
  }
  if (llama && c.hidden / c.heads % 2 != 0) {
    refuse("heads",
           fmt::format("{} heads of hidden {} have the odd size {}", c.heads, c.hidden, c.hidden / c.heads),
           "rotary positions turn pairs, so hidden / heads must be even");
  }
  if (!(c.dropout >= 0 && c.dropout < 1)) {
    refuse("dropout", fmt::format("is {}", c.dropout), "at least 0, below 1");
  }
  if (llama && c.dropout > 0) {
    refuse("dropout", fmt::format("is {} with arch llama", c.dropout), "0, a llama has none");
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

// Sizes and cuts that the tables share. Column-parallel matrices are cut by output row (q, k and v by whole
// heads), row-parallel ones by input column; what follows a row-parallel sum is the same on every rank.
struct Cuts {
  explicit Cuts(const ModelConfig& c)
      : hidden(static_cast<std::uint64_t>(c.hidden)),
        kv(static_cast<std::uint64_t>(c.hidden / c.heads * c.kv_heads)),
        ffn(static_cast<std::uint64_t>(c.ffn)),
        vocab(static_cast<std::uint64_t>(c.vocab)),
        by_head{0, c.heads},
        by_kv_head{0, c.kv_heads},
        by_head_column{1, c.heads},
        by_ffn{0, c.ffn, false},
        by_ffn_column{1, c.ffn, false},
        by_token{0, c.vocab, false} {}

  std::uint64_t hidden, kv, ffn, vocab;
  TpCut replicated;
  TpCut by_head, by_kv_head, by_head_column, by_ffn, by_ffn_column, by_token;
};

// One layer's rows, by name within the layer.
class LayerRows {
 public:
  LayerRows(std::int64_t layer, std::vector<Row>& rows) : layer_(layer), rows_(rows) {}
  void operator()(Role role, const char* name, Dims shape, TpCut tp) {
    rows_.push_back({role, fmt::format("model.layers.{}.{}", layer_, name), shape, tp, {layer_}});
  }

 private:
  std::int64_t layer_;
  std::vector<Row>& rows_;
};

Row embed_tokens_row(const ModelConfig& c, const Cuts& cut) {
  std::vector<std::int64_t> places{-1};
  if (c.tie_embeddings) places.push_back(c.layers);
  return {Role::embed_tokens, "model.embed_tokens.weight", {cut.vocab, cut.hidden}, cut.by_token, places};
}

Row lm_head_row(const ModelConfig& c, const Cuts& cut) {
  return {Role::lm_head, "lm_head.weight", {cut.vocab, cut.hidden}, cut.by_token, {c.layers}};
}

// GPT-2: LayerNorm and projections with biases, learned positions. BLOOM: the same, but a LayerNorm after the
// embedding, and no positions (ALiBi adds them to the scores).
std::vector<Row> gpt2_rows(const ModelConfig& c) {
  const Cuts cut(c);
  std::vector<Row> rows;
  rows.push_back(embed_tokens_row(c, cut));
  if (c.arch == "bloom") {
    rows.push_back({Role::embed_norm, "model.embed_layernorm.weight", {cut.hidden}, cut.replicated, {-1}});
    rows.push_back({Role::embed_norm_bias, "model.embed_layernorm.bias", {cut.hidden}, cut.replicated, {-1}});
  } else {
    rows.push_back({Role::embed_positions,
                    "model.embed_positions.weight",
                    {static_cast<std::uint64_t>(c.seq_len), cut.hidden},
                    cut.replicated,
                    {-1}});
  }
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    LayerRows add(layer, rows);
    add(Role::input_norm, "input_layernorm.weight", {cut.hidden}, cut.replicated);
    add(Role::input_norm_bias, "input_layernorm.bias", {cut.hidden}, cut.replicated);
    add(Role::q, "self_attn.q_proj.weight", {cut.hidden, cut.hidden}, cut.by_head);
    add(Role::q_bias, "self_attn.q_proj.bias", {cut.hidden}, cut.by_head);
    add(Role::k, "self_attn.k_proj.weight", {cut.hidden, cut.hidden}, cut.by_kv_head);
    add(Role::k_bias, "self_attn.k_proj.bias", {cut.hidden}, cut.by_kv_head);
    add(Role::v, "self_attn.v_proj.weight", {cut.hidden, cut.hidden}, cut.by_kv_head);
    add(Role::v_bias, "self_attn.v_proj.bias", {cut.hidden}, cut.by_kv_head);
    add(Role::o, "self_attn.o_proj.weight", {cut.hidden, cut.hidden}, cut.by_head_column);
    add(Role::o_bias, "self_attn.o_proj.bias", {cut.hidden}, cut.replicated);
    add(Role::post_norm, "post_attention_layernorm.weight", {cut.hidden}, cut.replicated);
    add(Role::post_norm_bias, "post_attention_layernorm.bias", {cut.hidden}, cut.replicated);
    add(Role::up, "mlp.up_proj.weight", {cut.ffn, cut.hidden}, cut.by_ffn);
    add(Role::up_bias, "mlp.up_proj.bias", {cut.ffn}, cut.by_ffn);
    add(Role::down, "mlp.down_proj.weight", {cut.hidden, cut.ffn}, cut.by_ffn_column);
    add(Role::down_bias, "mlp.down_proj.bias", {cut.hidden}, cut.replicated);
  }
  rows.push_back({Role::final_norm, "model.norm.weight", {cut.hidden}, cut.replicated, {c.layers}});
  rows.push_back({Role::final_norm_bias, "model.norm.bias", {cut.hidden}, cut.replicated, {c.layers}});
  if (!c.tie_embeddings) rows.push_back(lm_head_row(c, cut));
  return rows;
}

// Llama: RMSNorm, rotary positions, gated MLP, no biases; k and v may have fewer heads than q.
std::vector<Row> llama_rows(const ModelConfig& c) {
  const Cuts cut(c);
  std::vector<Row> rows;
  rows.push_back(embed_tokens_row(c, cut));
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    LayerRows add(layer, rows);
    add(Role::input_norm, "input_layernorm.weight", {cut.hidden}, cut.replicated);
    add(Role::q, "self_attn.q_proj.weight", {cut.hidden, cut.hidden}, cut.by_head);
    add(Role::k, "self_attn.k_proj.weight", {cut.kv, cut.hidden}, cut.by_kv_head);
    add(Role::v, "self_attn.v_proj.weight", {cut.kv, cut.hidden}, cut.by_kv_head);
    add(Role::o, "self_attn.o_proj.weight", {cut.hidden, cut.hidden}, cut.by_head_column);
    add(Role::post_norm, "post_attention_layernorm.weight", {cut.hidden}, cut.replicated);
    add(Role::gate, "mlp.gate_proj.weight", {cut.ffn, cut.hidden}, cut.by_ffn);
    add(Role::up, "mlp.up_proj.weight", {cut.ffn, cut.hidden}, cut.by_ffn);
    add(Role::down, "mlp.down_proj.weight", {cut.hidden, cut.ffn}, cut.by_ffn_column);
  }
  rows.push_back({Role::final_norm, "model.norm.weight", {cut.hidden}, cut.replicated, {c.layers}});
  if (!c.tie_embeddings) rows.push_back(lm_head_row(c, cut));
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
  for (Row& row : model.config.arch == "llama" ? llama_rows(model.config) : gpt2_rows(model.config)) {
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
  const Json j = ckpt::parse_object(json);
  ModelConfig c;
  c.arch = ckpt::text_field(j, "arch");
  c.layers = ckpt::integer_field<std::int64_t>(j, "layers");
  c.hidden = ckpt::integer_field<std::int64_t>(j, "hidden");
  c.heads = ckpt::integer_field<std::int64_t>(j, "heads");
  c.kv_heads = ckpt::integer_field<std::int64_t>(j, "kv_heads");
  c.ffn = ckpt::integer_field<std::int64_t>(j, "ffn");
  c.vocab = ckpt::integer_field<std::int64_t>(j, "vocab");
  c.seq_len = ckpt::integer_field<std::int64_t>(j, "seq_len");
  c.tie_embeddings = ckpt::flag_field(j, "tie_embeddings");
  c.dropout = ckpt::real_field(j, "dropout");
  return c;
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
