// The seam to the operating system: every file, directory, fsync, rename and lock of this library goes
// through an Env (as in LevelDB), so that tests can trace, fail, tear and kill each of them. libhdf5 writes
// through a file driver over it. Calls name the path at fault in their Error; none retries a failed write or
// fsync.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace shardwright::ckpt {

/// A file being written. Not thread-safe. The descriptor lives from creation to destruction, so an error of
/// background write-back is seen by sync(). After the first error the file must be abandoned.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  /// Writes all of `data` at `offset`, extending the file as needed; may start to make durable what was
  /// written. Throws Error(io | no_space).
  virtual void write(std::uint64_t offset, std::span<const std::byte> data) = 0;
  /// Reads exactly data.size() bytes at `offset` (libhdf5 reads back what it wrote); zeros past the end.
  virtual void read(std::uint64_t offset, std::span<std::byte> data) = 0;
  virtual void truncate(std::uint64_t size) = 0;
  virtual std::uint64_t size() = 0;
  /// fsync.
  virtual void sync() = 0;
};

/// A file being read. Thread-safe (positioned reads).
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual std::uint64_t size() const = 0;
  /// Reads exactly data.size() bytes; a short file is Error(damaged), an I/O failure Error(io).
  virtual void read(std::uint64_t offset, std::span<std::byte> data) const = 0;
  /// These bytes will be read soon: the system may begin to fetch them. Advice only; does not wait, and no
  /// error comes of it.
  virtual void will_need(std::uint64_t /*offset*/, std::uint64_t /*bytes*/) const {}
};

/// Held until destroyed; an fcntl open-file-description lock, released by the kernel when its process dies.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class Env {
 public:
  virtual ~Env() = default;

  /// Creates `path` (truncating what is there) for writing; here and in open() a symbolic link is Error(io).
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;
  /// The same of a name that is not taken: Error(exists) if a file has it, Error(io) if something else has.
  virtual std::unique_ptr<WritableFile> create_new(const std::string& path) = 0;
  /// Opens `path`; Error(missing) if it is not there, Error(io) if it is no regular file.
  virtual std::unique_ptr<ReadableFile> open(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Removes a file; one that is not there is no error.
  virtual void unlink(const std::string& path) = 0;
  /// Removes an empty directory; one that is not there is no error.
  virtual void remove_dir(const std::string& path) = 0;
  /// Creates the directory and only those parents that are missing, each durably: by an fsync of the
  /// directory that it is made in. "Already there" is fine (other ranks race).
  virtual void create_dirs(const std::string& path) = 0;
  /// fsync of a directory.
  virtual void sync_dir(const std::string& path) = 0;
  /// Names in a directory, sorted, without "." and ".."; Error(missing) if it is not there.
  virtual std::vector<std::string> list(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual bool is_dir(const std::string& path) = 0;
  /// Seconds since the epoch of the last modification.
  virtual double modified(const std::string& path) = 0;
  /// Takes the lock file (created when missing) without waiting. Error(busy) if another process has it. On a
  /// file system without locks (ENOLCK, ENOSYS, EOPNOTSUPP): one warning on standard error and a lock that
  /// holds nothing.
  virtual std::unique_ptr<FileLock> lock(const std::string& path) = 0;
};

/// The operating system itself. The first call makes SIGXFSZ ignored where it still has its default action,
/// so that a write beyond RLIMIT_FSIZE is Error(no_space) and not the end of the process.
Env& posix_env();

/// The directory that holds `path`, trailing slashes ignored; "." for a bare name.
std::string parent_path(const std::string& path);

/// Whole contents of a small file; Error(damaged) above `max_bytes`.
std::string read_file(Env& env, const std::string& path, std::uint64_t max_bytes = 1u << 26);

/// Replaces `path` durably: temporary name beside it, write, fsync, rename, fsync of the directory.
void replace_file(Env& env, const std::string& path, const std::string& contents);

/// Removes a directory and all in it, one level of files deep as checkpoints are; missing is fine.
void remove_checkpoint_dir(Env& env, const std::string& path);

}  // namespace shardwright::ckpt
