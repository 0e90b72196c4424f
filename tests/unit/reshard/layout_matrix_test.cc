// Circles of layouts of every ZeRO stage, of a model of odd sizes: equal bits, whatever the number of
// threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "reshard/reshard.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::reshard {
namespace {

ModelSpec odd_model() {
  return build_model({.layers = 5, .hidden = 60, .heads = 6, .ffn = 301, .vocab = 97, .seq_len = 7});
}

// All files of a checkpoint, byte for byte.
std::map<std::string, std::string> files(const std::string& directory) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    std::ifstream file(entry.path(), std::ios::binary);
    contents[entry.path().filename()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return contents;
}

class LayoutMatrix : public ::testing::TestWithParam<int> {};

// Each circle goes from this ZeRO stage over two others and back.
TEST_P(LayoutMatrix, CirclesGiveEqualBitsWithAnyNumberOfJobs) {
  ckpt::Env& env = ckpt::posix_env();
  const ModelSpec model = odd_model();
  const int z = GetParam();
  const std::vector<std::vector<std::string>> circles = {
      {"t3p2d1", "t1p5d3", "t2p3d2"}, {"t1p1d7", "t6p1d1", "t2p2d3"}, {"t2p5d1", "t3p1d5", "t1p4d2"}};
  for (const auto& circle : circles) {
    SCOPED_TRACE(circle[0] + " at ZeRO " + std::to_string(z));
    const TempDir dir;
    const auto layout = [&](std::size_t hop) {
      return parse_layout(circle[hop % 3] + "z" + std::to_string((z + static_cast<int>(hop % 3)) % 4));
    };
    std::string at = dir / "source";
    write_labelled(env, at, model, layout(0), 7);
    for (std::size_t hop = 1; hop <= 3; ++hop) {
      std::map<std::string, std::string> first;
      std::string next;
      for (const int jobs : {1, 2, 7}) {
        ReshardOptions options;
        options.source = at;
        options.target = dir / ("hop" + std::to_string(hop) + "-" + std::to_string(jobs));
        options.layout = layout(hop);
        options.jobs = jobs;
        options.max_memory_bytes = 256u << 20;
        const ReshardReport report = reshard(env, options);
        EXPECT_TRUE(report.proof_ok);
        if (jobs == 1) {
          next = options.target;
          first = files(next);
          EXPECT_THAT(check_labels(env, next), ::testing::IsEmpty());
        } else {
          EXPECT_TRUE(files(options.target) == first) << jobs << " jobs, hop " << hop;
        }
      }
      at = next;
    }
    const ckpt::Checkpoint source = ckpt::Checkpoint::open(env, dir / "source");
    const ckpt::Checkpoint end = ckpt::Checkpoint::open(env, at);
    ASSERT_EQ(source.manifest().boxes.size(), end.manifest().boxes.size());
    for (std::size_t i = 0; i < source.manifest().boxes.size(); ++i) {
      EXPECT_EQ(source.manifest().boxes[i].box, end.manifest().boxes[i].box);
      EXPECT_EQ(source.manifest().boxes[i].file, end.manifest().boxes[i].file);
    }
    for (std::size_t s = 0; s < source.manifest().states.size(); ++s)
      EXPECT_EQ(source.manifest().states[s].fingerprint, end.manifest().states[s].fingerprint);
  }
}

INSTANTIATE_TEST_SUITE_P(ZeRO, LayoutMatrix, ::testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace shardwright::reshard
