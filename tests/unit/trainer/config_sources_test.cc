// Which value of a configuration came from where.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "ckpt/error.h"
#include "tests/tools/temp_dir.h"
#include "trainer/config.h"

namespace shardwright::trainer {
namespace {

const char* kText = R"([model]
layers = 4
hidden = 64
heads = 4
vocab = 97
seq_len = 32
ffn = 0   # as if it were not there

[data]
train = "tokens.bin"
[train]
steps = 10
global_batch = 12
[optim]
lr = 1e-3
)";

class ConfigSources : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name) << text;
    return dir_ / name;
  }
  TempDir dir_;
};

TEST_F(ConfigSources, FileAndLineOrSetOrDefault) {
  const std::string file = write("run.toml", kText);
  ValueSources sources;
  const Config config = load_config(file, {{"optim.lr", "2e-3"}, {"parallel.zero", "1"}}, &sources);
  EXPECT_EQ(sources.size(), config_keys().size());
  EXPECT_EQ(sources["model.layers"], file + ":2");
  EXPECT_EQ(sources["train.global_batch"], file + ":13");
  EXPECT_EQ(sources["optim.lr"], "--set") << "the last word counts";
  EXPECT_EQ(sources["parallel.zero"], "--set");
  EXPECT_EQ(sources["run.dir"], "default");
  EXPECT_EQ(sources["model.kv_heads"], "default") << "it follows from heads";
  EXPECT_EQ(sources["model.ffn"], file + ":7") << "0 was said, and means 4 x hidden";
  EXPECT_EQ(config.model.ffn, 256);
}

TEST_F(ConfigSources, TheFileMayBeALink) {
  write("run.toml", kText);
  std::filesystem::create_symlink("run.toml", dir_ / "link.toml");
  EXPECT_EQ(load_config(dir_ / "link.toml", {}).model.hidden, 64);
}

const char* kPreset = R"([model]
preset = "gpt2-124m"
heads = 6
[data]
train = "tokens.bin"
[train]
steps = 10
global_batch = 12
)";

TEST_F(ConfigSources, PresetGivesWhatIsNotSaid) {
  const std::string file = write("run.toml", kPreset);
  ValueSources sources;
  const Config config = load_config(file, {{"model.seq_len", "64"}}, &sources);
  EXPECT_EQ(config.model.layers, 12);
  EXPECT_EQ(config.model.hidden, 768);
  EXPECT_EQ(config.model.ffn, 3072);
  EXPECT_EQ(config.model.vocab, 50257);
  EXPECT_EQ(config.model.heads, 6) << "the file's word counts more";
  EXPECT_EQ(config.model.seq_len, 64);
  EXPECT_EQ(sources["model.preset"], file + ":2");
  EXPECT_EQ(sources["model.heads"], file + ":3");
  EXPECT_EQ(sources["model.seq_len"], "--set");
  EXPECT_EQ(sources["model.layers"], "preset");
  EXPECT_EQ(sources["model.arch"], "preset");
  EXPECT_EQ(sources["model.dropout"], "default");
  EXPECT_EQ(sources["optim.lr"], "default");
  // What is printed is complete, and the preset in it changes nothing.
  const Config again = load_config(write("again.toml", to_toml(config, sources)), {});
  EXPECT_EQ(again.model, config.model);
  EXPECT_EQ(again.preset, "gpt2-124m");
}

TEST_F(ConfigSources, PresetsOfEachFamilyTrain) {
  const std::string file = write("run.toml", kPreset);
  for (const auto& [preset, arch] :
       {std::pair{"gpt2-xl", "gpt2"}, {"bloom-560m", "bloom"}, {"llama-7b", "llama"}})
    EXPECT_EQ(load_config(file, {{"model.preset", preset}, {"model.heads", "16"}, {"model.kv_heads", "16"}})
                  .model.arch,
              arch);
}

TEST_F(ConfigSources, UnknownPresetNamesTheNearest) {
  const std::string file = write("run.toml", kPreset);
  try {
    load_config(file, {{"model.preset", "gpt2-125m"}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    const std::string text = error.what();
    EXPECT_TRUE(text.starts_with(
        "--set: model.preset: \"gpt2-125m\" is no known value; give one of gpt2-124m, gpt2-355m, "))
        << text;
    EXPECT_TRUE(text.ends_with(" (nearest: gpt2-124m)")) << text;
  }
}

TEST_F(ConfigSources, WhatIsPrintedIsTheSameConfiguration) {
  const std::string file = write("a\nb\x7f.toml", kText);  // a comment ends with its line
  ValueSources sources;
  const Config config = load_config(file, {{"checkpoint.dir", "else # where"}}, &sources);
  const std::string text = to_toml(config, sources);
  EXPECT_NE(text.find("a?b?.toml:2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("# --set\n"), std::string::npos) << text;
  const Config again = load_config(write("again.toml", text), {});
  EXPECT_EQ(to_json(again), to_json(config));
  std::size_t lines = 0, at = 0;
  while ((at = text.find("  # ", at)) != std::string::npos) ++lines, ++at;
  EXPECT_LE(lines, config_keys().size());
  EXPECT_EQ(to_toml(config).find("default"), std::string::npos) << "sources are said only where asked for";
}

TEST_F(ConfigSources, MistakesAreThoseOfTraining) {
  const std::string file = write("run.toml", kText);
  ValueSources sources;
  const std::vector<Override> wrong = {{"optim.lr", "fast"}, {"paralel.tp", "2"}};
  const auto message = [&](ValueSources* to) {
    try {
      load_config(file, wrong, to);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_FALSE(message(nullptr).empty());
  EXPECT_EQ(message(&sources), message(nullptr));
}

TEST(ParseOverride, KeyAndValueAtTheFirstEqualsSign) {
  EXPECT_EQ(parse_override("a.b=c=d"), (Override{"a.b", "c=d"}));
  EXPECT_EQ(parse_override("a.b="), (Override{"a.b", ""}));
  EXPECT_THROW(parse_override("a.b"), Error);
  EXPECT_THROW(parse_override("=c"), Error);
}

}  // namespace
}  // namespace shardwright::trainer
