// A private directory for what mpirun and its ranks leave behind when they are killed.
#pragma once

#include <string>

namespace shardwright::trainer {

/// Made under a parent, removed with everything in it. It holds a lock, so that one whose owner was killed is
/// known and removed by the next owner in the same parent.
class ScratchDir {
 public:
  /// Error(io) names the directory that cannot be made.
  explicit ScratchDir(const std::string& parent);
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::string& path() const { return path_; }
  /// Removes all but the lock: between two generations.
  void clear();

 private:
  std::string path_;
  int lock_ = -1;
};

}  // namespace shardwright::trainer
