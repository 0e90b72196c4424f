#include "ckpt/fault.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "ckpt/error.h"

namespace shardwright::ckpt {
namespace {

class Fault : public testing::Test {
 protected:
  ~Fault() override { set_fault(""); }

  static bool strikes(std::string_view point, int rank = 0, std::optional<std::uint64_t> step = {}) {
    try {
      fault_point(point, rank, step);
      return false;
    } catch (const Error&) {
      return true;
    }
  }
  static std::string refusal(const std::string& request) {
    try {
      set_fault(request);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::usage);
      return error.what();
    }
    return "";
  }
};

TEST_F(Fault, NamesOfTheContract) {
  for (const char* point :
       {"step.begin",     "step.forward",   "step.backward", "step.loss",    "step.optimizer", "save.begin",
        "save.window",    "shard.open",     "shard.mid",     "shard.close",  "shard.fsync",    "part.rename",
        "manifest.write", "commit.write",   "commit.rename", "dir.rename",   "retire",         "load.plan",
        "load.mid",       "offload.create", "offload.read",  "offload.write"}) {
    set_fault(std::string(point) + "=eio");
    EXPECT_TRUE(strikes(point));
  }
}

TEST_F(Fault, NothingAskedDoesNothing) {
  set_fault("");
  for (const std::string& point : fault_point_names()) EXPECT_FALSE(strikes(point));
}

TEST_F(Fault, ConditionsChooseTheVisit) {
  set_fault("shard.mid:rank=2:step=5=enospc");
  EXPECT_FALSE(strikes("shard.open", 2, 5));
  EXPECT_FALSE(strikes("shard.mid", 1, 5));
  EXPECT_FALSE(strikes("shard.mid", 2, 4));
  EXPECT_FALSE(strikes("shard.mid", 2));  // a place that knows no step has none
  EXPECT_TRUE(strikes("shard.mid", 2, 5));
  EXPECT_TRUE(strikes("shard.mid", 2, 5));
  set_fault("retire:nth=3=eio");
  EXPECT_FALSE(strikes("retire"));
  EXPECT_FALSE(strikes("retire"));
  EXPECT_TRUE(strikes("retire"));
  EXPECT_FALSE(strikes("retire"));
}

TEST_F(Fault, ActionsThatThrowAreTheSystemsErrors) {
  set_fault("load.mid=enospc");
  try {
    fault_point("load.mid");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_space);
  }
  set_fault("load.mid=eio");
  try {
    fault_point("load.mid");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
  }
}

TEST_F(Fault, DelaySleeps) {
  set_fault("save.begin=delay(30)");
  const auto start = std::chrono::steady_clock::now();
  fault_point("save.begin");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(30));
}

TEST_F(Fault, ValuesAreSpoiledWhereThereIsOne) {
  set_fault("step.loss:rank=1:step=5:nth=2=nan");
  EXPECT_EQ(faulty_value("step.loss", 2.5, 1, 4), 2.5);
  EXPECT_EQ(faulty_value("step.loss", 2.5, 0, 5), 2.5);
  EXPECT_EQ(faulty_value("step.loss", 2.5, 1, 5), 2.5);
  EXPECT_TRUE(std::isnan(faulty_value("step.loss", 2.5, 1, 5)));
  EXPECT_EQ(faulty_value("step.loss", 2.5, 1, 5), 2.5);
  set_fault("step.loss=eio");
  EXPECT_THROW(faulty_value("step.loss", 2.5, 0, 1), Error);
  EXPECT_THROW(set_fault("step.begin=nan"), Error);
}

TEST_F(Fault, MemoryIsSpoiledWhereThereIsSome) {
  std::array<std::byte, 3> memory{};
  set_fault("save.replica:rank=1:nth=2=flip");
  faulty_memory("save.replica", memory, 0, 4);
  faulty_memory("save.replica", memory, 1, 4);
  EXPECT_EQ(memory, (std::array<std::byte, 3>{}));
  faulty_memory("save.replica", memory, 1, 4);
  EXPECT_EQ(memory, (std::array<std::byte, 3>{std::byte{1}}));
  faulty_memory("save.replica", memory, 1, 4);
  EXPECT_EQ(memory, (std::array<std::byte, 3>{std::byte{1}}));
  set_fault("save.replica=flip");
  faulty_memory("save.replica", {}, 1, 4);  // nothing to spoil
  set_fault("save.replica=eio");
  EXPECT_THROW(faulty_memory("save.replica", memory, 0, 1), Error);
  EXPECT_THROW(set_fault("step.loss=flip"), Error);
  EXPECT_THROW(set_fault("save.replica=nan"), Error);
}

TEST_F(Fault, GenerationChoosesTheCall) {
  set_fault("retire:gen=1=eio");
  EXPECT_FALSE(strikes("retire"));
  ::setenv("SHARDWRIGHT_CALL_GENERATION", "1", 1);
  set_fault("retire:gen=1=eio");
  EXPECT_TRUE(strikes("retire"));
  set_fault("retire=eio");  // the first generation's
  EXPECT_FALSE(strikes("retire"));
  ::unsetenv("SHARDWRIGHT_CALL_GENERATION");
}

TEST_F(Fault, VariableIsChecked) {
  ::setenv("SHARDWRIGHT_FAULT", "retire=eio", 1);
  check_fault_variable();
  EXPECT_TRUE(strikes("retire"));
  ::setenv("SHARDWRIGHT_FAULT", "retire=explode", 1);
  EXPECT_THROW(check_fault_variable(), Error);
  ::unsetenv("SHARDWRIGHT_FAULT");
  check_fault_variable();
  EXPECT_FALSE(strikes("retire"));
}

TEST_F(Fault, TypingErrorsAreRefused) {
  EXPECT_NE(refusal("shard.midd=kill").find("'shard.mid'"), std::string::npos);  // the nearest
  EXPECT_NE(refusal("shard.mid=burn").find("delay(ms)"), std::string::npos);
  EXPECT_NE(refusal("shard.mid:node=2=kill").find("rank, step, nth and gen"), std::string::npos);
  for (const char* bad :
       {"shard.mid", "shard.mid:rank=two=kill", "shard.mid:rank=-1=kill", "shard.mid:rank=kill",
        "shard.mid:nth=0=kill", "shard.mid=delay(x)", "shard.mid=delay(5", "=kill", "shard.mid:rank==kill"})
    EXPECT_NE(refusal(bad), "") << bad;
}

using FaultDeathTest = Fault;

TEST_F(FaultDeathTest, KillAndExitEndTheProcess) {
  testing::FLAGS_gtest_death_test_style = "fast";
  EXPECT_EXIT(
      {
        set_fault("step.begin=kill");
        fault_point("step.begin");
      },
      testing::KilledBySignal(SIGKILL), "");
  EXPECT_EXIT(
      {
        set_fault("step.begin=exit");
        fault_point("step.begin");
      },
      testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace shardwright::ckpt
