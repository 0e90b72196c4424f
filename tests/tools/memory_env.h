// An Env over files in memory, for programs that read thousands of damaged checkpoints. What it holds is
// changed by put() and erase() alone: all that an Env would write is refused. Not thread-safe while it
// changes.
#pragma once

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {

using FileBytes = std::vector<std::byte>;

class MemoryEnv : public Env {
 public:
  void put(const std::string& path, std::shared_ptr<const FileBytes> bytes) {
    files_[path] = std::move(bytes);
  }
  void erase(const std::string& path) { files_.erase(path); }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    const auto found = files_.find(path);
    if (found == files_.end()) throw_errno(ENOENT, "cannot be opened", path);
    return std::make_unique<File>(found->second, path);
  }
  std::vector<std::string> list(const std::string& path) override {
    const std::string prefix = path + "/";
    std::vector<std::string> names;
    for (auto at = files_.lower_bound(prefix); at != files_.end() && at->first.starts_with(prefix); ++at) {
      std::string name = at->first.substr(prefix.size());
      name.resize(std::min(name.size(), name.find('/')));
      if (names.empty() || names.back() != name) names.push_back(std::move(name));
    }
    if (names.empty()) throw_errno(ENOENT, "cannot be listed", path);
    return names;
  }
  bool exists(const std::string& path) override { return files_.contains(path) || is_dir(path); }
  bool is_dir(const std::string& path) override {
    const auto at = files_.lower_bound(path + "/");
    return at != files_.end() && at->first.starts_with(path + "/");
  }
  double modified(const std::string&) override { return 0; }

  std::unique_ptr<WritableFile> create(const std::string& path) override { refuse(path); }
  std::unique_ptr<WritableFile> create_new(const std::string& path) override { refuse(path); }
  void rename(const std::string& from, const std::string&) override { refuse(from); }
  void unlink(const std::string& path) override { refuse(path); }
  void remove_dir(const std::string& path) override { refuse(path); }
  void create_dirs(const std::string& path) override { refuse(path); }
  void sync_dir(const std::string& path) override { refuse(path); }
  std::unique_ptr<FileLock> lock(const std::string& path) override { refuse(path); }

 private:
  class File : public ReadableFile {
   public:
    File(std::shared_ptr<const FileBytes> bytes, std::string path)
        : bytes_(std::move(bytes)), path_(std::move(path)) {}
    std::uint64_t size() const override { return bytes_->size(); }
    void read(std::uint64_t offset, std::span<std::byte> data) const override {
      if (offset > bytes_->size() || data.size() > bytes_->size() - offset)
        throw Error(ErrorCode::damaged, path_ + ": ends too early", path_);
      if (!data.empty()) std::memcpy(data.data(), bytes_->data() + offset, data.size());
    }

   private:
    std::shared_ptr<const FileBytes> bytes_;
    std::string path_;
  };

  [[noreturn]] static void refuse(const std::string& path) { throw_errno(EROFS, "cannot be written", path); }

  std::map<std::string, std::shared_ptr<const FileBytes>> files_;
};

}  // namespace shardwright::ckpt
