// Chunks that need no cutting are written as the source has them stored, and counted truly.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "ckpt/checkpoint.h"
#include "ckpt/error.h"
#include "ckpt/shard.h"
#include "reshard/reshard.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::reshard {
namespace {

using Chunks = std::multiset<std::vector<std::byte>>;

class PassThroughTest : public ::testing::Test {
 protected:
  // An up projection of several tiles, whose last is shorter.
  ModelSpec model() {
    return build_model({.layers = 2, .hidden = 60, .heads = 6, .ffn = 11003, .vocab = 97, .seq_len = 7});
  }
  std::string labelled(const char* layout) {
    const std::string path = dir_ / (std::string("source-") + layout);
    if (!env_.exists(path)) write_labelled(env_, path, model(), parse_layout(layout), 7);
    return path;
  }
  ReshardReport run(const std::string& source, const std::string& name, const char* layout,
                    std::optional<ckpt::Codec> codec = {}) {
    ReshardOptions o;
    o.source = source;
    o.target = dir_ / name;
    o.layout = parse_layout(layout);
    o.codec = codec;
    o.plan_only = true;
    const ReshardReport plan = reshard(env_, o);
    o.plan_only = false;
    const ReshardReport done = reshard(env_, o);
    EXPECT_EQ(plan.chunks_passed_through, done.chunks_passed_through) << name;
    EXPECT_EQ(plan.chunks_recoded, done.chunks_recoded) << name;
    EXPECT_EQ(plan.chunks_read, done.chunks_read) << name;
    EXPECT_EQ(check_labels(env_, o.target), std::vector<std::string>{}) << name;
    return done;
  }
  Chunks chunks(const std::string& path) {
    const ckpt::Checkpoint c = ckpt::Checkpoint::open(env_, path);
    Chunks all;
    for (std::uint32_t f = 0; f < c.manifest().files.size(); ++f) {
      for (std::size_t i = 0; i < c.shard(f).table().size(); ++i) {
        std::vector<std::byte> stored;
        c.shard(f).read_stored(i, stored);
        all.insert(std::move(stored));
      }
    }
    return all;
  }
  static std::uint64_t common(const Chunks& a, const Chunks& b) {
    Chunks both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::inserter(both, both.end()));
    return both.size();
  }

  ckpt::Env& env_ = ckpt::posix_env();
  TempDir dir_;
};

TEST_F(PassThroughTest, AChangeOfStagesRecodesNothing) {
  const ReshardReport done = run(labelled("t1p2d1z0"), "b", "t1p1d1z0");
  EXPECT_EQ(done.chunks_recoded, 0u);
  EXPECT_GT(done.chunks_passed_through, 50u);
  EXPECT_EQ(chunks(dir_ / "b"), chunks(labelled("t1p2d1z0")));
}

TEST_F(PassThroughTest, PlanAndWorkCountTheSameForAnyPairOfLayouts) {
  const std::vector<const char*> layouts = {"t1p1d1z0", "t3p2d1z1", "t1p2d2z1", "t1p1d5z0"};
  bool some_of_both = false;
  for (const char* from : layouts) {
    for (const char* to : layouts) {
      const std::string name = std::string(from) + "-" + to;
      const ReshardReport done = run(labelled(from), name, to);
      const Chunks before = chunks(labelled(from)), after = chunks(dir_ / name);
      EXPECT_EQ(done.chunks_passed_through + done.chunks_recoded, after.size()) << name;
      // What is recoded may come out equal by chance of its values, never the other way round.
      EXPECT_GE(common(before, after), done.chunks_passed_through) << name;
      some_of_both = some_of_both || (done.chunks_passed_through > 0 && done.chunks_recoded > 0);
      if (std::string(from) == to) {
        EXPECT_EQ(done.chunks_recoded, 0u) << name;
      }
    }
  }
  EXPECT_TRUE(some_of_both);
}

TEST_F(PassThroughTest, ACodecThatIsAskedForRecodesAll) {
  const std::string a = labelled("t1p2d1z0");
  const ReshardReport deflated = run(a, "deflated", "t1p1d1z0", ckpt::Codec::deflate);
  EXPECT_EQ(deflated.chunks_passed_through, 0u);
  for (const std::vector<std::byte>& stored : chunks(dir_ / "deflated"))
    EXPECT_EQ(ckpt::form_of(std::span<const std::byte>(stored)), ckpt::ChunkForm::zlib);
  // Kept in that form afterwards, cut or not.
  EXPECT_GT(run(dir_ / "deflated", "still", "t3p2d1z0").chunks_recoded, 0u);
  for (const std::vector<std::byte>& stored : chunks(dir_ / "still"))
    EXPECT_EQ(ckpt::form_of(std::span<const std::byte>(stored)), ckpt::ChunkForm::zlib);
  // And back: the same bytes as at first.
  run(dir_ / "deflated", "back", "t1p2d1z0", ckpt::Codec::fast);
  EXPECT_EQ(chunks(dir_ / "back"), chunks(a));
}

TEST_F(PassThroughTest, ADamagedChunkDoesNotPass) {
  const std::string a = labelled("t1p2d1z0");
  const std::string shard = a + "/rank-00001.h5";
  const ckpt::ChunkRow row = ckpt::Checkpoint::open(env_, a).shard(1).table().back();
  std::fstream file(shard, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(row.address + row.stored_bytes / 2));
  const auto byte = static_cast<char>(file.get() ^ 16);
  file.seekp(static_cast<std::streamoff>(row.address + row.stored_bytes / 2));
  file.put(byte);
  file.close();
  ReshardOptions o;
  o.source = a;
  o.target = dir_ / "b";
  o.layout = parse_layout("t1p1d1z0");
  try {
    reshard(env_, o);
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::damaged);
    EXPECT_NE(std::string(e.what()).find("rank-00001.h5"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(env_.exists(o.target));
}

// A source whose chunks are stored, some in another form than the shard's.
class Stored : public ckpt::HostSource {
 public:
  Stored(const std::vector<float>& values, ckpt::Box box, ckpt::Codec codec)
      : HostSource(values.data(), box, sizeof(float)), codec_(codec) {}
  bool read_stored(const ckpt::Box& region, const ckpt::Dims& chunk, ckpt::StoredChunk& out) const override {
    if (region.offset[0] == 0) return false;
    out.raw.assign(ckpt::element_count(chunk) * sizeof(float), std::byte{0});
    read(region, out.raw.data());
    ckpt::ChunkEncoder(codec_).encode(out.raw, sizeof(float), out.stored);
    out.xxh3_64 = ckpt::xxh3_64(out.stored);
    return true;
  }

 private:
  ckpt::Codec codec_;
};

TEST_F(PassThroughTest, AChunkOfTheOtherFormIsEncoded) {
  std::vector<float> values(35);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 7;
  const ckpt::Box box{{0}, {35}};
  std::map<ckpt::Codec, ckpt::Fingerprint> fingerprints;
  for (const ckpt::Codec codec : {ckpt::Codec::small, ckpt::Codec::deflate}) {
    const ckpt::SaveItem item{
        "a", "param", ckpt::DType::f32, {35}, box, {8}, std::make_shared<Stored>(values, box, codec)};
    const std::string directory = dir_ / std::string(ckpt::name(codec));
    env_.create_dirs(directory);
    ckpt::ShardStats stats;
    const ckpt::Part part = ckpt::write_shard(env_, directory, "0-1", 0, 7, std::vector{item},
                                              {.codec = ckpt::Codec::small, .keep_stored = true}, &stats);
    EXPECT_EQ(stats.kept_chunks, codec == ckpt::Codec::small ? 4u : 0u);
    EXPECT_EQ(stats.encoded_chunks, codec == ckpt::Codec::small ? 1u : 5u);
    fingerprints[codec] = part.boxes.at(0).fingerprint;
  }
  EXPECT_EQ(fingerprints[ckpt::Codec::small], fingerprints[ckpt::Codec::deflate]);
  EXPECT_EQ(ckpt::read_file(env_, dir_ / "small/rank-00000.h5"),
            ckpt::read_file(env_, dir_ / "deflate/rank-00000.h5"));
}

}  // namespace
}  // namespace shardwright::reshard
