#include "ckpt/chunk_pipeline.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// For the calling thread's life: only who is allowed to may take a higher priority again.
void yield_to_all_others() {
#ifdef SCHED_IDLE
  // Where it is forbidden the work is done all the same, at the cost of others' time.
  const sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
#endif
}

/// Values that a source lends, given back at the end.
class Loan {
 public:
  ~Loan() {
    if (source_ != nullptr) source_->give_back(*box_);
  }
  Loan() = default;
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  /// Null where the source has none to lend; `source` and `box` outlive this object.
  const std::byte* take(const Source& source, const Box& box) {
    const std::byte* values = source.borrow(box);
    if (values == nullptr) return nullptr;
    source_ = &source;
    box_ = &box;
    return values;
  }

 private:
  const Source* source_ = nullptr;
  const Box* box_ = nullptr;
};

}  // namespace

/// One thread's buffers and contexts.
class ChunkPipeline::Worker {
 public:
  explicit Worker(const ShardOptions& options)
      : encoder_(options.codec),
        form_(form_of(options.codec)),
        keep_stored_(options.keep_stored),
        borrows_(options.priority == WorkerPriority::normal) {
    if (options.verify_writes) decoder_.emplace();
  }

  /// Fills `chunk` with one chunk of a box, kept as the source has it stored, or encoded; the memory of
  /// chunk.stored is reused.
  void make(const ChunkTask& task, EncodedChunk& chunk) {
    Loan loan;
    const std::span<const std::byte> raw = read(*task.item, *task.box, task.part, chunk, loan);
    chunk.raw_bytes = static_cast<std::uint32_t>(raw.size());
    if (!chunk.kept) encode(*task.item, raw, task.index, chunk);
  }

  /// Of the last chunk, decoding it again.
  double verify_seconds() const { return verify_seconds_; }

 private:
  /// The padded values of a chunk; sets its fingerprint, and all else if it is kept.
  std::span<const std::byte> read(const SaveItem& item, const BoxRecord& record, const Box& part,
                                  EncodedChunk& chunk, Loan& loan) {
    const std::size_t size = size_of(item.dtype);
    const std::size_t bytes = part.elements() * size;
    const Box full{part.offset, record.chunk};
    const bool whole = part.shape == record.chunk;
    if (keep_stored_ && item.source->read_stored(part, record.chunk, source_)) {
      // Its values are proved like those of all others.
      const std::byte* values = source_.raw.data();
      if (!whole) {
        dense_.resize(bytes);
        copy_region(source_.raw.data(), full, dense_.data(), part, part, size);
        values = dense_.data();
      }
      chunk.fingerprint = fingerprint(values, size, part, record.global_shape);
      chunk.kept = form_of(std::span<const std::byte>(source_.stored)) == form_;
      if (chunk.kept) {
        std::swap(chunk.stored, source_.stored);
        chunk.xxh3_64 = source_.xxh3_64;
      }
      return source_.raw;
    }
    const std::byte* values = borrows_ ? loan.take(*item.source, part) : nullptr;
    if (values == nullptr) {
      dense_.resize(bytes);
      item.source->read(part, dense_.data());
      values = dense_.data();
    }
    chunk.fingerprint = fingerprint(values, size, part, record.global_shape);
    if (whole) return {values, bytes};
    padded_.assign(element_count(record.chunk) * size, std::byte{0});
    copy_region(values, part, padded_.data(), full, part, size);
    return padded_;
  }

  void encode(const SaveItem& item, std::span<const std::byte> raw, std::uint64_t index,
              EncodedChunk& chunk) {
    const std::size_t size = size_of(item.dtype);
    encoder_.encode(raw, size, chunk.stored);
    if (decoder_) {
      const Clock::time_point start = Clock::now();
      back_.resize(raw.size());
      decoder_->decode(chunk.stored, size, back_);
      if (!std::equal(raw.begin(), raw.end(), back_.begin()))
        throw Error(
            ErrorCode::damaged,
            fmt::format(
                "tensor '{}' kind '{}': chunk {} decodes to other values than were encoded; memory or "
                "processor may be faulty",
                item.tensor, item.kind, index));
      verify_seconds_ = seconds_since(start);
    }
    chunk.xxh3_64 = xxh3_64(chunk.stored);
  }

  ChunkEncoder encoder_;
  ChunkForm form_;
  bool keep_stored_;
  // Who is about to change a chunk waits while it is lent: not for a thread that gets no time.
  bool borrows_;
  StoredChunk source_;
  std::optional<ChunkDecoder> decoder_;
  std::vector<std::byte> dense_, padded_, back_;
  double verify_seconds_ = 0;
};

ChunkPipeline::ChunkPipeline(std::span<const PlannedShard> shards, const ShardOptions& options)
    : options_(options), order_(shards) {
  const auto threads =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(std::max(options.threads, 1)), order_.chunks());
  threads_.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i) {
    try {
      threads_.emplace_back([this, i] { work(i == 0); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
      break;  // the system allows no more; fewer workers give the same file
    }
  }
}

ChunkPipeline::~ChunkPipeline() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  room_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool ChunkPipeline::claim(Place& place, std::vector<std::byte>& buffer, bool may_wait, bool replaceable) {
  std::unique_lock lock(mutex_);
  // Chunks are claimed in order, so the one that next() waits for is never behind one that waits for room.
  while (!stopping_ && !failure_ && !(replaceable && replaced_)) {
    const ChunkTask* task = order_.peek();
    if (task == nullptr) return false;
    const std::uint64_t raw = element_count(task->box->chunk) * size_of(task->box->dtype);
    // The chunk and what it may become; the frame's own bytes are a few.
    const std::uint64_t bytes =
        raw + std::max<std::uint64_t>(raw, spare_.empty() ? 0 : spare_.back().capacity());
    if (in_flight_ == 0 || in_flight_ + bytes <= options_.max_in_flight_bytes) {
      in_flight_ += bytes;
      peak_ = std::max(peak_, in_flight_);
      place = {*task, claimed_++, bytes};
      order_.advance();
      done_.emplace_back();
      if (!spare_.empty()) {
        buffer = std::move(spare_.back());
        spare_.pop_back();
      }
      return true;
    }
    if (!may_wait) return false;
    room_.wait(lock);
  }
  return false;
}

void ChunkPipeline::finish(const Place& place, EncodedChunk&& chunk, double seconds, double verify_seconds) {
  bool awaited = false;
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= place.bytes;
    in_flight_ += chunk.stored.capacity();
    peak_ = std::max(peak_, in_flight_);
    encode_seconds_ += seconds;
    verify_seconds_ += verify_seconds;
    awaited = place.number == taken_;
    done_[place.number - taken_] = std::move(chunk);
  }
  if (awaited) ready_.notify_one();
  room_.notify_one();
}

bool ChunkPipeline::encode_one(Worker& worker, bool may_wait, bool replaceable) {
  Place place;
  EncodedChunk chunk;
  if (!claim(place, chunk.stored, may_wait, replaceable)) return false;
  const trace::Span span("encode", "chunk", static_cast<std::int64_t>(place.number));
  const Clock::time_point start = Clock::now();
  chunk.task = place.task;
  worker.make(place.task, chunk);
  finish(place, std::move(chunk), seconds_since(start), worker.verify_seconds());
  return true;
}

void ChunkPipeline::work(bool first) {
  trace::name_thread("encode");
  if (options_.priority == WorkerPriority::low) yield_to_all_others();
  try {
    Worker worker(options_);
    while (encode_one(worker, true, first)) {
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    ready_.notify_one();
    room_.notify_all();
  }
}

/// Makes next()'s thread a worker.
void ChunkPipeline::help() {
  own_worker_ = std::make_unique<Worker>(options_);
  if (options_.priority != WorkerPriority::normal || threads_.size() < 2) return;
  {
    const std::lock_guard lock(mutex_);
    replaced_ = true;
  }
  room_.notify_all();  // it may wait there
}

bool ChunkPipeline::in_a_hurry(const SaveSignals& signals) const {
  const bool starved =
      options_.priority == WorkerPriority::low && seconds_since(start_) > options_.patience_s;
  return signals.hurry || starved;
}

EncodedChunk ChunkPipeline::next(const SaveSignals& signals, ShardStats& stats) {
  const trace::Span span("wait for chunk");
  const Clock::time_point asked = Clock::now();
  EncodedChunk chunk = awaited(signals);
  stats.chunk_wait_s += seconds_since(asked);
  stats.stored_bytes += chunk.stored.size();
  ++(chunk.kept ? stats.kept_chunks : stats.encoded_chunks);
  return chunk;
}

EncodedChunk ChunkPipeline::awaited(const SaveSignals& signals) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) std::rethrow_exception(failure_);
    if (signals.cancel)
      throw Error(ErrorCode::peer, "save: ended early because the attempt has failed elsewhere");
    if (!done_.empty() && done_.front()) {
      EncodedChunk chunk = *std::move(done_.front());
      done_.pop_front();
      ++taken_;
      return chunk;
    }
    if (in_a_hurry(signals)) {
      lock.unlock();
      if (!own_worker_) help();
      const bool encoded = encode_one(*own_worker_, false, false);
      lock.lock();
      if (encoded) continue;
      if (!done_.empty() && done_.front()) continue;
    }
    ready_.wait_for(lock, std::chrono::milliseconds(50));  // wakes to look at the signals
  }
}

void ChunkPipeline::recycle(EncodedChunk&& chunk) {
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= chunk.stored.capacity();
    spare_.push_back(std::move(chunk.stored));
  }
  room_.notify_one();
}

void ChunkPipeline::report(ShardStats& stats) const {
  const std::lock_guard lock(mutex_);
  stats.encode_s += encode_seconds_;
  stats.verify_s += verify_seconds_;
  stats.peak_host_bytes = std::max(stats.peak_host_bytes, peak_);
}

}  // namespace shardwright::ckpt
