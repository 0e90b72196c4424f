// damage_sweep small|large: every damage of damage.h to a checkpoint, in memory. Each has to be found by
// verify, with the file and the code that it deserves and nothing else; refused when all is loaded, with the
// file named; and passed over for the checkpoint before it by what resuming does. Prints how many there were;
// status 1 for any surprise.
#include <cstdio>

#include "ckpt/scan.h"
#include "ckpt/verify.h"
#include "tests/crash/damage.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

/// Of the small checkpoint: what is damaged is every byte of it, so it has few.
std::vector<SampleState> small_states() {
  return {{"embed", "exp_avg", DType::f32, {13, 5}, 0, {2, 5}},
          {"embed", "exp_avg_sq", DType::f32, {13, 5}, 0, {}},
          {"embed", "param", DType::bf16, {13, 5}, 0, {4, 3}},
          {"scalar", "param", DType::f64, {}, 0, {}}};
}

/// Of the large one: everything that a checkpoint may hold.
std::vector<SampleState> large_states() {
  std::vector<SampleState> states = sample_states();
  states.push_back({"zmatrix", "exp_avg", DType::f32, {37, 13}, 0, {5, 13}});
  states.push_back({"zmatrix", "exp_avg_sq", DType::f32, {37, 13}, 0, {16, 4}});
  states.push_back({"zmatrix", "param", DType::bf16, {37, 13}, 0, {}});
  return states;
}

struct Row {
  std::uint64_t damages = 0, refused = 0, harmless = 0, older = 0, silent = 0, otherwise = 0;
};

class Sweep {
 public:
  Sweep(std::vector<SampleState> states, int writers, bool thorough) : thorough_(thorough) {
    SampleSave save;
    save.states = std::move(states);
    save.writers = writers;
    save.step = 4;
    older_ = write(save, "older");
    save.step = 6;
    save.save_number = 2;
    newest_ = write(save, "newest");
    save.save_number = 3;
    save.salt = 1006;
    attempt_ = write(save, "attempt");
    save.run = "99999999-2222-4333-8444-555555555555";
    save.writers = writers + 1;
    save.salt = 2006;
    run_ = write(save, "run");
    states_ = save.states;
    for (const auto& [name, bytes] : older_.files) env_.put(directory(older_.step) + name, bytes);
    for (const std::uint64_t step : {older_.step, newest_.step})
      for (const SampleState& state : states_)
        expected_[step].push_back(sample_values(state, Box::whole(state.shape), step));
  }

  bool run() {
    std::uint64_t bytes = 0;
    std::string files;
    for (const auto& [name, content] : newest_.files) {
      bytes += content->size();
      files += fmt::format(" {} ({})", name, content->size());
    }
    fmt::print("{} bytes in{}\n", bytes, files);
    std::fflush(stdout);
    if (!expect_whole()) return false;
    const std::vector<Other> others = {
        {"another attempt", &attempt_}, {"another run", &run_}, {"another step", &older_}};
    Damages(newest_, others).for_each([&](const Damage& damage) { judge(damage); });
    fmt::print("{:<22}{:>10}{:>18}{:>18}{:>16}{:>8}{:>8}\n", "damage", "tried", "named by verify",
               "refused by load", "older selected", "silent", "crash");
    Row all;
    for (const auto& [kind, row] : rows_) {
      print(kind, row);
      all.damages += row.damages;
      all.refused += row.refused;
      all.harmless += row.harmless;
      all.older += row.older;
      all.silent += row.silent;
      all.otherwise += row.otherwise;
    }
    print("all", all);
    fmt::print("values are whole and loaded beside {} files too many, which verify names\n", all.harmless);
    return all.silent == 0 && all.otherwise == 0;
  }

 private:
  static std::string directory(std::uint64_t step) { return "/checkpoints/" + step_dir_name(step) + "/"; }

  Whole write(const SampleSave& save, const std::string& name) {
    return read_whole(posix_env(), save_sample(posix_env(), temp_ / name, save));
  }

  void print(const std::string& kind, const Row& row) const {
    fmt::print("{:<22}{:>10}{:>18}{:>18}{:>16}{:>8}{:>8}\n", kind, row.damages,
               row.damages - row.silent - row.otherwise, row.refused, row.older, row.silent, row.otherwise);
  }

  /// The files that are not as they were, for as long as it lives.
  class Applied {
   public:
    Applied(MemoryEnv& env, const std::string& directory, const FileSet& files)
        : env_(env), directory_(directory), files_(files) {
      for (const auto& [name, bytes] : files_) env_.put(directory_ + name, bytes);
    }
    ~Applied() {
      for (const auto& [name, bytes] : files_) env_.erase(directory_ + name);
    }
    Applied(const Applied&) = delete;
    Applied& operator=(const Applied&) = delete;

   private:
    MemoryEnv& env_;
    const std::string& directory_;
    const FileSet& files_;
  };

  /// Opens a checkpoint and loads all of it, as a trainer of one rank does; true if every value is that of
  /// `step`.
  bool load(const std::string& path, std::uint64_t step) {
    const Checkpoint checkpoint = Checkpoint::open(env_, path);
    std::vector<LoadItem> items;
    std::vector<std::vector<std::byte>> memory;
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const SampleState& state = states_[i];
      memory.emplace_back(expected_.at(step)[i].size(), std::byte{0xEE});
      items.push_back({state.tensor, state.kind, state.dtype, state.shape, Box::whole(state.shape),
                       memory.back().data()});
    }
    checkpoint.load(items, {});
    return memory == expected_.at(step);
  }

  bool expect_whole() {
    const Applied applied(env_, newest_dir_, newest_.files);
    if (verify(env_, path_of(newest_), 1).ok() && load(path_of(newest_), newest_.step) &&
        load(path_of(older_), older_.step))
      return true;
    fmt::print("the checkpoint is not whole before any damage\n");
    return false;
  }

  static std::string path_of(const Whole& whole) { return "/checkpoints/" + step_dir_name(whole.step); }

  void surprise(const Damage& damage, const std::string& what) {
    if (++surprises_ <= 20) fmt::print("{}: {}: {}\n", damage.kind, damage.what, what);
  }

  void judge(const Damage& damage) {
    Row& row = rows_[damage.kind];
    ++row.damages;
    try {
      const Applied applied(env_, newest_dir_, damage.files);
      const std::set<Finding> findings =
          expected_findings(damage.files, newest_.step, {&newest_, &attempt_, &run_, &older_});
      if (!verify_tells(damage, findings) || !resumes(damage, findings, row)) ++row.silent;
    } catch (const std::exception& e) {
      surprise(damage, fmt::format("ended otherwise than as an Error: {}", e.what()));
      ++row.otherwise;
    }
  }

  bool verify_tells(const Damage& damage, const std::set<Finding>& expected) {
    std::set<Finding> found;
    std::string told;
    for (const Problem& p : verify(env_, path_of(newest_), 1).problems) {
      found.insert({p.code, p.file, p.tensor, p.kind});
      told += fmt::format("\n  {} {} {} {}: {}", p.code, p.file, p.tensor, p.kind, p.message);
      if (p.message.find(p.file) == std::string::npos) told += "\n  (names no file)", found.clear();
    }
    if (!found.empty() && found == expected) return true;
    surprise(damage, fmt::format("verify says other than the {} that are there:{}", expected.size(), told));
    return false;
  }

  /// Newest first, as resuming does: what the search for the newest valid one passes over, then what cannot
  /// be loaded.
  bool resumes(const Damage& damage, const std::set<Finding>& findings, Row& row) {
    const bool all = damage.kind != kByteFlipped || row.damages % 64 == 1;
    const bool structural = is_structural(findings), met = is_met_by_loading(findings);
    const auto names_it = [&](const std::string& reason) {
      return std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
        return reason.find(path_of(newest_) + "/" + std::get<1>(finding)) != std::string::npos;
      });
    };
    if (all || (structural && thorough_)) {
      std::vector<PassedOver> passed_over;
      const auto selected = newest_valid(env_, "/checkpoints", &passed_over);
      const Whole& right = structural ? older_ : newest_;
      if (!selected || selected->path != path_of(right) ||
          (structural && (passed_over.size() != 1 || !names_it(passed_over[0].reason)))) {
        surprise(damage, "the search selects another one, or does not name the file that it passes over");
        return false;
      }
      if (structural) ++row.older;
    }
    try {
      if (!load(path_of(newest_), newest_.step)) {
        surprise(damage, "loads WRONG VALUES");
        return false;
      }
      if (met) {
        surprise(damage, "loads as if nothing was wrong");
        return false;
      }
      ++row.harmless;
      return true;
    } catch (const Error& e) {
      if (!met || !names_it(e.what()) ||
          (e.code() != ErrorCode::damaged && e.code() != ErrorCode::incomplete)) {
        surprise(damage,
                 fmt::format("refused by load as {}, or without its name: {}", name(e.code()), e.what()));
        return false;
      }
      ++row.refused;
    }
    if (all && !falls_back()) {
      surprise(damage, "the older one is not what is loaded then");
      return false;
    }
    if (all && !structural) ++row.older;
    return true;
  }

  bool falls_back() {
    for (const ScanEntry& entry : scan(env_, "/checkpoints"))
      if (entry.status == Status::valid && entry.path != path_of(newest_))
        return entry.path == path_of(older_) && load(entry.path, older_.step);
    return false;
  }

  const bool thorough_;
  TempDir temp_;
  MemoryEnv env_;
  Whole older_, newest_, attempt_, run_;
  const std::string newest_dir_ = directory(6);
  std::vector<SampleState> states_;
  std::map<std::uint64_t, std::vector<std::vector<std::byte>>> expected_;
  std::map<std::string, Row> rows_;
  int surprises_ = 0;
};

}  // namespace
}  // namespace shardwright::ckpt

int main(int argc, char** argv) {
  using namespace shardwright::ckpt;
  const std::string size = argc == 2 ? argv[1] : "";
  if (size != "small" && size != "large") {
    std::fprintf(stderr, "usage: damage_sweep small|large\n");
    return 2;
  }
  try {
    Sweep sweep(size == "small" ? small_states() : large_states(), size == "small" ? 2 : 3, size == "large");
    return sweep.run() ? 0 : 1;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "damage_sweep: %s\n", e.what());
    return 1;
  }
}
