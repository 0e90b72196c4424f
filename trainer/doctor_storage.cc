#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "ckpt/env.h"
#include "ckpt/error.h"
#include "ckpt/size_text.h"
#include "trainer/doctor.h"

namespace shardwright::trainer {
namespace {

namespace fs = std::filesystem;

/// Undoes \040 and its like, which mountinfo writes for blanks.
std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      result += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

/// The kind of the file system at a path, as the kernel calls it: the last mounted of those whose mount point
/// is the longest. See proc_pid_mountinfo(5). Empty if it cannot be told.
std::string kind_of(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string kind;
  std::size_t longest = 0;
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream fields(line);
    std::string skipped, point, word;
    fields >> skipped >> skipped >> skipped >> skipped >> point;
    while (fields >> word && word != "-") {
    }
    point = unescaped(point);
    const bool above = point == "/" || path == point || path.starts_with(point + "/");
    if (!above || point.size() < longest || !(fields >> word)) continue;
    longest = point.size();
    kind = word;
  }
  return kind;
}

/// What a kind of file system means for checkpoints; nothing of those that hold what a commit relies on.
std::string advice_on(const std::string& kind) {
  static const std::map<std::string, std::string, std::less<>> known = {
      {"tmpfs",
       "it is memory: checkpoints take it from training and are gone with the machine; give a directory on a "
       "disk"},
      {"ramfs",
       "it is memory: checkpoints take it from training and are gone with the machine; give a directory on a "
       "disk"},
      {"overlay",
       "it is a container's own layer: checkpoints are gone with the container; give a mounted volume"},
      {"vfat", "it keeps no lock and may tear a rename; give a directory on ext4, xfs or the like"},
      {"exfat", "it keeps no lock and may tear a rename; give a directory on ext4, xfs or the like"},
      {"nfs", "works by what ckpt/FORMAT.md assumes of NFS; not tested there"},
      {"nfs4", "works by what ckpt/FORMAT.md assumes of NFS; not tested there"},
      {"lustre", "works by what ckpt/FORMAT.md assumes of Lustre; not tested there"}};
  const auto found = known.find(kind);
  return found == known.end() ? "" : found->second;
}

/// Does once what a commit does. Milliseconds that a small durable write took; throws what failed.
double try_commit(const std::string& directory) {
  ckpt::Env& env = ckpt::posix_env();
  const std::string scratch = fmt::format("{}/.doctor-{}", directory, ::getpid());
  env.create_dirs(scratch);
  try {
    const auto lock = env.lock(scratch + "/lock");
    const std::string text(4096, 'x');
    const auto begin = std::chrono::steady_clock::now();
    ckpt::replace_file(env, scratch + "/file", text);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (ckpt::read_file(env, scratch + "/file") != text)
      throw Error(ErrorCode::io, scratch + "/file: another content is read than was written");
    ckpt::remove_checkpoint_dir(env, scratch);
    return took.count();
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(scratch, ignored);
    throw;
  }
}

}  // namespace

std::string nearest_directory(const std::string& path) {
  fs::path nearest = (fs::absolute(path) / "").lexically_normal().parent_path();
  std::error_code ignored;
  while (!fs::exists(nearest, ignored) && nearest != nearest.parent_path()) nearest = nearest.parent_path();
  return nearest.string();
}

std::vector<Finding> examine_storage(const std::string& directory) {
  const std::string there = nearest_directory(directory);
  Finding finding{"run directory", there, {}, {}};
  std::error_code error;
  const fs::space_info space = fs::space(there, error);
  if (error) {
    finding.concern = Concern::error;
    finding.advice = fmt::format("cannot be looked at: {}", error.message());
    return {finding};
  }
  const std::string kind = kind_of(there);
  finding.found +=
      fmt::format(": {}, {} free", kind.empty() ? "a file system" : kind, ckpt::size_text(space.available));
  if (!fs::is_directory(there)) {
    finding.concern = Concern::error;
    finding.advice = "is no directory; give another run.dir";
    return {finding};
  }
  try {
    finding.found += fmt::format(", a small durable write takes {:.1f} ms", try_commit(there));
    finding.advice = advice_on(kind);
    if (!finding.advice.empty()) finding.concern = Concern::warning;
  } catch (const Error& failed) {
    finding.concern = Concern::error;
    finding.advice = failed.what();
  }
  return {finding};
}

}  // namespace shardwright::trainer
