// A disk that fails at any operation of a reshard, and a source that goes away: nothing that could be taken
// for a checkpoint, no trace, and the next try succeeds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "ckpt/error.h"
#include "ckpt/verify.h"
#include "reshard/reshard.h"
#include "tests/tools/label_fill.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::reshard {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// With what a reshard may change beside the layout, and without.
class ReshardFailures : public ::testing::TestWithParam<bool> {
 protected:
  ReshardFailures() {
    source_ = dir_ / "source";
    const ModelSpec model =
        build_model({.layers = 1, .hidden = 12, .heads = 3, .ffn = 2503, .vocab = 31, .seq_len = 7});
    write_labelled(posix_, source_, model, parse_layout("t1p1d3z1"), 7);
  }
  ReshardOptions options(const std::string& name) {
    ReshardOptions o;
    o.source = source_;
    o.target = dir_ / name;
    o.layout = parse_layout("t3p1d1z0");
    o.jobs = 2;
    if (GetParam()) {
      o.conversion.vocab = 37;
      o.conversion.casts = {{kExpAvg, ckpt::DType::bf16}};
    }
    return o;
  }
  void expect_right(const std::string& path) {
    EXPECT_TRUE(ckpt::verify(posix_, path, 1).ok());
    if (!GetParam()) {
      EXPECT_THAT(check_labels(posix_, path), IsEmpty());
    }
  }
  std::vector<std::string> names() { return posix_.list(dir_.path()); }

  ckpt::Env& posix_ = ckpt::posix_env();
  TempDir dir_;
  std::string source_;
};

TEST_P(ReshardFailures, AnyOperationThatFails) {
  ckpt::TraceEnv env;
  reshard(env, options("whole"));
  const std::size_t count = env.ops().size();
  ASSERT_GT(count, 60u);
  ckpt::remove_checkpoint_dir(posix_, dir_ / "whole");
  std::size_t committed = 0;
  for (const int error : {ENOSPC, EIO}) {
    // All at the ends, where each is of another kind, and some of the many writes between.
    for (std::size_t i = 0; i < count; i += i + 45 < count && i > 8 ? 7 : 1) {
      SCOPED_TRACE(fmt::format("operation {} of {}, error {}", i, count, error));
      env.clear();
      env.fail_at(i, error);
      try {
        reshard(env, options("b"));
        ADD_FAILURE() << "the failure was not seen";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), error == ENOSPC ? ErrorCode::no_space : ErrorCode::io) << e.what();
      }
      env.stop_failing();
      if (posix_.exists(dir_ / "b")) {
        // What fails behind the commit point is said, and the target is whole.
        ++committed;
        expect_right(dir_ / "b");
        ckpt::remove_checkpoint_dir(posix_, dir_ / "b");
        posix_.unlink(dir_ / "b.lock");
      } else {
        EXPECT_EQ(names(), (std::vector<std::string>{"source"}));
      }
    }
  }
  EXPECT_LE(committed, 4u);
  EXPECT_GT(committed, 0u);
}

TEST_P(ReshardFailures, ADiskThatDiesLeavesNothingSelectable) {
  ckpt::TraceEnv env;
  reshard(env, options("whole"));
  const std::size_t count = env.ops().size();
  for (std::size_t i = 3; i + 5 < count; i += count / 13) {
    env.clear();
    env.fail_at(i, EIO, true);
    EXPECT_THROW(reshard(env, options("b")), Error) << i;
    env.stop_failing();
    EXPECT_FALSE(posix_.exists(dir_ / "b")) << i;
    // What could not be removed is found by the next try.
    EXPECT_TRUE(reshard(env, options("b")).proof_ok) << i;
    EXPECT_EQ(names(), (std::vector<std::string>{"b", "source", "whole"})) << i;
    expect_right(dir_ / "b");
    ckpt::remove_checkpoint_dir(posix_, dir_ / "b");
  }
}

TEST_P(ReshardFailures, ASourceThatIsRemovedMeanwhileIsSaid) {
  ReshardOptions o = options("b");
  bool removed = false;
  o.progress = [&](std::uint64_t, std::uint64_t) {
    if (!removed) ckpt::remove_checkpoint_dir(posix_, source_);
    removed = true;
  };
  try {
    reshard(posix_, o);
    FAIL() << "the end of the source was not seen";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::missing) << e.what();
    EXPECT_THAT(e.what(), HasSubstr("removed while being read"));
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_P(ReshardFailures, EachDamagedShardIsNamed) {
  for (const std::string& name : posix_.list(source_)) {
    if (!name.ends_with(".h5")) continue;
    const std::string path = source_ + "/" + name, whole = ckpt::read_file(posix_, path);
    for (const std::size_t at : {std::size_t{9}, whole.size() / 2, whole.size() - 3}) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 8);
      posix_.create(path)->write(0, std::as_bytes(std::span(bytes)));
      try {
        reshard(posix_, options("b"));
        ADD_FAILURE() << name << " " << at << ": was not refused";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::damaged) << e.what();
        EXPECT_THAT(e.what(), HasSubstr(name));
      }
      EXPECT_EQ(names(), (std::vector<std::string>{"source"}));
    }
    posix_.create(path)->write(0, std::as_bytes(std::span(whole)));
  }
  EXPECT_TRUE(reshard(posix_, options("b")).proof_ok);
}

INSTANTIATE_TEST_SUITE_P(, ReshardFailures, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Converted" : "AsItIs"; });

}  // namespace
}  // namespace shardwright::reshard
