#include "ckpt/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "ckpt/trace.h"

namespace shardwright::ckpt {

void parallel_for(int threads, std::size_t count, const std::function<void(int, std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::exception_ptr first;
  const auto work = [&](int worker) {
    try {
      while (!failed.load(std::memory_order_relaxed)) {
        const std::size_t index = next.fetch_add(1, std::memory_order_relaxed);
        if (index >= count) return;
        body(worker, index);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
      failed = true;
    }
  };
  const int extra =
      static_cast<int>(std::min<std::size_t>(static_cast<std::size_t>(std::max(threads, 1)), count)) - 1;
  std::vector<std::jthread> pool;
  for (int i = 0; i < extra; ++i)
    pool.emplace_back([&work, i] {
      trace::name_thread("pool");
      work(i + 1);
    });
  work(0);
  pool.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace shardwright::ckpt
