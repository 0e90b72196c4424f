// Presets against the parameter counts that their authors published.
#include "reshard/presets.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace shardwright::reshard {
namespace {

TEST(Presets, HaveThePublishedNumberOfParameters) {
  const std::map<std::string, std::uint64_t> published = {
      {"gpt2-124m", 124'439'808},      {"gpt2-355m", 354'823'168},       {"gpt2-774m", 774'030'080},
      {"gpt2-xl", 1'557'611'200},      {"llama-7b", 6'738'415'616},      {"llama-13b", 13'015'864'320},
      {"llama-30b", 32'528'943'616},   {"llama-65b", 65'285'660'672},    {"llama2-7b", 6'738'415'616},
      {"llama2-13b", 13'015'864'320},  {"llama2-70b", 68'976'648'192},   {"llama3-8b", 8'030'261'248},
      {"llama3-70b", 70'553'706'496},  {"llama-405b", 405'853'388'800},  {"bloom-560m", 559'214'592},
      {"bloom-1b7", 1'722'408'960},    {"bloom-3b", 3'002'557'440},      {"bloom-7b1", 7'069'016'064},
      {"bloom-176b", 176'247'271'424}, {"mt-nlg-530b", 529'600'819'200}, {"megatron-1t", 1'008'038'758'400}};
  EXPECT_EQ(published.size(), presets().size());
  for (const Preset& preset : presets()) {
    const auto known = published.find(preset.name);
    ASSERT_NE(known, published.end()) << preset.name;
    EXPECT_EQ(build_model(preset.model).parameters(), known->second) << preset.name;
  }
}

// By the formulas of the papers, apart from the tables.
TEST(Presets, CountsFollowFromTheSizes) {
  const auto gpt = [](std::uint64_t layers, std::uint64_t hidden, std::uint64_t vocab, std::uint64_t rest) {
    return vocab * hidden + rest + layers * (12 * hidden * hidden + 13 * hidden) + 2 * hidden;
  };
  const auto count = [](const char* name) { return build_model(find_preset(name)->model).parameters(); };
  EXPECT_EQ(count("bloom-176b"), gpt(70, 14336, 250880, 2 * 14336));  // a norm instead of positions
  EXPECT_EQ(count("mt-nlg-530b"), gpt(105, 20480, 51200, 2048 * 20480));
  EXPECT_EQ(count("megatron-1t"), gpt(128, 25600, 51200, 2048 * 25600));
  EXPECT_EQ(count("gpt2-xl"), gpt(48, 1600, 50257, 1024 * 1600));
  const std::uint64_t h = 16384;
  EXPECT_EQ(count("llama-405b"),
            2 * 128256 * h + 126 * (2 * h * h + 2 * h * 1024 + 3 * h * 53248 + 2 * h) + h);
}

TEST(Presets, NamesAreDifferentAndFound) {
  std::set<std::string> names;
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(names.insert(preset.name).second) << preset.name;
    EXPECT_EQ(find_preset(preset.name), &preset);
    EXPECT_NO_THROW(build_model(preset.model)) << preset.name;
  }
  EXPECT_EQ(find_preset("gpt2"), nullptr);
  EXPECT_EQ(nearest_preset("bloom-176"), "bloom-176b");
  EXPECT_EQ(nearest_preset("llama-405"), "llama-405b");
}

TEST(Presets, BloomHasANormAfterTheEmbeddingAndNoPositions) {
  const ModelSpec model = build_model(
      {.arch = "bloom", .layers = 2, .hidden = 24, .heads = 3, .ffn = 0, .vocab = 33, .seq_len = 8});
  EXPECT_EQ(model.find("model.embed_positions.weight"), -1);
  const auto weight = model.find("model.embed_layernorm.weight");
  ASSERT_EQ(weight, 1);
  const TensorSpec& norm = model.tensors[static_cast<std::size_t>(weight)];
  EXPECT_EQ(norm.role, Role::embed_norm);
  EXPECT_TRUE(norm.replicated());
  EXPECT_FALSE(norm.decay);
  EXPECT_EQ(norm.layer(), -1);
  EXPECT_EQ(model.tensors[2].role, Role::embed_norm_bias);
  EXPECT_EQ(model.tensors.size(), 3u + 2 * 16 + 2);
}

}  // namespace
}  // namespace shardwright::reshard
