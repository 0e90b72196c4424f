// An Env of files in memory: millions of records are read and written without a file system. No directories,
// no locks, one thread.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/error.h"

namespace shardwright::fuzz {

class MemoryEnv : public ckpt::Env {
 public:
  void put(const std::string& path, std::string contents) { files_[path] = std::move(contents); }
  const std::string& get(const std::string& path) { return find(path); }

  std::unique_ptr<ckpt::WritableFile> create(const std::string& path) override {
    files_[path].clear();
    return std::make_unique<Writing>(files_[path]);
  }
  std::unique_ptr<ckpt::WritableFile> create_new(const std::string& path) override {
    if (exists(path)) throw Error(ErrorCode::exists, path + ": exists already", path);
    return create(path);
  }
  std::unique_ptr<ckpt::ReadableFile> open(const std::string& path) override {
    return std::make_unique<Reading>(find(path), path);
  }
  void rename(const std::string& from, const std::string& to) override {
    files_[to] = std::move(find(from));
    files_.erase(from);
  }
  void unlink(const std::string& path) override { files_.erase(path); }
  void remove_dir(const std::string&) override {}
  void create_dirs(const std::string&) override {}
  void sync_dir(const std::string&) override {}
  std::vector<std::string> list(const std::string&) override { return {}; }
  bool exists(const std::string& path) override { return files_.contains(path); }
  bool is_dir(const std::string&) override { return false; }
  double modified(const std::string&) override { return 0; }
  std::unique_ptr<ckpt::FileLock> lock(const std::string&) override {
    return std::make_unique<ckpt::FileLock>();
  }

 private:
  class Writing : public ckpt::WritableFile {
   public:
    explicit Writing(std::string& contents) : contents_(contents) {}
    void write(std::uint64_t offset, std::span<const std::byte> data) override {
      if (contents_.size() < offset + data.size()) contents_.resize(offset + data.size());
      if (!data.empty()) std::memcpy(contents_.data() + offset, data.data(), data.size());
    }
    void read(std::uint64_t offset, std::span<std::byte> data) override {
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] =
            offset + i < contents_.size() ? static_cast<std::byte>(contents_[offset + i]) : std::byte{0};
    }
    void truncate(std::uint64_t size) override { contents_.resize(size); }
    std::uint64_t size() override { return contents_.size(); }
    void sync() override {}

   private:
    std::string& contents_;
  };

  class Reading : public ckpt::ReadableFile {
   public:
    Reading(const std::string& contents, std::string path) : contents_(contents), path_(std::move(path)) {}
    std::uint64_t size() const override { return contents_.size(); }
    void read(std::uint64_t offset, std::span<std::byte> data) const override {
      if (offset > contents_.size() || data.size() > contents_.size() - offset)
        throw Error(ErrorCode::damaged, path_ + ": is short", path_);
      if (!data.empty()) std::memcpy(data.data(), contents_.data() + offset, data.size());
    }

   private:
    const std::string& contents_;
    std::string path_;
  };

  std::string& find(const std::string& path) {
    const auto at = files_.find(path);
    if (at == files_.end()) throw Error(ErrorCode::missing, path + ": not there", path);
    return at->second;
  }

  std::map<std::string, std::string> files_;
};

}  // namespace shardwright::fuzz
