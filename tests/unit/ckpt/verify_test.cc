#include "ckpt/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/digest.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class VerifyTest : public ::testing::Test {
 protected:
  void SetUp() override { path_ = save_sample(env_, dir_ / "checkpoints", {}); }

  std::vector<std::string> codes(int threads = 2) {
    std::vector<std::string> codes;
    const VerifyReport report = verify(env_, path_, threads);
    for (const Problem& p : report.problems) codes.push_back(p.code + " " + p.file);
    return codes;
  }
  void expect_only(const std::string& code) {
    EXPECT_THAT(codes(), ::testing::ElementsAre(code));
    EXPECT_ANY_THROW(expect_sample(Checkpoint::open(env_, path_), 5))
        << "load takes what verify refuses: " << code;
  }

  /// Signs a changed manifest and COMMIT, so that only the content of the manifest is wrong.
  void replace_manifest(const std::function<void(Manifest&)>& change) {
    Commit commit = read_commit(env_, path_);
    Manifest m = parse_manifest(read_manifest_bytes(env_, path_, commit.manifest), "m");
    change(m);
    env_.unlink(path_ + "/manifest.h5");
    commit.manifest = write_manifest(env_, path_, m);
    write_commit(env_, path_, commit, [] { return true; });
  }

  TempDir dir_;
  std::string path_;
  Env& env_ = posix_env();
};

TEST_F(VerifyTest, CleanAndCounted) {
  std::uint64_t last = 0, all = 0;
  const VerifyReport report = verify(env_, path_, 3, [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    last = done;
    all = total;
  });
  EXPECT_TRUE(report.ok()) << report.problems[0].message;
  EXPECT_EQ(report.step, 5u);
  EXPECT_EQ(report.files, 5u);
  std::uint64_t bytes = 0, rows = 0;
  for (const auto& entry : fs::directory_iterator(path_)) bytes += entry.file_size();
  const Checkpoint checkpoint = Checkpoint::open(env_, path_);
  for (const FileRecord& f : checkpoint.manifest().files) rows += f.table_bytes / 24;
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_EQ(last, all);
  EXPECT_EQ(report.chunks, rows);
}

TEST_F(VerifyTest, EveryByteOfEveryFileCounts) {
  for (const std::string& name : env_.list(path_)) {
    const std::uint64_t size = fs::file_size(path_ + "/" + name);
    const std::uint64_t stride = std::max<std::uint64_t>(1, size / 60) | 1;
    for (std::uint64_t at = 0; at < size; at += stride) {
      flip_bit(path_ + "/" + name, at);
      const VerifyReport report = verify(env_, path_, 1);
      ASSERT_FALSE(report.ok()) << name << " byte " << at;
      EXPECT_EQ(report.problems[0].file, name);
      flip_bit(path_ + "/" + name, at);
    }
  }
  EXPECT_TRUE(verify(env_, path_, 1).ok());
}

TEST_F(VerifyTest, B107_EachSectionOfAShardHasItsCode) {
  const FileRecord file = Checkpoint::open(env_, path_).manifest().files[1];
  const std::string shard = path_ + "/" + file.name;
  OpenFiles files(env_);
  const ShardReader reader(files, path_, file);
  flip_bit(shard, reader.table()[2].address + 3);
  expect_only("chunk rank-00001.h5");
  const VerifyReport report = verify(env_, path_, 1);
  EXPECT_FALSE(report.problems[0].tensor.empty());
  EXPECT_FALSE(report.problems[0].kind.empty());
  flip_bit(shard, reader.table()[2].address + 3);
  flip_bit(shard, file.table_address);
  expect_only("digest rank-00001.h5");
  flip_bit(shard, file.table_address);
  flip_bit(shard, 20);  // superblock: loading never looks at it
  EXPECT_THAT(codes(), ::testing::ElementsAre("digest rank-00001.h5"));
}

TEST_F(VerifyTest, SizesAndPresence) {
  fs::resize_file(path_ + "/rank-00000.h5", fs::file_size(path_ + "/rank-00000.h5") + 1);
  expect_only("size rank-00000.h5");
  fs::remove(path_ + "/rank-00000.h5");
  expect_only("missing_file rank-00000.h5");
}

TEST_F(VerifyTest, B24_TheTensorsLostWithAFileAreNamed) {
  const Manifest manifest = Checkpoint::open(env_, path_).manifest();
  fs::remove(path_ + "/rank-00001.h5");
  const std::string message = verify(env_, path_, 1).problems.at(0).message;
  for (const BoxEntry& box : manifest.boxes) {
    if (manifest.files[box.file].name != "rank-00001.h5") continue;
    EXPECT_THAT(message, ::testing::HasSubstr(manifest.tensors[manifest.states[box.state].tensor].name));
  }
}

TEST_F(VerifyTest, EveryProblemIsReported) {
  fs::remove(path_ + "/rank-00000.h5");
  const FileRecord file = Checkpoint::open(env_, path_).manifest().files[2];
  OpenFiles files(env_);
  const ShardReader reader(files, path_, file);
  flip_bit(path_ + "/rank-00002.h5", reader.table()[0].address);
  flip_bit(path_ + "/rank-00002.h5", reader.table()[1].address);
  std::ofstream(path_ + "/notes.txt") << "x";
  fs::create_directory(path_ + "/sub");
  EXPECT_THAT(codes(), ::testing::ElementsAre("path notes.txt", "missing_file rank-00000.h5",
                                              "chunk rank-00002.h5", "chunk rank-00002.h5", "path sub"));
}

TEST_F(VerifyTest, CommitAndManifest) {
  flip_bit(path_ + "/manifest.h5", 99);
  expect_only("digest manifest.h5");
  fs::resize_file(path_ + "/manifest.h5", 99);
  expect_only("size manifest.h5");
  fs::remove(path_ + "/manifest.h5");
  expect_only("missing_file manifest.h5");
  fs::resize_file(path_ + "/COMMIT", 9);
  expect_only("commit COMMIT");
  fs::remove(path_ + "/COMMIT");
  expect_only("commit COMMIT");
  replace_file(env_, path_ + "/COMMIT", sign_record(R"({"format":"shardwright","version":2})"));
  expect_only("version COMMIT");
}

TEST_F(VerifyTest, FingerprintCoverageOverlapAndPaths) {
  const auto codes_after = [&](const std::function<void(Manifest&)>& change) {
    replace_manifest(change);
    auto found = codes();
    EXPECT_FALSE(found.empty());
    return found.empty() ? "" : found[0];
  };
  EXPECT_EQ(codes_after([](Manifest& m) { m.states[1].fingerprint.h ^= 1; }), "fingerprint manifest.h5");
  replace_manifest([](Manifest& m) { m.states[1].fingerprint.h ^= 1; });
  EXPECT_TRUE(codes().empty());
  EXPECT_EQ(codes_after([](Manifest& m) { m.states[1].fingerprint.count -= 1; }), "coverage manifest.h5");
  EXPECT_EQ(codes_after([](Manifest& m) {
              m.states[1].fingerprint.count += 1;
              m.files[0].name = "../rank-00000.h5";
            }),
            "path manifest.h5");
}

TEST_F(VerifyTest, SwappedShardsAreSeen) {
  fs::rename(path_ + "/rank-00000.h5", path_ + "/x");
  fs::rename(path_ + "/rank-00001.h5", path_ + "/rank-00000.h5");
  fs::rename(path_ + "/x", path_ + "/rank-00001.h5");
  EXPECT_EQ(verify(env_, path_, 2).problems.size(), 2u);
}

}  // namespace
}  // namespace shardwright::ckpt
