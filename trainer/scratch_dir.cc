#include "trainer/scratch_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "ckpt/error.h"

namespace shardwright::trainer {
namespace {

namespace fs = std::filesystem;
constexpr const char* kLockName = "lock";

std::string prefix() { return fmt::format("shardwright-{}-", ::getuid()); }

/// Removes what killed owners left. Best effort: another user's or a living owner's directory stays.
void remove_abandoned(const fs::path& parent) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix())) continue;
    const int lock = ::open((entry.path() / kLockName).c_str(), O_RDWR | O_CLOEXEC);
    if (lock < 0) continue;
    if (::flock(lock, LOCK_EX | LOCK_NB) == 0) fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

}  // namespace

ScratchDir::ScratchDir(const std::string& parent) {
  remove_abandoned(parent);
  path_ = fmt::format("{}/{}XXXXXX", parent, prefix());
  if (::mkdtemp(path_.data()) == nullptr) throw_errno(errno, "cannot make a directory", path_);
  // Locked before it has its name, so that nobody finds it unlocked.
  const std::string unnamed = path_ + "/new";
  lock_ = ::open(unnamed.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) != 0 ||
      ::rename(unnamed.c_str(), (path_ + "/" + kLockName).c_str()) != 0) {
    const int error = errno;
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    if (lock_ >= 0) ::close(lock_);
    throw_errno(error, "cannot lock", unnamed);
  }
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;  // what stays is removed by the next owner
  fs::remove_all(path_, ignored);
  ::close(lock_);
}

void ScratchDir::clear() {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored))
    if (entry.path().filename() != kLockName) fs::remove_all(entry.path(), ignored);
}

}  // namespace shardwright::trainer
