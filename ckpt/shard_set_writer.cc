// Many shards written at once by one process, so that what each of them needs of a tensor is read while it is
// at hand.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "ckpt/chunk_order.h"
#include "ckpt/chunk_pipeline.h"
#include "ckpt/error.h"
#include "ckpt/open_shard.h"
#include "ckpt/shard.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

/// A thread that makes closed shards durable, so that the one that writes need not wait for the disk.
class Sealer {
 public:
  explicit Sealer(const std::function<void(const Part&)>& done) : done_(done), thread_([this] { work(); }) {}
  /// Leaves what is not sealed yet as it is.
  ~Sealer() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      closed_.clear();
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  /// Rethrows what went wrong with an earlier one.
  void give(std::unique_ptr<OpenShard> shard) {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) std::rethrow_exception(failure_);
      closed_.push_back(std::move(shard));
    }
    wake_.notify_one();
  }

  /// Waits for all; rethrows what went wrong with any.
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

  double fsync_seconds() const { return fsync_s_; }  // after finish()

 private:
  void work() {
    trace::name_thread("fsync");
    try {
      for (;;) {
        std::unique_ptr<OpenShard> shard;
        {
          std::unique_lock lock(mutex_);
          wake_.wait(lock, [this] { return ending_ || !closed_.empty(); });
          if (closed_.empty()) return;
          shard = std::move(closed_.front());
          closed_.pop_front();
        }
        const Part part = shard->seal();
        fsync_s_ += shard->fsync_seconds();
        shard.reset();
        done_(part);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
      closed_.clear();
    }
  }

  const std::function<void(const Part&)>& done_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::unique_ptr<OpenShard>> closed_;
  std::exception_ptr failure_;
  bool ending_ = false;
  double fsync_s_ = 0;
  std::thread thread_;
};

}  // namespace

void write_shards(Env& env, const std::string& directory, const std::string& attempt, std::uint64_t step,
                  std::span<const ShardJob> jobs, const ShardOptions& options, ShardStats* stats,
                  const std::function<void(const Part&)>& done, const SaveSignals* signals) {
  const SaveSignals nobody;
  ShardStats unread;
  ShardStats& measured = stats != nullptr ? *stats : unread;
  measured = {};
  const ShardTarget target{env, directory, attempt, step, form_of(options.codec)};
  std::vector<PlannedShard> planned;
  for (const ShardJob& job : jobs) {
    planned.push_back(planned_shard(job.items));
    for (const BoxRecord& box : planned.back().plan.boxes)
      measured.raw_bytes += box.box.elements() * size_of(box.dtype);
  }

  std::vector<std::unique_ptr<OpenShard>> open(jobs.size());
  Sealer sealer(done);
  const auto close = [&](std::size_t s) {
    open[s]->close();
    measured.write_s += open[s]->write_seconds();
    sealer.give(std::move(open[s]));
  };
  {
    ChunkPipeline pipeline(planned, options);
    std::uint64_t chunks = 0;
    for (const PlannedShard& shard : planned) chunks += shard.plan.chunks;
    for (std::uint64_t i = 0; i < chunks; ++i) {
      EncodedChunk chunk = pipeline.next(signals != nullptr ? *signals : nobody, measured);
      const std::size_t s = chunk.task.shard;
      if (!open[s]) open[s] = std::make_unique<OpenShard>(target, jobs[s].rank, planned[s]);
      open[s]->write(chunk);
      pipeline.recycle(std::move(chunk));
      if (open[s]->complete()) close(s);
    }
    pipeline.report(measured);
  }
  for (std::size_t s = 0; s < jobs.size(); ++s) {
    if (!planned[s].plan.has_file || planned[s].plan.chunks > 0) continue;
    // Nothing but tensors without elements.
    open[s] = std::make_unique<OpenShard>(target, jobs[s].rank, planned[s]);
    close(s);
  }
  sealer.finish();
  for (std::size_t s = 0; s < jobs.size(); ++s)
    if (!planned[s].plan.has_file) done(empty_part(target, jobs[s].rank, planned[s].plan));
  measured.fsync_s = sealer.fsync_seconds();
  const auto start = std::chrono::steady_clock::now();
  env.sync_dir(directory);
  measured.fsync_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace shardwright::ckpt
