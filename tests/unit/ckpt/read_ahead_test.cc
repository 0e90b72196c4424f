#include "ckpt/read_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

TEST(ReadAhead, EachChunkIsAskedForOnceAndTheWindowIsKept) {
  const std::vector<std::uint64_t> bytes = {5, 1, 7, 3, 3, 3, 9, 2, 2, 11, 4};
  for (const std::uint64_t window : {1u, 6u, 13u, 100u}) {
    std::vector<std::size_t> asked;
    ReadAhead ahead(
        bytes, [&](std::size_t i) { asked.push_back(i); }, window);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      ahead.reading(i);
      std::uint64_t before_last =
          bytes[i];  // of what is on its way, without the chunk that filled the window
      for (const std::size_t chunk : asked)
        if (chunk > i && chunk != asked.back()) before_last += bytes[chunk];
      EXPECT_TRUE(asked.empty() || asked.back() <= i || before_last < window) << window << " " << i;
    }
    EXPECT_TRUE(std::is_sorted(asked.begin(), asked.end()));
    EXPECT_TRUE(std::adjacent_find(asked.begin(), asked.end()) == asked.end());
    if (window == 100) {
      EXPECT_EQ(asked.size(), bytes.size() - 1) << "all but the first, at once";
    }
  }
}

TEST(ReadAhead, ThreadsThatComeOutOfOrderAndErrorsAreTaken) {
  std::vector<std::size_t> asked;
  ReadAhead ahead(
      std::vector<std::uint64_t>(10, 4),
      [&](std::size_t i) {
        asked.push_back(i);
        if (i == 4) throw Error(ErrorCode::missing, "gone");
      },
      12);
  for (const std::size_t i : {1, 0, 3, 2, 9, 4, 8}) ahead.reading(i);
  EXPECT_EQ(asked, (std::vector<std::size_t>{2, 3, 4, 5}));
}

/// Notes what is asked for and what is read of each file.
class WatchingEnv : public TraceEnv {
 public:
  struct Seen {
    std::map<std::uint64_t, int> asked, read;  // by offset
  };

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    return std::make_unique<File>(*this, posix_env().open(path), path);
  }
  std::map<std::string, Seen> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  class File : public ReadableFile {
   public:
    File(WatchingEnv& env, std::unique_ptr<ReadableFile> base, std::string path)
        : env_(env), base_(std::move(base)), path_(std::move(path)) {}
    std::uint64_t size() const override { return base_->size(); }
    void read(std::uint64_t offset, std::span<std::byte> data) const override {
      {
        const std::lock_guard lock(env_.mutex_);
        ++env_.seen_[path_].read[offset];
      }
      base_->read(offset, data);
    }
    void will_need(std::uint64_t offset, std::uint64_t bytes) const override {
      {
        const std::lock_guard lock(env_.mutex_);
        Seen& seen = env_.seen_[path_];
        ++seen.asked[offset];
        EXPECT_EQ(seen.read.count(offset), 0u) << path_ << ": asked for when it had been read";
      }
      base_->will_need(offset, bytes);
    }

   private:
    WatchingEnv& env_;
    std::unique_ptr<ReadableFile> base_;
    std::string path_;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Seen> seen_;
};

TEST(ReadAhead, LoadingAsksForEachChunkOnceBeforeItIsRead) {
  const TempDir dir;
  SampleSave sample;
  sample.writers = 3;
  const std::string path = save_sample(posix_env(), dir / "checkpoints", sample);
  WatchingEnv env;
  const LoadStats stats = expect_sample(Checkpoint::open(env, path), sample.step, 3);
  std::uint64_t asked = 0;
  for (const auto& [file, seen] : env.seen())
    for (const auto& [offset, times] : seen.asked) {
      EXPECT_EQ(times, 1) << file;
      EXPECT_EQ(seen.read.at(offset), 1) << file;
      ++asked;
    }
  EXPECT_EQ(asked + 1, stats.chunks);
}

}  // namespace
}  // namespace shardwright::ckpt
