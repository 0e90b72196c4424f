#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/shard_plan.h"
#include "ckpt/snapshot.h"

namespace shardwright::ckpt {
namespace {

using ::testing::Each;

/// A box of fp32 values that change once all its old ones are safe.
struct State {
  State(std::string tensor, const Dims& shape, const Box& whole, const Dims& chunk_shape, float value)
      : name(std::move(tensor)),
        global(shape),
        box(whole),
        chunk(chunk_shape),
        values(box.elements(), value) {}
  SaveItem item(const char* kind = "param") const {
    return {name, kind, DType::f32, global, box, chunk, std::make_shared<HostSource>(values.data(), box, 4)};
  }

  std::string name;
  Dims global;
  Box box;
  Dims chunk;
  std::vector<float> values;
};

std::vector<float> read_chunk(const SaveItem& item, const BoxRecord& record, std::uint64_t index) {
  const Box part = chunk_box(record.box, record.chunk, index);
  std::vector<float> values(part.elements());
  item.source->read(part, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

TEST(LazySnapshot, CopiesWhatChangesBeforeItIsRead) {
  State a("a", {7, 5}, {{2, 0}, {5, 5}}, {2, 5}, 1);
  const std::vector<SaveItem> items{a.item()};
  const auto snapshot = lazy_snapshot(items);
  const ShardPlan plan = plan_shard(items);
  ASSERT_EQ(plan.boxes[0].chunks, 3u);
  EXPECT_EQ(snapshot->host_bytes(), 0u);

  EXPECT_THAT(read_chunk(snapshot->items()[0], plan.boxes[0], 0), Each(1.0F));
  snapshot->before_write("a", "other", a.box);
  snapshot->before_write("other", "param", a.box);
  snapshot->before_write("a", "param", {{0, 0}, {2, 5}});  // of another rank
  EXPECT_EQ(snapshot->host_bytes(), 0u);
  snapshot->before_write("a", "param", Box::whole(a.global));
  EXPECT_EQ(snapshot->host_bytes(), 3u * 5 * 4) << "two rows and one; the first two were read";
  a.values.assign(a.values.size(), 2);
  EXPECT_THAT(read_chunk(snapshot->items()[0], plan.boxes[0], 1), Each(1.0F));
  EXPECT_THAT(read_chunk(snapshot->items()[0], plan.boxes[0], 2), Each(1.0F));
}

TEST(LazySnapshot, APartIsSafeAsWell) {
  State a("a", {6, 4}, Box::whole({6, 4}), {6, 4}, 1);
  const std::vector<SaveItem> items{a.item()};
  const auto snapshot = lazy_snapshot(items);
  snapshot->before_write("a", "param", {{1, 1}, {1, 2}});
  a.values.assign(a.values.size(), 2);  // its whole chunk was kept
  EXPECT_THAT(read_chunk(snapshot->items()[0], plan_shard(items).boxes[0], 0), Each(1.0F));
}

TEST(LazySnapshot, AChunkIsReadOnce) {
  const State a("a", {4}, Box::whole({4}), {4}, 1);
  const std::vector<SaveItem> items{a.item()};
  const auto snapshot = lazy_snapshot(items);
  const ShardPlan plan = plan_shard(items);
  read_chunk(snapshot->items()[0], plan.boxes[0], 0);
  EXPECT_THROW(read_chunk(snapshot->items()[0], plan.boxes[0], 0), Error);
}

TEST(LazySnapshot, OtherMemoryIsCopiedAtOnce) {
  class Computed : public Source {
   public:
    void read(const Box& region, std::byte* dst) const override {
      std::fill_n(reinterpret_cast<float*>(dst), region.elements(), *value);
    }
    std::shared_ptr<float> value = std::make_shared<float>(1.0F);
  };
  const auto source = std::make_shared<Computed>();
  const State a("a", {3}, Box::whole({3}), {3}, 1);
  const State nothing("nothing", {0, 3}, Box::whole({0, 3}), {}, 1);
  const State scalar("scalar", {}, Box::whole({}), {}, 1);
  const std::vector<SaveItem> items{{"computed", "param", DType::f32, {2, 2}, Box::whole({2, 2}), {}, source},
                                    a.item(),
                                    nothing.item(),
                                    scalar.item()};
  const auto snapshot = lazy_snapshot(items);
  EXPECT_EQ(snapshot->host_bytes(), 16u);
  *source->value = 2;
  snapshot->before_write("computed", "param", Box::whole({2, 2}));
  const ShardPlan plan = plan_shard(items);
  for (const std::size_t i : {0u, 1u, 3u})
    EXPECT_THAT(read_chunk(snapshot->items()[i], plan.boxes[i], 0), Each(1.0F)) << items[i].tensor;
}

TEST(LazySnapshot, ItemsThatCannotBeWrittenAreRefused) {
  const State a("a/b", {4}, Box::whole({4}), {4}, 1);
  EXPECT_THROW(lazy_snapshot(std::vector{a.item()}), Error);
}

#ifdef SHARDWRIGHT_PROTECT_PENDING
// Test builds only. Pages that hold nothing but pending chunks are read-only; what was read, kept or let go
// is as before.
TEST(LazySnapshotDeathTest, AForgottenBeforeWriteCrashes) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Dims shape{11, 5000};
  State a("a", shape, Box::whole(shape), {2, 5000}, 1);
  const auto at = [&](std::uint64_t row) { return &a.values[row * 5000 + 2500]; };  // inside the row's pages
  const std::vector<SaveItem> items{a.item()};
  auto snapshot = lazy_snapshot(items);
  const ShardPlan plan = plan_shard(items);
  EXPECT_DEATH(*at(3) = 2, "");
  EXPECT_THAT(read_chunk(snapshot->items()[0], plan.boxes[0], 1), Each(1.0F));
  *at(3) = 2;
  EXPECT_DEATH(*at(4) = 2, "");
  snapshot->before_write("a", "param", {{4, 1}, {1, 2}});
  *at(4) = 2;
  EXPECT_DEATH(*at(10) = 2, "");
  snapshot.reset();
  std::ranges::fill(a.values, 2.0F);
}
#endif

// Readers take chunks in order, as the shard writer's do, while everything changes in an order of chance.
TEST(LazySnapshot, ReadersAndWritersAtOnce) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    std::vector<State> states;
    for (int i = 0; i < 12; ++i) {
      const Dims shape{1 + random() % 40, 1 + random() % 9};
      states.emplace_back("t" + std::to_string(i), shape, Box::whole(shape),
                          Dims{1 + random() % shape[0], 1 + random() % shape[1]}, static_cast<float>(i));
    }
    std::vector<SaveItem> items;
    for (const State& s : states) items.push_back(s.item());
    const auto snapshot = lazy_snapshot(items);
    const ShardPlan plan = plan_shard(items);
    std::atomic<std::size_t> next{0}, wrong{0};
    std::vector<std::pair<std::size_t, std::uint64_t>> chunks;
    for (std::size_t i = 0; i < items.size(); ++i)
      for (std::uint64_t c = 0; c < plan.boxes[i].chunks; ++c) chunks.emplace_back(i, c);
    const auto read_all = [&] {
      for (std::size_t at = next++; at < chunks.size(); at = next++) {
        const auto [i, c] = chunks[at];
        for (const float value : read_chunk(snapshot->items()[i], plan.boxes[i], c))
          if (value != static_cast<float>(i)) ++wrong;
      }
    };
    std::vector<std::jthread> readers;
    for (int i = 0; i < 3; ++i) readers.emplace_back(read_all);
    std::vector<std::size_t> order(states.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::shuffle(order, random);
    for (const std::size_t i : order) {
      snapshot->before_write(states[i].name, "param", states[i].box);
      std::ranges::fill(states[i].values, -1.0F);
    }
    readers.clear();
    EXPECT_EQ(wrong, 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace shardwright::ckpt
