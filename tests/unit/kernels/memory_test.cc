#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "kernels/device.h"

namespace shardwright::kernels {
namespace {

TEST(Memory, AlignedZeroedAndMoved) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{9} << 20}) {
    Memory memory(DeviceKind::cpu, bytes);
    EXPECT_EQ(memory.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % 64, 0u);
    EXPECT_TRUE(
        std::all_of(memory.data(), memory.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::byte* const data = memory.data();
    Memory other(std::move(memory));
    EXPECT_EQ(other.data(), data);
    Memory third(DeviceKind::cpu, 5);
    third = std::move(other);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.bytes(), bytes);
    EXPECT_EQ(other.data(), nullptr);
    EXPECT_EQ(other.bytes(), 0u);
  }
}

TEST(Threads, AreKeptAndChecked) {
  const int before = threads();
  EXPECT_GE(before, 1);
  set_threads(3);
  EXPECT_EQ(threads(), 3);
  EXPECT_THROW(set_threads(0), std::runtime_error);
  set_threads(before);
}

TEST(Memory, IsCountedByWhatItIsFor) {
  const auto peak = [](MemoryUse use) { return memory_peaks()[static_cast<std::size_t>(use)]; };
  reset_memory_peaks();
  const std::size_t before = peak(MemoryUse::grad);
  {
    Memory kept(DeviceKind::cpu, 1000, MemoryUse::grad);
    Memory moved(std::move(kept));
    { const Memory passing(DeviceKind::cpu, 77, MemoryUse::grad); }
    moved = Memory(DeviceKind::cpu, 10, MemoryUse::param);  // frees what it had
    EXPECT_EQ(peak(MemoryUse::grad), before + 1077);
    reset_memory_peaks();
    EXPECT_EQ(peak(MemoryUse::grad), before);
  }
  const Memory empty(DeviceKind::cpu, 0, MemoryUse::grad);
  EXPECT_EQ(peak(MemoryUse::grad), before);
}

}  // namespace
}  // namespace shardwright::kernels
