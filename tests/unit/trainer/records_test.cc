#include "trainer/records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "ckpt/error.h"
#include "tests/tools/temp_dir.h"
#include "trainer/training_state.h"

namespace shardwright::trainer {
namespace {

using nlohmann::json;

class RecordFiles : public testing::Test {
 protected:
  std::vector<std::string> lines(const std::string& name) const {
    std::ifstream in(directory_ / name);
    std::vector<std::string> all;
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::app) << text;
  }

  TempDir directory_;
};

TEST(JsonNumber, ParsesBackToTheSameValue) {
  for (const double value :
       {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -2.5, 3.0, 1e22, 4.6011719703674316})
    EXPECT_EQ(json::parse(json_number(value)).get<double>(), value);
  EXPECT_EQ(json_number(std::numeric_limits<double>::quiet_NaN()), "\"NaN\"");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "\"Infinity\"");
  EXPECT_EQ(json_number(-std::numeric_limits<double>::infinity()), "\"-Infinity\"");
}

TEST(TrainingStateJson, B53_ALossThatIsNotFiniteSurvivesAsText) {
  for (const double loss :
       {std::numeric_limits<double>::quiet_NaN(), -std::numeric_limits<double>::infinity(), 1.0 / 3}) {
    TrainingState state;
    state.loss = loss;
    const std::string text = to_json(state);
    const std::optional<double> back = parse_training_json(text).loss;
    ASSERT_TRUE(back.has_value()) << text;
    EXPECT_TRUE(*back == loss || (std::isnan(*back) && std::isnan(loss))) << text;
    EXPECT_EQ(json::parse(text)["loss"].is_number(), std::isfinite(loss)) << text;
  }
  EXPECT_FALSE(parse_training_json(to_json(TrainingState{})).loss.has_value());
}

TEST_F(RecordFiles, StepHasTheFieldsOfTheContract) {
  StepRecord record;
  record.step = 7;
  record.generation = 2;
  record.loss = 4.25;
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.samples = 56;
  record.layout = "t2p1d2z1";
  record.ranks = 4;
  record.memory = {1, 2, 3, 4, 50, 600};
  Records records(directory_.path());
  records.step(record);
  record.sample_ids = {5, 3, 11};
  records.step(record);
  const auto all = lines("metrics.jsonl");
  ASSERT_EQ(all.size(), 2U);
  const json first = json::parse(all[0]);
  for (const char* field : {"type", "step", "generation", "loss", "grad_norm", "lr", "samples",
                            "tokens_per_s", "step_ms", "ckpt_stall_ms", "layout", "ranks"})
    EXPECT_TRUE(first.contains(field)) << field;
  EXPECT_EQ(first["grad_norm"], "Infinity");
  EXPECT_FALSE(first.contains("sample_ids"));
  EXPECT_EQ(
      first["memory_bytes"],
      json::parse(
          R"({"param":1,"grad":2,"optimizer":3,"activation":4,"buffers":50,"scratch":600,"total":660})"));
  EXPECT_EQ(json::parse(all[1])["sample_ids"], (std::vector<int>{5, 3, 11}));
}

TEST_F(RecordFiles, CheckpointAndEvalAndEventAreWholeObjects) {
  Records records(directory_.path());
  ckpt::SaveOutcome outcome;
  outcome.step = 5;
  outcome.attempt = "0-1";
  outcome.path = "dir/with \"quotes\" and \xff";
  outcome.result = ckpt::SaveResult::skipped;
  outcome.reason = "busy";
  outcome.parts_wait_s = 1.5;
  outcome.copied_bytes = 77;
  records.checkpoint(outcome);
  records.eval(5, 2.5, 100);
  records.event(3, "generation_start", R"({"ranks":3,"layout":"t1p1d3z1"})");
  records.event(3, "done");
  const auto metrics = lines("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 2U);
  const json checkpoint = json::parse(metrics[0]);
  EXPECT_EQ(checkpoint["outcome"], "skipped");
  for (const char* field : {"raw_bytes", "stored_bytes", "stall_ms", "total_s", "encode_s", "write_s",
                            "fsync_s", "commit_s", "peak_host_bytes", "snapshot_ms", "before_write_ms",
                            "queue_s", "verify_s", "chunk_wait_s", "parts_wait_s", "copied_bytes"})
    EXPECT_TRUE(checkpoint.contains(field)) << field;
  EXPECT_EQ(checkpoint["parts_wait_s"], 1.5);
  EXPECT_EQ(checkpoint["copied_bytes"], 77);
  EXPECT_EQ(json::parse(metrics[1]), json::parse(R"({"type":"eval","step":5,"loss":2.5,"tokens":100})"));
  const auto events = lines("events.jsonl");
  ASSERT_EQ(events.size(), 2U);
  const json start = json::parse(events[0]);
  EXPECT_EQ(start["event"], "generation_start");
  EXPECT_EQ(start["ranks"], 3);
  EXPECT_THAT(start["time"].get<std::string>(), testing::MatchesRegex("....-..-..T..:..:......Z"));
  EXPECT_EQ(json::parse(events[1])["generation"], 3);
}

TEST_F(RecordFiles, TornLastLineIsEndedAtOpening) {
  append("metrics.jsonl", "{\"type\":\"step\"}\n{\"type\":\"st");
  Records records(directory_.path());
  EXPECT_EQ(lines("metrics.jsonl").size(), 2U);
  records.eval(1, 1, 1);
  const auto all = lines("metrics.jsonl");
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(json::parse(all[2])["type"], "eval");
}

TEST_F(RecordFiles, TheHighestGenerationIsFoundAmongDamage) {
  EXPECT_FALSE(recorded_generation(directory_.path()));
  append("events.jsonl",
         std::string(5000, '\0') + "\n\xff\xfe\n[]\n7\n{\"generation\":\"9\"}\n{\"generation\":-4}\n");
  EXPECT_FALSE(recorded_generation(directory_.path()));
  append("events.jsonl", "{\"event\":\"done\",\"generation\":4}\n{\"generation\":3}\n{\"generation\":88");
  append("metrics.jsonl", "{\"type\":\"eval\"}\n{\"type\":\"step\",\"generation\":6,\"loss\":\"NaN\"}");
  EXPECT_EQ(recorded_generation(directory_.path()), 6U);
}

TEST_F(RecordFiles, TheLastStepOfAGeneration) {
  EXPECT_EQ(recorded_step(directory_.path(), 1), 0);
  append("metrics.jsonl",
         R"({"type":"step","step":9,"generation":0}
{"type":"step","step":7,"generation":1}
{"type":"skipped","step":8,"generation":1}
{"type":"step","step":"12","generation":1}
{"step":13,"generation":1}
{"type":"step","step":14,"gener)");
  EXPECT_EQ(recorded_step(directory_.path(), 1), 7);
  EXPECT_EQ(recorded_step(directory_.path(), 0), 9);
  EXPECT_EQ(recorded_step(directory_.path(), 2), 0);
}

TEST_F(RecordFiles, OnlyRegularFilesAreAppendedTo) {
  ASSERT_EQ(::mkfifo((directory_ / "events.jsonl").c_str(), 0600), 0);
  EXPECT_THROW(Records(directory_.path()), Error);
  EXPECT_FALSE(recorded_generation(directory_.path()));
  std::filesystem::remove(directory_ / "events.jsonl");
  std::filesystem::remove(directory_ / "metrics.jsonl");
  std::filesystem::create_symlink("/dev/full", directory_ / "metrics.jsonl");
  EXPECT_THROW(Records(directory_.path()), Error);
  EXPECT_FALSE(recorded_generation(directory_.path()));
}

TEST_F(RecordFiles, TornLineOfAnotherProcessDoesNotSpoilTheNext) {
  Records supervisor(directory_.path());
  append("events.jsonl", "{\"time\":\"2026");  // a worker killed in the middle of its write
  supervisor.event(1, "rank_lost");
  const auto all = lines("events.jsonl");
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(json::parse(all[1])["event"], "rank_lost");
}

TEST_F(RecordFiles, LinesOfSeveralWritersDoNotMix) {
  Records one(directory_.path());
  Records other(directory_.path());
  const auto write = [](Records& records) {
    for (int i = 0; i < 200; ++i) records.event(0, std::string(300, 'x'));
  };
  std::thread a(write, std::ref(one)), b(write, std::ref(one)), c(write, std::ref(other));
  a.join(), b.join(), c.join();
  std::size_t whole = 0;
  for (const std::string& line : lines("events.jsonl"))
    whole += !line.empty() && json::parse(line).is_object();
  EXPECT_EQ(whole, 600U);
}

}  // namespace
}  // namespace shardwright::trainer
