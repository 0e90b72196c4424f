// What h5py sees of a checkpoint through a view, and what a view cannot tell it.
#include "ckpt/view.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

int python(const std::string& script, const std::string& arguments) {
  return std::system(fmt::format("cd / && HDF5_PLUGIN_PATH='{}' /usr/bin/python3 {}/{} {}",
                                 SHARDWRIGHT_PLUGINS, SHARDWRIGHT_TOOLS, script, arguments)
                         .c_str());
}

class ViewTest : public ::testing::Test {
 protected:
  std::string save(int writers, const std::string& run = "run") {
    SampleSave sample;
    sample.writers = writers;
    return save_sample(env_, dir_ / (run + "/checkpoints"), sample);
  }

  /// The list that compare_npz.py reads, with every state of the sample.
  std::string expected() {
    const std::string list = dir_ / "list";
    std::ofstream lines(list);
    int number = 0;
    for (const SampleState& state : sample_states()) {
      const std::string file = fmt::format("values-{}", number++);
      const std::vector<std::byte> values = sample_values(state, Box::whole(state.shape), 5);
      std::ofstream(dir_ / file, std::ios::binary)
          .write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size()));
      std::string extents;
      for (const std::uint64_t extent : state.shape) extents += fmt::format("{},", extent);
      lines << fmt::format("{}/{}\t{}\t{}\t{}\n", state.kind, state.tensor, name(state.dtype), extents, file);
    }
    return list;
  }

  void expect_every_value(const std::string& view) {
    ASSERT_EQ(python("read_view.py", fmt::format("'{}' {}", view, dir_ / "out.npz")), 0);
    EXPECT_EQ(python("compare_npz.py", fmt::format("{} {}", dir_ / "out.npz", expected())), 0);
  }

  TempDir dir_;
  Env& env_ = posix_env();
};

TEST_F(ViewTest, EveryTensorIsThereWhateverTheNumberOfWriters) {
  for (const int writers : {1, 3, 5, 7}) {
    const std::string path = save(writers, fmt::format("run-{}", writers));
    const std::string out = dir_ / fmt::format("run-{}/view.h5", writers);
    const View view = write_view(env_, path, out);
    EXPECT_EQ(view.source, "checkpoints/step-0000000005");
    EXPECT_EQ(view.datasets, sample_states().size());
    EXPECT_EQ(view.bytes, fs::file_size(out));
    EXPECT_EQ(view.step, 5u);
    expect_every_value(out);
  }
}

TEST_F(ViewTest, TheTreeMayBeMovedAndHaveAnyName) {
  const std::string path = save(3, "50%b%% ü");
  const View view = write_view(env_, path, dir_ / "50%b%% ü/view.h5");
  EXPECT_EQ(view.source, "checkpoints/step-0000000005");
  fs::create_directories(dir_ / "else where");
  fs::rename(dir_ / "50%b%% ü", dir_ / "else where/moved %d");
  expect_every_value(dir_ / "else where/moved %d/view.h5");
  // Through a link to the directory, and from a directory beside the run.
  fs::create_directory_symlink(dir_ / "else where/moved %d", dir_ / "link");
  EXPECT_EQ(write_view(env_, dir_ / "link/checkpoints/step-0000000005", dir_ / "beside.h5").source,
            "else where/moved %d/checkpoints/step-0000000005");
  expect_every_value(dir_ / "beside.h5");
}

TEST_F(ViewTest, WithNothingInCommonTheCheckpointIsNamedAbsolutely) {
  const std::string path = save(3);
  const std::string other = fmt::format("/dev/shm/shardwright-view-{}.h5", ::getpid());
  if (!env_.is_dir("/dev/shm") || dir_.path().starts_with("/dev/"))
    GTEST_SKIP() << "no second tree: the temporary directory and /dev/shm must share nothing but /";
  EXPECT_EQ(write_view(env_, path, other).source, fs::canonical(path).string());
  expect_every_value(other);
  fs::remove(other);
}

// The warning is no idle talk: this is what a virtual dataset does.
TEST_F(ViewTest, AMissingShardReadsAsNaNWithoutAnErrorAndTheViewSaysSo) {
  const std::string path = save(3);
  const std::string out = dir_ / "view.h5";
  write_view(env_, path, out);
  fs::remove(path + "/rank-00001.h5");
  const std::string script = fmt::format(
      "-c \"import h5py, numpy as np, sys; f = h5py.File('{}', 'r'); e = f['param/embed'][()]; "
      "n = f['param/numbers'][()]; w = f.attrs['warning']; w = w.decode() if isinstance(w, bytes) else w; "
      "ok = np.isnan(e[32:64]).all() and not np.isnan(e[:32]).all() and (n[2:4] == 0).all() and 'NaN' in w "
      "and f.attrs['step'] == 5; sys.exit(0 if ok else 1)\"",
      out);
  EXPECT_EQ(
      std::system(
          fmt::format("HDF5_PLUGIN_PATH='{}' /usr/bin/python3 {}", SHARDWRIGHT_PLUGINS, script).c_str()),
      0);
  // A view of what is not whole is not written.
  const Error error = error_of([&] { write_view(env_, path, dir_ / "second.h5"); });
  EXPECT_EQ(error.code(), ErrorCode::damaged);
  EXPECT_THAT(error.what(), HasSubstr("rank-00001.h5"));
  EXPECT_FALSE(fs::exists(dir_ / "second.h5"));
}

TEST_F(ViewTest, TargetsThatAreRefused) {
  const std::string path = save(3);
  std::ofstream(dir_ / "there") << "mine";
  fs::create_symlink("nowhere", dir_ / "dangling");
  const auto code = [&](const std::string& out) {
    return error_of([&] { write_view(env_, path, out); }).code();
  };
  EXPECT_EQ(code(dir_ / "there"), ErrorCode::exists);
  EXPECT_EQ(code(dir_ / "dangling"), ErrorCode::exists);
  EXPECT_EQ(code(dir_.path()), ErrorCode::exists);
  EXPECT_EQ(code(dir_ / "none/view.h5"), ErrorCode::missing);
  EXPECT_EQ(code(path + "/view.h5"), ErrorCode::usage);
  EXPECT_EQ(read_file(env_, dir_ / "there"), "mine");
}

TEST_F(ViewTest, AFailureLeavesNothingBehind) {
  const std::string path = save(3);
  TraceEnv traced;
  write_view(traced, path, dir_ / "view.h5");
  const std::size_t operations = traced.ops().size();
  ASSERT_GT(operations, 3u);
  EXPECT_EQ(traced.ops()[operations - 2].kind, TraceOp::rename);
  EXPECT_EQ(traced.ops()[operations - 3].kind, TraceOp::sync);
  for (std::size_t at = 0; at + 1 < operations; ++at) {
    TraceEnv env;
    env.fail_at(at, ENOSPC);
    EXPECT_EQ(error_of([&] { write_view(env, path, dir_ / "failed.h5"); }).code(), ErrorCode::no_space) << at;
    for (const auto& entry : fs::directory_iterator(dir_.path()))
      EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("failed.h5"))) << at;
  }
}

}  // namespace
}  // namespace shardwright::ckpt
