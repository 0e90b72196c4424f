#include "ckpt/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ckpt/box_index.h"
#include "ckpt/checkpoint_name.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/load_buffers.h"
#include "ckpt/scan.h"

namespace shardwright::ckpt {

struct Checkpoint::State {
  State(Env& e, std::string p, Commit c, Manifest m)
      : env(e),
        path(std::move(p)),
        commit(std::move(c)),
        manifest(std::move(m)),
        index(manifest),
        files(e),
        shards(manifest.files.size()) {}

  struct Slot {
    std::mutex mutex;
    std::unique_ptr<ShardReader> reader;
  };

  Env& env;
  std::string path;
  Commit commit;
  Manifest manifest;
  BoxIndex index;
  OpenFiles files;
  std::deque<Slot> shards;
  LoadBuffersPool load_buffers;
};

namespace {

/// What is opened by mistake for a checkpoint: a run, or its directory of checkpoints.
void refuse_run(Env& env, const std::string& path) {
  for (const std::string& directory : {path + "/checkpoints", path}) {
    if (!env.is_dir(directory)) continue;
    if (const auto newest = newest_valid(env, directory, nullptr))
      throw Error(
          ErrorCode::usage,
          fmt::format("{}: holds checkpoints and is none; {} is the newest valid one", path, newest->path),
          path);
  }
}

}  // namespace

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

LoadBuffersPool& Checkpoint::load_buffers() const { return state_->load_buffers; }

Checkpoint Checkpoint::open(Env& env, const std::string& path,
                            const std::optional<ManifestDigest>& expected) {
  const auto name = parse_checkpoint_name(base_name(path));
  if (is_attempt(path))
    throw Error(ErrorCode::busy, path + ": still being written, or left by a run that was interrupted", path);
  if (!env.exists(path)) throw Error(ErrorCode::missing, path + ": there is no such checkpoint", path);
  if (!env.exists(path + "/COMMIT")) refuse_run(env, path);
  const Commit commit = read_commit(env, path);
  if (name && name->step != commit.step)
    throw Error(ErrorCode::damaged,
                fmt::format("{}/COMMIT: says step {}; the directory says {}", path, commit.step, name->step),
                path + "/COMMIT");
  if (expected &&
      (expected->bytes != commit.manifest.bytes || expected->xxh3_128 != commit.manifest.xxh3_128))
    throw Error(
        ErrorCode::damaged,
        path + "/COMMIT: vouches for another manifest than the selected one; the checkpoint was replaced",
        path + "/COMMIT");
  Manifest manifest;
  try {
    manifest = read_manifest(env, path, commit.manifest);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::missing || !env.exists(path + "/COMMIT")) throw;
    throw Error(ErrorCode::damaged, path + "/manifest.h5: missing", path + "/manifest.h5");
  }
  check_training_step(path, commit, manifest);
  return Checkpoint(std::make_unique<State>(env, path, commit, std::move(manifest)));
}

const std::string& Checkpoint::path() const { return state_->path; }
const Commit& Checkpoint::commit() const { return state_->commit; }
const Manifest& Checkpoint::manifest() const { return state_->manifest; }
const BoxIndex& Checkpoint::index() const { return state_->index; }
Env& Checkpoint::env() const { return state_->env; }

namespace {

/// The row of a tensor; null if there is none.
const TensorEntry* find_tensor(const Manifest& m, const std::string& tensor) {
  const auto t =
      std::lower_bound(m.tensors.begin(), m.tensors.end(), tensor,
                       [](const TensorEntry& entry, const std::string& n) { return entry.name < n; });
  return t == m.tensors.end() || t->name != tensor ? nullptr : &*t;
}

}  // namespace

const Dims& Checkpoint::shape(const std::string& tensor) const {
  const TensorEntry* entry = find_tensor(state_->manifest, tensor);
  if (entry == nullptr)
    throw Error(ErrorCode::mismatch, fmt::format("{}: not in checkpoint {}", tensor, path()), path());
  return entry->shape;
}

std::optional<std::uint32_t> Checkpoint::find_state(const std::string& tensor,
                                                    const std::string& kind) const {
  const Manifest& m = state_->manifest;
  const TensorEntry* t = find_tensor(m, tensor);
  if (t == nullptr) return std::nullopt;
  const auto key = std::pair(static_cast<std::uint32_t>(t - m.tensors.data()), kind);
  const auto s =
      std::lower_bound(m.states.begin(), m.states.end(), key, [](const StateEntry& entry, const auto& k) {
        return std::tie(entry.tensor, entry.kind) < std::tie(k.first, k.second);
      });
  if (s == m.states.end() || s->tensor != key.first || s->kind != kind) return std::nullopt;
  return static_cast<std::uint32_t>(s - m.states.begin());
}

const ShardReader& Checkpoint::shard(std::uint32_t file) const {
  State::Slot& slot = state_->shards[file];
  const std::lock_guard lock(slot.mutex);
  if (!slot.reader) {
    try {
      auto reader =
          std::make_unique<ShardReader>(state_->files, state_->path, state_->manifest.files.at(file));
      // Loading needs none of these bytes, but a file with any changed bit is not the file that was
      // committed.
      if (reader->read_rest() != reader->record().rest) {
        const std::string path = state_->path + "/" + reader->record().name;
        throw Error(ErrorCode::damaged,
                    path + ": the digest of its bytes outside the chunks does not match; verify tells more",
                    path);
      }
      slot.reader = std::move(reader);
    } catch (const Error& e) {
      throw explain(e);
    }
  }
  return *slot.reader;
}

Error Checkpoint::explain(const Error& error) const {
  if (state_->env.exists(state_->path + "/COMMIT")) {
    if (error.code() == ErrorCode::missing) return {ErrorCode::damaged, error.what(), error.path()};
    return error;
  }
  return {ErrorCode::missing, state_->path + ": removed while being read; choose a newer checkpoint",
          state_->path};
}

}  // namespace shardwright::ckpt
