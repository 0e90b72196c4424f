#include "ckpt/shard.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <semaphore>
#include <set>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"
#include "tests/tools/written_tensors.h"

namespace shardwright::ckpt {
namespace {

template <typename Call>
ErrorCode code_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::given_up;
}

const std::vector<DType> kAllTypes = {DType::f32, DType::bf16, DType::f16, DType::f64,
                                      DType::i8,  DType::u8,   DType::i16, DType::u16,
                                      DType::i32, DType::u32,  DType::i64, DType::u64};

Part write(const std::string& directory, std::span<const SaveItem> items, const ShardOptions& options = {},
           int rank = 0, Env& env = posix_env(), ShardStats* stats = nullptr) {
  posix_env().unlink(directory + "/" + shard_name(rank));  // of the test's last one
  return write_shard(env, directory, "0-1", rank, 7, items, options, stats);
}

/// Every item comes back bit for bit, with the fingerprint that the values have, and everything that is
/// recorded holds.
void expect_reads_back(const std::string& directory, std::span<const SaveItem> items, const Part& part) {
  ASSERT_EQ(part.boxes.size(), items.size());
  ASSERT_TRUE(part.has_file);
  OpenFiles files(posix_env());
  const ShardReader shard(files, directory, part.file);
  EXPECT_EQ(shard.read_rest(), part.file.rest);
  for (std::size_t i = 0; i < items.size(); ++i) {
    // Boxes are recorded in an order of their own, whatever the order of the items.
    const auto found = std::ranges::find_if(part.boxes, [&](const BoxRecord& r) {
      return r.tensor == items[i].tensor && r.kind == items[i].kind && r.box == items[i].box;
    });
    ASSERT_NE(found, part.boxes.end()) << items[i].tensor;
    const BoxRecord& record = *found;
    const std::vector<std::byte> expected = expected_box(items[i]);
    ASSERT_EQ(read_box(shard, record), expected) << items[i].tensor;
    EXPECT_EQ(record.fingerprint,
              fingerprint(expected.data(), size_of(record.dtype), record.box, record.global_shape));
  }
}

TEST(Shard, EveryTypeAndOddShapesReadBack) {
  const TempDir dir;
  std::vector<SaveItem> items;
  for (const DType type : kAllTypes) {
    const std::string tensor = "t." + std::string(name(type));
    items.push_back(label_item(tensor, "param", type, {5, 7}, {{1, 2}, {3, 5}}, {2, 3}));
    items.push_back(label_item(tensor, "exp_avg", type, {131}, Box::whole({131}), {37}));
    items.push_back(label_item(tensor, "scalar", type, {}, Box{}));
    items.push_back(label_item(tensor, "cube", type, {3, 5, 7}, Box::whole({3, 5, 7}), {2, 2, 4}));
  }
  for (const int threads : {1, 3}) {
    for (const Codec codec : {Codec::fast, Codec::small, Codec::none, Codec::deflate}) {
      ShardOptions options;
      options.threads = threads;
      options.codec = codec;
      options.verify_writes = threads == 3;
      options.max_in_flight_bytes = threads == 3 ? 256 : 64u << 20;
      expect_reads_back(dir.path(), items, write(dir.path(), items, options));
    }
  }
}

TEST(Shard, EqualContentsMakeEqualBytes) {
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("w", "param", DType::f32, {700, 64}, Box::whole({700, 64}), {5, 64}, true)};
  ShardOptions one, four;
  four.threads = 4;
  write(dir.path(), items, one, 0);
  write(dir.path(), items, four, 1);
  EXPECT_EQ(read_file(posix_env(), dir / shard_name(0)), read_file(posix_env(), dir / shard_name(1)));
}

TEST(Shard, B30_EmptyBoxesAreListedAndWriteNothing) {
  const TempDir dir;
  for (const std::uint64_t length : {1, 2, 3, 5, 6, 7}) {
    const Dims shape{length};
    for (int rank = 0; rank < 16; ++rank) {
      const std::vector<SaveItem> items = {label_item(
          "norm", "param", DType::f32, shape, row_piece(shape, static_cast<std::uint64_t>(rank), 16))};
      const Part part = write(dir.path(), items, {}, rank);
      ASSERT_EQ(part.boxes.size(), 1u);
      EXPECT_EQ(part.boxes[0].fingerprint.count, items[0].box.elements());
      EXPECT_EQ(part.has_file, !items[0].box.empty());
      EXPECT_EQ(posix_env().exists(dir / shard_name(rank)), part.has_file);
      publish_part(posix_env(), dir.path(), part);
      EXPECT_EQ(read_part(posix_env(), dir / part_name(rank)).boxes[0].box, items[0].box);
      if (part.has_file) expect_reads_back(dir.path(), items, part);
    }
    std::filesystem::remove_all(dir.path());
    std::filesystem::create_directory(dir.path());
  }
}

TEST(Shard, B50_TensorWithoutElementsHasADataset) {
  const TempDir dir;
  const std::vector<SaveItem> items = {label_item("none", "param", DType::f32, {0, 64}, Box::whole({0, 64})),
                                       label_item("some", "param", DType::f32, {3}, Box{{3}, {0}})};
  const Part part = write(dir.path(), items);
  ASSERT_TRUE(part.has_file);
  EXPECT_EQ(part.boxes[0].dataset, "/param/none");
  EXPECT_EQ(part.boxes[1].dataset, "");
  EXPECT_EQ(part.boxes[0].chunks, 0u);
  OpenFiles files(posix_env());
  const ShardReader shard(files, dir.path(), part.file);
  EXPECT_TRUE(shard.table().empty());
  EXPECT_EQ(shard.read_rest(), part.file.rest);
}

TEST(Shard, NothingToWriteMakesNoFile) {
  const TempDir dir;
  const Part part = write(dir.path(), {});
  EXPECT_FALSE(part.has_file);
  EXPECT_TRUE(posix_env().list(dir.path()).empty());
}

TEST(Shard, FurtherBoxesOfOneStateGetNumbers) {
  const TempDir dir;
  const std::vector<SaveItem> items = {label_item("w", "param", DType::f32, {9, 2}, {{0, 0}, {2, 2}}),
                                       label_item("w", "param", DType::f32, {9, 2}, {{4, 0}, {3, 2}}),
                                       label_item("w", "exp_avg", DType::f32, {9, 2}, {{0, 0}, {2, 2}}),
                                       label_item("w", "param", DType::f32, {9, 2}, {{8, 1}, {1, 1}})};
  const Part part = write(dir.path(), items);
  // Sorted by tensor and kind, so that equal boxes make equal files; boxes of one state in the order given.
  EXPECT_EQ(part.boxes[0].dataset, "/exp_avg/w");
  EXPECT_EQ(part.boxes[1].dataset, "/param/w");
  EXPECT_EQ(part.boxes[2].dataset, "/param/w@1");
  EXPECT_EQ(part.boxes[3].dataset, "/param/w@2");
  expect_reads_back(dir.path(), items, part);
}

TEST(Shard, B122_ChunksNeverExceedTheLimit) {
  // One chunk per tensor of 6 GiB asked for, never filled: what would be created is cut to at most 1 MiB.
  const Dims shapes[] = {{1610612736}, {3, 536870912}, {1610612736, 1}, {1, 1, 1610612736}};
  for (const Dims& shape : shapes) {
    const Dims chunk = default_chunk(shape, 4);
    EXPECT_LE(element_count(chunk) * 4, kMaxChunkBytes) << to_string(shape);
    EXPECT_EQ(element_count(chunk) * 4, kMaxChunkBytes) << to_string(shape);
  }
  EXPECT_EQ(default_chunk({3, 5}, 8), (Dims{3, 5}));
  // As few and as little padding as there can be.
  EXPECT_EQ(default_chunk({1000, 1000}, 4), (Dims{250, 1000}));
  EXPECT_EQ(default_chunk({384, 1536}, 4), (Dims{128, 1536}));
  EXPECT_EQ(default_chunk({509, 2051}, 4), (Dims{102, 2051}));
  EXPECT_EQ(default_chunk({4, 300000}, 4), (Dims{1, 150000}));
  EXPECT_EQ(default_chunk({0, 300001, 3}, 8), (Dims{1, 42858, 3}));
  // A chunk larger than the data, and one larger than the limit.
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("large", "param", DType::f64, {150, 1001}, Box::whole({150, 1001}), {150, 1001}),
      label_item("small", "param", DType::f32, {3, 5}, Box::whole({3, 5}), {4096, 4096})};
  const Part part = write(dir.path(), items);
  EXPECT_EQ(part.boxes[0].chunk, (Dims{75, 1001}));
  EXPECT_EQ(part.boxes[1].chunk, (Dims{3, 5}));
  expect_reads_back(dir.path(), items, part);
}

TEST(Shard, B127_ResultDoesNotDependOnChunkGeometry) {
  const TempDir dir;
  for (const Codec codec : {Codec::none, Codec::fast, Codec::small, Codec::deflate}) {
    std::vector<SaveItem> items;
    for (const std::uint64_t length : {1u, 255u, 256u, 257u, 65537u})
      for (const std::uint64_t chunk : {1u, 7u, 256u, 4096u, 65537u}) {
        if (length / chunk > 5000) continue;
        const Dims shape{length};
        items.push_back(label_item(fmt::format("l{}c{}", length, chunk), "param", DType::f32, shape,
                                   Box::whole(shape), {chunk}, true));
      }
    ShardOptions options;
    options.codec = codec;
    options.threads = 2;
    expect_reads_back(dir.path(), items, write(dir.path(), items, options));
  }
}

TEST(Shard, B127_SixteenThousandChunksInOneDataset) {
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("w", "param", DType::u16, {16384, 3}, Box::whole({16384, 3}), {1, 3})};
  const Part part = write(dir.path(), items);
  EXPECT_EQ(part.boxes[0].chunks, 16384u);
  expect_reads_back(dir.path(), items, part);
}

TEST(Shard, RefusesWhatCannotBeStored) {
  const TempDir dir;
  const auto refused = [&](SaveItem item) {
    EXPECT_EQ(code_of([&] { write(dir.path(), std::vector<SaveItem>{item}); }), ErrorCode::usage)
        << item.tensor;
  };
  for (const std::string bad : {"", ".", "..", "a/b", "a@1", "a\nb", "caf\xe9", "cut\xe2\x82"})
    refused(label_item(bad, "param", DType::f32, {3}, Box::whole({3})));
  refused(label_item("w", "chunks", DType::f32, {3}, Box::whole({3})));
  refused(label_item("w", "par/am", DType::f32, {3}, Box::whole({3})));
  refused(label_item("w", "param", DType::f32, {3}, Box{{1}, {3}}));
  refused(label_item("w", "param", DType::f32, {3}, Box{{~0ull}, {2}}));
  refused(label_item("w", "param", DType::f32, {1ull << 33, 1ull << 33}, Box{{0, 0}, {1, 1}}));
  refused(label_item("w", "param", DType::f32, {3}, Box::whole({3}), {0}));
  refused(label_item("w", "param", DType::f32, {3}, Box::whole({3}), {1, 1}));
  SaveItem sourceless = label_item("w", "param", DType::f32, {3}, Box::whole({3}));
  sourceless.source = nullptr;
  refused(sourceless);
  const std::vector<SaveItem> twice = {label_item("w", "param", DType::f32, {3}, Box{{0}, {1}}),
                                       label_item("w", "param", DType::f64, {3}, Box{{1}, {1}})};
  EXPECT_EQ(code_of([&] { write(dir.path(), twice); }), ErrorCode::usage);
  EXPECT_TRUE(posix_env().list(dir.path()).empty());
  // What people do name tensors is fine.
  const std::vector<SaveItem> fine = {
      label_item("größe 層 [0] a=b 'q' -x", "param", DType::f32, {3}, Box::whole({3})),
      label_item(std::string(200, 'n'), "param", DType::f32, {3}, Box::whole({3}))};
  expect_reads_back(dir.path(), fine, write(dir.path(), fine));
}

/// A few boxes that make libhdf5 write data, headers, indexes and a table.
std::vector<SaveItem> some_items() {
  return {label_item("a", "param", DType::f32, {40, 16}, Box::whole({40, 16}), {7, 16}, true),
          label_item("b", "param", DType::bf16, {131}, Box::whole({131}), {37}),
          label_item("b", "exp_avg", DType::f32, {131}, Box::whole({131}), {131})};
}

// libhdf5 1.10 reports success after a failed write and leaves zeros in the hole. Each write in turn fails,
// by each cause, once or from then on: it must come out as an Error, never as a part.
TEST(Shard, B118_EveryFailedOperationIsAnError) {
  const TempDir dir;
  TraceEnv good;
  write(dir.path(), some_items(), {}, 0, good);
  const std::vector<TraceOp> ops = good.ops();
  std::set<TraceOp::Kind> kinds;
  for (const TraceOp& op : ops) kinds.insert(op.kind);
  EXPECT_EQ(kinds,
            (std::set<TraceOp::Kind>{TraceOp::create, TraceOp::write, TraceOp::sync, TraceOp::sync_dir}));
  ASSERT_GT(ops.size(), 12u);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    for (const bool and_after : {false, true}) {
      TraceEnv env;
      env.fail_at(n, and_after ? ENOSPC : EIO, and_after);
      EXPECT_EQ(code_of([&] { write(dir.path(), some_items(), {}, 0, env); }),
                and_after ? ErrorCode::no_space : ErrorCode::io)
          << "operation " << n;
      // Abandoned: nothing was done after the failure.
      EXPECT_EQ(env.ops().size(), n + 1) << "operation " << n;
    }
  }
  // And libhdf5 is none the worse for it.
  expect_reads_back(dir.path(), some_items(), write(dir.path(), some_items()));
}

TEST(Shard, SyncsTheFileAndThenItsDirectory) {
  const TempDir dir;
  TraceEnv env;
  write(dir.path(), some_items(), {}, 3, env);
  const std::vector<TraceOp> ops = env.ops();
  EXPECT_EQ(ops.front().kind, TraceOp::create);
  EXPECT_EQ(ops[ops.size() - 2].kind, TraceOp::sync);
  EXPECT_EQ(ops[ops.size() - 2].path, dir / "rank-00003.h5");
  EXPECT_EQ(ops.back().kind, TraceOp::sync_dir);
  EXPECT_EQ(ops.back().path, dir.path());
}

/// Fails when it reads the box's last rows.
class FailingSource : public LabelSource {
 public:
  FailingSource() : LabelSource(DType::f32, {40, 16}, 1) {}
  void read(const Box& region, std::byte* dst) const override {
    if (region.offset[0] >= 30) throw Error(ErrorCode::io, "device: gone");
    LabelSource::read(region, dst);
  }
};

TEST(Shard, ErrorOfASourceEndsTheWrite) {
  const TempDir dir;
  std::vector<SaveItem> items = some_items();
  items[0].source = std::make_shared<FailingSource>();
  ShardOptions options;
  options.threads = 3;
  try {
    write(dir.path(), items, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "device: gone");
  }
}

TEST(Shard, CancelEndsTheWrite) {
  const TempDir dir;
  SaveSignals signals;
  signals.cancel = true;
  EXPECT_EQ(code_of([&] {
              write_shard(posix_env(), dir.path(), "0-1", 0, 7, some_items(), {}, nullptr, &signals);
            }),
            ErrorCode::peer);
}

/// A box in chunks of one row, whose first row can be read only while another thread reads another.
class NeedsTwoReaders : public Source {
 public:
  void read(const Box& region, std::byte* dst) const override {
    if (region.offset[0] == 0) {
      if (!other_.try_acquire_for(std::chrono::seconds(60)))
        throw Error(ErrorCode::deadline, "nobody read another row");
    } else {
      other_.release();
    }
    std::fill_n(dst, region.elements() * 4, std::byte{3});
  }

 private:
  mutable std::counting_semaphore<> other_{0};
};

TEST(Shard, InAHurryTheThreadThatWritesCompressesToo) {
  const TempDir dir;
  SaveItem item{"a", "param", DType::f32, {9, 5}, Box::whole({9, 5}), {1, 5}, nullptr};
  item.source = std::make_shared<NeedsTwoReaders>();
  SaveSignals signals;
  signals.hurry = true;
  ShardStats stats;
  write_shard(posix_env(), dir.path(), "0-1", 0, 7, std::vector{item}, {}, &stats, &signals);
  EXPECT_EQ(stats.raw_bytes, 9u * 5 * 4);
}

// The thread that writes takes the place of one of them, also where that one waits for room.
TEST(Shard, InAHurryManyWorkersMakeTheSameBytes) {
  const std::vector<SaveItem> items = some_items();
  SaveSignals signals;
  signals.hurry = true;
  for (const int threads : {2, 3, 7}) {
    const TempDir one, many;
    ShardOptions options;
    const Part expected = write(one.path(), items, options);
    options.threads = threads;
    options.max_in_flight_bytes = 256;
    const Part part = write_shard(posix_env(), many.path(), "0-1", 0, 7, items, options, nullptr, &signals);
    EXPECT_EQ(part.file.rest, expected.file.rest);
    expect_reads_back(many.path(), items, part);
  }
}

TEST(Shard, ASaveThatTakesLongWaitsForIdleTimeNoMore) {
  const TempDir dir;
  SaveItem item{"a", "param", DType::f32, {9, 5}, Box::whole({9, 5}), {1, 5}, nullptr};
  item.source = std::make_shared<NeedsTwoReaders>();
  ShardOptions options;
  options.priority = WorkerPriority::low;
  options.patience_s = 0.01;
  ShardStats stats;
  write_shard(posix_env(), dir.path(), "0-1", 0, 7, std::vector{item}, options, &stats);
  EXPECT_EQ(stats.raw_bytes, 9u * 5 * 4);
}

#ifdef SCHED_IDLE
TEST(Shard, LowPriorityIsTheWorkersAlone) {
  class AsksForItsPolicy : public Source {
   public:
    void read(const Box& region, std::byte* dst) const override {
      policy = ::sched_getscheduler(0);
      std::fill_n(dst, region.elements() * 4, std::byte{3});
    }
    mutable std::atomic<int> policy{-1};
  };
  const auto source = std::make_shared<AsksForItsPolicy>();
  const SaveItem item{"a", "param", DType::f32, {3, 5}, Box::whole({3, 5}), {}, source};
  for (const auto priority : {WorkerPriority::normal, WorkerPriority::low}) {
    const TempDir dir;
    ShardOptions options;
    options.priority = priority;
    write_shard(posix_env(), dir.path(), "0-1", 0, 7, std::vector{item}, options, nullptr);
    EXPECT_EQ(source->policy, priority == WorkerPriority::low ? SCHED_IDLE : ::sched_getscheduler(0));
    EXPECT_NE(::sched_getscheduler(0), SCHED_IDLE);
  }
}
#endif

TEST(Shard, FaultPointsThrow) {
  const TempDir dir;
  for (const std::string point : {"shard.open", "shard.mid", "shard.close", "shard.fsync"}) {
    set_fault(point + ":rank=2:step=7=enospc");
    EXPECT_EQ(code_of([&] { write(dir.path(), some_items(), {}, 2); }), ErrorCode::no_space) << point;
    write(dir.path(), some_items(), {}, 1);
  }
  set_fault("part.rename=eio");
  EXPECT_EQ(code_of([&] { publish_part(posix_env(), dir.path(), Part{}); }), ErrorCode::io);
  set_fault("");
  EXPECT_FALSE(posix_env().exists(dir / part_name(0)));
}

TEST(Shard, StatsCountBytesAndBoundMemory) {
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("w", "param", DType::f32, {1000, 256}, Box::whole({1000, 256}), {16, 256}, true)};
  ShardOptions options;
  options.threads = 4;
  options.max_in_flight_bytes = 100000;
  ShardStats stats;
  const Part part = write(dir.path(), items, options, 0, posix_env(), &stats);
  EXPECT_EQ(stats.raw_bytes, 1024000u);
  EXPECT_LT(stats.stored_bytes, stats.raw_bytes);
  EXPECT_GT(stats.stored_bytes, stats.raw_bytes / 2);
  EXPECT_GT(stats.peak_host_bytes, 2u * 16 * 1024);
  EXPECT_LE(stats.peak_host_bytes, options.max_in_flight_bytes);
  EXPECT_LT(part.file.bytes - stats.stored_bytes, 20000u);
}

TEST(Shard, EveryDamagedByteIsFound) {
  const TempDir dir;
  const std::vector<SaveItem> items = {
      label_item("a", "param", DType::f32, {5, 16}, Box::whole({5, 16}), {2, 16}, true)};
  const Part part = write(dir.path(), items);
  const std::string path = dir / shard_name(0);
  const std::string good = read_file(posix_env(), path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  for (std::size_t i = 0; i < good.size(); ++i) {
    const auto put = [&](int flip) {
      file.seekp(static_cast<std::streamoff>(i)).put(static_cast<char>(good[i] ^ flip)).flush();
    };
    put(1 << i % 8);
    const ErrorCode code = code_of([&] {
      OpenFiles files(posix_env());
      const ShardReader shard(files, dir.path(), part.file);
      if (shard.read_rest() != part.file.rest) throw Error(ErrorCode::damaged, "rest");
      read_box(shard, part.boxes[0]);
    });
    ASSERT_EQ(code, ErrorCode::damaged) << "byte " << i;
    put(0);
  }
  expect_reads_back(dir.path(), items, part);
  const auto open = [&] {
    OpenFiles files(posix_env());
    ShardReader(files, dir.path(), part.file);
  };
  for (const std::size_t size : {good.size() - 1, good.size() / 2, std::size_t{1}, std::size_t{0}}) {
    std::filesystem::resize_file(path, size);
    EXPECT_EQ(code_of(open), ErrorCode::damaged);
  }
  posix_env().unlink(path);
  EXPECT_EQ(code_of(open), ErrorCode::missing);
}

TEST(Part, ReadsBackWhole) {
  const TempDir dir;
  const std::vector<SaveItem> items = some_items();
  const Part part = write(dir.path(), items, {}, 12);
  publish_part(posix_env(), dir.path(), part);
  EXPECT_EQ(posix_env().list(dir.path()), (std::vector<std::string>{"rank-00012.h5", "rank-00012.part"}));
  const Part back = read_part(posix_env(), dir / part_name(12));
  EXPECT_EQ(back.attempt, "0-1");
  EXPECT_EQ(back.rank, 12);
  EXPECT_EQ(back.step, 7u);
  EXPECT_EQ(back.file.name, "rank-00012.h5");
  EXPECT_EQ(back.file.rest, part.file.rest);
  EXPECT_EQ(back.boxes[1].fingerprint, part.boxes[1].fingerprint);
  expect_reads_back(dir.path(), items, back);
  publish_part(posix_env(), dir.path(), Part{"1-2", 3, 9, "rank 3: no space", false, {}, {}});
  EXPECT_EQ(read_part(posix_env(), dir / part_name(3)).error, "rank 3: no space");
  EXPECT_EQ(code_of([&] { read_part(posix_env(), dir / part_name(4)); }), ErrorCode::missing);
}

}  // namespace
}  // namespace shardwright::ckpt
