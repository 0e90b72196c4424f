// Descriptors of the files of a checkpoint: a few stay open, however many shards there are.
#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ckpt/env.h"

namespace shardwright::ckpt {

/// Thread-safe. Keeps the `most` files that were used last; one in use outlives its place here, so each
/// thread that reads can add one. A file that is opened again may be another one by then: its reader has to
/// check what it reads, as it does anyway.
class OpenFiles {
 public:
  /// Well below the 1024 descriptors that a process has as a rule, and enough for readers that go file by
  /// file.
  static constexpr std::size_t kMost = 32;

  explicit OpenFiles(Env& env, std::size_t most = kMost) : env_(env), most_(most) {}

  /// The file, opened if it is not. Errors of Env::open.
  std::shared_ptr<const ReadableFile> get(const std::string& path);

 private:
  struct Open {
    std::string path;
    std::shared_ptr<const ReadableFile> file;
  };
  Env& env_;
  std::size_t most_;
  std::mutex mutex_;
  std::list<Open> recent_;  // newest first
  std::map<std::string, std::list<Open>::iterator> places_;
};

}  // namespace shardwright::ckpt
