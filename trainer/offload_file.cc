#include "trainer/offload_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "ckpt/env.h"
#include "ckpt/fault.h"

namespace shardwright::trainer {
namespace {

/// A file that was never seen in the directory, or only for the time between two calls.
int open_unnamed(const std::string& directory, const std::string& name) {
  const int unnamed = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (unnamed >= 0) return unnamed;
  // File systems and kernels without O_TMPFILE say so in different ways.
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)
    throw_errno(errno, "no file can be made in it for offload", directory);
  std::string path = name + "-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named < 0) throw_errno(errno, "no file can be made in it for offload", directory);
  ::unlink(path.c_str());
  return named;
}

}  // namespace

OffloadFile::OffloadFile(const std::string& directory, int rank, std::uint64_t bytes)
    : path_(fmt::format("{}/.offload-rank-{:05}", directory, rank)), rank_(rank) {
  ckpt::posix_env();  // a write beyond the limit on a file's size is an error from here on, no signal
  ckpt::fault_point("offload.create", rank);
  fd_ = open_unnamed(directory, path_);
  if (bytes == 0) return;
  const int error = ::posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
  if (error == 0) return;
  ::close(fd_);
  throw_errno(error,
              fmt::format("no room for the {} bytes of optimizer state that rank {} offloads", bytes, rank),
              directory);
}

OffloadFile::~OffloadFile() { ::close(fd_); }

template <class Call>
void OffloadFile::guarded(const Call& call) const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Error(*failure_);
  }
  try {
    call();
  } catch (const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    throw;
  }
}

void OffloadFile::read(std::uint64_t offset, std::span<std::byte> data) const {
  guarded([&] {
    ckpt::fault_point("offload.read", rank_);
    while (!data.empty()) {
      const ssize_t n = ::pread(fd_, data.data(), data.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno(errno, "offloaded state cannot be read", path_);
      if (n == 0) throw_errno(EIO, "offloaded state ends too early", path_);
      data = data.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
  });
}

void OffloadFile::write(std::uint64_t offset, std::span<const std::byte> data) {
  guarded([&] {
    ckpt::fault_point("offload.write", rank_);
    const std::uint64_t first = offset;
    while (!data.empty()) {
      const ssize_t n = ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno(errno, "offloaded state cannot be written", path_);
      if (n == 0) throw_errno(EIO, "offloaded state cannot be written", path_);
      data = data.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
    // A hint; let_go() hears of what goes wrong.
    ::sync_file_range(fd_, static_cast<off_t>(first), static_cast<off_t>(offset - first),
                      SYNC_FILE_RANGE_WRITE);
  });
}

void OffloadFile::let_go(std::uint64_t offset, std::uint64_t bytes) {
  guarded([&] {
    const auto first = static_cast<off_t>(offset);
    const auto length = static_cast<off_t>(bytes);
    int result = ::sync_file_range(
        fd_, first, length, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    if (result != 0 && (errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL)) result = ::fdatasync(fd_);
    // A page whose write-back failed counts as clean: later reads would give what was there before.
    if (result != 0) throw_errno(errno, "offloaded state does not reach the disk", path_);
    ::posix_fadvise(fd_, first, length, POSIX_FADV_DONTNEED);  // advice
  });
}

}  // namespace shardwright::trainer
