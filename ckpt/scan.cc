#include "ckpt/scan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "ckpt/checkpoint_name.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/manifest.h"
#include "ckpt/verify.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;

Status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::incomplete:
      return Status::incomplete;
    case ErrorCode::future_version:
      return Status::future_version;
    default:
      return Status::damaged;
  }
}

/// The names of a checkpoints directory, newest first: by step, committed ones before what was moved aside.
std::vector<CheckpointName> names(Env& env, const std::string& directory) {
  std::vector<CheckpointName> found;
  for (const std::string& entry : env.list(directory))
    if (auto name = parse_checkpoint_name(entry); name && name->state != NameState::trash)
      found.push_back(*std::move(name));
  std::sort(found.begin(), found.end(), [](const CheckpointName& a, const CheckpointName& b) {
    if (a.step != b.step) return a.step > b.step;
    if (a.state != b.state) return a.state < b.state;
    return std::tie(b.generation, b.text) < std::tie(a.generation, a.text);
  });
  return found;
}

/// Fills in all that can be known of one checkpoint without reading its shards.
ScanEntry look_at(Env& env, const std::string& directory, const CheckpointName& name) {
  ScanEntry entry;
  entry.path = directory + "/" + name.text;
  entry.step = name.step;
  entry.generation = name.generation.value_or(0);
  try {
    const Structure found = check_structure(env, entry.path);
    entry.generation = found.commit.generation;
    entry.time = env.modified(entry.path + "/COMMIT");
    entry.layout_json = found.manifest.description.layout;
    for (const FileRecord& file : found.manifest.files) entry.stored_bytes += file.bytes;
    entry.stored_bytes += found.commit.manifest.bytes;
    entry.status = Status::valid;
  } catch (const Error& e) {
    entry.status = status_of(e.code());
    entry.reason = e.what();
  }
  if (name.state == NameState::attempt) {
    entry.status = Status::incomplete;
    entry.reason = entry.path + ": still being written, or left by a run that was interrupted";
  } else if (name.state == NameState::superseded) {
    entry.reason = entry.path + ": superseded when the run went on from an older checkpoint" +
                   (entry.reason.empty() ? "" : "; " + entry.reason);
    entry.status = Status::superseded;
  }
  return entry;
}

[[noreturn]] void still_written(const std::string& path, const std::string& attempt) {
  throw Error(
      ErrorCode::busy,
      fmt::format("{}: still being written, or left by a run that was interrupted; wait until it is {}", path,
                  attempt),
      path);
}

/// What there is where a checkpoint was looked for: ", such as ..." with the newest of `directory`; empty if
/// there is none.
std::string beside(Env& env, const std::string& directory) {
  constexpr std::size_t kNamed = 8;
  std::vector<std::string> found;
  if (env.is_dir(directory))
    for (const CheckpointName& name : names(env, directory))
      if (name.state == NameState::committed && found.size() < kNamed) found.push_back(name.text);
  return found.empty() ? "" : fmt::format(", such as {}", fmt::join(found, ", "));
}

}  // namespace

std::string_view name(Status status) {
  switch (status) {
    case Status::valid:
      return "valid";
    case Status::incomplete:
      return "incomplete";
    case Status::damaged:
      return "damaged";
    case Status::superseded:
      return "superseded";
    case Status::future_version:
      return "future_version";
  }
  return "damaged";
}

Structure check_structure(Env& env, const std::string& path) {
  if (!env.is_dir(path)) {
    if (!env.exists(path)) throw Error(ErrorCode::missing, path + ": there is no such checkpoint", path);
    throw Error(ErrorCode::damaged, path + ": not a directory; a checkpoint is one", path);
  }
  Structure found;
  found.commit = read_commit(env, path);
  if (const auto name = parse_checkpoint_name(base_name(path)); name && name->step != found.commit.step)
    throw Error(
        ErrorCode::damaged,
        fmt::format("{}/COMMIT: says step {}; the directory says {}", path, found.commit.step, name->step),
        path + "/COMMIT");
  try {
    found.manifest = read_manifest(env, path, found.commit.manifest);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::missing) throw;
    throw Error(ErrorCode::damaged, path + "/manifest.h5: missing", path + "/manifest.h5");
  }
  check_training_step(path, found.commit, found.manifest);
  for (const FileRecord& file : found.manifest.files) {
    const std::string at = path + "/" + file.name;
    std::uint64_t size = 0;
    try {
      size = env.open(at)->size();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::missing) throw;
      throw Error(ErrorCode::damaged, at + ": missing", at);
    }
    if (size != file.bytes)
      throw Error(ErrorCode::damaged,
                  fmt::format("{}: has {} bytes; the manifest says {}", at, size, file.bytes), at);
  }
  return found;
}

std::vector<ScanEntry> scan(Env& env, const std::string& checkpoints_dir) {
  std::vector<ScanEntry> entries;
  for (const CheckpointName& name : names(env, checkpoints_dir))
    entries.push_back(look_at(env, checkpoints_dir, name));
  return entries;
}

std::vector<ScanEntry> deep_scan(Env& env, const std::string& checkpoints_dir, int threads,
                                 const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  std::vector<ScanEntry> entries = scan(env, checkpoints_dir);
  std::uint64_t before = 0, all = 0;
  for (const ScanEntry& entry : entries)
    if (entry.status == Status::valid) all += entry.stored_bytes;
  for (ScanEntry& entry : entries) {
    if (entry.status != Status::valid) continue;
    const VerifyReport report = verify(env, entry.path, threads, [&](std::uint64_t done, std::uint64_t) {
      if (progress) progress(before + std::min(done, entry.stored_bytes), all);
    });
    before += entry.stored_bytes;
    if (report.ok()) continue;
    entry.status = Status::damaged;
    entry.reason = report.problems[0].message;
    if (report.problems.size() > 1)
      entry.reason +=
          fmt::format(" (and {} more; `shardwright verify` lists them)", report.problems.size() - 1);
  }
  return entries;
}

std::optional<Selection> newest_valid(Env& env, const std::string& checkpoints_dir,
                                      std::vector<PassedOver>* passed_over) {
  if (!env.exists(checkpoints_dir)) return std::nullopt;
  for (const CheckpointName& name : names(env, checkpoints_dir)) {
    if (name.state != NameState::committed) continue;
    const std::string path = checkpoints_dir + "/" + name.text;
    try {
      return Selection{path, check_structure(env, path).commit};
    } catch (const Error& e) {
      if (passed_over != nullptr) passed_over->push_back({path, e.what()});
    }
  }
  return std::nullopt;
}

std::string resolve_checkpoint(Env& env, const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const std::string base = base_name(path);
  if (env.exists(path) && is_attempt(path)) still_written(path, "committed");
  if (!env.exists(path)) {
    const fs::path parent = fs::path(path).parent_path();
    const std::string above = parent.empty() ? "." : parent.string();
    if (env.is_dir(above))
      for (const std::string& entry : env.list(above))
        if (entry.starts_with(base + ".tmp-")) still_written(above + "/" + entry, "named " + base);
    throw Error(ErrorCode::missing,
                fmt::format("{}: does not exist; name a checkpoint, a run or its checkpoints directory{}",
                            path, beside(env, above)),
                path);
  }
  if (!env.is_dir(path))
    throw Error(
        ErrorCode::missing,
        path + ": is a file; name a checkpoint, a run or its checkpoints directory (all are directories)",
        path);
  if (parse_checkpoint_name(base) || env.exists(path + "/COMMIT") || env.exists(path + "/manifest.h5"))
    return path;
  const std::string directory = env.is_dir(path + "/checkpoints") ? path + "/checkpoints" : path;
  std::vector<PassedOver> passed_over;
  if (const auto newest = newest_valid(env, directory, &passed_over)) return newest->path;
  if (!passed_over.empty())
    throw Error(ErrorCode::damaged,
                fmt::format("{}: none of its {} checkpoints is valid; the newest: {}", directory,
                            passed_over.size(), passed_over[0].reason),
                directory);
  for (const CheckpointName& other : names(env, directory))
    if (other.state == NameState::attempt) still_written(directory + "/" + other.text, "committed");
  throw Error(ErrorCode::missing,
              directory +
                  ": holds no checkpoint (no directory named step-NNNNNNNNNN); name a checkpoint, or a run "
                  "that has saved one",
              directory);
}

}  // namespace shardwright::ckpt
