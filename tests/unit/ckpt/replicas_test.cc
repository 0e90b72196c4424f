#include "ckpt/replicas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <numeric>
#include <thread>

#include "ckpt/fault.h"
#include "ckpt/run_dir.h"
#include "ckpt/saver.h"
#include "ckpt/scan.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Dims kShape{37, 11};

/// Rows [first, first + rows) of a tensor of kShape.
Box rows(std::uint64_t first, std::uint64_t count) { return {{first, 0}, {count, kShape[1]}}; }

std::vector<float> values_of(const Box& box, float salt = 0) {
  std::vector<float> values(box.elements());
  std::iota(values.begin(), values.end(), static_cast<float>(box.offset[0] * kShape[1]) + salt);
  return values;
}

SaveItem item(const Box& box, const float* values, const std::string& kind = "param") {
  return {"weights",
          kind,
          DType::f32,
          kShape,
          box,
          {5, 11},
          std::make_shared<HostSource>(values, box, sizeof(float))};
}

BoxRecord box_record(const Box& box, const std::vector<float>& values, const std::string& kind = "param") {
  BoxRecord record;
  record.tensor = "weights";
  record.kind = kind;
  record.global_shape = kShape;
  record.box = box;
  record.fingerprint = fingerprint(std::as_bytes(std::span(values)).data(), sizeof(float), box, kShape);
  return record;
}

ReplicaRecord replica(const Box& box, const std::vector<float>& values, const std::string& kind = "param") {
  const BoxRecord record = box_record(box, values, kind);
  return {record.tensor, record.kind, record.box, record.fingerprint};
}

/// Two writers of rows 0 to 20 and 20 to 37, and a third rank.
std::vector<Part> parts() {
  std::vector<Part> all(3);
  for (int rank = 0; rank < 3; ++rank) all[static_cast<std::size_t>(rank)].rank = rank;
  all[0].boxes = {box_record(rows(0, 20), values_of(rows(0, 20)))};
  all[1].boxes = {box_record(rows(20, 17), values_of(rows(20, 17)))};
  return all;
}

std::string message(std::span<const Part> all) {
  try {
    compare_replicas(all);
  } catch (const Error& error) {
    return std::string(name(error.code())) + ": " + error.what();
  }
  return "";
}

TEST(Replicas, FingerprintsAreThoseOfTheirBoxes) {
  const Box one = rows(3, 19), two = rows(22, 1);
  const std::vector<float> a = values_of(one), b = values_of(two);
  for (const int threads : {1, 3}) {
    const std::array items{item(one, a.data()), item(two, b.data()), item(rows(5, 0), nullptr)};
    const std::vector<ReplicaRecord> found = fingerprint_replicas(items, threads, nullptr);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[0].fingerprint, replica(one, a).fingerprint);
    EXPECT_EQ(found[1].fingerprint, replica(two, b).fingerprint);
    EXPECT_EQ(found[2].fingerprint, Fingerprint());
    EXPECT_EQ(found[0].box, one);
  }
  const std::atomic<bool> cancel{true};
  const std::array items{item(one, a.data())};
  EXPECT_THROW(fingerprint_replicas(items, 1, &cancel), Error);
}

TEST(Replicas, EqualCopiesAreFine) {
  std::vector<Part> all = parts();
  all[2].replicas = {replica(rows(0, 20), values_of(rows(0, 20))),
                     replica(rows(20, 17), values_of(rows(20, 17))),
                     replica(rows(0, 37), values_of(rows(0, 37)))};  // of several writers at once
  EXPECT_EQ(message(all), "");
}

TEST(Replicas, ADifferenceNamesTensorKindBoxAndRanks) {
  std::vector<float> flipped = values_of(rows(20, 17));
  reinterpret_cast<unsigned char&>(flipped[100]) ^= 1u;
  std::vector<Part> all = parts();
  all[2].replicas = {replica(rows(0, 20), values_of(rows(0, 20))), replica(rows(20, 17), flipped)};
  EXPECT_THAT(message(all),
              AllOf(HasSubstr("damaged: tensor 'weights' kind 'param' box"),
                    HasSubstr(to_string(rows(20, 17))), HasSubstr("rank 2 holds other values than rank 1,")));
  all[2].replicas = {replica(rows(0, 37), values_of(rows(0, 37), 1))};
  EXPECT_THAT(message(all), HasSubstr("rank 2 holds other values than ranks 0, 1,"));
}

TEST(Replicas, WhatNobodyWritesIsComparedWithTheFirst) {
  std::vector<Part> all = parts();
  for (Part& part : all) part.replicas = {replica(rows(7, 9), values_of(rows(7, 9)), "value")};
  EXPECT_EQ(message(all), "");
  all[2].replicas.push_back(replica(rows(16, 2), values_of(rows(16, 2)), "value"));
  EXPECT_EQ(message(all), "") << "another box, another comparison";
  all[2].replicas.front() = replica(rows(7, 9), values_of(rows(7, 9), 1), "value");
  EXPECT_THAT(message(all),
              AllOf(HasSubstr("kind 'value'"), HasSubstr("rank 2 holds other values than rank 0,")));
}

TEST(Replicas, ABoxThatIsWrittenInPartIsRefused) {
  std::vector<Part> all = parts();
  all[2].replicas = {replica(rows(0, 21), values_of(rows(0, 21)))};
  EXPECT_THAT(message(all), HasSubstr("usage: tensor 'weights' kind 'param' box"));
}

TEST(Replicas, ThePartRecordCarriesThem) {
  const TempDir dir;
  Env& env = posix_env();
  Part part;
  part.attempt = "0-1";
  part.rank = 4;
  part.replicas = {replica(rows(3, 5), values_of(rows(3, 5)), "exp_avg")};
  publish_part(env, dir.path(), part);
  const Part back = read_part(env, dir / part_name(4));
  ASSERT_EQ(back.replicas.size(), 1u);
  EXPECT_EQ(back.replicas[0].tensor, "weights");
  EXPECT_EQ(back.replicas[0].kind, "exp_avg");
  EXPECT_EQ(back.replicas[0].box, rows(3, 5));
  EXPECT_EQ(back.replicas[0].fingerprint, part.replicas[0].fingerprint);
  part.replicas[0].fingerprint.count = 7;
  publish_part(env, dir.path(), part);
  EXPECT_THROW(read_part(env, dir / part_name(4)), Error);
}

/// Two ranks that hold one tensor: rank 0 writes rows 0 to 20, rank 1 the others, and each has all of it.
class SavedReplicas : public ::testing::Test {
 protected:
  SavedReplicas() {
    generation_ = begin_generation(env_, dir_ / "run", dir_ / "run/checkpoints").generation;
    for (int rank = 0; rank < 2; ++rank) {
      SaverOptions o;
      o.checkpoints_dir = dir_ / "run/checkpoints";
      o.run_dir = dir_ / "run";
      o.run = generation_.run;
      o.rank = rank;
      o.writers = 2;
      o.commit_deadline_s = 20;
      o.lazy = true;
      savers_.push_back(std::make_unique<Saver>(env_, o));
      memory_.push_back(values_of(rows(0, 37)));
    }
  }

  /// Saves; what both hold changes as soon as both have called. The outcome of rank 0.
  SaveOutcome save(std::uint64_t number) {
    const std::array boxes{rows(0, 20), rows(20, 17)};
    for (std::size_t rank = 2; rank-- > 0;) {
      SaveRequest request;
      request.step = request.save_number = number;
      request.description = sample_description(number);
      const float* values = memory_[rank].data();
      const std::size_t own = rank, other = 1 - rank;
      request.items = {item(boxes[own], values + 220 * own)};
      request.replicas = {item(boxes[other], values + 220 * other)};
      savers_[rank]->start(std::move(request));
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      savers_[rank]->before_write("weights", "param", rows(0, 37));
      for (float& value : memory_[rank]) value += 1;
    }
    SaveOutcome outcome;
    for (std::size_t rank = 2; rank-- > 0;) {
      savers_[rank]->wait(30);
      outcome = savers_[rank]->take_outcomes().at(0);
    }
    return outcome;
  }

  TempDir dir_;
  Env& env_ = posix_env();
  Generation generation_;
  std::vector<std::unique_ptr<Saver>> savers_;
  std::vector<std::vector<float>> memory_;  // by rank
};

TEST_F(SavedReplicas, TheBoundarysStateIsCompared) {
  for (std::uint64_t number = 1; number <= 20; ++number) {
    // Late or early, what is compared is of the boundary on each rank.
    set_fault(number % 3 == 0 ? "shard.open:rank=1=delay(20)" : "");
    const SaveOutcome outcome = save(number);
    EXPECT_EQ(outcome.result, SaveResult::committed) << outcome.reason;
    EXPECT_GT(outcome.replicas_s, 0);
  }
  set_fault("");
}

TEST_F(SavedReplicas, NothingIsCommittedOfCopiesThatDiffer) {
  EXPECT_EQ(save(1).result, SaveResult::committed);
  reinterpret_cast<unsigned char&>(memory_[1][23]) ^= 1u;
  const SaveOutcome outcome = save(2);
  EXPECT_EQ(outcome.result, SaveResult::failed);
  EXPECT_THAT(outcome.reason, HasSubstr("rank 1 holds other values than rank 0"));
  const auto newest = newest_valid(env_, dir_ / "run/checkpoints", nullptr);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->commit.step, 1u);
}

}  // namespace
}  // namespace shardwright::ckpt
