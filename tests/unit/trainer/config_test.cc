#include "trainer/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "ckpt/error.h"
#include "trainer/config_text.h"

namespace shardwright::trainer {
namespace {

const char* kGood = R"([model]
layers = 4
hidden = 64
heads = 4
vocab = 97
seq_len = 32

[data]
train = "tokens.bin"

[train]
steps = 10
global_batch = 12
)";

class ConfigTest : public testing::Test {
 protected:
  ConfigTest()
      : dir_(std::filesystem::temp_directory_path() / ("shardwright-config-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(dir_);
  }
  ~ConfigTest() override { std::filesystem::remove_all(dir_); }

  std::string write(const std::string& text) {
    const std::string path = (dir_ / "run ä.toml").string();
    std::ofstream(path) << text;
    return path;
  }
  Config load(const std::string& extra = "", const std::vector<Override>& overrides = {}) {
    return load_config(write(kGood + extra), overrides);
  }
  /// The lines of the refusal, without the path before the first ": ".
  std::vector<std::string> refusal(const std::string& extra, const std::vector<Override>& overrides = {}) {
    try {
      load(extra, overrides);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      std::vector<std::string> lines;
      std::istringstream text(error.what());
      for (std::string line; std::getline(text, line);) {
        const auto file = line.find((dir_ / "run ä.toml").string());
        lines.push_back(file == 0 ? line.substr((dir_ / "run ä.toml").string().size() + 1) : line);
      }
      return lines;
    }
    ADD_FAILURE() << "accepted: " << extra;
    return {};
  }

  std::filesystem::path dir_;
};

TEST_F(ConfigTest, DefaultsAreFilledIn) {
  const Config config = load();
  EXPECT_EQ(config.run_dir, "runs/run ä");
  EXPECT_EQ(config.checkpoints_dir, "runs/run ä/checkpoints");
  EXPECT_EQ(config.model.kv_heads, 4);
  EXPECT_EQ(config.model.ffn, 256);
  EXPECT_EQ(config.data.train, std::vector<std::string>{"tokens.bin"});
  EXPECT_EQ(config.parallel.layout.dp, 0);
  EXPECT_EQ(config.checkpoint.commit_deadline_s, 120);
}

TEST_F(ConfigTest, UnknownKeysSuggestTheNearest) {
  EXPECT_EQ(refusal("[optim]\nwarmup_step = 3\n"),
            std::vector<std::string>{
                "15: optim.warmup_step: unknown key; the nearest known one is optim.warmup_steps"});
  EXPECT_EQ(refusal("lr = 1e-3\n"),
            std::vector<std::string>{"14: train.lr: unknown key; the nearest known one is optim.lr"});
  EXPECT_EQ(
      refusal("[paralel]\nzerro = 1\n"),
      std::vector<std::string>{"15: paralel.zerro: unknown key; the nearest known one is parallel.zero"});
  EXPECT_EQ(refusal("", {{"tp", "2"}}),
            std::vector<std::string>{"--set: tp: unknown key; the nearest known one is parallel.tp"});
}

TEST_F(ConfigTest, EveryMistakeHasItsLine) {
  EXPECT_EQ(
      refusal("seed = -1\nmicro_batch = 1.5\n[optim]\nlr = \"fast\"\nbeta1 = 1\nschedule = \"cosin\"\n"),
      (std::vector<std::string>{
          "18: optim.beta1: 1 is out of range; give a number from 0, below 1",
          "17: optim.lr: the text 'fast' has the wrong type; give a number from 0",
          "19: optim.schedule: \"cosin\" is no known value; give one of cosine, linear, constant, wsd "
          "(nearest: cosine)",
          "15: train.micro_batch: the number 1.5 has the wrong type; give a whole number from 1",
          "14: train.seed: -1 is out of range; give a whole number from 0"}));
}

TEST_F(ConfigTest, MissingKeysAreNamed) {
  try {
    load_config(write("[model]\nlayers = 1\n"), {});
    FAIL();
  } catch (const Error& error) {
    for (const char* key : {"model.hidden", "model.heads", "model.vocab", "model.seq_len", "data.train",
                            "train.steps", "train.global_batch"})
      EXPECT_NE(std::string(error.what()).find(std::string(key) + ": is missing"), std::string::npos) << key;
  }
}

TEST_F(ConfigTest, MissingFileAndBadToml) {
  try {
    load_config((dir_ / "none.toml").string(), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::missing);
  }
  const auto lines = refusal("steps = = 3\n");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].substr(0, 3), "14:");
}

TEST_F(ConfigTest, WhatIsNotBuiltYetSaysSo) {
  const std::vector<Override> values = {{"train.device", "cuda"},
                                        {"parallel.comm", "nccl"},
                                        {"data.format", "megatron"},
                                        {"data.format", "llmc"}};
  for (const Override& value : values) {
    const auto lines = refusal("", {value});
    ASSERT_EQ(lines.size(), 1u) << value.first;
    EXPECT_NE(lines[0].find(value.second), std::string::npos) << lines[0];
    EXPECT_NE(lines[0].find("is not built yet; "), std::string::npos) << lines[0];
  }
}

TEST_F(ConfigTest, OverridesAreTomlOrText) {
  const Config config = load("", {{"optim.lr", "1"},
                                  {"data.train", "[\"a b\", \"ü\"]"},
                                  {"run.dir", "2026"},
                                  {"checkpoint.codec", "small"},
                                  {"checkpoint.dir", "a \"quoted\" = [name"},
                                  {"train.reproducible", "false"},
                                  {"parallel.rank_order", "ptd"},
                                  {"parallel.stages", "[4]"}});
  EXPECT_EQ(config.optim.lr, 1.0);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{"a b", "ü"}));
  EXPECT_EQ(config.run_dir, "2026");
  EXPECT_EQ(config.checkpoint.codec, ckpt::Codec::small);
  EXPECT_EQ(config.checkpoints_dir, "a \"quoted\" = [name");
  EXPECT_FALSE(config.train.reproducible);
  EXPECT_EQ(config.parallel.layout.stages, std::vector<int>{4});
  EXPECT_EQ(config.parallel.layout.order, "ptd");
}

TEST_F(ConfigTest, NumbersKeepTheirRange) {
  EXPECT_EQ(
      refusal("", {{"parallel.tp", "4294967297"}}),
      std::vector<std::string>{"--set: parallel.tp: 4294967297 is out of range; give a whole number from 1"});
  EXPECT_EQ(refusal("", {{"optim.lr", "inf"}}),
            std::vector<std::string>{"--set: optim.lr: inf is out of range; give a number from 0"});
  EXPECT_EQ(refusal("", {{"optim.lr", "nan"}}),
            std::vector<std::string>{"--set: optim.lr: nan is out of range; give a number from 0"});
}

// B110: what keep = 0 and -1 mean is written down and checked.
TEST_F(ConfigTest, B110_KeepZeroIsAllAndNegativeIsRefused) {
  EXPECT_EQ(load("", {{"checkpoint.keep", "0"}}).checkpoint.keep, 0);
  EXPECT_EQ(
      refusal("", {{"checkpoint.keep", "-1"}}),
      std::vector<std::string>{"--set: checkpoint.keep: -1 is out of range; give a whole number from 0"});
}

TEST_F(ConfigTest, PrintedConfigurationLoadsToTheSame) {
  const Config config = load("", {{"optim.lr", "0.1"},
                                  {"optim.eps", "1e-20"},
                                  {"optim.weight_decay", "0.30000000000000004"},
                                  {"data.valid", "[\"q\\\"uote\", \"tab\\tback\\\\slash\"]"},
                                  {"parallel.zero", "1"},
                                  {"train.seed", "9223372036854775807"}});
  const std::string text = to_toml(config);
  const Config again = load_config(write(text), {});
  EXPECT_EQ(to_toml(again), text);
  EXPECT_EQ(to_json(again), to_json(config));
  EXPECT_EQ(again.optim.weight_decay, 0.30000000000000004);
  EXPECT_EQ(again.optim.eps, 1e-20);
  EXPECT_EQ(again.data.valid, config.data.valid);
}

TEST_F(ConfigTest, PipelinesAndLlamaAreRead) {
  const Config config = load("", {{"model.arch", "llama"},
                                  {"model.kv_heads", "2"},
                                  {"model.tie_embeddings", "false"},
                                  {"parallel.pp", "2"},
                                  {"parallel.vpp", "2"},
                                  {"parallel.stages", "[1, 1, 1, 1]"},
                                  {"parallel.rank_order", "dpt"},
                                  {"parallel.sequence_parallel", "true"}});
  EXPECT_EQ(config.model.ffn, 176) << "8/3 x 64, up to a multiple of 8";
  EXPECT_TRUE(config.parallel.sequence_parallel);
  EXPECT_EQ(load("", {{"model.dropout", "0.1"}}).model.dropout, 0.1);
  const Config again = load_config(write(to_toml(config)), {});
  EXPECT_EQ(to_json(again), to_json(config));
  EXPECT_EQ(again.parallel.layout, config.parallel.layout);
}

// Such a text would be in the run's config.toml, which nobody could read again.
TEST_F(ConfigTest, TextsThatTomlCannotHoldAreRefused) {
  for (const char* key : {"run.dir", "checkpoint.dir", "data.train", "data.valid"}) {
    EXPECT_EQ(load("", {{key, "caf\xc3\xa9"}}).file.empty(), false) << key;
    try {
      load("", {{key, "caf\xe9"}});
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      EXPECT_NE(std::string(error.what()).find(std::string(key) + ": is not UTF-8; give "), std::string::npos)
          << error.what();
    }
  }
}

TEST(Utf8, IsWhatTheStandardSays) {
  for (const char* text : {"", "a", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc3\xa9z"})
    EXPECT_TRUE(is_utf8(text)) << text;
  for (const char* text :
       {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2z", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
        "\xf0\x8f\xbf\xbf", "\xf0\x9f\x98", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xfez"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

TEST_F(ConfigTest, OverridesOfALayoutMakeTheSame) {
  reshard::Layout layout = reshard::parse_layout("t2p2d3z1v2");
  layout.stages = {1, 1, 1, 1};
  layout.order = "pdt";
  EXPECT_EQ(load("", layout_overrides(layout)).parallel.layout, layout);
  EXPECT_EQ(
      refusal("", {{"parallel.rank_order", "tdd"}}),
      std::vector<std::string>{"--set: parallel.rank_order: \"tdd\" is no known value; give one of tdp, tpd, "
                               "dtp, dpt, ptd, pdt (nearest: tdp)"});
}

TEST_F(ConfigTest, ImpossibleLayoutIsRefusedWithWhatIsPossible) {
  const auto lines = refusal("", {{"parallel.tp", "3"}});
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines[0].find("tp"), std::string::npos);
  EXPECT_NE(lines[0].find("4"), std::string::npos) << lines[0];
}

TEST(ConfigKeys, WhatAKeyMayBeIsSaid) {
  std::map<std::string, std::string> allowed;
  for (const KeyInfo& key : config_keys()) allowed[key.key] = key.allowed;
  EXPECT_EQ(allowed["model.arch"], "gpt2, llama, bloom");
  EXPECT_EQ(allowed["model.heads"], "from 1");
  EXPECT_EQ(allowed["optim.beta1"], "from 0, below 1");
  EXPECT_EQ(allowed["optim.eps"], "above 0");
  EXPECT_TRUE(allowed["parallel.zero"].starts_with("from 0, to ")) << allowed["parallel.zero"];
  EXPECT_EQ(allowed["run.dir"], "");
}

TEST(ConfigKeys, EveryKeyOfTheDesignIsListed) {
  std::string text;
  for (const KeyInfo& key : config_keys()) {
    EXPECT_FALSE(key.meaning.empty()) << key.key;
    text += key.key + " ";
  }
  EXPECT_EQ(
      text,
      "run.dir model.arch model.layers model.hidden model.heads model.kv_heads model.ffn model.vocab "
      "model.seq_len "
      "model.tie_embeddings model.dropout model.preset data.train data.valid data.format train.steps "
      "train.global_batch train.micro_batch train.seed train.dtype train.loss_scale "
      "train.loss_scale_window train.eval_every train.device "
      "train.log_samples "
      "train.reproducible optim.lr optim.min_lr optim.warmup_steps optim.schedule optim.beta1 optim.beta2 "
      "optim.eps "
      "optim.weight_decay optim.clip parallel.tp parallel.pp parallel.dp parallel.vpp parallel.zero "
      "parallel.stages "
      "parallel.rank_order parallel.schedule parallel.sequence_parallel parallel.recompute parallel.offload "
      "parallel.offload_dir "
      "parallel.comm "
      "checkpoint.dir checkpoint.every checkpoint.keep checkpoint.async checkpoint.codec checkpoint.on_busy "
      "checkpoint.verify_writes checkpoint.check_replicas checkpoint.workers checkpoint.priority "
      "checkpoint.commit_deadline_s "
      "health.on_nonfinite "
      "health.max_skips health.loss_spike health.norm_spike elastic.enabled elastic.on_failure "
      "elastic.min_ranks "
      "elastic.max_restarts elastic.heartbeat_s elastic.phase_deadline_s ");
}

}  // namespace
}  // namespace shardwright::trainer
