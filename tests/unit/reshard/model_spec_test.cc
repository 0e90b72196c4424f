#include "reshard/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ckpt/error.h"

namespace shardwright::reshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// G1 of the bug log.
ModelConfig g1() { return {.layers = 4, .hidden = 64, .heads = 4, .ffn = 256, .vocab = 97, .seq_len = 32}; }

std::string refusal(const ModelConfig& config) {
  try {
    build_model(config);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return e.what();
  }
  return "";
}

TEST(ModelSpec, Gpt2Has124439808Parameters) {
  const ModelSpec model =
      build_model({.layers = 12, .hidden = 768, .heads = 12, .vocab = 50257, .seq_len = 1024});
  EXPECT_EQ(model.parameters(), 124'439'808u);
  EXPECT_EQ(model.tensors.size(), 2u + 12 * 16 + 2);
}

TEST(ModelSpec, DefaultsAreFilledIn) {
  const ModelSpec model = build_model({.layers = 1, .hidden = 40, .heads = 5, .vocab = 7, .seq_len = 3});
  EXPECT_EQ(model.config.kv_heads, 5);
  EXPECT_EQ(model.config.ffn, 160);
}

TEST(ModelSpec, NamesShapesAndCuts) {
  const ModelSpec model = build_model(g1());
  const auto tensor = [&](const char* name) {
    return model.tensors.at(static_cast<std::size_t>(model.find(name)));
  };
  const TensorSpec up = tensor("model.layers.3.mlp.up_proj.weight");
  EXPECT_EQ(up.shape, (ckpt::Dims{256, 64}));
  EXPECT_EQ(up.tp.dimension, 0);
  EXPECT_EQ(up.tp.units, 256);
  EXPECT_EQ(up.role, Role::up);
  EXPECT_EQ(up.layer(), 3);
  EXPECT_TRUE(up.decay);
  const TensorSpec o = tensor("model.layers.0.self_attn.o_proj.weight");
  EXPECT_EQ(o.tp.dimension, 1);
  EXPECT_EQ(o.tp.units, 4);
  const TensorSpec k_bias = tensor("model.layers.0.self_attn.k_proj.bias");
  EXPECT_EQ(k_bias.tp.dimension, 0);
  EXPECT_EQ(k_bias.tp.units, 4);
  EXPECT_FALSE(k_bias.decay);
  EXPECT_EQ(tensor("model.embed_positions.weight").shape, (ckpt::Dims{32, 64}));
  EXPECT_EQ(tensor("model.norm.bias").layer(), 4);
  EXPECT_EQ(model.find("model.layers.4.mlp.up_proj.weight"), -1);
}

TEST(ModelSpec, B10_ReplicatedTensorsHaveNoCut) {
  const ModelSpec model = build_model(g1());
  for (const char* name :
       {"model.embed_positions.weight", "model.layers.2.input_layernorm.weight",
        "model.layers.2.input_layernorm.bias", "model.layers.2.post_attention_layernorm.weight",
        "model.layers.2.self_attn.o_proj.bias", "model.layers.2.mlp.down_proj.bias", "model.norm.weight"}) {
    EXPECT_EQ(model.tensors.at(static_cast<std::size_t>(model.find(name))).tp.dimension, -1) << name;
  }
}

TEST(ModelSpec, TiedEmbeddingIsOneTensorWithTwoPlaces) {
  ModelConfig config = g1();
  const ModelSpec tied = build_model(config);
  EXPECT_THAT(tied.tensors[0].places, ElementsAre(-1, 4));
  EXPECT_EQ(tied.find("lm_head.weight"), -1);
  config.tie_embeddings = false;
  const ModelSpec untied = build_model(config);
  EXPECT_THAT(untied.tensors[0].places, ElementsAre(-1));
  EXPECT_EQ(untied.find("lm_head.weight"), static_cast<std::int64_t>(untied.tensors.size()) - 1);
  EXPECT_EQ(untied.parameters(), tied.parameters() + 97 * 64);
}

TEST(ModelSpec, RefusalsNameTheKeyAndWhatWouldDo) {
  ModelConfig config = g1();
  config.arch = "bert";
  EXPECT_EQ(refusal(config), "model.arch: 'bert' is not known; known: gpt2, llama, bloom");
  config = g1();
  config.heads = 5;
  EXPECT_EQ(refusal(config), "model.heads: 5 heads do not divide hidden 64; a divisor of hidden");
  config = g1();
  config.vocab = 0;
  EXPECT_EQ(refusal(config), "model.vocab: is 0; an integer from 1 to 2^30");
  config = g1();
  config.kv_heads = 2;
  EXPECT_THAT(refusal(config), HasSubstr("model.kv_heads"));
  config = g1();
  config.dropout = 1;
  EXPECT_THAT(refusal(config), HasSubstr("model.dropout"));
}

// L1 of the bug log.
ModelConfig l1() {
  return {.arch = "llama",
          .layers = 6,
          .hidden = 96,
          .heads = 12,
          .kv_heads = 4,
          .ffn = 176,
          .vocab = 203,
          .seq_len = 32,
          .tie_embeddings = false};
}

TEST(ModelSpec, LlamaTable) {
  const ModelSpec model = build_model(l1());
  std::string names;
  for (const TensorSpec& t : model.tensors) {
    if (t.layer() == 5 || t.layer() < 0 || t.layer() > 5) names += t.name + to_string(t.shape) + " ";
  }
  EXPECT_EQ(names,
            "model.embed_tokens.weight[203, 96] "
            "model.layers.5.input_layernorm.weight[96] "
            "model.layers.5.self_attn.q_proj.weight[96, 96] "
            "model.layers.5.self_attn.k_proj.weight[32, 96] "
            "model.layers.5.self_attn.v_proj.weight[32, 96] "
            "model.layers.5.self_attn.o_proj.weight[96, 96] "
            "model.layers.5.post_attention_layernorm.weight[96] "
            "model.layers.5.mlp.gate_proj.weight[176, 96] "
            "model.layers.5.mlp.up_proj.weight[176, 96] "
            "model.layers.5.mlp.down_proj.weight[96, 176] "
            "model.norm.weight[96] lm_head.weight[203, 96] ");
  EXPECT_EQ(model.tensors.size(), 6u * 9 + 3);
  EXPECT_EQ(model.parameters(), 6u * (2 * 96 + 2 * 96 * 96 + 2 * 32 * 96 + 3 * 176 * 96) + 96 + 2 * 203 * 96);
  const auto tensor = [&](const char* name) {
    return model.tensors.at(static_cast<std::size_t>(model.find(name)));
  };
  const TensorSpec k = tensor("model.layers.3.self_attn.k_proj.weight");
  EXPECT_EQ(k.tp.dimension, 0);
  EXPECT_EQ(k.tp.units, 4) << "cut by KV head";
  EXPECT_TRUE(k.tp.shared) << "fewer KV heads than ranks are held by groups";
  EXPECT_EQ(k.role, Role::k);
  const TensorSpec gate = tensor("model.layers.3.mlp.gate_proj.weight");
  EXPECT_EQ(gate.role, Role::gate);
  EXPECT_EQ(gate.tp.units, 176);
  EXPECT_FALSE(gate.tp.shared);
  EXPECT_TRUE(gate.decay);
  EXPECT_EQ(tensor("model.layers.3.mlp.down_proj.weight").tp.dimension, 1);
  EXPECT_FALSE(tensor("model.norm.weight").decay);
  EXPECT_THAT(tensor("lm_head.weight").places, ElementsAre(6));
  ModelConfig tied = l1();
  tied.tie_embeddings = true;
  EXPECT_EQ(build_model(tied).find("lm_head.weight"), -1);
  EXPECT_THAT(build_model(tied).tensors[0].places, ElementsAre(-1, 6));
}

TEST(ModelSpec, LlamaDefaultsAndRefusals) {
  ModelConfig config = l1();
  config.kv_heads = 0;
  config.ffn = 0;
  EXPECT_EQ(build_model(config).config.kv_heads, 12);
  EXPECT_EQ(build_model(config).config.ffn, 256) << "8/3 x 96";
  config.hidden = 12 * 10;
  EXPECT_EQ(build_model(config).config.ffn, 320);
  config.hidden = 12 * 14;
  EXPECT_EQ(build_model(config).config.ffn, 448);
  config.hidden = 12 * 4;
  EXPECT_EQ(build_model(config).config.ffn, 128);
  config.hidden = 12 * 2;
  EXPECT_EQ(build_model(config).config.ffn, 64);
  config.hidden = 40;
  config.heads = 5;
  EXPECT_EQ(build_model(config).config.ffn, 112) << "106.7, up to a multiple of 8";
  config = l1();
  config.kv_heads = 5;
  EXPECT_EQ(
      refusal(config),
      "model.kv_heads: 5 KV heads do not divide the 12 heads; each KV head serves as many heads: a divisor "
      "of 12");
  config.kv_heads = 24;
  EXPECT_THAT(refusal(config), HasSubstr("24 KV heads do not divide the 12 heads"));
  config = l1();
  config.hidden = 12 * 7;
  EXPECT_EQ(
      refusal(config),
      "model.heads: 12 heads of hidden 84 have the odd size 7; rotary positions turn pairs, so hidden / "
      "heads must be even");
  config = l1();
  config.dropout = 0.1;
  EXPECT_EQ(refusal(config), "model.dropout: is 0.1 with arch llama; 0, a llama has none");
}

TEST(ModelSpec, JsonGoesThereAndBack) {
  ModelConfig config = build_model(g1()).config;
  config.dropout = 0.1;
  EXPECT_EQ(parse_model_json(to_json(config)), config);
  EXPECT_EQ(parse_model_json(to_json(l1())), l1());
  EXPECT_THROW(parse_model_json("{\"arch\":\"gpt2\"}"), Error);
  for (const char* hidden : {"64.5", "1e60", "18446744073709551615", "\"64\""}) {
    std::string text = to_json(l1());
    const std::string right = R"("hidden":)" + std::to_string(l1().hidden);
    ASSERT_NE(text.find(right), std::string::npos);
    EXPECT_THROW(
        parse_model_json(text.replace(text.find(right), right.size(), std::string(R"("hidden":)") + hidden)),
        Error)
        << hidden;
  }
  EXPECT_THROW(parse_model_json("not json"), Error);
}

TEST(ModelSpec, B140_UnknownKeyIsIgnored) {
  const ModelConfig config = build_model(g1()).config;
  std::string json = to_json(config);
  json.insert(1, "\"a_later_key\":[1],");
  EXPECT_EQ(parse_model_json(json), config);
}

TEST(ModelSpec, DifferingFieldsAreNamed) {
  ModelConfig other = g1();
  other.layers = 6;
  other.tie_embeddings = false;
  EXPECT_THAT(differing_fields(g1(), other),
              ElementsAre("layers: 4, here 6", "tie_embeddings: true, here false"));
  EXPECT_TRUE(differing_fields(g1(), g1()).empty());
}

}  // namespace
}  // namespace shardwright::reshard
