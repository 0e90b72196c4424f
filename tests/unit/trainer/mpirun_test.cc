#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "ckpt/error.h"
#include "tests/tools/temp_dir.h"
#include "trainer/launcher.h"
#include "trainer/mpirun_process.h"
#include "trainer/process_mark.h"
#include "trainer/scratch_dir.h"
#include "trainer/train.h"

namespace shardwright::trainer {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

TEST(Mpirun, FirstDeathIsReadFromItsText) {
  const auto killed = parse_first_death(
      "Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n---\nmpirun noticed "
      "that "
      "process rank 13 with PID 0 on node vm-1.x exited on signal 9 (Killed).\n---\n");
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->rank, 13);
  EXPECT_EQ(killed->signal, 9);
  EXPECT_FALSE(killed->status);
  const auto left = parse_first_death(
      "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be "
      "terminated. The first process to do so was:\n\n  Process name: [[14746,1],3]\n  Exit code:    70\n");
  ASSERT_TRUE(left);
  EXPECT_EQ(left->rank, 3);
  EXPECT_EQ(left->status, 70);
  EXPECT_FALSE(parse_first_death("There are not enough slots available"));
}

TEST(Mpirun, EnvironmentHasNoOuterLauncher) {
  EXPECT_THAT(clean_environment({"PATH=/bin", "SLURM_JOB_ID=3", "PMIX_RANK=0", "OMPI_COMM_WORLD_SIZE=4",
                                 "SLURMX=1", "SHARDWRIGHT_RUN=old", "EMPTY="},
                                {{"SHARDWRIGHT_RUN", "new"}}),
              ElementsAre("PATH=/bin", "SLURMX=1", "EMPTY=", "SHARDWRIGHT_RUN=new"));
}

TEST(Mpirun, RootIsAllowedOnlyWhenItIsRoot) {
  MpirunOptions options;
  options.ranks = 3;
  options.command = {"prog", "train"};
  EXPECT_THAT(mpirun_arguments("mpirun", options, true), Contains("--allow-run-as-root"));
  const auto arguments = mpirun_arguments("mpirun", options, false);
  EXPECT_THAT(arguments, Not(Contains("--allow-run-as-root")));
  EXPECT_THAT(std::vector<std::string>(arguments.end() - 4, arguments.end()),
              ElementsAre("-n", "3", "prog", "train"));
}

TEST(ProcessMark, FindsAndEndsStoppedProcessesOfAnyGroup) {
  const std::string mark = "SHARDWRIGHT_MARK_TEST=" + std::to_string(::getpid());
  EXPECT_THAT(processes_marked(mark), IsEmpty());
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setsid();
      const char* arguments[] = {"sleep", "60", nullptr};
      const char* environment[] = {"A=1", mark.c_str(), nullptr};
      ::execve("/bin/sleep", const_cast<char**>(arguments), const_cast<char**>(environment));
      ::_exit(1);
    }
    children.push_back(child);
  }
  while (processes_marked(mark).size() < 2) ::usleep(1000);
  ::kill(children[0], SIGSTOP);
  while (!is_stopped(children[0])) ::usleep(1000);
  EXPECT_FALSE(is_stopped(children[1]));
  EXPECT_THAT(processes_marked(mark.substr(0, mark.size() - 1)), IsEmpty());
  end_processes_marked(mark, 10);
  EXPECT_THAT(processes_marked(mark), IsEmpty());
}

TEST(ScratchDir, IsRemovedAndSoIsWhatAKilledOwnerLeft) {
  TempDir parent;
  const auto entries = [&] {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(parent.path()))
      names.push_back(entry.path().string());
    return names;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ScratchDir* leaked = new ScratchDir(parent.path());
    std::ofstream(leaked->path() + "/segment") << "x";
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(entries(), SizeIs(1));
  {
    const ScratchDir living(parent.path());
    EXPECT_THAT(entries(), ElementsAre(living.path()));
    const ScratchDir second(parent.path());
    EXPECT_THAT(entries(), SizeIs(2)) << "a living owner's directory stays";
    std::ofstream(living.path() + "/segment") << "x";
    const_cast<ScratchDir&>(living).clear();
    EXPECT_FALSE(std::filesystem::exists(living.path() + "/segment"));
  }
  EXPECT_THAT(entries(), IsEmpty());
}

class LauncherEnvironment : public testing::Test {
 protected:
  static constexpr const char* kNames[] = {"OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_RANK",
                                           "SLURM_STEP_ID",
                                           "PMIX_RANK",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "SHARDWRIGHT_RUN",
                                           "SHARDWRIGHT_GENERATION",
                                           "SHARDWRIGHT_HEARTBEAT"};
  LauncherEnvironment() { clear(); }
  ~LauncherEnvironment() override { clear(); }
  static void clear() {
    for (const char* name : kNames) ::unsetenv(name);
  }
};

TEST_F(LauncherEnvironment, WorkersAreKnownByTheirVariables) {
  EXPECT_FALSE(is_worker());
  ::setenv("SLURM_STEP_ID", "0", 1);
  EXPECT_FALSE(is_worker());
  ::setenv("PMIX_RANK", "3", 1);
  EXPECT_TRUE(is_worker());
  EXPECT_EQ(launcher_rank(), 3);
  clear();
  ::setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "2", 1);
  EXPECT_TRUE(is_worker());
  EXPECT_EQ(launcher_rank(), 2);
}

TEST_F(LauncherEnvironment, TorchrunIsRefusedOnCpus) {
  ::setenv("RANK", "0", 1);
  EXPECT_FALSE(is_worker());
  ::setenv("WORLD_SIZE", "2", 1);
  EXPECT_THROW(is_worker(), Error);
}

TEST_F(LauncherEnvironment, SupervisedNeedsAllOfItsVariables) {
  EXPECT_FALSE(supervised());
  ::setenv("SHARDWRIGHT_RUN", "uuid", 1);
  EXPECT_THROW(supervised(), Error);
  ::setenv("SHARDWRIGHT_GENERATION", "12", 1);
  ::setenv("SHARDWRIGHT_HEARTBEAT", "name", 1);
  ASSERT_TRUE(supervised());
  EXPECT_EQ(supervised()->generation, 12U);
  EXPECT_EQ(supervised()->run, "uuid");
  ::setenv("SHARDWRIGHT_GENERATION", "twelve", 1);
  EXPECT_THROW(supervised(), Error);
}

TEST(LogPath, IsThatOfTheContract) {
  EXPECT_EQ(log_path("runs/x", 3, 2), "runs/x/logs/gen-0003/rank-00002.log");
}

}  // namespace
}  // namespace shardwright::trainer
