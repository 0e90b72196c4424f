#include "trainer/process_handle.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <utility>
extern "C" {  // glibc 2.36 declares these without it
#include <sys/pidfd.h>
}

namespace shardwright::trainer {

ProcessHandle::ProcessHandle(int pid) : fd_(::pidfd_open(pid, 0)) {}

ProcessHandle::~ProcessHandle() {
  if (fd_ >= 0) ::close(fd_);
}

ProcessHandle::ProcessHandle(ProcessHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

ProcessHandle& ProcessHandle::operator=(ProcessHandle&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool ProcessHandle::ended() const {
  pollfd fd{fd_, POLLIN, 0};
  return fd_ >= 0 && ::poll(&fd, 1, 0) > 0;
}

void ProcessHandle::signal(int number) const {
  if (fd_ >= 0) ::pidfd_send_signal(fd_, number, nullptr, 0);
}

}  // namespace shardwright::trainer
