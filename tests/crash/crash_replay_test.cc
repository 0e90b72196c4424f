// Every state that a crash can leave: the trace of a save is replayed up to each of its operations, with what
// was not fsynced kept or dropped, and with the last write torn. From each, the next generation must find the
// previous checkpoint or the new one, whole.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "ckpt/digest.h"
#include "ckpt/retention.h"
#include "ckpt/run_dir.h"
#include "ckpt/scan.h"
#include "ckpt/verify.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::Not;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kSector = 512;

/// What a crash does to what was not fsynced.
struct Loss {
  bool data = false;   // contents of files fall back to their last fsync
  bool root = false;   // entries of the checkpoints and run directories fall back to their last fsync
  bool inner = false;  // entries of checkpoint directories do
};

/// A file system in memory that knows what is durable. Paths are relative to the run directory.
class Disk {
 public:
  Disk() : root_(std::make_shared<Node>()) { root_->is_dir = true; }

  static Disk of(const std::string& directory) {
    Disk disk;
    read(directory, *disk.root_);
    return disk;
  }

  /// Shares no node with the original.
  Disk copy() const {
    Disk disk;
    std::map<const Node*, std::shared_ptr<Node>> copies;
    disk.root_ = clone(root_, copies);
    return disk;
  }

  void apply(const TraceOp& op, std::uint64_t limit = ~0ull) {
    switch (op.kind) {
      case TraceOp::create: {
        auto& slot = directory(parent_path(op.path)).now[base(op.path)];
        if (!slot) slot = std::make_shared<Node>();
        slot->data.clear();
        break;
      }
      case TraceOp::write: {
        Bytes& data = find(op.path).data;
        const std::uint64_t length = std::min<std::uint64_t>(limit, op.data.size());
        if (data.size() < op.offset + length) data.resize(op.offset + length);
        std::copy_n(op.data.begin(), length, data.begin() + static_cast<std::ptrdiff_t>(op.offset));
        break;
      }
      case TraceOp::truncate:
        find(op.path).data.resize(op.bytes);
        break;
      case TraceOp::sync:
        find(op.path).durable = find(op.path).data;
        break;
      case TraceOp::sync_dir:
        directory(op.path).kept = directory(op.path).now;
        break;
      case TraceOp::rename: {
        Node& from = directory(parent_path(op.path));
        const auto node = from.now.at(base(op.path));
        from.now.erase(base(op.path));
        directory(parent_path(op.to)).now[base(op.to)] = node;
        break;
      }
      case TraceOp::unlink:
      case TraceOp::remove_dir:
        directory(parent_path(op.path)).now.erase(base(op.path));
        break;
      case TraceOp::create_dirs:
        create_dirs(op.path);
        break;
    }
  }

  /// Writes the state after a crash to `directory`; returns a text that tells states apart.
  std::string leave(const std::string& directory, const Loss& loss) const {
    std::string key;
    leave(*root_, directory, loss, 0, key);
    return key;
  }

  std::string key(const Loss& loss) const { return leave("", loss); }

 private:
  struct Node {
    bool is_dir = false;
    Bytes data, durable;
    std::map<std::string, std::shared_ptr<Node>> now, kept;
  };

  static std::string base(const std::string& path) { return fs::path(path).filename().string(); }

  static void read(const std::string& path, Node& node) {
    for (const auto& entry : fs::directory_iterator(path)) {
      auto child = std::make_shared<Node>();
      child->is_dir = entry.is_directory();
      if (child->is_dir) {
        read(entry.path().string(), *child);
      } else {
        const std::string text = read_file(posix_env(), entry.path().string());
        const auto bytes = std::as_bytes(std::span(text));
        child->data.assign(bytes.begin(), bytes.end());
        child->durable = child->data;
      }
      node.now[entry.path().filename().string()] = child;
    }
    node.kept = node.now;
  }

  static std::shared_ptr<Node> clone(const std::shared_ptr<Node>& node,
                                     std::map<const Node*, std::shared_ptr<Node>>& copies) {
    auto& made = copies[node.get()];
    if (made) return made;
    made = std::make_shared<Node>(*node);
    const auto result = made;
    for (auto* entries : {&result->now, &result->kept})
      for (auto& [name, child] : *entries) child = clone(child, copies);
    return result;
  }

  Node& find(const std::string& path) {
    Node* node = root_.get();
    for (const fs::path& part : fs::path(path).relative_path()) {
      if (part.empty() || part == ".") continue;
      node = node->now.at(part.string()).get();
    }
    return *node;
  }
  Node& directory(const std::string& path) { return find(path); }

  void create_dirs(const std::string& path) {
    Node* node = root_.get();
    for (const fs::path& part : fs::path(path).relative_path()) {
      if (part.empty() || part == ".") continue;
      auto& slot = node->now[part.string()];
      if (!slot) {
        slot = std::make_shared<Node>();
        slot->is_dir = true;
        node->kept[part.string()] = slot;  // durable, as create_dirs() promises
      }
      node = slot.get();
    }
  }

  void leave(const Node& node, const std::string& path, const Loss& loss, int depth,
             std::string& text) const {
    if (!path.empty()) fs::create_directories(path);
    const bool drop = depth < 2 ? loss.root : loss.inner;
    for (const auto& [name, child] : drop ? node.kept : node.now) {
      const std::string at = path.empty() ? "" : fmt::format("{}/{}", path, name);
      text += name;
      if (child->is_dir) {
        text += "{";
        leave(*child, at, loss, depth + 1, text);
        text += "}";
        continue;
      }
      const Bytes& data = loss.data ? child->durable : child->data;
      text += fmt::format("={};", to_hex(xxh3_128(data)));
      if (at.empty()) continue;
      std::ofstream file(at, std::ios::binary);
      file.write(reinterpret_cast<const char*>(data.data()), static_cast<std::streamsize>(data.size()));
    }
  }

  std::shared_ptr<Node> root_;
};

/// The trace with the run directory's path taken off.
std::vector<TraceOp> relative(std::vector<TraceOp> ops, const std::string& run) {
  for (TraceOp& op : ops)
    for (std::string* path : {&op.path, &op.to}) {
      if (path->starts_with(run)) *path = fmt::format(".{}", std::string_view(*path).substr(run.size()));
    }
  std::erase_if(ops, [](const TraceOp& op) { return !op.path.starts_with("."); });
  return ops;
}

class CrashReplay : public ::testing::Test {
 protected:
  /// What is durable is simulated here; real fsyncs would only cost time.
  static void SetUpTestSuite() {
    if (fs::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", 0);
  }
  void SetUp() override { begin(env_); }

  Started begin(Env& env) { return begin_generation(env, run_, checkpoints_); }

  SampleSave sample(std::uint64_t step, int writers = 3) {
    const Generation g = read_generation(env_, run_);
    SampleSave save;
    save.run = g.run;
    save.generation = g.number;
    save.step = step;
    save.writers = writers;
    save.supersede_suffix = fmt::format(".superseded-{}", g.number);
    return save;
  }

  void whole_save(Env& env, const SampleSave& save) {
    save_sample(env, checkpoints_, save);
    write_latest(env, checkpoints_, step_dir_name(save.step));
    RetentionJob job;
    job.checkpoints_dir = checkpoints_;
    job.keep = 1;
    job.attempt = save.attempt();
    retire(env, job);
  }

  using Judge = std::function<bool(const Commit&)>;

  /// From the crash state in `run`: the next generation starts and selects a checkpoint that is whole and
  /// that `judge` accepts. Says what is wrong, or nothing.
  static std::string wrong_with(const std::string& run, const Judge& judge) {
    Env& env = posix_env();
    const std::string checkpoints = run + "/checkpoints";
    try {
      begin_generation(env, run, checkpoints);
      std::vector<PassedOver> passed_over;
      const auto newest = newest_valid(env, checkpoints, &passed_over);
      if (!newest) return "no checkpoint is left";
      if (!passed_over.empty()) return passed_over[0].reason;
      const VerifyReport report = verify(env, newest->path, 1);
      if (!report.ok()) return report.problems[0].message;
      expect_sample(Checkpoint::open(env, newest->path), newest->commit.step);
      for (const std::string& name : env.list(checkpoints))
        if (name.find(".tmp-") != std::string::npos || name.find(".trash-") != std::string::npos)
          return fmt::format("{} is left over", name);
      return judge(newest->commit) ? ""
                                   : fmt::format("step {} of generation {} is neither", newest->commit.step,
                                                 newest->commit.generation);
    } catch (const Error& e) {
      return e.what();
    }
  }

  /// What `work` does, as operations below the run's directory.
  std::vector<TraceOp> trace(const std::function<void(Env&)>& work) {
    TraceEnv env;
    work(env);
    return relative(env.ops(), run_);
  }

  struct Replayed {
    std::size_t states = 0;          // different ones
    std::vector<std::string> wrong;  // of these, with where the crash was
  };

  /// Crashes after each operation, in every way, from the state that `disk` holds before the first.
  /// Stops at the first wrong state. Crashes before operation `from` are passed over.
  static Replayed replay(const Disk& before, const std::vector<TraceOp>& ops, const Judge& judge,
                         std::size_t from = 0) {
    Disk disk = before.copy();
    Replayed result;
    std::set<std::string> seen;
    const auto crash = [&](const Disk& at, const Loss& loss, const std::string& where) {
      if (!result.wrong.empty() || !seen.insert(at.key(loss)).second) return;
      const TempDir scratch;
      at.leave(scratch.path(), loss);
      if (const std::string wrong = wrong_with(scratch.path(), judge); !wrong.empty())
        result.wrong.push_back(fmt::format("{}{}{}{}: {}", where, loss.data ? ", data lost" : "",
                                           loss.root ? ", renames lost" : "",
                                           loss.inner ? ", entries lost" : "", wrong));
    };
    for (std::size_t k = 0;; ++k) {
      const std::string where =
          k == 0 ? "at the start" : fmt::format("after operation {} on {}", k, ops[k - 1].path);
      for (int bits = 0; k >= from && bits < 8; ++bits)
        crash(disk, {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0}, where);
      if (k == ops.size()) break;
      if (k >= from && ops[k].kind == TraceOp::write && ops[k].data.size() > 1) {
        Disk torn = disk.copy();
        torn.apply(ops[k], ops[k].data.size() > kSector ? kSector : ops[k].data.size() / 2);
        crash(torn, {}, fmt::format("torn: {}", ops[k].path));
      }
      disk.apply(ops[k]);
    }
    result.states = seen.size();
    return result;
  }

  TempDir dir_;
  std::string run_ = dir_ / "run";
  std::string checkpoints_ = dir_ / "run/checkpoints";
  Env& env_ = posix_env();
};

TEST_F(CrashReplay, SaveThenRetention) {
  save_sample(env_, checkpoints_, sample(4));
  const Disk before = Disk::of(run_);
  const auto ops = trace([&](Env& env) { whole_save(env, sample(5)); });
  std::set<std::uint64_t> steps;
  const Replayed result = replay(before, ops, [&](const Commit& commit) {
    steps.insert(commit.step);
    return commit.step == 4 || commit.step == 5;
  });
  EXPECT_THAT(result.wrong, IsEmpty());
  EXPECT_EQ(steps.size(), 2u);
  EXPECT_GT(result.states, 50u);
}

/// The test of the test: without one kind of fsync, a state must turn up that is wrong.
TEST_F(CrashReplay, EachFsyncIsNeeded) {
  save_sample(env_, checkpoints_, sample(4));
  const Disk before = Disk::of(run_);
  const auto ops = trace([&](Env& env) { whole_save(env, sample(5)); });
  const auto without = [&](TraceOp::Kind kind, const std::string& path) {
    std::vector<TraceOp> fewer = ops;
    EXPECT_GT(
        std::erase_if(fewer, [&](const TraceOp& op) { return op.kind == kind && op.path.ends_with(path); }),
        0u);
    return replay(
               before, fewer, [](const Commit& c) { return c.step == 4 || c.step == 5; }, fewer.size())
        .wrong;
  };
  for (const char* file : {"/rank-00001.h5", "/manifest.h5", "/COMMIT.new"})
    EXPECT_THAT(without(TraceOp::sync, file), Not(IsEmpty())) << file;
  EXPECT_THAT(without(TraceOp::sync_dir, ".tmp-0-1"), Not(IsEmpty())) << "of the attempt";
}

TEST_F(CrashReplay, SaveOverAnExistingStep) {
  save_sample(env_, checkpoints_, sample(4));
  begin(env_);
  const Disk before = Disk::of(run_);
  const auto ops = trace([&](Env& env) { whole_save(env, sample(4, 2)); });
  std::set<std::uint64_t> generations;
  EXPECT_THAT(replay(before, ops,
                     [&](const Commit& commit) {
                       generations.insert(commit.generation);
                       return commit.step == 4;
                     })
                  .wrong,
              IsEmpty());
  EXPECT_EQ(generations, (std::set<std::uint64_t>{0, 1}));
}

TEST_F(CrashReplay, StartOfAGenerationThatPromotesAndTidies) {
  save_sample(env_, checkpoints_, sample(4));
  begin(env_);
  const SampleSave again = sample(4, 2);
  const std::string path = save_sample(env_, dir_ / "scratch", again);
  fs::rename(path, again.attempt_dir(checkpoints_));  // whole, but for the commit point
  write_sample_rank(env_, checkpoints_, sample(5), 1);
  fs::create_directories(checkpoints_ + "/step-0000000001.trash-0-1");
  const Disk before = Disk::of(run_);
  const auto ops = trace([&](Env& env) { begin(env); });
  std::set<std::uint64_t> generations;
  EXPECT_THAT(replay(before, ops,
                     [&](const Commit& commit) {
                       generations.insert(commit.generation);
                       return commit.step == 4;
                     })
                  .wrong,
              IsEmpty());
  EXPECT_TRUE(generations.contains(1));
}

TEST_F(CrashReplay, B118_EachOperationFailsOnce) {
  const std::string start = dir_ / "start";
  save_sample(env_, checkpoints_, sample(4));
  fs::copy(run_, start, fs::copy_options::recursive);
  bool failed = true;
  for (std::size_t i = 0; failed; ++i) {
    ASSERT_LT(i, 2000u);
    fs::remove_all(run_);
    fs::copy(start, run_, fs::copy_options::recursive);
    TraceEnv failing;
    failing.fail_at(i, i % 2 == 0 ? EIO : ENOSPC, true);  // and all that follow, as on a dead or a full disk
    try {
      whole_save(failing, sample(5));
      failed = false;
    } catch (const Error& e) {
      EXPECT_FALSE(e.path().empty());
    }
    EXPECT_EQ(wrong_with(run_, [](const Commit& c) { return c.step == 4 || c.step == 5; }), "")
        << "operation " << i;
  }
}

}  // namespace
}  // namespace shardwright::ckpt
