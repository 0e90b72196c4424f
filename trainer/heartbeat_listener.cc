#include "trainer/heartbeat_listener.h"

#include <fmt/format.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "trainer/heartbeat_address.h"

namespace shardwright::trainer {

HeartbeatListener::HeartbeatListener() {
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
    throw_errno(errno, "cannot draw a random name", "getrandom");
  address_ = fmt::format("shardwright-{}-{:016x}", ::getpid(), nonce);
  fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) throw_errno(errno, "cannot make a socket for heartbeats", address_);
  const int yes = 1;
  const AbstractAddress here(address_);
  if (::setsockopt(fd_, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0 ||
      ::bind(fd_, here.get(), here.size()) != 0) {
    const int error = errno;
    ::close(fd_);
    throw_errno(error, "cannot listen for heartbeats", address_);
  }
}

HeartbeatListener::~HeartbeatListener() { ::close(fd_); }

std::vector<Heartbeat> HeartbeatListener::receive() {
  std::vector<Heartbeat> all;
  std::array<char, 65536> text{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  for (;;) {
    iovec part{text.data(), text.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t bytes = ::recvmsg(fd_, &message, MSG_CMSG_CLOEXEC);
    if (bytes < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return all;
      throw_errno(errno, "cannot receive heartbeats", address_);
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_CREDENTIALS) continue;
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
    if (sender.uid != ::getuid()) continue;
    if (auto heartbeat = decode(std::string(text.data(), static_cast<std::size_t>(bytes)))) {
      heartbeat->pid = sender.pid;
      all.push_back(std::move(*heartbeat));
    }
  }
}

}  // namespace shardwright::trainer
