#include "ckpt/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "ckpt/scan.h"
#include "ckpt/typed_items.h"
#include "ckpt/verify.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"
#include "tests/tools/trace_env.h"

namespace shardwright::ckpt {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Owner = Run;  // a fixture has a Run of its own

/// What came of a call: a path or an Error.
struct Outcome {
  std::string path;
  std::optional<Error> error;
};

class RunTest : public ::testing::Test {
 protected:
  std::vector<RunWriter> writers(const Owner& run, int count, double deadline_s = 30) {
    std::vector<RunWriter> all;
    for (int rank = 0; rank < count; ++rank) {
      RunWriterOptions options;
      options.rank = rank;
      options.writers = count;
      options.deadline_s = deadline_s;
      all.emplace_back(directory_, run.generation(), options);
    }
    return all;
  }

  /// All at once, as processes would; `items` of each rank.
  static std::vector<Outcome> save(std::vector<RunWriter>& all, std::uint64_t step,
                                   const std::function<std::vector<SaveItem>(int)>& items) {
    std::vector<Outcome> outcomes(all.size());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      threads.emplace_back([&, rank] {
        try {
          outcomes[rank].path = all[rank].save(step, items(static_cast<int>(rank)), sample_description(step));
        } catch (const Error& e) {
          outcomes[rank].error = e;
        }
      });
    threads.clear();
    return outcomes;
  }
  static std::vector<Outcome> save(std::vector<RunWriter>& all, std::uint64_t step) {
    return save(all, step, [&](int rank) { return sample_items(rank, static_cast<int>(all.size()), step); });
  }

  TempDir dir_;
  std::string directory_ = dir_ / "run";
  Env& env_ = posix_env();
};

TEST_F(RunTest, AWriterThatCountsMoreWritersIsTold) {
  Owner run(directory_);
  std::vector<RunWriter> two = writers(run, 2);
  std::vector<RunWriter> three = writers(run, 3);
  RunWriter& third = three[2];
  const std::vector<float> extra(4);
  third.start(10, {save_item("extra", "state", {4}, {{0}, {4}}, extra)});
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  for (const Outcome& outcome : save(two, 10)) EXPECT_FALSE(outcome.error) << outcome.error->what();
  try {
    third.wait();
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), HasSubstr("committed without rank 2, because rank 0 counts fewer writers than 3"));
  }
  EXPECT_TRUE(verify(env_, *run.newest(), 1).ok());
}

/// A file system on which one file's removal comes to nothing.
class ForgetfulEnv : public TraceEnv {
 public:
  explicit ForgetfulEnv(std::string kept) : kept_(std::move(kept)) {}
  void unlink(const std::string& path) override {
    if (!path.ends_with(kept_)) TraceEnv::unlink(path);
  }

 private:
  std::string kept_;
};

TEST_F(RunTest, APartThatWasLeftCostsTheCheckpointNothing) {
  Owner run(directory_);
  ForgetfulEnv forgetful("/rank-00001.part");
  std::uint64_t step = 0;
  for (const bool empty : {false, true}) {
    step += 10;
    RunWriter zero(directory_, run.generation(), {.rank = 0, .writers = 2, .deadline_s = 30}, forgetful);
    RunWriter one(directory_, run.generation(), {.rank = 1, .writers = 2, .deadline_s = 30});
    zero.start(step, sample_items(0, empty ? 1 : 2, step), sample_description(step));
    one.start(step, empty ? std::vector<SaveItem>{} : sample_items(1, 2, step));
    const std::string path = zero.wait();
    EXPECT_TRUE(env_.exists(path + "/rank-00001.part"));
    EXPECT_EQ(one.wait(), path);
    EXPECT_FALSE(env_.exists(path + "/rank-00001.part"));
    EXPECT_TRUE(verify(env_, path, 1).ok());
    expect_sample(Checkpoint::open(env_, path), step);
  }
}

TEST_F(RunTest, TwoWritersOfOneRankNeverCommitAMixture) {
  Owner run(directory_);
  constexpr std::uint64_t n = 300'000;
  for (std::uint64_t step = 1; step <= 8; ++step) {
    std::vector<RunWriter> all = writers(run, 2);
    all.push_back(std::move(writers(run, 2)[1]));  // as rank 1, too
    const std::vector<std::vector<double>> values = {std::vector<double>(n, 0.5), std::vector<double>(n, 1.5),
                                                     std::vector<double>(n, 2.5)};
    std::vector<std::optional<Error>> errors(3);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < all.size(); ++i)
        threads.emplace_back([&, i] {
          try {
            const bool zero = i == 0;
            all[i].save(step, {save_item(zero ? "a" : "b", "state", {n}, {{0}, {n}}, values[i])});
          } catch (const Error& e) {
            errors[i] = e;
          }
        });
    }
    ASSERT_FALSE(errors[0]) << errors[0]->what();
    ASSERT_NE(errors[1].has_value(), errors[2].has_value()) << "one of the two is refused, at step " << step;
    const Error& refused = errors[1] ? *errors[1] : *errors[2];
    // By the file that is there; or it came when the attempt had its name already.
    EXPECT_NE(refused.code(), ErrorCode::deadline) << refused.what();
    if (refused.code() == ErrorCode::exists) {
      EXPECT_THAT(refused.what(), HasSubstr("another process writes as rank 1 too"));
    }
    EXPECT_TRUE(verify(env_, *run.newest(), 1).ok());
    std::vector<double> saved(n);
    const LoadItem item[] = {load_item("b", "state", {n}, {{0}, {n}}, saved)};
    Checkpoint::open(env_, *run.newest()).load(item, {});
    EXPECT_EQ(saved, values[errors[1] ? 2 : 1]);
  }
}

TEST_F(RunTest, RankZerosOwnFailureIsToldToThoseWhoWaitAndToThoseWhoComeLate) {
  Owner run(directory_);
  std::uint64_t step = 0;
  for (const bool late : {false, true}) {
    std::vector<RunWriter> all = writers(run, 3, 60);
    ++step;
    const auto start = std::chrono::steady_clock::now();
    Description wrong = sample_description(step);
    wrong.model = R"({"a": 1e400})";
    if (late) all[0].start(step, sample_items(0, 3, step), wrong);
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
    if (late) pause();
    for (const int rank : {1, 2})
      all[static_cast<std::size_t>(rank)].start(step, sample_items(rank, 3, step));
    if (!late) pause();
    if (!late) all[0].start(step, sample_items(0, 3, step), wrong);
    for (const int rank : {1, 2}) {  // rank 0 does something else before it waits
      const Error error = error_of([&] { all[static_cast<std::size_t>(rank)].wait(); });
      EXPECT_EQ(error.code(), ErrorCode::peer) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 0 gave the save up"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    const Error error = error_of([&] { all[0].wait(); });
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("model document: is no JSON object"));
    for (const Outcome& outcome : save(all, ++step)) ASSERT_FALSE(outcome.error) << outcome.error->what();
    for (const std::string& name : env_.list(checkpoints_of(directory_)))
      EXPECT_TRUE(name == "LATEST" || name == "run.lock" || parse_step_dir(name)) << name;
  }
}

TEST_F(RunTest, DocumentsAreJsonObjects) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  const std::string deep = R"({"a":)" + std::string(300, '[') + std::string(300, ']') + "}";
  const std::string wrong[] = {"no JSON", "7", "[]", "null", "{\"a\":\"\xff\"}", R"({"a":1e400})", deep};
  for (std::string Description::*document :
       {&Description::training, &Description::model, &Description::config, &Description::layout})
    for (const std::string& text : wrong) {
      Description description;
      description.*document = text;
      const Error error = error_of([&] { all[0].save(4, sample_items(0, 1, 4), description); });
      EXPECT_EQ(error.code(), ErrorCode::usage) << text;
      EXPECT_THAT(error.what(), HasSubstr(" document: ")) << text;
    }
  for (const char* step : {"3", "4.0", "\"4\"", "-4", "null"}) {
    Description description;
    description.training = std::string("{\"step\":") + step + "}";
    const Error error = error_of([&] { all[0].save(4, sample_items(0, 1, 4), description); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << step;
    EXPECT_THAT(error.what(), HasSubstr("training document: says step"));
  }
  EXPECT_EQ(run.newest(), std::nullopt);
  EXPECT_NO_THROW(all[0].save(4, sample_items(0, 1, 4), {R"({"step":4})", "", "{}", R"({"é":[null]})"}));
}

TEST_F(RunTest, BoxesThatDoNotMakeUpTheirTensorAreAMistakeOfWhoeverSavesThem) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  const std::vector<float> values(4);
  const auto box = [&](std::uint64_t first, std::uint64_t length) {
    return save_item("t", "state", {6}, {{first}, {length}}, std::span(values).first(length));
  };
  for (const auto& items :
       {std::vector{box(0, 4), box(2, 4)}, {box(0, 4), box(0, 4), box(4, 2)}, {box(0, 4)}})
    EXPECT_EQ(error_of([&] { all[0].save(1, items); }).code(), ErrorCode::usage);
  EXPECT_NO_THROW(all[0].save(1, {box(0, 4), box(4, 2)}));
}

TEST_F(RunTest, NamesThatCannotBeSavedAreRefusedAtOnce) {
  const std::vector<float> values(4);
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a@b"), std::string("a\xff"),
                                  std::string("a\nb"), std::string(1025, 'a'), std::string("..")}) {
    EXPECT_EQ(error_of([&] { save_item(name, "state", {4}, {{0}, {4}}, values); }).code(), ErrorCode::usage);
    EXPECT_EQ(error_of([&] { save_item("t", name, {4}, {{0}, {4}}, values); }).code(), ErrorCode::usage);
  }
  EXPECT_NO_THROW(save_item(std::string(1024, 'a'), "é", {4}, {{0}, {4}}, values));
}

TEST_F(RunTest, ARunOpenedForACheckpointNamesItsNewest) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  save(all, 1);
  const std::string newest = save(all, 2)[0].path;
  for (const std::string& path : {directory_, checkpoints_of(directory_)}) {
    const Error error = error_of([&] { Checkpoint::open(env_, path); });
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_THAT(error.what(), HasSubstr(newest + " is the newest valid one"));
  }
  EXPECT_EQ(resolve_checkpoint(env_, directory_), newest);
  EXPECT_EQ(error_of([&] { Checkpoint::open(env_, dir_.path()); }).code(), ErrorCode::incomplete);
}

TEST_F(RunTest, EveryWriterReturnsOnceTheCheckpointIsCommitted) {
  Owner run(directory_);
  EXPECT_EQ(run.newest(), std::nullopt);
  std::uint64_t step = 0;
  for (const int count : {1, 3, 7}) {
    std::vector<RunWriter> all = writers(run, count);
    for (int again = 0; again < 2; ++again) {
      step += 5;
      for (const Outcome& outcome : save(all, step)) {
        ASSERT_EQ(outcome.error, std::nullopt) << outcome.error->what();
        EXPECT_EQ(outcome.path, checkpoints_of(directory_) + "/" + step_dir_name(step));
      }
      EXPECT_TRUE(verify(env_, *run.newest(), 1).ok());
      expect_sample(Checkpoint::open(env_, *run.newest()), step, 5);
    }
  }
}

TEST_F(RunTest, AnItemThatCannotBeSavedFailsTheSaveEverywhereAndTheNextSaveWorks) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 3);
  const auto start = std::chrono::steady_clock::now();
  const auto bad = [](int rank) {
    std::vector<SaveItem> items = sample_items(rank, 3, 4);
    if (rank == 2) items[0].source = nullptr;  // read by nobody before it is checked
    return items;
  };
  const auto outcomes = save(all, 4, bad);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_EQ(outcomes[0].error->code(), ErrorCode::peer);
  EXPECT_THAT(outcomes[0].error->what(), HasSubstr("rank 2"));
  EXPECT_THAT(outcomes[0].error->what(), HasSubstr("needs a source"));
  EXPECT_EQ(outcomes[1].error->code(), ErrorCode::peer);
  EXPECT_EQ(outcomes[2].error->code(), ErrorCode::usage);
  EXPECT_THAT(scan(env_, checkpoints_of(directory_)), IsEmpty());
  for (const Outcome& outcome : save(all, 4)) EXPECT_EQ(outcome.error, std::nullopt);
  expect_sample(Checkpoint::open(env_, *run.newest()), 4);
}

TEST_F(RunTest, ALostWriterEndsTheSaveByItsDeadline) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 3, 0.6);
  all.pop_back();  // rank 2 is gone
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = save(all, 4, [](int rank) { return sample_items(rank, 3, 4); });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_EQ(outcomes[0].error->code(), ErrorCode::deadline);
  EXPECT_THAT(outcomes[0].error->what(), ContainsRegex("rank (1, )?2 "));
  EXPECT_NE(outcomes[1].error, std::nullopt) << "told by rank 0, or by its own deadline";
  EXPECT_EQ(run.newest(), std::nullopt);
}

TEST_F(RunTest, WithoutRankZeroTheOthersEndByTheirDeadline) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 2, 0.4);
  all[1].start(4, sample_items(1, 2, 4));
  const Error error = error_of([&] { all[1].wait(); });
  EXPECT_EQ(error.code(), ErrorCode::deadline);
  EXPECT_THAT(error.what(), HasSubstr("rank 0 has not committed it within 0.5 s"));
}

TEST_F(RunTest, ARunHasOneOwnerAndWritersOfOneGeneration) {
  std::optional<Owner> run(std::in_place, directory_);
  EXPECT_EQ(error_of([&] { Owner{directory_}; }).code(), ErrorCode::busy);
  std::vector<RunWriter> old = writers(*run, 1);
  ASSERT_EQ(save(old, 1)[0].error, std::nullopt);
  run.reset();
  Owner next(directory_);
  EXPECT_EQ(next.generation(), 1u);
  EXPECT_EQ(save(old, 2)[0].error->code(), ErrorCode::busy) << "commits nothing once another owner started";
  const Error error = error_of([&] { RunWriter(directory_, 0, {}); });
  EXPECT_EQ(error.code(), ErrorCode::busy);
  EXPECT_THAT(error.what(), HasSubstr("generation 1"));
  EXPECT_THAT(*next.newest(), HasSubstr("step-0000000001"));
}

TEST_F(RunTest, GoingOnFromAnOlderCheckpointMovesTheNewerOnesAside) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 2);
  for (const std::uint64_t step : {1, 2, 3}) save(all, step);
  EXPECT_EQ(run.go_on_from(1).size(), 2u);
  EXPECT_THAT(*run.newest(), HasSubstr("step-0000000001"));
  EXPECT_EQ(run.go_on_from(std::nullopt).size(), 1u);
  EXPECT_EQ(run.newest(), std::nullopt);
}

TEST_F(RunTest, NoneValidIsNotANewRun) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  const std::string path = save(all, 3)[0].path;
  flip_bit(path + "/COMMIT", 20);
  EXPECT_EQ(error_of([&] { run.newest(); }).code(), ErrorCode::damaged);
}

TEST_F(RunTest, CallsOutOfOrderAndWrongNumbersAreRefused) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  EXPECT_EQ(error_of([&] { all[0].wait(); }).code(), ErrorCode::usage);
  EXPECT_EQ(error_of([&] { all[0].start(10'000'000'000, {}); }).code(), ErrorCode::usage);
  all[0].start(9'999'999'999, sample_items(0, 1, 9));
  EXPECT_EQ(error_of([&] { all[0].start(4, {}); }).code(), ErrorCode::busy);
  EXPECT_THAT(all[0].wait(), HasSubstr("step-9999999999"));
  for (RunWriterOptions wrong : {RunWriterOptions{.rank = -1}, RunWriterOptions{.rank = 1},
                                 RunWriterOptions{.writers = 0}, RunWriterOptions{.deadline_s = 0}})
    EXPECT_EQ(error_of([&] { RunWriter(directory_, 0, wrong); }).code(), ErrorCode::usage);
  EXPECT_EQ(error_of([&] { RunWriter(dir_ / "other", 0, {}); }).code(), ErrorCode::missing);
}

TEST_F(RunTest, WhatAReaderWouldRefuseIsNotCommitted) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  const Error error = error_of([&] { all[0].save(4, sample_items(0, 1, 4), sample_description(3)); });
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_THAT(error.what(), HasSubstr("training document: says step 3, and the save is of step 4"));
  EXPECT_EQ(run.newest(), std::nullopt);
}

TEST_F(RunTest, ItemsTakeTypeAndSizeFromTheArray) {
  Owner run(directory_);
  std::vector<RunWriter> all = writers(run, 1);
  const std::vector<std::int16_t> numbers = {1, -2, 3, -4, 5, -6};
  const std::array<double, 1> scalar = {0.5};
  const std::string path = all[0].save(1, {save_item("numbers", "state", {3, 2}, {{0, 0}, {3, 2}}, numbers),
                                           save_item("scalar", "state", {}, {}, scalar)});
  const Checkpoint checkpoint = Checkpoint::open(env_, path);
  EXPECT_EQ(checkpoint.shape("numbers"), (Dims{3, 2}));
  EXPECT_EQ(error_of([&] { checkpoint.shape("others"); }).code(), ErrorCode::mismatch);
  std::vector<std::int16_t> column(3);
  double value = 0;
  const LoadItem items[] = {load_item("numbers", "state", {3, 2}, {{0, 1}, {3, 1}}, column),
                            load_item("scalar", "state", {}, {}, std::span(&value, 1))};
  checkpoint.load(items, {});
  EXPECT_THAT(column, ElementsAre(-2, -4, -6));
  EXPECT_EQ(value, 0.5);
  const Error error = error_of([&] { load_item("numbers", "state", {3, 2}, {{0, 0}, {3, 2}}, column); });
  EXPECT_EQ(error.code(), ErrorCode::usage);
  EXPECT_THAT(error.what(), HasSubstr("3 values in memory for the box [0:3, 0:2]"));
  std::vector<float> wrong(3);
  const LoadItem other[] = {load_item("numbers", "state", {3, 2}, {{0, 1}, {3, 1}}, wrong)};
  EXPECT_EQ(error_of([&] { checkpoint.load(other, {}); }).code(), ErrorCode::mismatch);
}

}  // namespace
}  // namespace shardwright::ckpt
