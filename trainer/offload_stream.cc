#include "trainer/offload_stream.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "ckpt/trace.h"

namespace shardwright::trainer {
namespace {

// How far the check of what was written stays behind, so that the disk has something to do meanwhile.
constexpr std::size_t kUnchecked = 2;

/// How many windows have come through each of the three stages; each waits for the one before it, the first
/// for a free slot.
class Ring {
 public:
  explicit Ring(std::size_t slots) : slots_(slots) {}

  /// False if the pass has ended early.
  bool wait_to_read(std::size_t window) {
    return wait([&] { return window < written_ + slots_; });
  }
  bool wait_to_change(std::size_t window) {
    return wait([&] { return window < read_; });
  }
  bool wait_to_write(std::size_t window) {
    return wait([&] { return window < changed_; });
  }
  void read_one() { advance(read_); }
  void changed_one() { advance(changed_); }
  void written_one() { advance(written_); }

  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    moved_.notify_all();
  }
  /// After the threads have ended.
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  template <class Ready>
  bool wait(const Ready& ready) {
    // No deadline of its own: a disk that does not answer holds the phase up, which the rank's watchdog ends.
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return failure_ != nullptr || ready(); });
    return failure_ == nullptr;
  }
  void advance(std::size_t& count) {
    const std::lock_guard lock(mutex_);
    ++count;
    moved_.notify_all();
  }

  const std::size_t slots_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable moved_;
  std::size_t read_ = 0, changed_ = 0, written_ = 0;
  std::exception_ptr failure_;
};

template <class Stage>
void run_stage(Ring& ring, const Stage& stage) {
  try {
    stage();
  } catch (...) {
    ring.fail(std::current_exception());
  }
}

}  // namespace

void stream_windows(OffloadFile& file, const OffloadPass& pass, std::span<std::byte> memory,
                    const std::function<void(std::size_t window, std::span<std::byte>)>& change) {
  if (pass.windows == 0) return;
  const std::size_t slots = memory.size() / pass.window_bytes;
  Ring ring(slots);
  const auto slot = [&](std::size_t window) {
    return memory.subspan(window % slots * pass.window_bytes, pass.window_bytes);
  };
  const auto let_go = [&](std::size_t window) {
    file.let_go(pass.to + window * pass.window_bytes, pass.window_bytes);
  };
  {
    const std::jthread reader([&] {
      run_stage(ring, [&] {
        for (std::size_t w = 0; w < pass.windows && ring.wait_to_read(w); ++w) {
          if (pass.read)
            file.read(pass.from + w * pass.window_bytes, slot(w));
          else
            std::ranges::fill(slot(w), std::byte{0});
          ring.read_one();
        }
      });
    });
    std::jthread writer([&] {
      run_stage(ring, [&] {
        for (std::size_t w = 0; w < pass.windows; ++w) {
          if (!ring.wait_to_write(w)) return;
          file.write(pass.to + w * pass.window_bytes, slot(w));
          ring.written_one();
          if (w >= kUnchecked) let_go(w - kUnchecked);
        }
        for (std::size_t w = pass.windows - std::min(kUnchecked, pass.windows); w < pass.windows; ++w)
          let_go(w);
      });
    });
    run_stage(ring, [&] {
      for (std::size_t w = 0; w < pass.windows; ++w) {
        {
          const trace::Span span("wait for offload");
          if (!ring.wait_to_change(w)) return;
        }
        change(w, slot(w));
        ring.changed_one();
      }
    });
    const trace::Span span("wait for offload");
    writer.join();
  }
  ring.rethrow();
}

}  // namespace shardwright::trainer
