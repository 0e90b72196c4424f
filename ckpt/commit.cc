#include "ckpt/commit.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "ckpt/error.h"
#include "ckpt/fault.h"
#include "ckpt/limits.h"
#include "ckpt/record_fields.h"

namespace shardwright::ckpt {
namespace {

constexpr std::uint64_t kMaxCommitBytes = 1u << 16;
constexpr std::size_t kStepDigits = 10;

/// Two lines with their newlines: what a write that ran to its end looks like.
bool whole(const std::string& contents) {
  return contents.ends_with('\n') && std::count(contents.begin(), contents.end(), '\n') == 2;
}

}  // namespace

Commit read_commit(Env& env, const std::string& directory) {
  const std::string path = directory + "/COMMIT";
  std::string contents;
  try {
    contents = read_file(env, path, kMaxCommitBytes);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::missing) throw;
    throw Error(ErrorCode::incomplete, path + ": not there; a checkpoint without it was never committed",
                path);
  }
  if (!whole(contents))
    throw Error(ErrorCode::incomplete,
                path + ": torn; a checkpoint without a whole COMMIT was never committed", path);
  const std::string text = open_record(contents, path);
  try {
    const nlohmann::json json = parse_object(text);
    if (text_field(json, "format") != "shardwright")
      throw Error(ErrorCode::damaged, path + ": names another format than shardwright", path);
    Commit commit;
    const std::uint64_t version = number_field(json, "version");
    if (version > kFormatVersion)
      throw Error(ErrorCode::future_version,
                  fmt::format("{}: version {} of the format; this program reads up to {}", path, version,
                              kFormatVersion),
                  path);
    if (version < 1) throw Error(ErrorCode::damaged, path + ": has an impossible version", path);
    commit.version = static_cast<int>(version);
    commit.run = run_field(json);
    commit.generation = generation_field(json);
    commit.attempt = text_field(json, "attempt");
    commit.step = number_field(json, "step");
    const nlohmann::json& manifest = field_of(json, "manifest");
    commit.manifest.name = text_field(manifest, "name");
    commit.manifest.bytes = number_field(manifest, "bytes");
    if (commit.manifest.bytes > kMaxManifestBytes)
      throw Error(ErrorCode::damaged,
                  fmt::format("{}: names a manifest of {} bytes; at most 1 GiB is right", path,
                              commit.manifest.bytes),
                  path);
    commit.manifest.xxh3_128 = parse_digest(text_field(manifest, "xxh3_128"));
    if (commit.manifest.name != "manifest.h5")
      throw Error(ErrorCode::damaged, path + ": names another manifest than manifest.h5", path);
    return commit;
  } catch (const Error& e) {
    if (!e.path().empty()) throw;
    throw Error(ErrorCode::damaged, fmt::format("{}: not the fields of a COMMIT ({})", path, e.what()), path);
  }
}

void write_commit(Env& env, const std::string& directory, const Commit& commit,
                  const std::function<bool()>& still_mine) {
  const nlohmann::ordered_json json = {{"format", "shardwright"},
                                       {"version", commit.version},
                                       {"run", commit.run},
                                       {"generation", commit.generation},
                                       {"attempt", commit.attempt},
                                       {"step", commit.step},
                                       {"manifest",
                                        {{"name", commit.manifest.name},
                                         {"bytes", commit.manifest.bytes},
                                         {"xxh3_128", to_hex(commit.manifest.xxh3_128)}}}};
  const std::string record = sign_record(json.dump());
  const std::string path = directory + "/COMMIT", temporary = path + ".new";
  fault_point("commit.write", 0, commit.step);
  {
    const auto file = env.create(temporary);
    file->write(0, std::as_bytes(std::span(record)));
    file->sync();
  }
  fault_point("commit.rename", 0, commit.step);
  if (!still_mine())
    throw Error(ErrorCode::busy,
                directory + ": another generation of this run took over; nothing is committed", directory);
  env.rename(temporary, path);
  env.sync_dir(directory);
}

std::string step_dir_name(std::uint64_t step) { return fmt::format("step-{:010}", step); }

std::optional<std::uint64_t> parse_step_dir(const std::string& name) {
  const std::string prefix = "step-";
  if (name.size() != prefix.size() + kStepDigits || !name.starts_with(prefix)) return std::nullopt;
  std::uint64_t step = 0;
  for (std::size_t i = prefix.size(); i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return std::nullopt;
    step = step * 10 + static_cast<std::uint64_t>(name[i] - '0');
  }
  return step;
}

void write_latest(Env& env, const std::string& checkpoints_dir, const std::string& name) {
  replace_file(env, checkpoints_dir + "/LATEST", name + "\n");
}

std::string free_name(Env& env, const std::string& wanted) {
  std::string name = wanted;
  for (int n = 2; env.exists(name); ++n) name = fmt::format("{}.{}", wanted, n);
  return name;
}

}  // namespace shardwright::ckpt
