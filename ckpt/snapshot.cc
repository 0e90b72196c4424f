#include "ckpt/snapshot.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "ckpt/parallel.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kPieceBytes = 2u << 20;  // for a thread at a time
constexpr std::uint64_t kAlignment = 64;         // of an item's copy

/// A part of one item, and where it goes.
struct Piece {
  const Source* source;
  Box box;
  std::byte* to;
};

/// Cuts the item's box along its outermost dimension that has more than one coordinate, so that each piece's
/// copy lies densely.
void add_pieces(const SaveItem& item, std::byte* to, std::vector<Piece>& pieces) {
  const Box& box = item.box;
  std::size_t d = 0;
  while (d + 1 < box.shape.size() && box.shape[d] == 1) ++d;
  if (box.shape.empty()) {
    pieces.push_back({item.source.get(), box, to});
    return;
  }
  const std::uint64_t row = box.elements() / box.shape[d] * size_of(item.dtype);
  const std::uint64_t rows = std::max<std::uint64_t>(1, kPieceBytes / row);
  for (std::uint64_t first = 0; first < box.shape[d]; first += rows) {
    Piece piece{item.source.get(), box, to + first * row};
    piece.box.offset[d] += first;
    piece.box.shape[d] = std::min(rows, box.shape[d] - first);
    pieces.push_back(piece);
  }
}

class CopySnapshot : public Snapshot {
 public:
  CopySnapshot(std::span<const SaveItem> items, int threads, CopyBuffer& buffer)
      : items_(items.begin(), items.end()) {
    const auto room = [](const SaveItem& item) {
      return (item.box.elements() * size_of(item.dtype) + kAlignment - 1) / kAlignment * kAlignment;
    };
    std::uint64_t needed = 0;
    for (const SaveItem& item : items_) needed += room(item);
    if (needed > buffer.bytes) {
      buffer = {};
      // Left uninitialised: each byte is written by the copy, and zeroing first would double the stall.
      buffer.memory = std::make_unique_for_overwrite<std::byte[]>(needed);
      buffer.bytes = needed;
    }
    std::vector<Piece> pieces;
    std::byte* to = buffer.memory.get();
    for (const SaveItem& item : items_) {
      if (!item.box.empty()) add_pieces(item, to, pieces);
      copied_ += item.box.elements() * size_of(item.dtype);
      to += room(item);
    }
    parallel_for(threads, pieces.size(),
                 [&](int, std::size_t i) { pieces[i].source->read(pieces[i].box, pieces[i].to); });
    to = buffer.memory.get();
    for (SaveItem& item : items_) {
      item.source = std::make_shared<HostSource>(to, item.box, size_of(item.dtype));
      to += room(item);
    }
    bytes_ = buffer.bytes;
  }

  std::span<const SaveItem> items() const override { return items_; }
  void before_write(const std::string&, const std::string&, const Box&) override {}  // all was copied already
  void let_go() override {}
  std::uint64_t host_bytes() const override { return bytes_; }
  std::uint64_t copied_bytes() const override { return copied_; }

 private:
  std::vector<SaveItem> items_;
  std::uint64_t bytes_ = 0, copied_ = 0;
};

}  // namespace

std::unique_ptr<Snapshot> copy_snapshot(std::span<const SaveItem> items, int threads, CopyBuffer& buffer) {
  return std::make_unique<CopySnapshot>(items, threads, buffer);
}

}  // namespace shardwright::ckpt
