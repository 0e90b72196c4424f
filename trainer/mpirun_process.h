// One `mpirun` and what it starts, as a child of the supervisor: a process group of its own, a clean
// environment, its own text in a log and its ranks' standard output on ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/process_handle.h"

namespace shardwright::trainer {

struct MpirunOptions {
  int ranks = 1;
  std::vector<std::string> command;                              // program and arguments of each rank
  std::vector<std::pair<std::string, std::string>> environment;  // added for mpirun and the ranks
  std::string log;                                               // mpirun's standard error is appended here
  std::string session_dir;                                       // for its session files
  std::string shared_memory_dir;                                 // for the ranks' shared segments
};

/// Path of `mpirun` by PATH. Error(missing) says what to install.
std::string find_mpirun();

/// The arguments of mpirun, itself first. Pure.
std::vector<std::string> mpirun_arguments(const std::string& mpirun, const MpirunOptions& options, bool root);

/// `environment` ("NAME=value" each) without what an outer launcher left there (SLURM_*, PMIX_*, OMPI_*) and
/// with the additions, which replace variables of the same name. Pure.
std::vector<std::string> clean_environment(const std::vector<std::string>& environment,
                                           const std::vector<std::pair<std::string, std::string>>& additions);

/// Which rank ended a job, as mpirun tells it.
struct FirstDeath {
  int rank = -1;
  std::optional<int> signal;
  std::optional<int> status;
};
/// Looks for it in mpirun's text. Pure.
std::optional<FirstDeath> parse_first_death(const std::string& text);

/// Open files that `mpirun` may need for that many ranks.
std::uint64_t descriptors_of_mpirun(int ranks);

/// Raises this process's limit of open files to what `mpirun` needs for that many ranks, as far as is
/// allowed; with fewer it waits for ever. Error(io) if it is not.
void allow_descriptors(int ranks);

/// Error(io) where this process' files may not have the size that Open MPI's need: it would hang.
void check_file_size_limit();

class MpirunProcess {
 public:
  /// Starts it. If the supervisor dies, the kernel kills it (and each rank dies with it, see
  /// redirect_to_log). Error(io).
  explicit MpirunProcess(const MpirunOptions& options);
  /// Kills mpirun, if it still runs, and reaps it. Its ranks are the caller's to end.
  ~MpirunProcess();
  MpirunProcess(const MpirunProcess&) = delete;
  MpirunProcess& operator=(const MpirunProcess&) = delete;

  /// Readable when the ranks have written to standard output, or have closed it; -1 while our own standard
  /// output takes nothing.
  int output_fd() const { return blocked_ ? -1 : output_; }
  /// Readable when mpirun has ended.
  int end_fd() const { return process_.fd(); }
  /// Passes the ranks' standard output on to ours, without waiting for more of it. Whoever reads ours may be
  /// slow, or stopped (a pager): waits for that at most `patience_ms` at a time, and leaves the rest for the
  /// next call. What cannot be written at all is dropped, with one warning unless it is the reader that is
  /// gone.
  void pump(int patience_ms = 0);
  /// mpirun forwards SIGUSR1 to every rank.
  void signal(int number);
  bool ended();
  /// Exit status, or 128 plus the signal, once it has ended.
  int status() const { return status_; }
  /// What mpirun wrote to its log since it was started.
  std::string text() const;

 private:
  void pass_on(std::string_view text);

  std::string log_;
  std::int64_t log_start_ = 0;
  int pid_ = -1;
  int output_ = -1;
  ProcessHandle process_;
  bool ended_ = false;
  int status_ = 0;
  bool blocked_ = false;        // our standard output is full
  bool output_failed_ = false;  // and was said to
};

}  // namespace shardwright::trainer
