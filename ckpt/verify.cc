#include "ckpt/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ckpt/box_index.h"
#include "ckpt/checkpoint_name.h"
#include "ckpt/chunk_codec.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "ckpt/parallel.h"
#include "ckpt/read_ahead.h"

namespace shardwright::ckpt {
namespace {

/// One stored chunk to be checked.
struct Task {
  std::uint32_t file = 0;
  std::uint64_t row = 0;
  std::size_t box = 0;
  std::uint64_t index = 0;  // in the box
};

struct Worker {
  ChunkDecoder decoder;
  std::vector<std::byte> stored, raw, dense;
  std::vector<Fingerprint> sums;  // per state
  // Per box, what its chunks were found to be: bit 0 for zstd, bit 1 for zlib.
  std::vector<unsigned> forms;
};

class Verifier {
 public:
  using Progress = std::function<void(std::uint64_t, std::uint64_t)>;

  Verifier(Env& env, const std::string& path, int threads, const Progress& progress)
      : env_(env), threads_(std::max(threads, 1)), progress_(progress), open_files_(env) {
    report_.path = path;
  }

  VerifyReport run() {
    const auto start = std::chrono::steady_clock::now();
    if (const auto commit = read_the_commit()) {
      if (read_the_manifest(*commit)) {
        files();
        chunks();
      }
    }
    auto& problems = report_.problems;
    std::sort(problems.begin(), problems.end(), [](const Problem& a, const Problem& b) {
      return std::tie(a.file, a.tensor, a.kind, a.code, a.message) <
             std::tie(b.file, b.tensor, b.kind, b.code, b.message);
    });
    report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(report_);
  }

 private:
  void problem(const std::string& code, const std::string& file, const std::string& message,
               const std::string& tensor = {}, const std::string& kind = {}) {
    const std::lock_guard lock(mutex_);
    report_.problems.push_back({code, file, tensor, kind, message});
  }

  void done(std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    report_.bytes += bytes;
    // How much there is, the manifest says.
    if (progress_ && all_bytes_ > 0) progress_(report_.bytes, std::max(all_bytes_, report_.bytes));
  }

  std::optional<Commit> read_the_commit() {
    try {
      Commit commit = read_commit(env_, report_.path);
      report_.step = commit.step;
      ++report_.files;
      done(env_.open(report_.path + "/COMMIT")->size());
      if (const auto name = parse_checkpoint_name(base_name(report_.path)); name && name->step != commit.step)
        problem("commit", "COMMIT",
                fmt::format("{}/COMMIT: says step {}; the directory says {}", report_.path, commit.step,
                            name->step));
      return commit;
    } catch (const Error& e) {
      problem(e.code() == ErrorCode::future_version ? "version" : "commit", "COMMIT", e.what());
      return std::nullopt;
    }
  }

  bool read_the_manifest(const Commit& commit) {
    const std::string& file = commit.manifest.name;
    const std::string path = report_.path + "/" + file;
    try {
      const std::uint64_t size = env_.open(path)->size();
      if (size != commit.manifest.bytes) {
        problem("size", file,
                fmt::format("{}: has {} bytes; COMMIT says {}", path, size, commit.manifest.bytes));
        return false;
      }
    } catch (const Error& e) {
      problem(e.code() == ErrorCode::missing ? "missing_file" : "manifest", file, e.what());
      return false;
    }
    std::vector<std::byte> bytes;
    try {
      bytes = read_manifest_bytes(env_, report_.path, commit.manifest);
    } catch (const Error& e) {
      problem("digest", file, e.what());
      return false;
    }
    try {
      manifest_ = parse_manifest(bytes, path);
    } catch (const Error& e) {
      problem(e.code() == ErrorCode::future_version ? "version" : "manifest", file, e.what());
      return false;
    }
    try {
      check_training_step(report_.path, commit, manifest_);
    } catch (const Error& e) {
      problem("manifest", file, e.what());
    }
    all_bytes_ = report_.bytes + bytes.size();
    for (const FileRecord& f : manifest_.files) all_bytes_ += f.bytes;
    ++report_.files;
    done(bytes.size());
    bool readable = true;  // a table that points outside itself cannot be followed
    for (const Breach& breach : check(manifest_)) {
      problem(breach.code, file, breach.message, breach.tensor, breach.kind);
      readable = readable && (breach.code == "coverage" || breach.code == "overlap");
    }
    return readable;
  }

  /// Whatever a commit would not have left in the directory.
  void stray_files() {
    std::set<std::string> expected{"COMMIT", "manifest.h5"};
    for (const FileRecord& f : manifest_.files) expected.insert(f.name);
    try {
      for (const std::string& name : env_.list(report_.path))
        if (!expected.contains(name))
          problem("path", name, fmt::format("{}/{}: does not belong to the checkpoint", report_.path, name));
    } catch (const Error& e) {
      problem("path", "", e.what());
    }
  }

  /// Opens each shard and digests all of it but the chunks, whose digests the table holds.
  void files() {
    stray_files();
    shards_.resize(manifest_.files.size());
    parallel_for(threads_, manifest_.files.size(), [&](int, std::size_t i) { open_shard(i); });
  }

  void open_shard(std::size_t i) {
    const FileRecord& file = manifest_.files[i];
    const std::string path = report_.path + "/" + file.name;
    try {
      const std::uint64_t size = env_.open(path)->size();
      if (size != file.bytes) {
        problem(
            "size", file.name,
            fmt::format("{}: has {} bytes; the manifest says {}; {}", path, size, file.bytes, lost_with(i)));
        return;
      }
      auto shard = std::make_unique<ShardReader>(open_files_, report_.path, file);
      std::uint64_t rest = file.bytes;
      for (const ChunkRow& row : shard->table()) rest -= row.stored_bytes;
      if (shard->read_rest() != file.rest)
        problem("digest", file.name,
                path + ": its bytes outside the chunks are not those that the manifest vouches for");
      shards_[i] = std::move(shard);
      done(rest);
      const std::lock_guard lock(mutex_);
      ++report_.files;
    } catch (const Error& e) {
      problem(e.code() == ErrorCode::missing ? "missing_file" : "digest", file.name,
              fmt::format("{}; {}", e.what(), lost_with(i)));
    }
  }

  /// What a checkpoint without this file has lost, in words.
  std::string lost_with(std::size_t file) const {
    std::set<std::uint32_t> tensors;
    for (const BoxEntry& box : manifest_.boxes)
      if (box.file == file) tensors.insert(manifest_.states[box.state].tensor);
    constexpr std::size_t kNamed = 64;
    std::vector<std::string_view> names;
    for (const std::uint32_t tensor : tensors) names.push_back(manifest_.tensors[tensor].name);
    names.resize(std::min(names.size(), kNamed));
    return fmt::format("lost with it are parts of {} tensors: {}{}", tensors.size(), fmt::join(names, ", "),
                       tensors.size() > kNamed ? ", ..." : "");
  }

  void chunks() {
    std::vector<Task> tasks;
    std::vector<char> whole(manifest_.states.size(), 1);  // states of which every chunk can be read
    for (std::size_t row = 0; row < manifest_.boxes.size(); ++row) {
      const BoxEntry& box = manifest_.boxes[row];
      if (!shards_[box.file]) {
        whole[box.state] = 0;
        continue;
      }
      for (std::uint64_t i = 0; i < box.chunks; ++i) tasks.push_back({box.file, box.first_chunk + i, row, i});
    }
    std::sort(tasks.begin(), tasks.end(),
              [](const Task& a, const Task& b) { return std::tie(a.file, a.row) < std::tie(b.file, b.row); });
    std::vector<Worker> workers(static_cast<std::size_t>(threads_));
    for (Worker& w : workers) {
      w.sums.resize(manifest_.states.size());
      w.forms.resize(manifest_.boxes.size());
    }
    std::vector<std::uint64_t> sizes;
    for (const Task& task : tasks) sizes.push_back(shards_[task.file]->table()[task.row].stored_bytes);
    ReadAhead ahead(std::move(sizes),
                    [&](std::size_t i) { shards_[tasks[i].file]->will_need(tasks[i].row); });
    parallel_for(threads_, tasks.size(), [&](int worker, std::size_t i) {
      ahead.reading(i);
      if (chunk(tasks[i], workers[static_cast<std::size_t>(worker)])) return;
      const std::lock_guard lock(mutex_);
      whole[manifest_.boxes[tasks[i].box].state] = 0;
    });
    one_form_each(workers);
    for (std::size_t s = 0; s < manifest_.states.size(); ++s) {
      Fingerprint sum;
      for (const Worker& w : workers) sum += w.sums[s];
      const StateEntry& state = manifest_.states[s];
      const std::string& tensor = manifest_.tensors[state.tensor].name;
      // Where a chunk is lost, its own problem says so; the sum could only repeat it.
      if (whole[s] && sum != state.fingerprint)
        problem("fingerprint", "manifest.h5",
                fmt::format("{} {}: values have fingerprint {}; the manifest says {}", tensor, state.kind,
                            to_hex(sum), to_hex(state.fingerprint)),
                tensor, state.kind);
    }
  }

  /// A dataset's filters are those of one form; chunks of the other are read by us and by nobody else.
  void one_form_each(const std::vector<Worker>& workers) {
    for (std::size_t box = 0; box < manifest_.boxes.size(); ++box) {
      unsigned forms = 0;
      for (const Worker& w : workers) forms |= w.forms[box];
      if (forms != 3) continue;
      const BoxEntry& entry = manifest_.boxes[box];
      const StateEntry& state = manifest_.states[entry.state];
      problem("decode", manifest_.files[entry.file].name,
              fmt::format("{}: some chunks are zstd frames and some zlib streams; a dataset has one filter",
                          entry.dataset),
              manifest_.tensors[state.tensor].name, state.kind);
    }
  }

  /// False if the chunk cannot be read.
  bool chunk(const Task& task, Worker& w) {
    const BoxEntry& entry = manifest_.boxes[task.box];
    const StateEntry& state = manifest_.states[entry.state];
    const TensorEntry& tensor = manifest_.tensors[state.tensor];
    const ShardReader& shard = *shards_[task.file];
    const std::string& file = shard.record().name;
    const std::size_t size = size_of(state.dtype);
    const Box clipped = chunk_box(entry.box, entry.chunk, task.index);
    const Box full{clipped.offset, entry.chunk};
    w.raw.resize(full.elements() * size);
    try {
      shard.read_stored(task.row, w.stored);
    } catch (const Error& e) {
      problem("chunk", file, fmt::format("{} {}: {}", tensor.name, state.kind, e.what()), tensor.name,
              state.kind);
      return false;
    }
    done(w.stored.size());
    try {
      if (shard.table()[task.row].raw_bytes != w.raw.size())
        throw Error(ErrorCode::damaged,
                    fmt::format("{}/{}: chunk {} has {} bytes; its box needs {}", report_.path, file,
                                task.row, shard.table()[task.row].raw_bytes, w.raw.size()));
      w.decoder.decode(w.stored, size, w.raw);
      w.forms[task.box] |= form_of(w.stored) == ChunkForm::zlib ? 2u : 1u;
    } catch (const Error& e) {
      problem("decode", file, fmt::format("{} {}: chunk {}: {}", tensor.name, state.kind, task.row, e.what()),
              tensor.name, state.kind);
      return false;
    }
    const std::byte* values = w.raw.data();
    if (full != clipped) {
      w.dense.resize(clipped.elements() * size);
      copy_region(w.raw.data(), full, w.dense.data(), clipped, clipped, size);
      values = w.dense.data();
    }
    w.sums[entry.state] += fingerprint(values, size, clipped, tensor.shape);
    const std::lock_guard lock(mutex_);
    ++report_.chunks;
    return true;
  }

  Env& env_;
  int threads_;
  const Progress& progress_;
  std::mutex mutex_;  // guards report_ while threads run
  VerifyReport report_;
  std::uint64_t all_bytes_ = 0;
  Manifest manifest_;
  OpenFiles open_files_;
  std::vector<std::unique_ptr<ShardReader>> shards_;
};

}  // namespace

VerifyReport verify(Env& env, const std::string& path, int threads,
                    const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  return Verifier(env, path, threads, progress).run();
}

}  // namespace shardwright::ckpt
