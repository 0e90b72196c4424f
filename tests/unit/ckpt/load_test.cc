#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/box_index.h"
#include "ckpt/checkpoint.h"
#include "ckpt/commit.h"
#include "ckpt/verify.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LoadTest : public ::testing::Test {
 protected:
  std::string save(std::uint64_t step, int writers) {
    SampleSave sample;
    sample.step = step;
    sample.writers = writers;
    return save_sample(env_, checkpoints_, sample);
  }

  TempDir dir_;
  std::string checkpoints_ = dir_ / "checkpoints";
  Env& env_ = posix_env();
};

TEST_F(LoadTest, B102_AnyNumberOfWritersToAnyNumberOfReaders) {
  for (int writers : {1, 3, 5, 7}) {
    const Checkpoint checkpoint = Checkpoint::open(env_, save(static_cast<std::uint64_t>(writers), writers));
    for (int readers : {1, 2, 3, 7})
      for (std::size_t cut : {0u, 1u})
        expect_sample(checkpoint, static_cast<std::uint64_t>(writers), readers, cut, readers);
  }
}

// The same bytes as two types: every 16-bit pattern, NaNs with payloads, subnormals and both zeros among
// them.
TEST_F(LoadTest, B48_SixteenBitFloatsKeepTheirTypeAndEachBit) {
  std::vector<std::uint16_t> patterns(1u << 16);
  std::iota(patterns.begin(), patterns.end(), std::uint16_t{0});
  const Dims shape{patterns.size()};
  const auto item = [&](const char* tensor, DType dtype, const Box& box) {
    return SaveItem{tensor,
                    "param",
                    dtype,
                    shape,
                    box,
                    {1000},
                    std::make_shared<HostSource>(patterns.data() + box.offset[0], box, 2)};
  };
  SampleSave save;
  save.writers = 3;
  const CommitJob job = sample_job(checkpoints_, save);
  env_.create_dirs(job.attempt_dir);
  for (int rank = 0; rank < save.writers; ++rank) {
    const Box box{{static_cast<std::uint64_t>(rank) * 20000}, {rank == 2 ? 25536u : 20000u}};
    const std::vector<SaveItem> items{item("brain", DType::bf16, box), item("half", DType::f16, box)};
    publish_part(
        env_, job.attempt_dir,
        write_shard(env_, job.attempt_dir, job.commit.attempt, rank, job.commit.step, items, {}, nullptr));
  }
  commit_attempt(env_, job);
  const Checkpoint checkpoint = Checkpoint::open(env_, job.final_dir);
  for (const auto& [tensor, dtype] : {std::pair{"brain", DType::bf16}, std::pair{"half", DType::f16}}) {
    std::vector<std::uint16_t> loaded(patterns.size());
    LoadItem wanted{tensor, "param",           dtype,
                    shape,  Box::whole(shape), reinterpret_cast<std::byte*>(loaded.data())};
    checkpoint.load({&wanted, 1}, {});
    EXPECT_TRUE(loaded == patterns) << tensor;
    wanted.dtype = dtype == DType::bf16 ? DType::f16 : DType::bf16;
    EXPECT_EQ(error_of([&] { checkpoint.load({&wanted, 1}, {}); }).code(), ErrorCode::mismatch);
  }
}

TEST_F(LoadTest, B32_OneRowTensorCutByColumns) {
  const Checkpoint checkpoint = Checkpoint::open(env_, save(3, 5));
  const SampleState& state = sample_states()[6];
  ASSERT_EQ(state.tensor, "one_row");
  const Box box{{0, 5}, {1, 9}};
  std::vector<std::byte> memory(9 * 4);
  const LoadItem item{state.tensor, state.kind, state.dtype, state.shape, box, memory.data()};
  checkpoint.load({&item, 1}, {});
  EXPECT_TRUE(memory == sample_values(state, box, 3));
}

TEST_F(LoadTest, EachNeededChunkIsReadOnce) {
  const Checkpoint checkpoint = Checkpoint::open(env_, save(3, 3));
  const LoadStats once = expect_sample(checkpoint, 3, 1);
  const LoadStats many = expect_sample(checkpoint, 3, 7, 1, 3);
  std::uint64_t rows = 0;
  for (const FileRecord& file : checkpoint.manifest().files) rows += file.table_bytes / 24;
  EXPECT_EQ(once.chunks, rows);
  EXPECT_EQ(many.chunks, rows);
  EXPECT_EQ(many.read_bytes, once.read_bytes);

  const SampleState& state = sample_states()[2];  // rows of 8, chunks of 4 rows
  std::vector<std::byte> memory(8 * 4);
  const LoadItem item{state.tensor, state.kind, state.dtype, state.shape, {{50, 0}, {1, 8}}, memory.data()};
  EXPECT_EQ(checkpoint.load({&item, 1}, {}).chunks, 1u);
}

TEST_F(LoadTest, HostMemoryInFlightIsBoundedWhateverIsLoaded) {
  for (std::uint64_t i = 0; i < 2; ++i) {
    SampleSave large;
    large.step = 20 + i;
    large.writers = 2;
    // Rows that are cut elsewhere than they were written, so that chunks pass through a buffer.
    large.states = {{"w", "param", DType::f32, {2003 * (1 + 2 * i), 1001}, 0, {}}};
    const Checkpoint checkpoint = Checkpoint::open(env_, save_sample(env_, checkpoints_, large));
    const SampleState& state = large.states[0];
    const Box box{{0, 1}, {state.shape[0], 999}};
    std::vector<std::byte> memory(box.elements() * 4);
    const LoadItem item{state.tensor, state.kind, state.dtype, state.shape, box, memory.data()};
    LoadOptions options;
    options.threads = 3;
    const LoadStats stats = checkpoint.load({&item, 1}, options);
    EXPECT_TRUE(memory == sample_values(state, box, large.step));
    EXPECT_GT(stats.chunks, 7u);
    EXPECT_GT(stats.peak_host_bytes, 1u << 20);
    EXPECT_LE(stats.peak_host_bytes, 3 * kLoadBytesPerThread);
  }
}

TEST_F(LoadTest, B126_WritersWithNothingToWriteAreNormal) {
  for (const std::uint64_t rows : {7u, 1u, 0u}) {  // over eight writers
    SampleSave sample;
    sample.step = 30 + rows;
    sample.writers = 8;
    sample.states = {{"w", "param", DType::f32, {rows, 5}, 0, {}}};
    const std::string path = save_sample(env_, checkpoints_, sample);
    const Checkpoint checkpoint = Checkpoint::open(env_, path);
    EXPECT_TRUE(verify(env_, path, 2).problems.empty());
    std::vector<std::byte> memory(rows * 5 * 4);
    const LoadItem item{"w", "param", DType::f32, {rows, 5}, Box::whole({rows, 5}), memory.data()};
    checkpoint.load({&item, 1}, {});
    EXPECT_TRUE(memory == sample_values(sample.states[0], item.box, sample.step));
  }
}

TEST_F(LoadTest, B26_WhatContradictsTheCheckpointIsAMismatch) {
  const Checkpoint checkpoint = Checkpoint::open(env_, save(3, 2));
  std::vector<std::byte> memory(97 * 8 * 4);
  const LoadItem good{"embed", "param", DType::f32, {97, 8}, Box::whole({97, 8}), memory.data()};
  const auto refused = [&](auto change, const char* text) {
    LoadItem item = good;
    change(item);
    const Error e = error_of([&] { checkpoint.load({&item, 1}, {}); });
    EXPECT_EQ(e.code(), ErrorCode::mismatch);
    EXPECT_THAT(e.what(), HasSubstr(text));
  };
  refused([](LoadItem& i) { i.tensor = "other"; }, "other param: not in checkpoint");
  refused([](LoadItem& i) { i.kind = "exp_avg_sq"; }, "exp_avg_sq");
  refused([](LoadItem& i) { i.dtype = DType::bf16; }, "wanted as bf16; the checkpoint has f32");
  refused(
      [](LoadItem& i) {
        i.global_shape = {98, 8};
      },
      "wanted with shape [98, 8]; the checkpoint has [97, 8]");
  refused([](LoadItem& i) { i.box.offset = {1, 0}; }, "not inside");
  refused([](LoadItem& i) { i.box.offset = {~0ull, 0}; }, "not inside");
  refused([](LoadItem& i) { i.box = {{0}, {97}}; }, "not inside");
}

TEST_F(LoadTest, B107_FlippedChunkIsRefusedAndNamed) {
  const std::string path = save(3, 3);
  const Checkpoint checkpoint = Checkpoint::open(env_, path);
  OpenFiles files(env_);
  const ShardReader shard(files, path, checkpoint.manifest().files[1]);
  for (std::uint64_t row = 0; row < shard.table().size(); ++row)
    flip_bit(path + "/rank-00001.h5", shard.table()[row].address + shard.table()[row].stored_bytes / 2);
  const SampleState& state = sample_states()[2];
  std::vector<std::byte> memory(97 * 8 * 4);
  LoadItem item{state.tensor, state.kind, state.dtype, state.shape, Box::whole(state.shape), memory.data()};
  const Error e = error_of([&] { checkpoint.load({&item, 1}, {}); });
  EXPECT_EQ(e.code(), ErrorCode::damaged);
  for (const char* text : {"embed param", "rank-00001.h5"}) EXPECT_THAT(e.what(), HasSubstr(text));
  item.box.shape = {32, 8};  // rank 0's rows are whole
  checkpoint.load({&item, 1}, {});
}

TEST_F(LoadTest, DamagedTableOrShortShardIsRefused) {
  const std::string path = save(3, 3);
  const FileRecord file = Checkpoint::open(env_, path).manifest().files[2];
  flip_bit(path + "/" + file.name, file.table_address + 5);
  EXPECT_EQ(error_of([&] { expect_sample(Checkpoint::open(env_, path), 3); }).code(), ErrorCode::damaged);
  flip_bit(path + "/" + file.name, file.table_address + 5);
  fs::resize_file(path + "/" + file.name, file.bytes - 1);
  EXPECT_THAT(error_of([&] { expect_sample(Checkpoint::open(env_, path), 3); }).what(), HasSubstr(file.name));
  fs::remove(path + "/" + file.name);
  EXPECT_EQ(error_of([&] { expect_sample(Checkpoint::open(env_, path), 3); }).code(), ErrorCode::damaged);
}

TEST_F(LoadTest, RemovedWhileBeingRead) {
  const std::string path = save(3, 3);
  const Checkpoint checkpoint = Checkpoint::open(env_, path);
  fs::remove_all(path);
  const Error e = error_of([&] { expect_sample(checkpoint, 3); });
  EXPECT_EQ(e.code(), ErrorCode::missing);
  EXPECT_THAT(e.what(), HasSubstr("removed while being read"));
}

TEST_F(LoadTest, RanksOpenWhatRankZeroSelected) {
  const std::string path = save(3, 2);
  const ManifestDigest selected = Checkpoint::open(env_, path).commit().manifest;
  EXPECT_EQ(Checkpoint::open(env_, path, selected).commit().step, 3u);
  ManifestDigest other = selected;
  other.xxh3_128.low ^= 1;
  EXPECT_EQ(error_of([&] { Checkpoint::open(env_, path, other); }).code(), ErrorCode::damaged);
  EXPECT_EQ(error_of([&] { Checkpoint::open(env_, path + "0"); }).code(), ErrorCode::missing);
}

TEST_F(LoadTest, B120_PathsOfAnyCharacters) {
  for (const char* name : {"a space", "\xc3\xbc\xe6\xbc\xa2\xf0\x9f\x98\x80", "[b]=\"q'", "-dash", "%s%n"}) {
    checkpoints_ = dir_ / name;
    expect_sample(Checkpoint::open(env_, save(3, 2)), 3);
  }
}

TEST_F(LoadTest, SourceReadsThroughABoundedCache) {
  const auto checkpoint = std::make_shared<const Checkpoint>(Checkpoint::open(env_, save(3, 3)));
  for (const std::uint64_t cache : {0u, 200u, 1u << 20})
    for (const SampleState& state : sample_states()) {
      const Box whole = Box::whole(state.shape);
      const auto source =
          checkpoint_source(checkpoint, *checkpoint->find_state(state.tensor, state.kind), whole, cache);
      std::vector<std::jthread> readers;
      for (int p = 0; p < 3; ++p)
        readers.emplace_back([&, p] {
          const Box box = sample_piece(state, state.shape.size() > 1 ? 1 - state.cut % 2 : 0, p, 3);
          std::vector<std::byte> memory(box.elements() * size_of(state.dtype));
          source->read(box, memory.data());
          EXPECT_TRUE(memory == sample_values(state, box, 3)) << state.tensor;
        });
    }
}

TEST(BoxIndex, B136_FindsExactlyTheOverlapsWithoutComparingAll) {
  // 64 columns of blocks whose row cuts differ from column to column.
  Manifest m;
  m.tensors = {{"t", {1000, 64}}};
  m.states = {{0, "param", DType::u8, {0, 0, 64000}}};
  for (std::uint64_t c = 0; c < 64; ++c)
    for (std::uint64_t r = 0; r < 1000; r += 10 + c % 7)
      m.boxes.push_back(
          {0, 0, "", {{r, c}, {std::min<std::uint64_t>(10 + c % 7, 1000 - r), 1}}, {1, 1}, 0, 1});
  std::sort(m.boxes.begin(), m.boxes.end(), [](const BoxEntry& a, const BoxEntry& b) {
    return std::pair(a.box.offset[0], a.box.offset[1]) < std::pair(b.box.offset[0], b.box.offset[1]);
  });
  const BoxIndex index(m);
  for (const Box& wanted : {Box{{0, 0}, {1000, 64}}, Box{{37, 3}, {1, 60}}, Box{{999, 0}, {1, 64}},
                            Box{{500, 10}, {100, 1}}, Box{{16, 0}, {3, 64}}}) {
    std::uint64_t covered = 0;
    index.overlapping(0, wanted, [&](std::size_t row, const Box& region) {
      EXPECT_TRUE(contains(m.boxes[row].box, region));
      covered += region.elements();
    });
    EXPECT_EQ(covered, wanted.elements());
  }
}

TEST(BoxIndex, ChunksOfARegionInGridOrder) {
  const BoxEntry box{0, 0, "", {{10, 20}, {5, 7}}, {2, 3}, 0, 9};
  std::vector<std::uint64_t> indices;
  std::uint64_t covered = 0;
  for_each_chunk(box, {{11, 22}, {3, 3}}, [&](const ChunkPlace& place) {
    indices.push_back(place.index);
    covered += place.region.elements();
    EXPECT_TRUE(contains(place.stored, place.region));
  });
  EXPECT_EQ(indices, (std::vector<std::uint64_t>{0, 1, 3, 4}));
  EXPECT_EQ(covered, 9u);
}

}  // namespace
}  // namespace shardwright::ckpt
