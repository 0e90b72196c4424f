// A directory of a test's own, removed with everything in it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "ckpt/error.h"

namespace shardwright {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "shardwright-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw_errno(errno, "cannot be created", name);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;  // a leftover below /tmp is no reason to fail a test
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace shardwright
