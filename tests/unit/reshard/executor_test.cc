// The executor: many target shards at once, equal to those of one at a time; what an interrupted try finished
// is kept.
#include "reshard/executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <map>

#include "ckpt/chunk_order.h"
#include "ckpt/error.h"
#include "reshard/proof.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::reshard {
namespace {

using ::testing::HasSubstr;

class ExecutorTest : public ::testing::Test {
 protected:
  // Matrices of several tiles, rows of odd lengths.
  ModelSpec model() {
    return build_model({.layers = 2, .hidden = 66, .heads = 6, .ffn = 11003, .vocab = 97, .seq_len = 7});
  }
  std::string labelled(const char* layout) {
    const std::string path = dir_ / (std::string("source-") + layout);
    if (!env_.exists(path)) write_labelled(env_, path, model(), parse_layout(layout), 7);
    return path;
  }
  std::shared_ptr<const ckpt::Checkpoint> open(const std::string& path) {
    return std::make_shared<const ckpt::Checkpoint>(ckpt::Checkpoint::open(env_, path));
  }
  ReshardOptions options(const std::string& source, const std::string& name, const char* layout) {
    ReshardOptions o;
    o.source = source;
    o.target = dir_ / name;
    o.layout = parse_layout(layout);
    return o;
  }
  std::map<std::string, std::string> files(const std::string& directory) {
    std::map<std::string, std::string> contents;
    for (const std::string& name : env_.list(directory))
      contents[name] = ckpt::read_file(env_, directory + "/" + name);
    return contents;
  }
  // Runs the same reshard in a child with a fault; true if that killed it.
  bool killed_at(const std::string& fault, const ReshardOptions& o, const char* layout) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("SHARDWRIGHT_FAULT", (fault + "=kill").c_str(), 1);
      ::setenv("RESHARD_FROM", o.source.c_str(), 1);
      ::setenv("RESHARD_TO", o.target.c_str(), 1);
      ::setenv("RESHARD_LAYOUT", layout, 1);
      ::execl("/proc/self/exe", "unit_reshard", "--gtest_filter=ExecutorChild.DISABLED_Run",
              "--gtest_also_run_disabled_tests", nullptr);
      ::_exit(9);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }
  std::string attempt_dir(const std::string& target) {
    const std::string base = target.substr(target.rfind('/') + 1);
    for (const std::string& name : env_.list(dir_.path()))
      if (name.starts_with(base + ".tmp-")) return dir_ / name;
    return "";
  }
  static ino_t inode(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
  }
  static void flip(const std::string& path, std::uint64_t offset) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(static_cast<std::streamoff>(offset));
    const auto byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }

  ckpt::Env& env_ = ckpt::posix_env();
  TempDir dir_;
};

// Not a test: what the ones below start and kill.
TEST(ExecutorChild, DISABLED_Run) {
  if (::getenv("RESHARD_LAYOUT") == nullptr) return;
  ReshardOptions o;
  o.source = ::getenv("RESHARD_FROM");
  o.target = ::getenv("RESHARD_TO");
  o.layout = parse_layout(::getenv("RESHARD_LAYOUT"));
  reshard(ckpt::posix_env(), o);
}

TEST_F(ExecutorTest, ShardsWrittenAtOnceEqualThoseWrittenAlone) {
  for (const char* layout : {"t3p2d1z0", "t2p1d3z1", "t1p2d2z1"}) {
    const auto source = open(labelled("t2p1d3z1"));
    const TargetPlan plan = plan_target(source->manifest(), parse_layout(layout));
    const auto cache = std::make_shared<ckpt::ChunkCache>(source, 1u << 30);
    const std::string alone = dir_ / (std::string("alone-") + layout);
    const std::string at_once = dir_ / (std::string("at-once-") + layout);
    env_.create_dirs(alone);
    env_.create_dirs(at_once);
    std::vector<ckpt::ShardJob> jobs;
    for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
      jobs.push_back({rank, target_items(plan, cache, rank)});
      ckpt::publish_part(env_, alone,
                         ckpt::write_shard(env_, alone, "r-1", rank, 7, jobs.back().items, {}, nullptr));
    }
    ckpt::ShardStats stats;
    ckpt::write_shards(env_, at_once, "r-1", 7, jobs, {.threads = 3}, &stats,
                       [&](const ckpt::Part& part) { ckpt::publish_part(env_, at_once, part); });
    EXPECT_EQ(files(alone), files(at_once)) << layout;
    EXPECT_EQ(stats.encoded_chunks, plan.target_chunks);
  }
}

TEST_F(ExecutorTest, ABandOfRowsInTheCacheSuffices) {
  // Row parallel matrices are cut along their columns, so that all ranks need each stored chunk.
  for (const auto& [from, to] : {std::pair{"t1p1d1z0", "t6p1d1z0"},
                                 {"t6p1d1z0", "t1p1d1z0"},
                                 {"t2p1d3z1", "t3p2d1z0"},
                                 {"t1p2d2z1", "t2p1d3z1"}}) {
    const auto source = open(labelled(from));
    const TargetPlan plan = plan_target(source->manifest(), parse_layout(to));
    const auto cache = std::make_shared<ckpt::ChunkCache>(source, 4u << 20);
    const std::string out = dir_ / (std::string(from) + "-" + to);
    env_.create_dirs(out);
    std::vector<ckpt::ShardJob> jobs;
    for (int rank = 0; rank < plan.layout.ranks(); ++rank)
      jobs.push_back({rank, target_items(plan, cache, rank)});
    ckpt::write_shards(env_, out, "r-1", 7, jobs, {.keep_stored = true}, nullptr, [](const ckpt::Part&) {});
    EXPECT_EQ(cache->chunks_read(), plan.source_chunks) << from << " " << to;
  }
}

TEST_F(ExecutorTest, AnyNumberOfJobsAndAnyMemoryMakeTheSameCheckpoint) {
  const std::string a = labelled("t2p1d3z1");
  std::map<std::string, std::string> first;
  for (const int jobs : {1, 2, 7}) {
    for (const std::uint64_t memory : {64u << 20, 100u << 20, 512u << 20}) {
      ReshardOptions o = options(a, fmt::format("b-{}-{}", jobs, memory), "t3p2d2z1");
      o.jobs = jobs;
      o.max_memory_bytes = memory;
      const ReshardReport report = reshard(env_, o);
      EXPECT_EQ(report.read_bytes, report.needed_bytes);
      if (first.empty()) first = files(o.target);
      EXPECT_EQ(files(o.target), first) << jobs << " jobs, " << memory << " bytes";
    }
  }
  EXPECT_EQ(first.size(), 12u + 2);
}

TEST_F(ExecutorTest, FewDescriptorsMakeSmallGroups) {
  const std::string a = labelled("t2p1d3z1");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto parts = [&](const ReshardOptions& o) {
    return std::ranges::count_if(env_.list(attempt_dir(o.target)),
                                 [](const std::string& name) { return name.ends_with(".part"); });
  };
  const ReshardOptions many = options(a, "many", "t3p2d2z1");
  ASSERT_TRUE(killed_at("shard.open:rank=3", many, "t3p2d2z1"));
  EXPECT_EQ(parts(many), 0) << "all are open at once";
  reshard(env_, many);
  const rlimit few{99, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const ReshardOptions groups = options(a, "groups", "t3p2d2z1");
  ASSERT_TRUE(killed_at("shard.open:rank=3", groups, "t3p2d2z1"));
  EXPECT_EQ(parts(groups), 3) << "one group was finished";
  reshard(env_, groups);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(files(groups.target), files(many.target));
}

TEST_F(ExecutorTest, WhatAnInterruptedTryFinishedIsKept) {
  const std::string a = labelled("t2p1d3z1");
  const ReshardOptions untouched = options(a, "untouched", "t3p2d1z0");
  reshard(env_, untouched);
  // The fourth part of six is not published any more.
  const ReshardOptions o = options(a, "b", "t3p2d1z0");
  ASSERT_TRUE(killed_at("part.rename:nth=4", o, "t3p2d1z0"));
  const std::string attempt = attempt_dir(o.target);
  std::map<std::string, ino_t> finished;
  for (const std::string& name : env_.list(attempt))
    if (name.ends_with(".part")) finished[name.substr(0, 10) + ".h5"] = 0;
  ASSERT_EQ(finished.size(), 3u);
  for (auto& [name, number] : finished) number = inode(attempt + "/" + name);
  const ReshardReport report = reshard(env_, o);
  EXPECT_EQ(report.shards_kept, 3u);
  EXPECT_TRUE(report.proof_ok);
  EXPECT_LT(report.read_bytes, report.needed_bytes);
  for (const auto& [name, number] : finished) EXPECT_EQ(inode(o.target + "/" + name), number) << name;
  EXPECT_EQ(files(o.target), files(untouched.target));
}

TEST_F(ExecutorTest, AnUnsoundLeftoverIsMadeAgain) {
  const std::string a = labelled("t2p1d3z1");
  const ReshardOptions untouched = options(a, "untouched", "t3p2d1z0");
  reshard(env_, untouched);
  for (const char* what : {"superblock", "short", "part", "foreign", "gone"}) {
    const ReshardOptions o = options(a, std::string("b-") + what, "t3p2d1z0");
    ASSERT_TRUE(killed_at("manifest.write", o, "t3p2d1z0"));
    const std::string attempt = attempt_dir(o.target);
    const std::string shard = attempt + "/rank-00001.h5", part = attempt + "/rank-00001.part";
    if (what == std::string("superblock")) flip(shard, 20);
    if (what == std::string("short")) ::truncate(shard.c_str(), 5000);
    if (what == std::string("part")) flip(part, 100);
    if (what == std::string("foreign")) env_.rename(attempt + "/rank-00002.part", part);
    if (what == std::string("gone")) env_.unlink(shard);
    const ReshardReport report = reshard(env_, o);
    EXPECT_EQ(report.shards_kept, what == std::string("foreign") ? 4u : 5u) << what;
    EXPECT_EQ(files(o.target), files(untouched.target)) << what;
  }
}

TEST_F(ExecutorTest, ACommitThatWasWrittenIsFinished) {
  const ReshardOptions o = options(labelled("t2p1d3z1"), "b", "t3p2d1z0");
  ASSERT_TRUE(killed_at("dir.rename", o, "t3p2d1z0"));
  const ReshardReport report = reshard(env_, o);
  EXPECT_EQ(report.shards_kept, 6u);
  EXPECT_EQ(report.read_bytes, 0u);
  EXPECT_TRUE(report.proof_ok);
  EXPECT_EQ(check_labels(env_, o.target), std::vector<std::string>{});
  EXPECT_EQ(attempt_dir(o.target), "");
}

TEST_F(ExecutorTest, TheTargetReadAgainIsCompared) {
  ReshardOptions o = options(labelled("t2p1d3z1"), "b", "t3p2d1z0");
  o.paranoid = true;
  EXPECT_TRUE(reshard(env_, o).proof_ok);
  ckpt::Manifest manifest = open(o.target)->manifest();
  std::atomic<std::uint64_t> bytes{0};
  const auto done = [&](std::uint64_t more) { bytes += more; };
  read_again(env_, o.target, manifest, 3, done);
  EXPECT_GT(bytes, 1000000u);
  manifest.states[5].fingerprint.g ^= 1;
  try {
    read_again(env_, o.target, manifest, 3, done);
    FAIL() << "another fingerprint was accepted";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("reads back with another fingerprint"));
  }
  manifest.states[5].fingerprint.g ^= 1;
  const ckpt::ChunkRow row = open(o.target)->shard(4).table().at(3);
  flip(o.target + "/rank-00004.h5", row.address + row.stored_bytes / 3);
  EXPECT_THROW(read_again(env_, o.target, manifest, 1, done), Error);
}

}  // namespace
}  // namespace shardwright::reshard
