// A process held by a descriptor: unlike its number, which may be given to another process once it is gone.
#pragma once

namespace shardwright::trainer {

class ProcessHandle {
 public:
  /// Holds nothing.
  ProcessHandle() = default;
  /// Holds nothing if there is no such process.
  explicit ProcessHandle(int pid);
  ~ProcessHandle();
  ProcessHandle(ProcessHandle&& other) noexcept;
  ProcessHandle& operator=(ProcessHandle&& other) noexcept;

  bool holds() const { return fd_ >= 0; }
  /// Readable once the process has ended; -1, which poll ignores, if it holds nothing.
  int fd() const { return fd_; }
  bool ended() const;
  /// Does nothing to a process that is gone.
  void signal(int number) const;

 private:
  int fd_ = -1;
};

}  // namespace shardwright::trainer
