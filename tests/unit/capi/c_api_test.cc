// The shared library as any program meets it: by its header alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ckpt/capi/shardwright.h"

extern "C" const char* c99_header_version(void);  // of c99_header.c

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CApiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "shardwright-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
    directory_ = name + "/run";
    ASSERT_EQ(shardwright_run_open(directory_.c_str(), &run_), SHARDWRIGHT_OK) << shardwright_error_message();
    ASSERT_EQ(shardwright_run_generation(run_, &generation_), SHARDWRIGHT_OK);
  }
  void TearDown() override {
    shardwright_run_close(run_);
    std::filesystem::remove_all(root_);
  }

  shardwright_writer* writer(uint32_t rank, uint32_t writers) {
    shardwright_writer* out = nullptr;
    EXPECT_EQ(shardwright_writer_open(directory_.c_str(), generation_, rank, writers, 30, 0, 1, &out),
              SHARDWRIGHT_OK)
        << shardwright_error_message();
    return out;
  }

  /// Rows of a [10, 3] tensor of i32, and a scalar from rank 0.
  void add(shardwright_writer* w, uint64_t rank, uint64_t writers) {
    const uint64_t first = 10 * rank / writers, end = 10 * (rank + 1) / writers;
    const std::array<uint64_t, 2> global{10, 3}, offset{first, 0}, shape{end - first, 3};
    rows_.resize(writers);
    rows_[rank].clear();
    for (uint64_t i = 3 * first; i < 3 * end; ++i) rows_[rank].push_back(static_cast<int32_t>(i * i));
    ASSERT_EQ(shardwright_writer_add(w, "rows", "state", SHARDWRIGHT_I32, 2, global.data(), offset.data(),
                                     shape.data(), rows_[rank].data(), 4 * rows_[rank].size()),
              SHARDWRIGHT_OK)
        << shardwright_error_message();
    if (rank != 0) return;
    ASSERT_EQ(
        shardwright_writer_add(w, "time", "state", SHARDWRIGHT_F64, 0, nullptr, nullptr, nullptr, &time_, 8),
        SHARDWRIGHT_OK)
        << shardwright_error_message();
    ASSERT_EQ(shardwright_writer_document(w, SHARDWRIGHT_CONFIG, R"({"seed":7})"), SHARDWRIGHT_OK);
  }

  /// Saved by three; returns it open.
  shardwright_checkpoint* saved() {
    std::vector<shardwright_writer*> all;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      all.push_back(writer(rank, 3));
      add(all.back(), rank, 3);
      EXPECT_EQ(shardwright_writer_start(all.back(), 7), SHARDWRIGHT_OK) << shardwright_error_message();
      for (int32_t& value : rows_[rank]) value = -1;  // copied at the start
    }
    for (shardwright_writer* w : all) {
      const char* path = nullptr;
      EXPECT_EQ(shardwright_writer_wait(w, &path), SHARDWRIGHT_OK) << shardwright_error_message();
      EXPECT_THAT(path, HasSubstr("step-0000000007"));
    }
    for (shardwright_writer* w : all) EXPECT_EQ(shardwright_writer_close(w), SHARDWRIGHT_OK);
    shardwright_checkpoint* checkpoint = nullptr;
    EXPECT_EQ(shardwright_checkpoint_open(directory_.c_str(), &checkpoint), SHARDWRIGHT_OK)
        << shardwright_error_message();
    return checkpoint;
  }

  std::string root_, directory_;
  shardwright_run* run_ = nullptr;
  uint64_t generation_ = 99;
  std::vector<std::vector<int32_t>> rows_;
  double time_ = 2.5;
};

TEST_F(CApiTest, VersionsAndNames) {
  EXPECT_EQ(shardwright_api_version(), SHARDWRIGHT_API_VERSION);
  EXPECT_STREQ(shardwright_version(), c99_header_version());
  EXPECT_EQ(shardwright_format_version(), 1);
  std::string names;
  size_t bytes = 0;
  for (int dtype = -1; dtype <= 13; ++dtype) {
    names += std::string(shardwright_dtype_name(dtype)) + " ";
    bytes += shardwright_dtype_size(dtype);
  }
  EXPECT_EQ(names, "unknown f32 bf16 f16 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool unknown ");
  EXPECT_EQ(bytes, 4u + 2 + 2 + 8 + 1 + 1 + 2 + 2 + 4 + 4 + 8 + 8 + 1);
  for (int status = SHARDWRIGHT_OK; status <= SHARDWRIGHT_INTERNAL; ++status)
    EXPECT_STRNE(shardwright_status_name(status), "unknown");
  EXPECT_STREQ(shardwright_status_name(SHARDWRIGHT_NO_SPACE), "no_space");
  EXPECT_STREQ(shardwright_status_name(15), "unknown");
}

TEST_F(CApiTest, SavedByThreeAndReadInOtherBoxes) {
  shardwright_checkpoint* c = saved();
  uint64_t step = 0, tensors = 0, index = 9;
  const char* text = nullptr;
  ASSERT_EQ(shardwright_checkpoint_info(c, &step, &tensors, &text), SHARDWRIGHT_OK);
  EXPECT_EQ(step, 7u);
  EXPECT_EQ(tensors, 2u);
  EXPECT_EQ(text, directory_ + "/checkpoints/step-0000000007");
  EXPECT_EQ(shardwright_checkpoint_info(c, nullptr, nullptr, nullptr), SHARDWRIGHT_OK);
  shardwright_tensor tensor;
  ASSERT_EQ(shardwright_checkpoint_tensor(c, 0, &tensor), SHARDWRIGHT_OK);
  EXPECT_STREQ(tensor.name, "rows");
  EXPECT_STREQ(tensor.kind, "state");
  EXPECT_EQ(tensor.dtype, SHARDWRIGHT_I32);
  EXPECT_EQ(tensor.ndim, 2u);
  EXPECT_THAT(tensor.shape, ElementsAre(10, 3, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(tensor.elements, 30u);
  EXPECT_NE(tensor.fingerprint[0], 0u);
  ASSERT_EQ(shardwright_checkpoint_find(c, "time", "state", &index), SHARDWRIGHT_OK);
  EXPECT_EQ(index, 1u);
  double time = 0;
  EXPECT_EQ(shardwright_checkpoint_read(c, 1, nullptr, nullptr, &time, 8, 1), SHARDWRIGHT_OK);
  EXPECT_EQ(time, 2.5);
  const std::array<uint64_t, 2> offset{2, 1}, shape{5, 1};
  std::array<int32_t, 5> column{};
  EXPECT_EQ(shardwright_checkpoint_read(c, 0, offset.data(), shape.data(), column.data(), 20, 2),
            SHARDWRIGHT_OK);
  EXPECT_THAT(column, ElementsAre(49, 100, 169, 256, 361));
  ASSERT_EQ(shardwright_checkpoint_document(c, SHARDWRIGHT_CONFIG, &text), SHARDWRIGHT_OK);
  EXPECT_STREQ(text, R"({"seed":7})");
  ASSERT_EQ(shardwright_checkpoint_document(c, SHARDWRIGHT_MODEL, &text), SHARDWRIGHT_OK);
  EXPECT_STREQ(text, "{}");
  ASSERT_EQ(shardwright_run_newest(run_, &text), SHARDWRIGHT_OK);
  EXPECT_THAT(text, HasSubstr("step-0000000007"));
  EXPECT_EQ(shardwright_run_go_on_from(run_, -1), SHARDWRIGHT_OK);
  EXPECT_EQ(shardwright_run_newest(run_, &text), SHARDWRIGHT_MISSING);
  shardwright_checkpoint_close(c);
}

TEST_F(CApiTest, WrongArgumentsOfReadingAreRefused) {
  shardwright_checkpoint* c = saved();
  std::array<int32_t, 30> memory{};
  const std::array<uint64_t, 2> zero{0, 0}, all{10, 3}, far{~uint64_t{0}, 0}, wide{1, 4};
  const auto read = [&](uint64_t index, const uint64_t* offset, const uint64_t* shape, void* to, size_t bytes,
                        int threads = 1) {
    return shardwright_checkpoint_read(c, index, offset, shape, to, bytes, threads);
  };
  EXPECT_EQ(read(0, zero.data(), all.data(), memory.data(), 120), SHARDWRIGHT_OK);
  EXPECT_STREQ(shardwright_error_message(), "");
  EXPECT_EQ(read(2, nullptr, nullptr, memory.data(), 120), SHARDWRIGHT_USAGE);
  EXPECT_THAT(shardwright_error_message(), HasSubstr("has 2 tensors"));
  EXPECT_EQ(read(0, nullptr, nullptr, memory.data(), 119), SHARDWRIGHT_USAGE);
  EXPECT_THAT(shardwright_error_message(),
              HasSubstr("119 bytes of memory for 30 elements of i32; 120 are right"));
  EXPECT_EQ(read(0, nullptr, all.data(), memory.data(), 120), SHARDWRIGHT_USAGE);
  EXPECT_EQ(read(0, far.data(), all.data(), memory.data(), 120), SHARDWRIGHT_USAGE);
  EXPECT_EQ(read(0, zero.data(), wide.data(), memory.data(), 16), SHARDWRIGHT_USAGE);
  EXPECT_THAT(shardwright_error_message(), HasSubstr("not inside the shape [10, 3]"));
  EXPECT_EQ(read(0, nullptr, nullptr, nullptr, 120), SHARDWRIGHT_USAGE);
  EXPECT_EQ(read(0, nullptr, nullptr, memory.data(), 120, 0), SHARDWRIGHT_USAGE);
  EXPECT_EQ(read(0, zero.data(), zero.data(), nullptr, 0), SHARDWRIGHT_OK) << "an empty box needs no memory";
  uint64_t index = 5;
  EXPECT_EQ(shardwright_checkpoint_find(c, "rows", "param", &index), SHARDWRIGHT_MISMATCH);
  EXPECT_EQ(index, 5u);
  EXPECT_EQ(shardwright_checkpoint_find(c, nullptr, "param", &index), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_checkpoint_tensor(c, 0, nullptr), SHARDWRIGHT_USAGE);
  const char* text = nullptr;
  EXPECT_EQ(shardwright_checkpoint_document(c, 4, &text), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_checkpoint_info(nullptr, nullptr, nullptr, nullptr), SHARDWRIGHT_USAGE);
  shardwright_checkpoint_close(c);
  shardwright_checkpoint_close(nullptr);
  EXPECT_EQ(shardwright_checkpoint_open((root_ + "/none").c_str(), &c), SHARDWRIGHT_MISSING);
  EXPECT_EQ(shardwright_error_path(), root_ + "/none");
  EXPECT_EQ(shardwright_checkpoint_open(nullptr, &c), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_checkpoint_open(root_.c_str(), nullptr), SHARDWRIGHT_USAGE);
}

TEST_F(CApiTest, WrongArgumentsOfSavingAreRefused) {
  shardwright_writer* w = writer(0, 1);
  const std::array<uint64_t, 9> two{2, 2, 2, 2, 2, 2, 2, 2, 2}, zero{}, huge{~uint64_t{0}, ~uint64_t{0}};
  const std::array<char, 16> memory{};
  const auto add = [&](const char* name, int dtype, uint32_t ndim, const uint64_t* global,
                       const uint64_t* shape, const void* data, size_t bytes) {
    return shardwright_writer_add(w, name, "k", dtype, ndim, global, zero.data(), shape, data, bytes);
  };
  EXPECT_EQ(add(nullptr, SHARDWRIGHT_F32, 2, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_USAGE);
  EXPECT_EQ(add("x", 13, 2, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_USAGE);
  EXPECT_EQ(add("x", -1, 2, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_USAGE);
  EXPECT_EQ(add("x", SHARDWRIGHT_F32, 9, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_USAGE);
  EXPECT_THAT(shardwright_error_message(), HasSubstr("at most 8 dimensions"));
  EXPECT_EQ(add("x", SHARDWRIGHT_F32, 2, nullptr, two.data(), memory.data(), 16), SHARDWRIGHT_USAGE);
  EXPECT_EQ(add("x", SHARDWRIGHT_F32, 2, two.data(), two.data(), nullptr, 16), SHARDWRIGHT_USAGE);
  EXPECT_EQ(add("x", SHARDWRIGHT_F32, 2, two.data(), two.data(), memory.data(), 15), SHARDWRIGHT_USAGE);
  EXPECT_EQ(add("x", SHARDWRIGHT_F32, 2, huge.data(), huge.data(), memory.data(), 4), SHARDWRIGHT_USAGE);
  EXPECT_THAT(shardwright_error_message(), HasSubstr("more bytes than 64 bits count"));
  EXPECT_EQ(shardwright_writer_wait(w, nullptr), SHARDWRIGHT_USAGE) << "no save was started";
  EXPECT_EQ(shardwright_writer_start(w, 10'000'000'000), SHARDWRIGHT_USAGE);
  const std::string long_name(1025, 'x');
  for (const char* name : {"", "a/b", "a@b", "\xff", "..", "a\nb", long_name.c_str()}) {
    EXPECT_EQ(add(name, SHARDWRIGHT_F32, 2, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_USAGE)
        << name;
    EXPECT_EQ(
        shardwright_writer_add(w, "x", name, SHARDWRIGHT_F32, 0, nullptr, nullptr, nullptr, memory.data(), 4),
        SHARDWRIGHT_USAGE)
        << name;
  }
  for (const char* json : {"", "no JSON", "7", "[]", "{\"a\":1e400}"}) {
    EXPECT_EQ(shardwright_writer_document(w, SHARDWRIGHT_CONFIG, json), SHARDWRIGHT_USAGE) << json;
    EXPECT_THAT(shardwright_error_message(), HasSubstr("config document"));
  }
  EXPECT_EQ(shardwright_writer_document(w, 4, "{}"), SHARDWRIGHT_USAGE);
  // What only the boxes and documents together show is told by the wait.
  const auto told_by_the_wait = [&](const char* wrong) {
    ASSERT_EQ(shardwright_writer_start(w, 1), SHARDWRIGHT_OK);
    EXPECT_EQ(shardwright_writer_start(w, 2), SHARDWRIGHT_BUSY);
    EXPECT_EQ(shardwright_writer_wait(w, nullptr), SHARDWRIGHT_USAGE);
    EXPECT_THAT(shardwright_error_message(), HasSubstr(wrong));
  };
  for (int twice = 0; twice < 2; ++twice)
    ASSERT_EQ(add("x", SHARDWRIGHT_F32, 2, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_OK);
  told_by_the_wait("share elements");
  ASSERT_EQ(shardwright_writer_document(w, SHARDWRIGHT_TRAINING, "{\"step\":2}"), SHARDWRIGHT_OK);
  told_by_the_wait("says step 2");
  ASSERT_EQ(add("x", SHARDWRIGHT_F32, 2, two.data(), two.data(), memory.data(), 16), SHARDWRIGHT_OK);
  ASSERT_EQ(shardwright_writer_start(w, 1), SHARDWRIGHT_OK);
  EXPECT_EQ(shardwright_writer_close(w), SHARDWRIGHT_USAGE) << "its save was not waited for";
  EXPECT_EQ(shardwright_writer_close(nullptr), SHARDWRIGHT_OK);

  const char* directory = directory_.c_str();
  const auto open = [&](uint64_t generation, uint32_t rank, uint32_t writers, double deadline, int threads) {
    return shardwright_writer_open(directory, generation, rank, writers, deadline, 0, threads, &w);
  };
  EXPECT_EQ(open(generation_, 1, 1, 1, 1), SHARDWRIGHT_USAGE);
  EXPECT_EQ(open(generation_, ~0u, ~0u, 1, 1), SHARDWRIGHT_USAGE);
  EXPECT_EQ(open(generation_, 0, 1, 0, 1), SHARDWRIGHT_USAGE);
  EXPECT_EQ(open(generation_, 0, 1, 1, 0), SHARDWRIGHT_USAGE);
  EXPECT_EQ(open(generation_ + 1, 0, 1, 1, 1), SHARDWRIGHT_BUSY);
  EXPECT_EQ(shardwright_writer_start(nullptr, 1), SHARDWRIGHT_USAGE);
  shardwright_run* second = nullptr;
  EXPECT_EQ(shardwright_run_open(directory, &second), SHARDWRIGHT_BUSY);
  EXPECT_EQ(second, nullptr);
}

TEST_F(CApiTest, CodecIsChosenBeforeTheFirstSave) {
  const std::vector<uint64_t> shape{4099}, zero{0};
  const std::vector<float> ones(4099, 1.f);
  std::vector<uintmax_t> sizes;
  for (const char* codec : {"none", "fast", "small", "auto", "deflate"}) {
    shardwright_writer* w = writer(0, 1);
    EXPECT_EQ(shardwright_writer_codec(w, "gzip"), SHARDWRIGHT_USAGE);
    EXPECT_THAT(shardwright_error_message(), HasSubstr("codec 'gzip'"));
    ASSERT_EQ(shardwright_writer_codec(w, codec), SHARDWRIGHT_OK) << shardwright_error_message();
    ASSERT_EQ(shardwright_writer_add(w, "ones", "state", SHARDWRIGHT_F32, 1, shape.data(), zero.data(),
                                     shape.data(), ones.data(), 4 * ones.size()),
              SHARDWRIGHT_OK);
    ASSERT_EQ(shardwright_writer_start(w, sizes.size()), SHARDWRIGHT_OK);
    const char* path = nullptr;
    ASSERT_EQ(shardwright_writer_wait(w, &path), SHARDWRIGHT_OK) << shardwright_error_message();
    sizes.push_back(std::filesystem::file_size(std::string(path) + "/rank-00000.h5"));
    EXPECT_EQ(shardwright_writer_codec(w, codec), SHARDWRIGHT_USAGE) << "it has saved";
    EXPECT_EQ(shardwright_writer_close(w), SHARDWRIGHT_OK);
  }
  EXPECT_GT(sizes[0], 4 * 4099u) << "none";
  EXPECT_LT(sizes[1], sizes[0] / 2);
  EXPECT_LT(sizes[2], sizes[0] / 2);
  EXPECT_LT(sizes[4], sizes[0] / 2);
  shardwright_writer* w = writer(0, 1);
  EXPECT_EQ(shardwright_writer_codec(nullptr, "fast"), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_codec(w, nullptr), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_close(w), SHARDWRIGHT_OK);
}

// Odd sizes: several chunks, the last of them padded, and one in a corner of a wider tensor.
TEST_F(CApiTest, LentMemoryIsSavedAsItWas) {
  constexpr uint64_t kRows = 1031, kColumns = 777;
  const std::array<uint64_t, 2> shape{kRows, kColumns}, zero{0, 0};
  std::vector<float> values(kRows * kColumns), expected;
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 65521);
  shardwright_writer* w = writer(0, 1);
  EXPECT_EQ(shardwright_writer_before_write(w, "values", "state"), SHARDWRIGHT_OK) << "none is lent";
  for (uint64_t step = 1; step <= 20; ++step) {
    values[step] = -1.f;
    expected = values;
    for (const char* kind : {"state", "other"})
      ASSERT_EQ(shardwright_writer_add(w, "values", kind, SHARDWRIGHT_F32, 2, shape.data(), zero.data(),
                                       shape.data(), values.data(), 4 * values.size()),
                SHARDWRIGHT_OK);
    ASSERT_EQ(shardwright_writer_start_lent(w, step), SHARDWRIGHT_OK) << shardwright_error_message();
    EXPECT_EQ(shardwright_writer_start_lent(w, step + 1), SHARDWRIGHT_BUSY);
    EXPECT_EQ(shardwright_writer_before_write(w, "none", "state"), SHARDWRIGHT_OK);
    if (step % 2 == 0) {
      for (const char* kind : {"state", "other"})
        ASSERT_EQ(shardwright_writer_before_write(w, "values", kind), SHARDWRIGHT_OK);
      for (float& value : values) value += 3;
    }
    ASSERT_EQ(shardwright_writer_wait(w, nullptr), SHARDWRIGHT_OK) << shardwright_error_message();
    shardwright_checkpoint* c = nullptr;
    ASSERT_EQ(shardwright_checkpoint_open(directory_.c_str(), &c), SHARDWRIGHT_OK);
    for (uint64_t index = 0; index < 2; ++index) {
      std::vector<float> loaded(values.size());
      ASSERT_EQ(shardwright_checkpoint_read(c, index, nullptr, nullptr, loaded.data(), 4 * loaded.size(), 2),
                SHARDWRIGHT_OK);
      EXPECT_EQ(std::memcmp(loaded.data(), expected.data(), 4 * loaded.size()), 0) << step;
    }
    shardwright_checkpoint_close(c);
  }
  EXPECT_EQ(shardwright_writer_start_lent(nullptr, 1), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_before_write(nullptr, "values", "state"), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_before_write(w, nullptr, "state"), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_before_write(w, "values", nullptr), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_start_lent(w, 10'000'000'000), SHARDWRIGHT_USAGE);
  EXPECT_EQ(shardwright_writer_close(w), SHARDWRIGHT_OK);
}

TEST_F(CApiTest, LentAndCopiedMakeEqualFiles) {
  std::vector<std::string> files;
  for (const auto start : {shardwright_writer_start, shardwright_writer_start_lent}) {
    shardwright_writer* w = writer(0, 1);
    add(w, 0, 1);
    ASSERT_EQ(start(w, files.size()), SHARDWRIGHT_OK);
    const char* path = nullptr;
    ASSERT_EQ(shardwright_writer_wait(w, &path), SHARDWRIGHT_OK) << shardwright_error_message();
    std::ifstream file(std::string(path) + "/rank-00000.h5", std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    EXPECT_EQ(shardwright_writer_close(w), SHARDWRIGHT_OK);
  }
  EXPECT_GT(files[0].size(), 120u);
  EXPECT_EQ(files[0], files[1]);
}

TEST_F(CApiTest, DamageIsToldWithItsFile) {
  shardwright_checkpoint_close(saved());
  const std::string shard = directory_ + "/checkpoints/step-0000000007/rank-00001.h5";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(shard) / 2));
    file.put('\x5a').put('\x5a').put('\x5a');
  }
  shardwright_checkpoint* c = nullptr;
  ASSERT_EQ(shardwright_checkpoint_open(directory_.c_str(), &c), SHARDWRIGHT_OK);
  std::array<int32_t, 30> memory{};
  EXPECT_EQ(shardwright_checkpoint_read(c, 0, nullptr, nullptr, memory.data(), 120, 1), SHARDWRIGHT_DAMAGED);
  EXPECT_EQ(shardwright_error_status(), SHARDWRIGHT_DAMAGED);
  EXPECT_EQ(shardwright_error_path(), shard);
  std::thread([] {  // another thread has its own
    EXPECT_EQ(shardwright_error_status(), SHARDWRIGHT_OK);
    EXPECT_STREQ(shardwright_error_message(), "");
  })
      .join();
  EXPECT_THAT(shardwright_error_message(), HasSubstr("rank-00001.h5"));
  shardwright_checkpoint_close(c);
}

TEST_F(CApiTest, ManyThreadsReadOneCheckpoint) {
  shardwright_checkpoint* c = saved();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([c] {
      for (uint64_t row = 0; row < 10; ++row) {
        const std::array<uint64_t, 2> offset{row, 0}, shape{1, 3};
        std::array<int32_t, 3> values{};
        ASSERT_EQ(shardwright_checkpoint_read(c, 0, offset.data(), shape.data(), values.data(), 12, 1),
                  SHARDWRIGHT_OK);
        const auto i = static_cast<int32_t>(3 * row);
        EXPECT_THAT(values, ElementsAre(i * i, (i + 1) * (i + 1), (i + 2) * (i + 2)));
      }
    });
  for (std::thread& thread : threads) thread.join();
  shardwright_checkpoint_close(c);
}

}  // namespace
