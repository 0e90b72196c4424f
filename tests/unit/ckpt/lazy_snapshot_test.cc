#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
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

TEST(LazySnapshot, WhatIsLentDoesNotChange) {
  State a("a", {5, 3}, Box::whole({5, 3}), {2, 3}, 1);
  const std::vector<SaveItem> items{a.item()};
  const auto snapshot = lazy_snapshot(items);
  const BoxRecord record = plan_shard(items).boxes[0];
  const Source& source = *snapshot->items()[0].source;
  const Box second = chunk_box(record.box, record.chunk, 1);
  const std::byte* lent = source.borrow(second);
  ASSERT_EQ(lent, reinterpret_cast<const std::byte*>(&a.values[6]));
  EXPECT_EQ(source.borrow({{2, 0}, {1, 3}}), nullptr) << "part of a chunk";
  std::atomic<bool> changed = false;
  std::jthread optimizer([&] {
    snapshot->before_write("a", "param", a.box);
    a.values.assign(a.values.size(), 2);
    changed = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(changed);
  EXPECT_EQ(a.values[6], 1.0F);
  source.give_back(second);
  optimizer.join();
  EXPECT_EQ(snapshot->copied_bytes(), 3u * 3 * 4) << "all but the second chunk";
  EXPECT_EQ(source.borrow(chunk_box(record.box, record.chunk, 0)), nullptr) << "it lies in a copy";
  EXPECT_THAT(read_chunk(snapshot->items()[0], record, 0), Each(1.0F));
  EXPECT_THROW(read_chunk(snapshot->items()[0], record, 1), Error) << "read already";
}

TEST(LazySnapshot, OnlyWhatLiesInOnePieceIsLent) {
  const State a("a", {4, 6}, Box::whole({4, 6}), {3, 3}, 1);
  const std::vector<SaveItem> items{a.item()};
  const auto snapshot = lazy_snapshot(items);
  const BoxRecord record = plan_shard(items).boxes[0];
  const Source& source = *snapshot->items()[0].source;
  EXPECT_EQ(source.borrow(chunk_box(record.box, record.chunk, 1)), nullptr);
  const Box last = chunk_box(record.box, record.chunk, 3);  // one row
  EXPECT_EQ(source.borrow(last), reinterpret_cast<const std::byte*>(&a.values[21]));
  source.give_back(last);
}

TEST(LazySnapshot, NothingIsReadOnceItIsLetGo) {
  State a("a", {7}, Box::whole({7}), {2}, 1);
  const std::vector<SaveItem> items{a.item()};
  const auto snapshot = lazy_snapshot(items);
  const BoxRecord record = plan_shard(items).boxes[0];
  const Source& source = *snapshot->items()[0].source;
  EXPECT_THAT(read_chunk(snapshot->items()[0], record, 0), Each(1.0F));
  const Box second = chunk_box(record.box, record.chunk, 1);
  ASSERT_NE(source.borrow(second), nullptr);
  std::atomic<bool> free = false;
  std::jthread owner([&] {
    snapshot->let_go();
    free = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(free) << "a chunk is lent";
  source.give_back(second);
  owner.join();
  EXPECT_EQ(source.borrow(chunk_box(record.box, record.chunk, 2)), nullptr);
  try {
    read_chunk(snapshot->items()[0], record, 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::peer);
  }
  snapshot->before_write("a", "param", a.box);
  EXPECT_EQ(snapshot->copied_bytes(), 0u);
}

TEST(CopySnapshot, ThreadsCopyIntoMemoryThatStays) {
  CopyBuffer buffer;
  const std::byte* first = nullptr;
  for (const float value : {1.0F, 2.0F}) {
    State a("a", {3, 700'001}, Box::whole({3, 700'001}), {}, value);
    State b("b", {9, 40'003}, {{2, 1}, {7, 40'001}}, {}, value + 10);
    State scalar("scalar", {}, Box::whole({}), {}, value + 20);
    State one("one", {1, 1, 5}, Box::whole({1, 1, 5}), {}, value + 30);
    const State nothing("nothing", {0, 3}, Box::whole({0, 3}), {}, value);
    const std::vector<SaveItem> items{a.item(), b.item(), nothing.item(), scalar.item(), one.item()};
    const auto snapshot = copy_snapshot(items, 3, buffer);
    std::vector<std::vector<float>> expected;
    for (State* s : {&a, &b, &scalar, &one}) {
      std::iota(s->values.begin(), s->values.end(), s->values[0]);
      expected.push_back(s->values);
    }
    const auto again = copy_snapshot(items, 3, buffer);  // numbered, so that a piece out of place is seen
    for (State* s : {&a, &b, &scalar, &one}) s->values.assign(s->values.size(), -1);
    std::size_t at = 0;
    for (const std::size_t i : {0u, 1u, 3u, 4u}) {
      const SaveItem& item = again->items()[i];
      std::vector<float> values(item.box.elements());
      item.source->read(item.box, reinterpret_cast<std::byte*>(values.data()));
      EXPECT_EQ(values, expected[at++]) << item.tensor;
    }
    EXPECT_EQ(again->host_bytes(), buffer.bytes);
    EXPECT_EQ(again->copied_bytes(), 4u * (3 * 700'001 + 7 * 40'001 + 1 + 5));
    if (first == nullptr) first = buffer.memory.get();
    EXPECT_EQ(buffer.memory.get(), first);
  }
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
  EXPECT_EQ(snapshot->copied_bytes(), 16u);
  EXPECT_EQ(snapshot->host_bytes(), 64u) << "a cache line";
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
