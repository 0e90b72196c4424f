#include "ckpt/open_files.h"

namespace shardwright::ckpt {

std::shared_ptr<const ReadableFile> OpenFiles::get(const std::string& path) {
  // Opened under the lock: two threads that want the same file shall not both open it, and opening is short.
  const std::lock_guard lock(mutex_);
  if (const auto at = places_.find(path); at != places_.end()) {
    recent_.splice(recent_.begin(), recent_, at->second);
    return recent_.front().file;
  }
  // Room first, so that there are never more than `most`.
  while (!recent_.empty() && recent_.size() >= most_) {
    places_.erase(recent_.back().path);
    recent_.pop_back();
  }
  recent_.push_front({path, std::shared_ptr<const ReadableFile>(env_.open(path))});
  places_[path] = recent_.begin();
  return recent_.front().file;
}

}  // namespace shardwright::ckpt
