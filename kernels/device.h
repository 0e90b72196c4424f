// Devices, memory and streams. The trainer computes on one Device through the operations of kernels/ops.h;
// the CPU is built in, others are modules opened at run time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace shardwright::kernels {

enum class DeviceKind : std::uint8_t { cpu };

/// Order of work on a device. On the CPU every operation runs inline, so a stream is always idle. Not
/// thread-safe.
class Stream {
 public:
  explicit Stream(DeviceKind kind) : kind_(kind) {}
  DeviceKind kind() const { return kind_; }
  /// Returns when all work given to this stream is done.
  void synchronize() {}

 private:
  DeviceKind kind_;
};

/// What memory is for. Buffers are all that holds nothing of its own: what collectives pass through, gathered
/// layers. Scratch is what single operations work in and keep for the next: how much depends on the processor
/// and its threads.
enum class MemoryUse : std::uint8_t { param, grad, optimizer, activation, buffers, scratch };
inline constexpr std::size_t kMemoryUses = 6;

/// A block of device memory, 64-byte aligned and zeroed, freed with the object.
class Memory {
 public:
  Memory() = default;
  Memory(DeviceKind kind, std::size_t bytes, MemoryUse use = MemoryUse::buffers);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  std::byte* data() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  void release();

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  MemoryUse use_ = MemoryUse::buffers;
};

/// Bytes in all Memory objects of this process, by MemoryUse, as asked for. Thread-safe.
using MemoryBytes = std::array<std::size_t, kMemoryUses>;
/// The most that there was of each at any time since the start or the last reset_memory_peaks().
MemoryBytes memory_peaks();
/// Peaks begin anew from what there is now.
void reset_memory_peaks();

/// Threads that CPU operations use (OpenMP and oneDNN).
void set_threads(int threads);
int threads();

}  // namespace shardwright::kernels
