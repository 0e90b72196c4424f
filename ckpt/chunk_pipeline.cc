#include "ckpt/chunk_pipeline.h"

#include <fmt/format.h>

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

}  // namespace

/// One thread's buffers and contexts.
class ChunkPipeline::Worker {
 public:
  explicit Worker(const ShardOptions& options) : encoder_(options.codec) {
    if (options.verify_writes) decoder_.emplace();
  }

  /// Reads, pads, encodes and hashes one chunk; fills chunk.stored, whose memory is reused.
  void encode(const SaveItem& item, const BoxRecord& record, std::uint64_t index, EncodedChunk& chunk) {
    const std::size_t size = size_of(item.dtype);
    const Box part = chunk_box(record.box, record.chunk, index);
    dense_.resize(part.elements() * size);
    item.source->read(part, dense_.data());
    chunk.fingerprint = fingerprint(dense_.data(), size, part, record.global_shape);

    std::span<const std::byte> raw = dense_;
    if (!(part.shape == record.chunk)) {
      padded_.assign(element_count(record.chunk) * size, std::byte{0});
      copy_region(dense_.data(), part, padded_.data(), Box{part.offset, record.chunk}, part, size);
      raw = padded_;
    }
    encoder_.encode(raw, size, chunk.stored);
    chunk.raw_bytes = static_cast<std::uint32_t>(raw.size());
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

  /// Of the last chunk, decoding it again.
  double verify_seconds() const { return verify_seconds_; }

 private:
  ChunkEncoder encoder_;
  std::optional<ChunkDecoder> decoder_;
  std::vector<std::byte> dense_, padded_, back_;
  double verify_seconds_ = 0;
};

ChunkPipeline::ChunkPipeline(std::span<const SaveItem> items, std::span<const BoxRecord> boxes,
                             const ShardOptions& options)
    : items_(items), boxes_(boxes), options_(options) {
  std::uint64_t chunks = 0;
  for (const BoxRecord& box : boxes_) chunks += box.chunks;
  const auto threads =
      std::min<std::uint64_t>(static_cast<std::uint64_t>(std::max(options.threads, 1)), chunks);
  threads_.reserve(threads);
  for (std::uint64_t i = 0; i < threads; ++i) {
    try {
      threads_.emplace_back([this] { work(); });
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
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::uint64_t ChunkPipeline::claim_bytes(std::size_t box) const {
  // A chunk and what it may become; the frame's own bytes are a few.
  return 2 * element_count(boxes_[box].chunk) * size_of(boxes_[box].dtype);
}

bool ChunkPipeline::claim(Place& place, std::vector<std::byte>& buffer) {
  std::unique_lock lock(mutex_);
  // Chunks are claimed in order, so the one that next() waits for is never behind one that waits for room.
  while (!stopping_ && !failure_) {
    while (claim_.box < boxes_.size() && claim_.chunk == boxes_[claim_.box].chunks) {
      ++claim_.box;
      claim_.chunk = 0;
    }
    if (claim_.box == boxes_.size()) return false;
    const std::uint64_t bytes = claim_bytes(claim_.box);
    if (in_flight_ == 0 || in_flight_ + bytes <= options_.max_in_flight_bytes) {
      in_flight_ += bytes;
      peak_ = std::max(peak_, in_flight_);
      place = claim_;
      ++claim_.chunk;
      ++claim_.number;
      if (!spare_.empty()) {
        buffer = std::move(spare_.back());
        spare_.pop_back();
      }
      return true;
    }
    changed_.wait(lock);
  }
  return false;
}

void ChunkPipeline::finish(const Place& place, EncodedChunk&& chunk, double seconds, double verify_seconds) {
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= claim_bytes(place.box);
    in_flight_ += chunk.stored.size();
    peak_ = std::max(peak_, in_flight_);
    encode_seconds_ += seconds;
    verify_seconds_ += verify_seconds;
    done_.emplace(place.number, std::move(chunk));
  }
  changed_.notify_all();
}

void ChunkPipeline::work() {
  trace::name_thread("encode");
  try {
    Worker worker(options_);
    Place place{0, 0, 0};
    EncodedChunk chunk;
    while (claim(place, chunk.stored)) {
      const trace::Span span("encode", "chunk", static_cast<std::int64_t>(place.number));
      const Clock::time_point start = Clock::now();
      worker.encode(items_[place.box], boxes_[place.box], place.chunk, chunk);
      finish(place, std::move(chunk), seconds_since(start), worker.verify_seconds());
      chunk = {};
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
    changed_.notify_all();
  }
}

EncodedChunk ChunkPipeline::next(const std::atomic<bool>* cancel) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) std::rethrow_exception(failure_);
    if (cancel != nullptr && cancel->load())
      throw Error(ErrorCode::peer, "save: ended early because the attempt has failed elsewhere");
    const auto first = done_.begin();
    if (first != done_.end() && first->first == taken_) {
      EncodedChunk chunk = std::move(first->second);
      done_.erase(first);
      ++taken_;
      return chunk;
    }
    changed_.wait_for(lock, std::chrono::milliseconds(50));  // wakes to look at `cancel`
  }
}

void ChunkPipeline::recycle(EncodedChunk&& chunk) {
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= chunk.stored.size();
    spare_.push_back(std::move(chunk.stored));
  }
  changed_.notify_all();
}

double ChunkPipeline::encode_seconds() const {
  const std::lock_guard lock(mutex_);
  return encode_seconds_;
}

double ChunkPipeline::verify_seconds() const {
  const std::lock_guard lock(mutex_);
  return verify_seconds_;
}

std::uint64_t ChunkPipeline::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace shardwright::ckpt
