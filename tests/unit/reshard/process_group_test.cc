// Several processes at one reshard: they make what one makes, and whatever happens to one of them, all end.
#include "reshard/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <thread>

#include "ckpt/error.h"
#include "reshard/reshard.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::reshard {
namespace {

using ::testing::HasSubstr;

constexpr const char* kTarget = "t3p2d1z0";

class ProcessGroupTest : public ::testing::Test {
 protected:
  ProcessGroupTest() {
    source_ = dir_ / "source";
    const ModelSpec model =
        build_model({.layers = 2, .hidden = 66, .heads = 6, .ffn = 1103, .vocab = 97, .seq_len = 7});
    write_labelled(env_, source_, model, parse_layout("t2p1d3z1"), 7);
  }
  ReshardOptions options(const std::string& name, int rank, ProcessTimes times = {}) {
    ReshardOptions o;
    o.source = source_;
    o.target = dir_ / name;
    o.layout = parse_layout(kTarget);
    o.process = {rank, 3};
    o.times = times;
    return o;
  }
  std::map<std::string, std::string> files(const std::string& directory) {
    std::map<std::string, std::string> contents;
    for (const std::string& name : env_.list(directory))
      contents[name] = ckpt::read_file(env_, directory + "/" + name);
    return contents;
  }
  std::map<std::string, std::string> files_of_one() {
    ReshardOptions o = options("one", 0);
    o.process = {};
    reshard(env_, o);
    return files(o.target);
  }
  // Another process at the same work, with a fault of its own.
  pid_t started(const ReshardOptions& o, const std::string& fault = "") {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setenv("SHARDWRIGHT_FAULT", fault.c_str(), 1);
    if (fault.empty()) ::unsetenv("SHARDWRIGHT_FAULT");
    ::setenv("RESHARD_FROM", o.source.c_str(), 1);
    ::setenv("RESHARD_TO", o.target.c_str(), 1);
    ::setenv("RESHARD_TIMES", fmt::format("{}", o.times.progress_s).c_str(), 1);
    ::setenv("PMI_RANK", std::to_string(o.process.rank).c_str(), 1);
    ::setenv("PMI_SIZE", "3", 1);
    ::execl("/proc/self/exe", "unit_reshard", "--gtest_filter=ProcessGroupChild.DISABLED_Run",
            "--gtest_also_run_disabled_tests", nullptr);
    ::_exit(9);
  }
  // Its exit status, or minus the signal that ended it.
  static int outcome(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  Error refusal(const ReshardOptions& o) {
    try {
      reshard(env_, o);
    } catch (const Error& e) {
      return e;
    }
    ADD_FAILURE() << "was not refused";
    return {ErrorCode::usage, ""};
  }

  ckpt::Env& env_ = ckpt::posix_env();
  TempDir dir_;
  std::string source_;
};

// Not a test: what the ones below start. Ends with 100 and the number of the error's code.
TEST(ProcessGroupChild, DISABLED_Run) {
  if (::getenv("RESHARD_TIMES") == nullptr) return;
  ReshardOptions o;
  o.source = ::getenv("RESHARD_FROM");
  o.target = ::getenv("RESHARD_TO");
  o.layout = parse_layout(kTarget);
  o.process = place_from_environment();
  o.times.progress_s = std::stod(::getenv("RESHARD_TIMES"));
  try {
    reshard(ckpt::posix_env(), o);
  } catch (const Error& e) {
    ::_exit(100 + static_cast<int>(e.code()));
  }
  ::_exit(0);
}

int failed_with(ErrorCode code) { return 100 + static_cast<int>(code); }

TEST_F(ProcessGroupTest, ThreeMakeWhatOneMakes) {
  const ReshardOptions o = options("three", 0);
  const pid_t one = started(options("three", 1)), two = started(options("three", 2));
  const ReshardReport report = reshard(env_, o);
  EXPECT_EQ(outcome(one), 0);
  EXPECT_EQ(outcome(two), 0);
  EXPECT_TRUE(report.proof_ok);
  EXPECT_EQ(report.files_written, 6u);
  EXPECT_GE(report.read_bytes, report.needed_bytes) << "counted over all of them";
  EXPECT_EQ(files(o.target), files_of_one());
  EXPECT_EQ(env_.list(dir_.path()), (std::vector<std::string>{"one", "source", "three"}));
}

TEST_F(ProcessGroupTest, OneThatIsKilledEndsAllAndWhatIsFinishedIsKept) {
  const pid_t one = started(options("b", 1)), two = started(options("b", 2), "shard.mid:rank=5=kill");
  const Error e = refusal(options("b", 0));
  EXPECT_EQ(e.code(), ErrorCode::peer);
  EXPECT_THAT(e.what(), HasSubstr("process 2 of 3: ended before its work was done"));
  EXPECT_EQ(outcome(two), -SIGKILL);
  EXPECT_EQ(outcome(one), failed_with(ErrorCode::peer));
  EXPECT_FALSE(env_.exists(dir_ / "b"));
  ReshardOptions again = options("b", 0);
  again.process = {};
  EXPECT_TRUE(reshard(env_, again).proof_ok);
  EXPECT_EQ(files(again.target), files_of_one());
  EXPECT_EQ(env_.list(dir_.path()), (std::vector<std::string>{"b", "one", "source"}));
}

TEST_F(ProcessGroupTest, OneThatHangsEndsAllAndKeepsOthersAway) {
  const ProcessTimes times{.progress_s = 0.7, .leave_s = 1};
  const pid_t one = started(options("b", 1, times)),
              two = started(options("b", 2, times), "shard.mid:rank=5=stop");
  const Error e = refusal(options("b", 0, times));
  EXPECT_EQ(e.code(), ErrorCode::deadline);
  EXPECT_THAT(e.what(), HasSubstr("process 2 of 3: lives but has done nothing for 0.7 s"));
  EXPECT_EQ(outcome(one), failed_with(ErrorCode::deadline));
  ::kill(two, SIGKILL);
  EXPECT_EQ(outcome(two), -SIGKILL);
  ReshardOptions again = options("b", 0);
  again.process = {};
  EXPECT_TRUE(reshard(env_, again).proof_ok);
  EXPECT_EQ(files(again.target), files_of_one());
}

TEST_F(ProcessGroupTest, ALeaderThatIsKilledEndsAll) {
  for (const char* fault : {"shard.mid:rank=1=kill", "manifest.write=kill", "dir.rename=kill"}) {
    const pid_t leader = started(options(fault, 0), fault), one = started(options(fault, 1));
    EXPECT_THAT(refusal(options(fault, 2)).what(),
                HasSubstr("process 0 of 3: ended before its work was done"));
    EXPECT_EQ(outcome(leader), -SIGKILL);
    EXPECT_EQ(outcome(one), failed_with(ErrorCode::peer));
    EXPECT_FALSE(env_.exists(dir_ / fault));
    // Again by as many.
    const pid_t two = started(options(fault, 2)), other = started(options(fault, 1));
    EXPECT_TRUE(reshard(env_, options(fault, 0)).proof_ok) << fault;
    EXPECT_EQ(outcome(two), 0);
    EXPECT_EQ(outcome(other), 0);
  }
}

TEST_F(ProcessGroupTest, AFullDiskOfOneIsSaidByAllAndNothingStays) {
  for (const char* fault : {"shard.open:rank=2=enospc", "shard.mid:rank=3=enospc",
                            "shard.fsync:rank=2=enospc", "part.rename:rank=3=enospc"}) {
    const pid_t one = started(options("b", 1), fault), two = started(options("b", 2));
    const Error e = refusal(options("b", 0));
    EXPECT_EQ(e.code(), ErrorCode::no_space) << fault;
    EXPECT_THAT(e.what(), HasSubstr("process 1 of 3: "));
    EXPECT_EQ(outcome(one), failed_with(ErrorCode::no_space));
    EXPECT_EQ(outcome(two), failed_with(ErrorCode::no_space));
    EXPECT_EQ(env_.list(dir_.path()), (std::vector<std::string>{"source"}));
  }
}

TEST_F(ProcessGroupTest, OneThatDoesNotComeIsNamed) {
  const pid_t one = started(options("b", 1));
  const Error e = refusal(options("b", 0, {.start_s = 0.5}));
  EXPECT_EQ(e.code(), ErrorCode::deadline);
  EXPECT_THAT(e.what(), HasSubstr("process 2 of 3: did not come within 0.5 s"));
  ::kill(one, SIGKILL);
  outcome(one);
  EXPECT_EQ(refusal(options("b", 2, {.start_s = 0.2})).code(), ErrorCode::deadline);
}

TEST_F(ProcessGroupTest, TwoOfOneRankAreOneTooMany) {
  const std::string directory = dir_ / "group";
  const ProcessGroup first(env_, directory, {1, 3});
  EXPECT_TRUE(group_lives(env_, directory));
  try {
    const ProcessGroup second(env_, directory, {1, 3});
    FAIL() << "two of one rank";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::busy);
  }
}

class Environment : public ::testing::Test {
 protected:
  void SetUp() override { TearDown(); }
  void TearDown() override {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
                             "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
      ::unsetenv(name);
  }
};

TEST_F(Environment, LaunchersSayWhichProcessThisIs) {
  EXPECT_EQ(place_from_environment().count, 1);
  // A batch script without srun.
  ::setenv("SLURM_PROCID", "0", 1);
  ::setenv("SLURM_NTASKS", "5", 1);
  EXPECT_EQ(place_from_environment().count, 1);
  ::setenv("SLURM_STEP_NUM_TASKS", "5", 1);
  EXPECT_EQ(place_from_environment().count, 5);
  ::setenv("PMI_RANK", "2", 1);
  ::setenv("PMI_SIZE", "7", 1);
  EXPECT_EQ(place_from_environment().rank, 2);
  ::setenv("PMI_RANK", "7", 1);
  EXPECT_THROW(place_from_environment(), Error);
  ::setenv("PMI_RANK", "x", 1);
  EXPECT_THROW(place_from_environment(), Error);
}

}  // namespace
}  // namespace shardwright::reshard
