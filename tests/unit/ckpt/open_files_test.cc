#include "ckpt/open_files.h"

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "ckpt/verify.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;

/// Descriptors of this process below `directory`.
std::size_t open_below(const std::string& directory) {
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(entry.path(), gone).string().starts_with(directory)) ++count;
  }
  return count;
}

std::string text(const ReadableFile& file) {
  std::string contents(file.size(), '?');
  file.read(0, std::as_writable_bytes(std::span(contents)));
  return contents;
}

class OpenFilesTest : public ::testing::Test {
 protected:
  std::string file(int number) {
    std::string path = dir_ / ("file-" + std::to_string(number));
    std::ofstream(path) << number;
    return path;
  }
  TempDir dir_;
};

TEST_F(OpenFilesTest, AFewStayOpenAndTheOldestLeaves) {
  OpenFiles files(posix_env(), 3);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(text(*files.get(file(i))), std::to_string(i));
    EXPECT_LE(open_below(dir_.path()), 3u);
  }
  files.get(dir_ / "file-4");  // now the newest of 4, 5, 6
  for (int i = 0; i < 7; ++i) fs::remove(dir_ / ("file-" + std::to_string(i)));
  file(7);
  files.get(dir_ / "file-7");
  EXPECT_EQ(text(*files.get(dir_ / "file-4")), "4");
  EXPECT_EQ(text(*files.get(dir_ / "file-6")), "6");
  EXPECT_EQ(error_of([&] { files.get(dir_ / "file-5"); }).code(), ErrorCode::missing);
}

TEST_F(OpenFilesTest, OneInUseOutlivesItsPlace) {
  OpenFiles files(posix_env(), 1);
  const auto first = files.get(file(1));
  files.get(file(2));
  EXPECT_EQ(text(*first), "1");
}

TEST_F(OpenFilesTest, SeveralThreadsReadWhatIsTheirs) {
  for (int i = 0; i < 9; ++i) file(i);
  OpenFiles files(posix_env(), 2);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int n = 0; n < 300; ++n) {
        const int i = (n * (t + 1) + t) % 9;
        EXPECT_EQ(text(*files.get(dir_ / ("file-" + std::to_string(i)))), std::to_string(i));
      }
    });
}

TEST_F(OpenFilesTest, ACheckpointOfManyShardsNeedsFewDescriptors) {
  const std::string checkpoints = dir_ / "checkpoints";
  SampleSave save;
  save.writers = 100;
  const std::string path = save_sample(posix_env(), checkpoints, save);
  const Checkpoint checkpoint = Checkpoint::open(posix_env(), path);
  expect_sample(checkpoint, save.step, 7, 1, 3);
  ASSERT_GT(checkpoint.manifest().files.size(), OpenFiles::kMost);
  EXPECT_LE(open_below(checkpoints), OpenFiles::kMost);
  EXPECT_TRUE(verify(posix_env(), path, 3).ok());
  EXPECT_LE(open_below(checkpoints), OpenFiles::kMost);
}

}  // namespace
}  // namespace shardwright::ckpt
