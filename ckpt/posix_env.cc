// Env over the operating system.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "ckpt/env.h"
#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

/// Repeats a call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result == -1 && errno == EINTR);
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    // Errors of write-back were asked for by fsync; close has nothing to add and cannot be retried on Linux.
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

/// Opens a file, never through a link of its name: what a checkpoint holds lies in its directory.
int open_file(const std::string& path, int flags, const char* failed) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0666); });
  if (fd >= 0) return fd;
  const int error = errno;
  struct stat info {};
  if (error == ELOOP && ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode))
    throw Error(ErrorCode::io, path + ": is a symbolic link; a regular file is needed", path);
  throw_errno(error, failed, path);
}

std::uint64_t size_of_file(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_errno(errno, "cannot be examined", path);
  return static_cast<std::uint64_t>(info.st_size);
}

/// Reads until `data` is full or the file ends; returns the bytes read.
std::size_t read_fully(int fd, std::uint64_t offset, std::span<std::byte> data, const std::string& path) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t n = uninterrupted([&] {
      return ::pread(fd, data.data() + done, data.size() - done, static_cast<off_t>(offset + done));
    });
    if (n < 0) throw_errno(errno, "cannot be read", path);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

/// Starts the write-back of what a growing file has, so that the fsync at its end finds little left to do.
/// Only a hint: what goes wrong here is left for fsync to find, and SYNC_FILE_RANGE_WRITE alone takes no
/// write-back error from it (only the flags that wait do).
class EarlyWriteBack {
 public:
  /// The file has all bytes below `end`, or will never have some of them.
  void reached(int fd, std::uint64_t end) {
    if (end < started_ + kStep) return;
#ifdef __linux__
    ::sync_file_range(fd, static_cast<off_t>(started_), static_cast<off_t>(end - started_),
                      SYNC_FILE_RANGE_WRITE);
#else
    static_cast<void>(fd);
#endif
    started_ = end;
  }

 private:
  // Measured (PERFORMANCE.md): 4 to 16 MiB are equal; 1 MiB and 64 MiB are slower.
  static constexpr std::uint64_t kStep = 8u << 20;
  std::uint64_t started_ = 0;
};

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  void write(std::uint64_t offset, std::span<const std::byte> data) override {
    // A short write is no error by itself; going on makes the system tell why (a full disk: ENOSPC).
    while (!data.empty()) {
      const ssize_t n = uninterrupted(
          [&] { return ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset)); });
      if (n < 0) throw_errno(errno, "cannot be written", path_);
      if (n == 0) throw_errno(EIO, "cannot be written", path_);
      data = data.subspan(static_cast<std::size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
    write_back_.reached(fd_.get(), offset);
  }

  void read(std::uint64_t offset, std::span<std::byte> data) override {
    const std::size_t done = read_fully(fd_.get(), offset, data, path_);
    std::fill(data.begin() + static_cast<std::ptrdiff_t>(done), data.end(), std::byte{0});
  }

  void truncate(std::uint64_t size) override {
    if (uninterrupted([&] { return ::ftruncate(fd_.get(), static_cast<off_t>(size)); }) != 0)
      throw_errno(errno, "its length cannot be set", path_);
  }

  std::uint64_t size() override { return size_of_file(fd_.get(), path_); }

  void sync() override {
    // Never repeated after a failure: the kernel may have dropped the pages, and a second fsync would
    // succeed.
    if (::fsync(fd_.get()) != 0) throw_errno(errno, "cannot be made durable (fsync)", path_);
  }

 private:
  Descriptor fd_;
  std::string path_;
  EarlyWriteBack write_back_;
};

class PosixReadableFile : public ReadableFile {
 public:
  PosixReadableFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

  std::uint64_t size() const override { return size_of_file(fd_.get(), path_); }

  void read(std::uint64_t offset, std::span<std::byte> data) const override {
    const std::size_t done = read_fully(fd_.get(), offset, data, path_);
    if (done < data.size())
      throw Error(
          ErrorCode::damaged,
          path_ + ": ends " + std::to_string(data.size() - done) + " bytes early; the whole file is needed",
          path_);
  }

  void will_need(std::uint64_t offset, std::uint64_t bytes) const override {
    ::posix_fadvise(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
  }

 private:
  Descriptor fd_;
  std::string path_;
};

class PosixFileLock : public FileLock {
 public:
  explicit PosixFileLock(int fd) : fd_(fd) {}

 private:
  Descriptor fd_;  // closing the last descriptor of the open file releases the lock
};

class PosixEnv : public Env {
 public:
  PosixEnv() {
    // By default a write beyond RLIMIT_FSIZE kills the process; here it must be EFBIG, an error like a full
    // disk.
    struct sigaction current {};
    if (::sigaction(SIGXFSZ, nullptr, &current) == 0 && (current.sa_flags & SA_SIGINFO) == 0 &&
        current.sa_handler == SIG_DFL)
      std::signal(SIGXFSZ, SIG_IGN);
  }

  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<PosixWritableFile>(
        open_file(path, O_RDWR | O_CREAT | O_TRUNC, "cannot be created"), path);
  }

  std::unique_ptr<WritableFile> create_new(const std::string& path) override {
    const int fd =
        uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
    if (fd >= 0) return std::make_unique<PosixWritableFile>(fd, path);
    const int error = errno;
    struct stat info {};
    if (error != EEXIST || ::lstat(path.c_str(), &info) != 0) throw_errno(error, "cannot be created", path);
    if (!S_ISREG(info.st_mode))
      throw Error(ErrorCode::io, path + ": something that is no file has its name; remove it", path);
    throw Error(ErrorCode::exists, path + ": exists already; a new file is needed", path);
  }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    // Not blocking: a FIFO of that name must be an error, not a hang.
    const int fd = open_file(path, O_RDONLY | O_NONBLOCK, "cannot be opened");
    auto file = std::make_unique<PosixReadableFile>(fd, path);
    struct stat info {};
    if (::fstat(fd, &info) != 0) throw_errno(errno, "cannot be examined", path);
    if (!S_ISREG(info.st_mode))
      throw Error(ErrorCode::io, path + ": is not a regular file; one is needed", path);
    return file;
  }

  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) throw_errno(errno, "cannot be renamed to " + to, from);
  }

  void unlink(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) throw_errno(errno, "cannot be removed", path);
  }

  void remove_dir(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0 && errno != ENOENT) throw_errno(errno, "cannot be removed", path);
  }

  void create_dirs(const std::string& path) override {
    // What exists is not touched, so a writable directory below a read-only one works.
    if (is_dir(path)) return;
    const std::string above = parent_path(path);
    if (above != path) create_dirs(above);
    if (::mkdir(path.c_str(), 0777) != 0) {
      const int error = errno;
      if (error != EEXIST) throw_errno(error, "cannot be created", path);
      if (!is_dir(path))
        throw Error(ErrorCode::io, path + ": exists and is not a directory; remove it or choose another path",
                    path);
    }
    // A checkpoint in a directory that a crash can lose is not durable. Another process that has just made it
    // may not have come to this yet.
    sync_dir(above);
  }

  void sync_dir(const std::string& path) override {
    const Descriptor dir(
        uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (dir.get() < 0) throw_errno(errno, "cannot be opened", path);
    if (::fsync(dir.get()) != 0) throw_errno(errno, "cannot be made durable (fsync)", path);
  }

  std::vector<std::string> list(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), &::closedir);
    if (!dir) throw_errno(errno, "cannot be listed", path);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(dir.get())) {
      const std::string entry_name = entry->d_name;
      if (entry_name != "." && entry_name != "..") names.push_back(entry_name);
      errno = 0;
    }
    if (errno != 0) throw_errno(errno, "cannot be listed", path);
    std::sort(names.begin(), names.end());
    return names;
  }

  bool exists(const std::string& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw_errno(errno, "cannot be examined", path);
  }

  bool is_dir(const std::string& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
    if (errno == ENOENT || errno == ENOTDIR) return false;
    throw_errno(errno, "cannot be examined", path);
  }

  double modified(const std::string& path) override {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) throw_errno(errno, "cannot be examined", path);
    return static_cast<double>(info.st_mtim.tv_sec) + static_cast<double>(info.st_mtim.tv_nsec) * 1e-9;
  }

  std::unique_ptr<FileLock> lock(const std::string& path) override {
    const int fd = uninterrupted([&] { return ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666); });
    if (fd < 0) throw_errno(errno, "cannot be opened for locking", path);
    auto held = std::make_unique<PosixFileLock>(fd);
    struct flock whole {};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    if (::fcntl(fd, F_OFD_SETLK, &whole) == 0) return held;
    switch (errno) {
      case EAGAIN:
      case EACCES:
        throw Error(ErrorCode::busy,
                    path + ": held by another process; wait for it to end or use another directory", path);
      case ENOLCK:
      case ENOSYS:
      case EOPNOTSUPP:
        std::fprintf(stderr,
                     "shardwright: warning: %s: this file system has no locks; make sure that no other "
                     "process uses it\n",
                     path.c_str());
        return held;
      default:
        throw_errno(errno, "cannot be locked", path);
    }
  }
};

}  // namespace

Env& posix_env() {
  static PosixEnv env;
  return env;
}

}  // namespace shardwright::ckpt
