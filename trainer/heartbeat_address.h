// An abstract Unix socket address from its printable name.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cassert>
#include <cstddef>
#include <cstring>
#include <string>

namespace shardwright::trainer {

class AbstractAddress {
 public:
  /// `name` has fewer than 100 bytes.
  explicit AbstractAddress(const std::string& name) {
    assert(name.size() < 100);
    address_.sun_family = AF_UNIX;
    // A leading zero byte makes the name abstract: it lives as long as the socket, in no file system.
    std::memcpy(address_.sun_path + 1, name.data(), name.size());
    size_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t size() const { return size_; }

 private:
  sockaddr_un address_{};
  socklen_t size_ = 0;
};

}  // namespace shardwright::trainer
