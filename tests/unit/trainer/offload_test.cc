#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/snapshot.h"
#include "tests/tools/temp_dir.h"
#include "trainer/offload_stream.h"
#include "trainer/optimizer.h"

namespace shardwright::trainer {
namespace {

reshard::ModelSpec tiny() {
  reshard::ModelConfig config;
  config.layers = 2;
  config.hidden = 12;
  config.heads = 3;
  config.ffn = 21;
  config.vocab = 33;
  config.seq_len = 8;
  return reshard::build_model(config);
}

OffloadOptions in(const TempDir& dir, std::uint64_t window = 48) {
  return {.directory = dir.path(), .two_copies = true, .window_elements = window};
}

/// All values of an item that a save would write.
std::vector<float> values(const ckpt::SaveItem& item) {
  std::vector<float> read(item.box.elements());
  if (!read.empty()) item.source->read(item.box, reinterpret_cast<std::byte*>(read.data()));
  return read;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

TEST(OffloadWindows, CoverAllThatIsOwnedOnce) {
  for (const char* text : {"t1", "t2d3z1", "d5z3"}) {
    const reshard::Layout layout = reshard::parse_layout(text);
    for (const auto type : {kernels::ElementType::f32, kernels::ElementType::bf16}) {
      const ParameterMemory memory = parameter_memory(tiny(), layout, layout.ranks() - 1, type);
      const OffloadWindows windows = offload_windows(memory, 48);
      EXPECT_EQ(windows.kinds, type == kernels::ElementType::f32 ? 2u : 3u);
      std::vector<std::uint64_t> next(memory.tensors.size());
      for (const auto& window : windows.windows) {
        std::uint64_t free = 0;
        for (const WindowPart& part : window) {
          EXPECT_GE(part.at, free);
          free = part.at + part.count;
          EXPECT_EQ(part.first, next[part.parameter]);
          next[part.parameter] += part.count;
        }
        EXPECT_LE(free, windows.elements);
      }
      for (std::size_t i = 0; i < next.size(); ++i)
        EXPECT_EQ(next[i], memory.tensors[i].optimizer_box.elements()) << text;
    }
  }
}

TEST(OffloadWindows, RunsAreMadeOfBoxesInOrder) {
  const ckpt::Box matrix{{2, 3}, {5, 7}};
  for (std::uint64_t first = 0; first < 35; ++first)
    for (std::uint64_t count = 0; first + count <= 35; ++count) {
      std::uint64_t at = 0;
      const std::vector<RunBox> runs = boxes_of_run(matrix, first, count);
      EXPECT_LE(runs.size(), 3u);
      for (const RunBox& run : runs) {
        EXPECT_EQ(run.at, at);
        EXPECT_EQ(ckpt::dense_start(matrix, run.box), first + at);
        at += run.box.elements();
      }
      EXPECT_EQ(at, count);
    }
  const std::vector<RunBox> vector = boxes_of_run({{4}, {9}}, 2, 6);
  ASSERT_EQ(vector.size(), 1u);
  EXPECT_EQ(vector[0].box, (ckpt::Box{{6}, {6}}));
}

class OffloadFileTest : public testing::Test {
 protected:
  void TearDown() override { ckpt::set_fault(""); }
  TempDir dir_;
};

TEST_F(OffloadFileTest, HasNoNameAndIsAllZeros) {
  OffloadFile file(dir_.path(), 3, 100);
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  std::vector<std::byte> data(100, std::byte{1});
  file.read(0, data);
  EXPECT_EQ(std::ranges::count(data, std::byte{0}), 100);
}

TEST_F(OffloadFileTest, NoDirectoryNoRoom) {
  try {
    OffloadFile(dir_.path() + "/none", 0, 10);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::missing) << error.what();
  }
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  std::string said;
  try {
    OffloadFile(dir_.path(), 7, 1001);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_space);
    said = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(said.find("no room for the 1001 bytes of optimizer state that rank 7 offloads"),
            std::string::npos)
      << said;
}

TEST_F(OffloadFileTest, FirstErrorStays) {
  OffloadFile file(dir_.path(), 0, 100);
  std::vector<std::byte> data(10);
  ckpt::set_fault("offload.write=eio");
  EXPECT_THROW(file.write(0, data), Error);
  ckpt::set_fault("");
  EXPECT_THROW(file.read(0, data), Error);
  EXPECT_THROW(file.let_go(0, 10), Error);
}

TEST_F(OffloadFileTest, StreamAddsToEveryWindowThroughFewSlots) {
  constexpr std::size_t kWindows = 23, kBytes = 24;
  OffloadFile file(dir_.path(), 0, 2 * kWindows * kBytes);
  for (const std::size_t slots : {1, 2, 5, 40}) {
    std::vector<std::byte> ring(slots * kBytes);
    const auto pass = [&](std::uint64_t from, std::uint64_t to, bool read, int add) {
      std::size_t next = 0;
      stream_windows(file, {kWindows, kBytes, from, to, read}, ring,
                     [&](std::size_t window, std::span<std::byte> bytes) {
                       EXPECT_EQ(window, next++);
                       for (std::byte& byte : bytes)
                         byte =
                             static_cast<std::byte>(static_cast<int>(byte) + add + static_cast<int>(window));
                     });
      EXPECT_EQ(next, kWindows);
    };
    pass(0, 0, false, 1);
    pass(0, 0, true, 2);
    pass(0, kWindows * kBytes, true, 3);
    std::vector<std::byte> all(2 * kWindows * kBytes);
    file.read(0, all);
    for (std::size_t i = 0; i < kWindows * kBytes; ++i) {
      const std::size_t window = i / kBytes;
      ASSERT_EQ(static_cast<std::size_t>(all[i]), 3 + 2 * window);
      ASSERT_EQ(static_cast<std::size_t>(all[kWindows * kBytes + i]), 6 + 3 * window);
    }
  }
}

TEST_F(OffloadFileTest, StreamEndsWithTheFirstError) {
  OffloadFile file(dir_.path(), 0, 1000);
  std::vector<std::byte> ring(30);
  const auto throws_at_four = [](std::size_t window, std::span<std::byte>) {
    if (window == 4) throw Error(ErrorCode::damaged, "four");
  };
  EXPECT_THROW(stream_windows(file, {100, 10, 0, 0, true}, ring, throws_at_four), Error);
  for (const char* fault : {"offload.read:nth=9=eio", "offload.write:nth=9=enospc"}) {
    OffloadFile fresh(dir_.path(), 0, 1000);
    ckpt::set_fault(fault);
    EXPECT_THROW(stream_windows(fresh, {100, 10, 0, 0, true}, ring, [](std::size_t, std::span<std::byte>) {}),
                 Error)
        << fault;
  }
}

/// A rank that trains, with its own gradients, alone.
struct Rank {
  Rank(const reshard::ModelSpec& model, kernels::ElementType type,
       const std::optional<OffloadOptions>& offload)
      : parameters(model, {}, 0, type, offload),
        comms(make_communicators(make_self_communicator(), model, {})),
        data(parameters, *comms.data, stream),
        optimizer(parameters, comms, data, stream, {}, false) {
    parameters.initialise(5);
    data.spread_values();
  }
  void step(
      std::int64_t number,
      const BeforeWrite& before_write = [](const Parameter&, const char*, const ckpt::Box&) {}) {
    float next = static_cast<float>(number);
    for (Parameter& p : parameters.all())
      for (std::uint64_t i = 0; i < p.placed.holds.elements(); ++i) p.grad[i] = std::sin(next += 1.0F);
    optimizer.update(optimizer.norm({}), 0.01, number, before_write);
  }
  kernels::Stream stream{kernels::DeviceKind::cpu};
  Parameters parameters;
  Communicators comms;
  DataParallel data;
  Optimizer optimizer;
};

class OffloadTypes : public testing::TestWithParam<kernels::ElementType> {};

TEST_P(OffloadTypes, StepsAreBitForBitTheSame) {
  const TempDir dir;
  const reshard::ModelSpec model = tiny();
  Rank memory(model, GetParam(), std::nullopt), file(model, GetParam(), in(dir));
  const auto compare = [&](const char* when) {
    const auto a = memory.parameters.save_items(), b = file.parameters.save_items();
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      EXPECT_TRUE(same_bits(values(a[i]), values(b[i]))) << when << ": " << a[i].tensor << " " << a[i].kind;
    for (std::size_t i = 0; i < memory.parameters.all().size(); ++i) {
      const Parameter &p = memory.parameters.all()[i], &q = file.parameters.all()[i];
      EXPECT_EQ(std::memcmp(p.value.data, q.value.data,
                            p.placed.holds.elements() * kernels::element_size(p.value.type)),
                0)
          << when << ": " << p.spec->name;
    }
  };
  compare("at first");
  for (std::int64_t step = 1; step <= 3; ++step) {
    memory.step(step);
    file.step(step);
    compare("after a step");
  }
}

TEST_P(OffloadTypes, ASaveReadsItsBoundaryWhateverSteps) {
  const TempDir dir;
  Rank rank(tiny(), GetParam(), in(dir));
  rank.step(1);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> right;
    for (const ckpt::SaveItem& item : rank.parameters.save_items()) right.push_back(values(item));
    const auto snapshot = ckpt::lazy_snapshot(rank.parameters.save_items());
    for (std::int64_t step = 2; step <= 4; ++step)
      rank.step(step, [&](const Parameter& p, const char* kind, const ckpt::Box& box) {
        snapshot->before_write(p.spec->name, kind, box);
      });
    const auto items = snapshot->items();
    for (std::size_t i = 0; i < items.size(); ++i)
      EXPECT_TRUE(same_bits(values(items[i]), right[i])) << items[i].tensor << " " << items[i].kind;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, OffloadTypes,
                         testing::Values(kernels::ElementType::f32, kernels::ElementType::bf16,
                                         kernels::ElementType::f16));

TEST(Offload, OneCopyIsNeverOverwrittenUnderASave) {
  const TempDir dir;
  OffloadOptions options = in(dir);
  options.two_copies = false;
  Rank rank(tiny(), kernels::ElementType::f32, options);
  rank.step(1);
  const auto items = rank.parameters.save_items();
  EXPECT_THROW(rank.step(2), Error);
}

TEST(Offload, ValuesThatAreNotFiniteAreFound) {
  const TempDir dir;
  Rank rank(tiny(), kernels::ElementType::bf16, in(dir));
  rank.step(1);
  EXPECT_FALSE(rank.parameters.offloaded()->not_finite());
  rank.parameters.offloaded()->rewrite(OffloadedState::Old::read, [](std::span<const OffloadedPart> parts) {
    for (const OffloadedPart& part : parts)
      if (part.parameter == 3 && part.first == 0) part.exp_avg_sq[0] = std::numeric_limits<float>::infinity();
  });
  EXPECT_EQ(rank.parameters.offloaded()->not_finite(), 3u);
}

TEST(Offload, MemoryIsTheRingsAndNothingElse) {
  const TempDir dir;
  const ParameterMemory memory = parameter_memory(tiny(), {}, 0, kernels::ElementType::bf16);
  kernels::reset_memory_peaks();
  const auto before = kernels::memory_peaks();
  const OffloadedState state(memory, 0, {.directory = dir.path()});
  const auto after = kernels::memory_peaks();
  const auto of = [](const kernels::MemoryBytes& bytes, kernels::MemoryUse use) {
    return bytes[static_cast<std::size_t>(use)];
  };
  EXPECT_EQ(of(after, kernels::MemoryUse::optimizer), of(before, kernels::MemoryUse::optimizer));
  EXPECT_EQ(of(after, kernels::MemoryUse::buffers) - of(before, kernels::MemoryUse::buffers),
            offload_buffer_bytes(memory));
}

}  // namespace
}  // namespace shardwright::trainer
