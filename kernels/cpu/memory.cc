#include <omp.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "kernels/device.h"

namespace shardwright::kernels {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Bytes by use: what there is now, and the most that there was.
std::array<std::atomic<std::size_t>, kMemoryUses> g_now{};
std::array<std::atomic<std::size_t>, kMemoryUses> g_peak{};

void count(MemoryUse use, std::size_t bytes) {
  const auto i = static_cast<std::size_t>(use);
  const std::size_t now = g_now[i].fetch_add(bytes) + bytes;
  std::size_t peak = g_peak[i].load();
  while (peak < now && !g_peak[i].compare_exchange_weak(peak, now)) {
  }
}

std::atomic<int> g_threads{0};  // 0: not set yet, as many as OpenMP offers

}  // namespace

Memory::Memory(DeviceKind kind, std::size_t bytes, MemoryUse use) : bytes_(bytes), use_(use) {
  if (kind != DeviceKind::cpu) throw std::runtime_error("memory: only the cpu device is built in");
  if (bytes == 0) return;
  // Big blocks start on a huge page, which saves most of the address translation misses of streaming loops.
  const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
  const std::size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, size) != 0) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(block);
  count(use_, bytes_);
  // Only a hint: without huge pages everything works as well, slower.
  if (alignment == kHugePage) (void)madvise(data_, size, MADV_HUGEPAGE);
  cpu::for_ranges(static_cast<std::int64_t>(size), std::int64_t{1} << 21,
                  [&](std::int64_t begin, std::int64_t end) { std::memset(data_ + begin, 0, end - begin); });
}

Memory::~Memory() { release(); }

Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)), use_(other.use_) {}

Memory& Memory::operator=(Memory&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    use_ = other.use_;
  }
  return *this;
}

void Memory::release() {
  if (data_ == nullptr) return;
  std::free(data_);
  g_now[static_cast<std::size_t>(use_)].fetch_sub(bytes_);
}

MemoryBytes memory_peaks() {
  MemoryBytes peaks;
  for (std::size_t i = 0; i < kMemoryUses; ++i) peaks[i] = g_peak[i].load();
  return peaks;
}

void reset_memory_peaks() {
  for (std::size_t i = 0; i < kMemoryUses; ++i) g_peak[i].store(g_now[i].load());
}

void set_threads(int threads) {
  if (threads < 1) throw std::runtime_error("threads: must be at least 1");
  g_threads.store(threads, std::memory_order_relaxed);
  omp_set_num_threads(threads);
}

int threads() {
  const int set = g_threads.load(std::memory_order_relaxed);
  return set > 0 ? set : omp_get_max_threads();
}

}  // namespace shardwright::kernels
