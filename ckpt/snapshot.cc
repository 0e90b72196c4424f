#include "ckpt/snapshot.h"

#include <cstring>
#include <memory>
#include <vector>

namespace shardwright::ckpt {
namespace {

class CopySnapshot : public Snapshot {
 public:
  explicit CopySnapshot(std::span<const SaveItem> items) : items_(items.begin(), items.end()) {
    for (SaveItem& item : items_) {
      const std::size_t size = size_of(item.dtype);
      const std::uint64_t bytes = item.box.elements() * size;
      // Left uninitialised: each byte is written by the copy, and zeroing first would double the stall.
      auto memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
      if (bytes > 0) item.source->read(item.box, memory.get());
      item.source = std::make_shared<HostSource>(memory.get(), item.box, size);
      memory_.push_back(std::move(memory));
      bytes_ += bytes;
    }
  }

  std::span<const SaveItem> items() const override { return items_; }
  void before_write(const std::string&, const std::string&, const Box&) override {}  // all was copied already
  std::uint64_t host_bytes() const override { return bytes_; }
  std::uint64_t copied_bytes() const override { return bytes_; }

 private:
  std::vector<SaveItem> items_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Snapshot> copy_snapshot(std::span<const SaveItem> items) {
  return std::make_unique<CopySnapshot>(items);
}

}  // namespace shardwright::ckpt
