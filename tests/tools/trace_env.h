// An Env for tests: passes everything on to another one, writes down each call that changes something, and
// can make any of them fail. Thread-safe, as an Env must be.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/env.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {

struct TraceOp {
  enum Kind { create, write, truncate, sync, rename, unlink, remove_dir, create_dirs, sync_dir };
  Kind kind;
  std::string path;
  std::string to = {};               // rename
  std::uint64_t offset = 0;          // write
  std::uint64_t bytes = 0;           // write: length; truncate: new size
  std::vector<std::byte> data = {};  // write: what was written, so that a crash can be replayed
};

class TraceEnv : public Env {
 public:
  explicit TraceEnv(Env& base = posix_env()) : base_(base) {}

  /// The operations so far, failed ones included, in order.
  std::vector<TraceOp> ops() const {
    const std::lock_guard lock(mutex_);
    return ops_;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    ops_.clear();
  }

  /// Operation number `index` (counted from 0 over ops(), or over those of `kind`) fails with `error`, an
  /// errno value, without being done; with `and_after` all later ones do too, as on a dead disk.
  void fail_at(std::size_t index, int error, bool and_after = false, std::optional<TraceOp::Kind> kind = {}) {
    const std::lock_guard lock(mutex_);
    plan_ = Plan{index, error, and_after, kind};
  }
  void stop_failing() {
    const std::lock_guard lock(mutex_);
    plan_.reset();
  }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    note({TraceOp::create, path});
    return std::make_unique<File>(*this, base_.create(path), path);
  }
  std::unique_ptr<WritableFile> create_new(const std::string& path) override {
    note({TraceOp::create, path});
    return std::make_unique<File>(*this, base_.create_new(path), path);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override { return base_.open(path); }
  void rename(const std::string& from, const std::string& to) override {
    note({TraceOp::rename, from, to});
    base_.rename(from, to);
  }
  void unlink(const std::string& path) override {
    note({TraceOp::unlink, path});
    base_.unlink(path);
  }
  void remove_dir(const std::string& path) override {
    note({TraceOp::remove_dir, path});
    base_.remove_dir(path);
  }
  void create_dirs(const std::string& path) override {
    note({TraceOp::create_dirs, path});
    base_.create_dirs(path);
  }
  void sync_dir(const std::string& path) override {
    note({TraceOp::sync_dir, path});
    base_.sync_dir(path);
  }
  std::vector<std::string> list(const std::string& path) override { return base_.list(path); }
  bool exists(const std::string& path) override { return base_.exists(path); }
  bool is_dir(const std::string& path) override { return base_.is_dir(path); }
  double modified(const std::string& path) override { return base_.modified(path); }
  std::unique_ptr<FileLock> lock(const std::string& path) override { return base_.lock(path); }

 private:
  struct Plan {
    std::size_t index;
    int error;
    bool and_after;
    std::optional<TraceOp::Kind> kind;
  };

  class File : public WritableFile {
   public:
    File(TraceEnv& env, std::unique_ptr<WritableFile> base, std::string path)
        : env_(env), base_(std::move(base)), path_(std::move(path)) {}
    void write(std::uint64_t offset, std::span<const std::byte> data) override {
      env_.note({TraceOp::write, path_, {}, offset, data.size(), {data.begin(), data.end()}});
      base_->write(offset, data);
    }
    void read(std::uint64_t offset, std::span<std::byte> data) override { base_->read(offset, data); }
    void truncate(std::uint64_t size) override {
      env_.note({TraceOp::truncate, path_, {}, 0, size});
      base_->truncate(size);
    }
    std::uint64_t size() override { return base_->size(); }
    void sync() override {
      env_.note({TraceOp::sync, path_});
      base_->sync();
    }

   private:
    TraceEnv& env_;
    std::unique_ptr<WritableFile> base_;
    std::string path_;
  };

  void note(TraceOp op) {
    const std::lock_guard lock(mutex_);
    std::size_t index = 0;
    for (const TraceOp& earlier : ops_)
      if (!plan_ || !plan_->kind || earlier.kind == *plan_->kind) ++index;
    const bool counts = plan_ && (!plan_->kind || op.kind == *plan_->kind);
    const std::string path = op.path;
    ops_.push_back(std::move(op));
    if (counts && (index == plan_->index || (plan_->and_after && index > plan_->index)))
      throw_errno(plan_->error, "injected failure", path);
  }

  Env& base_;
  mutable std::mutex mutex_;
  std::vector<TraceOp> ops_;
  std::optional<Plan> plan_;
};

}  // namespace shardwright::ckpt
