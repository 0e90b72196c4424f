// A snapshot that copies only what is about to change before it was read. Each chunk of a box is pending,
// being read, read, or kept: copied by the thread that is about to change it, who waits for one that is being
// read.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "ckpt/box_index.h"
#include "ckpt/error.h"
#include "ckpt/pending_pages.h"
#include "ckpt/shard_plan.h"
#include "ckpt/snapshot.h"
#include "ckpt/trace.h"

namespace shardwright::ckpt {
namespace {

/// Bytes that all boxes of a snapshot keep now, the most that they kept, and all that they ever did.
class KeptBytes {
 public:
  void add(std::uint64_t bytes) {
    all_.fetch_add(bytes);
    const std::uint64_t now = now_.fetch_add(bytes) + bytes;
    std::uint64_t most = most_.load();
    while (most < now && !most_.compare_exchange_weak(most, now)) {
    }
  }
  void remove(std::uint64_t bytes) { now_.fetch_sub(bytes); }
  std::uint64_t most() const { return most_.load(); }
  std::uint64_t all() const { return all_.load(); }

 private:
  std::atomic<std::uint64_t> now_{0}, most_{0}, all_{0};
};

/// One item's memory. read() and before_write() may be called at once, from any threads.
class WatchedBox : public Source {
 public:
  WatchedBox(const SaveItem& item, const Dims& chunk, KeptBytes& kept_bytes)
      : memory_(item.source),
        data_(item.source->host_range().data()),
        size_(size_of(item.dtype)),
        kept_bytes_(kept_bytes) {
    entry_.box = item.box;
    entry_.chunk = chunk;
    entry_.chunks = element_count(chunk_grid(item.box, chunk));
    chunks_.resize(entry_.chunks);
    for (std::uint64_t i = 0; i < entry_.chunks; ++i) protect_pages(memory_of(i));
  }
  ~WatchedBox() override {
    for (std::uint64_t i = 0; i < entry_.chunks; ++i)
      if (!chunks_[i].read && !chunks_[i].kept) release_pages(memory_of(i));
  }
  WatchedBox(const WatchedBox&) = delete;
  WatchedBox& operator=(const WatchedBox&) = delete;

  void read(const Box& region, std::byte* dst) const override {
    for_each_chunk(entry_, region,
                   [&](const ChunkPlace& place) { read_chunk(place.index, place.region, region, dst); });
  }

  void before_write(const Box& box) {
    const auto common = intersect(entry_.box, box);
    if (!common) return;
    for_each_chunk(entry_, *common, [&](const ChunkPlace& place) { keep(place.index); });
  }

  /// Chunks that lie in one piece are read in place: who is about to change them waits until they are given
  /// back.
  const std::byte* borrow(const Box& region) const override {
    const std::byte* lent = nullptr;
    for_each_chunk(entry_, region, [&](const ChunkPlace& place) {
      const std::span<const std::byte> memory = memory_of(place.index);
      if (memory.empty() || !(part(place.index) == region)) return;
      const std::lock_guard lock(mutex_);
      Chunk& chunk = chunks_[place.index];
      if (chunk.kept || chunk.read || let_go_) return;  // for read()
      ++chunk.readers;
      lent = memory.data();
    });
    return lent;
  }

  void give_back(const Box& region) const override {
    for_each_chunk(entry_, region, [&](const ChunkPlace& place) {
      {
        const std::lock_guard lock(mutex_);
        end_reading(place.index, true);
      }
      changed_.notify_all();
    });
  }

  void let_go() {
    std::unique_lock lock(mutex_);
    let_go_ = true;
    changed_.wait(lock, [&] {
      return std::ranges::all_of(chunks_, [](const Chunk& chunk) { return chunk.readers == 0; });
    });
  }

 private:
  struct Chunk {
    int readers = 0;
    bool read = false;                  // as a whole: nobody needs it any more
    std::unique_ptr<std::byte[]> kept;  // dense
  };

  Box part(std::uint64_t index) const { return chunk_box(entry_.box, entry_.chunk, index); }

  /// Where a chunk lies, if in one piece.
  std::span<const std::byte> memory_of(std::uint64_t index) const {
    const Box chunk = part(index);
    const auto start = dense_start(entry_.box, chunk);
    if (!start) return {};
    return {data_ + *start * size_, chunk.elements() * size_};
  }

  /// Copies the part `wanted` of a chunk to its place in `region`.
  void read_chunk(std::uint64_t index, const Box& wanted, const Box& region, std::byte* dst) const {
    const Box whole = part(index);
    std::unique_lock lock(mutex_);
    Chunk& chunk = chunks_[index];
    if (chunk.kept) {
      copy_region(chunk.kept.get(), whole, dst, region, wanted, size_);
      if (!(wanted == whole)) return;
      chunk.kept.reset();
      chunk.read = true;
      kept_bytes_.remove(whole.elements() * size_);
      return;
    }
    if (chunk.read) throw Error(ErrorCode::usage, "a chunk of a snapshot is read twice and may have changed");
    if (let_go_) throw Error(ErrorCode::peer, "save: ended early because its memory was taken back");
    ++chunk.readers;
    lock.unlock();
    copy_region(data_, entry_.box, dst, region, wanted, size_);
    lock.lock();
    end_reading(index, wanted == whole);
    lock.unlock();
    changed_.notify_all();
  }

  /// Of one reader, with the mutex held.
  void end_reading(std::uint64_t index, bool whole) const {
    Chunk& chunk = chunks_[index];
    --chunk.readers;
    if (!whole || chunk.read) return;
    chunk.read = true;
    release_pages(memory_of(index));
  }

  void keep(std::uint64_t index) {
    std::unique_lock lock(mutex_);
    Chunk& chunk = chunks_[index];
    changed_.wait(lock, [&] { return chunk.readers == 0; });
    if (chunk.read || chunk.kept || let_go_) return;
    const trace::Span span("copy chunk");
    const Box whole = part(index);
    const std::uint64_t bytes = whole.elements() * size_;
    chunk.kept = std::make_unique_for_overwrite<std::byte[]>(bytes);
    kept_bytes_.add(bytes);
    copy_region(data_, entry_.box, chunk.kept.get(), whole, whole, size_);
    release_pages(memory_of(index));
  }

  const std::shared_ptr<const Source> memory_;  // owns what data_ points to, if anybody does
  const std::byte* const data_;
  const std::size_t size_;
  BoxEntry entry_;
  KeptBytes& kept_bytes_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  mutable std::vector<Chunk> chunks_;
  bool let_go_ = false;
};

class LazySnapshot : public Snapshot {
 public:
  explicit LazySnapshot(std::span<const SaveItem> items) : items_(items.begin(), items.end()) {
    const ShardPlan plan = plan_shard(items);
    std::vector<std::size_t> elsewhere;
    std::vector<SaveItem> to_copy;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      SaveItem& item = items_[i];
      if (item.box.empty() || item.source->frozen()) continue;
      if (item.source->host_range().empty()) {
        elsewhere.push_back(i);
        to_copy.push_back(item);
        continue;
      }
      auto watched = std::make_shared<WatchedBox>(item, plan.boxes[i].chunk, kept_bytes_);
      watched_.emplace(std::pair(item.tensor, item.kind), watched);
      item.source = std::move(watched);
    }
    copies_ = copy_snapshot(to_copy, 1, buffer_);
    for (std::size_t i = 0; i < elsewhere.size(); ++i)
      items_[elsewhere[i]].source = copies_->items()[i].source;
  }

  std::span<const SaveItem> items() const override { return items_; }
  void before_write(const std::string& tensor, const std::string& kind, const Box& box) override {
    const auto [first, last] = watched_.equal_range(std::pair(tensor, kind));
    for (auto at = first; at != last; ++at) at->second->before_write(box);
  }
  void let_go() override {
    for (const auto& [state, watched] : watched_) watched->let_go();
  }
  std::uint64_t host_bytes() const override { return copies_->host_bytes() + kept_bytes_.most(); }
  std::uint64_t copied_bytes() const override { return copies_->copied_bytes() + kept_bytes_.all(); }

 private:
  KeptBytes kept_bytes_;
  std::vector<SaveItem> items_;
  std::multimap<std::pair<std::string, std::string>, std::shared_ptr<WatchedBox>> watched_;
  CopyBuffer buffer_;
  std::unique_ptr<Snapshot> copies_;  // of what is not host memory
};

}  // namespace

std::unique_ptr<Snapshot> lazy_snapshot(std::span<const SaveItem> items) {
  return std::make_unique<LazySnapshot>(items);
}

}  // namespace shardwright::ckpt
