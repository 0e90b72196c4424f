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
  config.arch = "llama";
  EXPECT_EQ(refusal(config), "model.arch: 'llama' is not built yet; 'gpt2' is");
  config.arch = "bert";
  EXPECT_EQ(refusal(config), "model.arch: 'bert' is not known; known: gpt2");
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

TEST(ModelSpec, JsonGoesThereAndBack) {
  ModelConfig config = build_model(g1()).config;
  config.dropout = 0.1;
  EXPECT_EQ(parse_model_json(to_json(config)), config);
  EXPECT_THROW(parse_model_json("{\"arch\":\"gpt2\"}"), Error);
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
