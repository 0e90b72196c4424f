#include "trainer/stop_requests.h"

#include <pthread.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

constexpr std::chrono::milliseconds kSameRequest{500};

}  // namespace

StopRequests::StopRequests() {
  sigset_t stops;
  ::sigemptyset(&stops);
  ::sigaddset(&stops, SIGTERM);
  ::sigaddset(&stops, SIGINT);
  ::sigaddset(&stops, SIGUSR1);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) ::sigaddset(&stops, SIGHUP);
  fd_ = ::signalfd(-1, &stops, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) throw_errno(errno, "cannot watch for signals", "signalfd");
  ::pthread_sigmask(SIG_BLOCK, &stops, &before_);
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &pipe_before_);
}

StopRequests::~StopRequests() {
  ::sigaction(SIGPIPE, &pipe_before_, nullptr);
  ::close(fd_);
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::string StopRequests::first() const { return std::string("SIG") + ::sigabbrev_np(first_); }

int StopRequests::count() {
  signalfd_siginfo info{};
  while (::read(fd_, &info, sizeof info) == sizeof info) {
    const auto now = std::chrono::steady_clock::now();
    if (count_ == 0) {
      first_ = static_cast<int>(info.ssi_signo);
      first_at_ = now;
    } else if (now - first_at_ < kSameRequest) {
      continue;
    }
    ++count_;
  }
  return count_;
}

}  // namespace shardwright::trainer
