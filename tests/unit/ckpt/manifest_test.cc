#include "ckpt/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "ckpt/hdf5_handle.h"
#include "tests/tools/sample_checkpoint.h"
#include "tests/tools/temp_dir.h"

namespace shardwright::ckpt {
namespace {

using ::testing::HasSubstr;

FileRecord file_record(const std::string& name, std::uint64_t rows) {
  return {name, 1000 + rows * 24, {1, 2}, 900, rows * 24, {3, 4}};
}

/// A (3, 10) tensor cut in rows 0-1 and, by columns, row 2; a scalar beside it.
Manifest example() {
  Manifest m;
  m.tensors = {{"a", {3, 10}}, {"b", {}}};
  m.states = {{0, "exp_avg", DType::f32, {5, 6, 30}},
              {0, "param", DType::bf16, {7, 8, 30}},
              {1, "param", DType::f64, {9, 10, 1}}};
  m.boxes = {
      {0, 0, "/exp_avg/a", {{0, 0}, {3, 10}}, {2, 10}, 0, 2},
      {1, 0, "/param/a", {{0, 0}, {2, 10}}, {1, 10}, 2, 2},
      {1, 1, "/param/a", {{2, 0}, {1, 4}}, {1, 4}, 0, 1},
      {1, 1, "/param/a@1", {{2, 4}, {1, 6}}, {1, 6}, 1, 1},
      {2, 1, "/param/b", {{}, {}}, {}, 2, 1},
  };
  m.files = {file_record("rank-00000.h5", 4), file_record("rank-00002.h5", 3)};
  m.description = {R"({"step":3})", "{}", "", "\xc3\xbc"};
  return m;
}

std::string first_code(const Manifest& m) {
  const auto breaches = check(m);
  return breaches.empty() ? "" : breaches[0].code;
}

TEST(Manifest, RoundTrip) {
  const Manifest m = example();
  ASSERT_EQ(first_code(m), "");
  const auto bytes = encode_manifest(m);
  EXPECT_TRUE(encode_manifest(m) == bytes) << "equal manifests have equal bytes";
  const Manifest back = parse_manifest(bytes, "manifest.h5");
  EXPECT_TRUE(encode_manifest(back) == bytes);
  ASSERT_EQ(back.boxes.size(), 5u);
  EXPECT_EQ(back.boxes[3].dataset, "/param/a@1");
  EXPECT_EQ(back.boxes[3].box, (Box{{2, 4}, {1, 6}}));
  EXPECT_EQ(back.boxes[4].box, (Box{{}, {}}));
  EXPECT_EQ(back.states[1].dtype, DType::bf16);
  EXPECT_EQ(back.states[1].fingerprint, (Fingerprint{7, 8, 30}));
  EXPECT_EQ(back.files[1].table, (Digest128{3, 4}));
  EXPECT_EQ(back.description.training, R"({"step":3})");
  EXPECT_EQ(back.description.config, "");
  EXPECT_EQ(back.description.layout, "\xc3\xbc");
}

TEST(Manifest, EmptyAndLargeTablesRoundTrip) {
  const Manifest none;
  const auto bytes = encode_manifest(none);
  EXPECT_TRUE(parse_manifest(bytes, "m").boxes.empty());

  Manifest large;  // tables large enough to be compressed
  large.tensors = {{"t", {20000, 3}}};
  large.states = {{0, "param", DType::u8, {1, 2, 60000}}};
  large.files = {file_record("rank-00000.h5", 20000)};
  for (std::uint64_t i = 0; i < 20000; ++i)
    large.boxes.push_back(
        {0, 0, i == 0 ? "/param/t" : "/param/t@" + std::to_string(i), {{i, 0}, {1, 3}}, {1, 3}, i, 1});
  ASSERT_EQ(first_code(large), "");
  const auto image = encode_manifest(large);
  EXPECT_LT(image.size(), 1u << 20);
  const Manifest back = parse_manifest(image, "m");
  ASSERT_EQ(back.boxes.size(), 20000u);
  EXPECT_EQ(back.boxes[19999].box.offset, (Dims{19999, 0}));
  EXPECT_EQ(first_code(back), "");
}

TEST(Manifest, B124_CountsAndOffsetsAre64Bit) {
  Manifest m;
  const std::uint64_t rows = (1ull << 31) + 5, half = 1ull << 30, chunk = 1ull << 17;
  m.tensors = {{"huge", {rows}}};
  m.states = {{0, "param", DType::f64, {1, 2, rows}}};
  const std::uint64_t first = half / chunk, rest = (rows - half + chunk - 1) / chunk;
  m.boxes = {{0, 0, "/param/huge", {{0}, {half}}, {chunk}, 0, first},
             {0, 1, "/param/huge", {{half}, {rows - half}}, {chunk}, 0, rest}};
  m.files = {file_record("rank-00000.h5", first), file_record("rank-00001.h5", rest)};
  m.files[1].bytes = 1ull << 40;
  m.files[1].table_address = (1ull << 40) - rest * 24;
  ASSERT_EQ(first_code(m), "");
  const Manifest back = parse_manifest(encode_manifest(m), "m");
  EXPECT_EQ(back.boxes[1].box.end(0), rows);
  EXPECT_EQ(back.files[1].bytes, 1ull << 40);
  EXPECT_EQ(first_code(back), "");
}

struct Rule {
  const char* name;
  const char* code;
  std::function<void(Manifest&)> break_it;
};

class ManifestRule : public ::testing::TestWithParam<Rule> {};

TEST_P(ManifestRule, IsARejection) {
  Manifest m = example();
  GetParam().break_it(m);
  EXPECT_EQ(first_code(m), GetParam().code);
}

constexpr std::uint64_t kHuge = ~0ull;

INSTANTIATE_TEST_SUITE_P(
    Rules, ManifestRule,
    ::testing::Values(
        Rule{"TensorNameEmpty", "manifest", [](Manifest& m) { m.tensors[0].name = ""; }},
        Rule{"TensorNameSlash", "manifest", [](Manifest& m) { m.tensors[0].name = "a/b"; }},
        Rule{"TensorNameAt", "manifest", [](Manifest& m) { m.tensors[0].name = "a@1"; }},
        Rule{"TensorNamesUnsorted", "manifest", [](Manifest& m) { m.tensors[0].name = "c"; }},
        Rule{"TensorNamesTwice", "manifest", [](Manifest& m) { m.tensors[1].name = "a"; }},
        Rule{"ShapeOverflows", "manifest", [](Manifest& m) { m.tensors[0].shape = {1ull << 33, 1ull << 33}; }},
        Rule{"TensorWithoutState", "manifest", [](Manifest& m) { m.tensors.push_back({"z", {1}}); }},
        Rule{"StateOfNoTensor", "manifest", [](Manifest& m) { m.states[2].tensor = 2; }},
        Rule{"StatesUnsorted", "manifest", [](Manifest& m) { m.states[0].kind = "zzz"; }},
        Rule{"StatesTwice", "manifest", [](Manifest& m) { m.states[0].kind = "param"; }},
        Rule{"KindSlash", "manifest", [](Manifest& m) { m.states[0].kind = "a/b"; }},
        Rule{"FileOutside", "path", [](Manifest& m) { m.files[0].name = "../evil.h5"; }},
        Rule{"FileAbsolute", "path", [](Manifest& m) { m.files[0].name = "/rank-00000.h5"; }},
        Rule{"FileOtherName", "path", [](Manifest& m) { m.files[0].name = "rank-0000.h5"; }},
        Rule{"FilePaddedName", "path", [](Manifest& m) { m.files[0].name = "rank-000000.h5"; }},
        Rule{"FilesTwice", "manifest", [](Manifest& m) { m.files[1].name = "rank-00000.h5"; }},
        Rule{"TableOutsideFile", "manifest", [](Manifest& m) { m.files[0].table_address = 1001; }},
        Rule{"TableAddressOverflows", "manifest", [](Manifest& m) { m.files[0].table_address = kHuge; }},
        Rule{"TableBytesOverflow", "manifest", [](Manifest& m) { m.files[0].table_bytes = kHuge - kHuge % 24; }},
        Rule{"TableRaggedRows", "manifest", [](Manifest& m) { m.files[0].table_bytes += 1; }},
        Rule{"BoxOfNoState", "manifest", [](Manifest& m) { m.boxes[4].state = 3; }},
        Rule{"BoxOfNoFile", "manifest", [](Manifest& m) { m.boxes[0].file = 2; }},
        Rule{"BoxesUnsorted", "manifest", [](Manifest& m) { std::swap(m.boxes[1], m.boxes[2]); }},
        Rule{"BoxTwice", "overlap", [](Manifest& m) { m.boxes[3].box.offset = {2, 0}; }},
        Rule{"BoxOtherDimensions", "manifest", [](Manifest& m) { m.boxes[0].box = {{0}, {3}}; }},
        Rule{"BoxOutside", "manifest", [](Manifest& m) { m.boxes[3].box.shape = {1, 7}; }},
        Rule{"BoxOffsetOverflows", "manifest", [](Manifest& m) { m.boxes[3].box.offset = {2, kHuge}; }},
        Rule{"BoxShapeOverflows", "manifest", [](Manifest& m) { m.boxes[3].box.shape = {1, kHuge}; }},
        Rule{"BoxEmpty", "manifest", [](Manifest& m) { m.boxes[3].box.shape = {1, 0}; }},
        Rule{"ChunkZero", "manifest", [](Manifest& m) { m.boxes[0].chunk = {0, 10}; }},
        Rule{"ChunkBeyondBox", "manifest", [](Manifest& m) { m.boxes[0].chunk = {4, 10}; }},
        Rule{"ChunksMiscounted", "manifest", [](Manifest& m) { m.boxes[0].chunks = 3; }},
        Rule{"RowsOutsideTable", "manifest", [](Manifest& m) { m.boxes[0].first_chunk = 4; }},
        Rule{"RowsOverflow", "manifest", [](Manifest& m) { m.boxes[0].first_chunk = kHuge; }},
        Rule{"RowsShared", "manifest", [](Manifest& m) { m.boxes[1].first_chunk = 1; }},
        Rule{"RowsOfNobody", "manifest", [](Manifest& m) { m.files[0] = file_record("rank-00000.h5", 5); }},
        Rule{"DatasetElsewhere", "path", [](Manifest& m) { m.boxes[0].dataset = "/param/a"; }},
        Rule{"DatasetNumberedZero", "path", [](Manifest& m) { m.boxes[3].dataset = "/param/a@0"; }},
        Rule{"DatasetTwice", "manifest", [](Manifest& m) { m.boxes[3].dataset = "/param/a"; }},
        Rule{"FingerprintMiscounts", "coverage", [](Manifest& m) { m.states[0].fingerprint.count = 29; }},
        Rule{"Overlap", "overlap",
             [](Manifest& m) {
               m.boxes[2].box.shape = {1, 5};
               m.boxes[2].chunk = {1, 5};
             }},
        Rule{"Hole", "coverage",
             [](Manifest& m) {
               m.boxes[2].box.shape = {1, 3};
               m.boxes[2].chunk = {1, 3};
             }}),
    [](const auto& rule) { return rule.param.name; });

TEST(Manifest, ChunkAboveTheLimitIsRefused) {
  Manifest m;
  const std::uint64_t n = kMaxChunkBytes / 4 + 1;
  m.tensors = {{"t", {n}}};
  m.states = {{0, "param", DType::f32, {0, 0, n}}};
  m.boxes = {{0, 0, "/param/t", {{0}, {n}}, {n}, 0, 1}};
  m.files = {file_record("rank-00000.h5", 1)};
  EXPECT_EQ(first_code(m), "manifest");
  m.boxes[0].chunk = {n - 1};
  m.boxes[0].chunks = 2;
  m.files[0] = file_record("rank-00000.h5", 2);
  EXPECT_EQ(first_code(m), "");
}

TEST(Manifest, ManyBoxesThatAreAllOpenAtOnceAreCheckedQuickly) {
  constexpr std::uint64_t n = 50'000;
  Manifest m;  // stairs: any line across the tensor meets half of the boxes
  m.tensors = {{"t", {n + 1, n}}};
  m.states = {{0, "param", DType::u8, {1, 2, (n + 1) * n}}};
  m.files = {file_record("rank-00000.h5", 2 * n)};
  const auto add = [&](const Box& box) {
    const std::uint64_t i = m.boxes.size();
    m.boxes.push_back({0, 0, i == 0 ? "/param/t" : "/param/t@" + std::to_string(i), box, box.shape, i, 1});
  };
  for (std::uint64_t k = 0; k < n; ++k) add({{0, k}, {k + 1, 1}});
  for (std::uint64_t k = 0; k < n; ++k) add({{k + 1, k}, {n - k, 1}});
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(first_code(m), "");
  m.boxes[n - 1].box.shape[0] += 1;  // reaches into the box under it
  m.boxes[n - 1].chunk = m.boxes[n - 1].box.shape;
  EXPECT_EQ(first_code(m), "overlap");
  m.boxes[n - 1].box.shape[0] -= 2;
  m.boxes[n - 1].chunk = m.boxes[n - 1].box.shape;
  EXPECT_EQ(first_code(m), "coverage");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

/// Adds to (or changes) an encoded manifest through libhdf5, as another version of the program would.
std::vector<std::byte> changed(const std::vector<std::byte>& bytes,
                               const std::function<void(hid_t)>& change) {
  const TempDir dir;
  const std::string path = dir / "m.h5";
  posix_env().create(path)->write(0, bytes);
  {
    const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose, "test", path);
    change(file);
  }
  const std::string contents = read_file(posix_env(), path);
  const auto after = std::as_bytes(std::span(contents));
  return {after.begin(), after.end()};
}

TEST(Manifest, B140_UnknownDatasetsAndAttributesAreIgnored) {
  const auto bytes = changed(encode_manifest(example()), [](hid_t file) {
    const hsize_t n = 3;
    const Hdf5Handle space(H5Screate_simple(1, &n, nullptr), H5Sclose, "test", "m");
    const Hdf5Handle made(H5Dcreate2(file, "/boxes/from_the_future", H5T_STD_U8LE, space, H5P_DEFAULT,
                                     H5P_DEFAULT, H5P_DEFAULT),
                          H5Dclose, "test", "m");
    const Hdf5Handle attribute(H5Acreate2(file, "minor", H5T_STD_U8LE, space, H5P_DEFAULT, H5P_DEFAULT),
                               H5Aclose, "test", "m");
  });
  EXPECT_EQ(parse_manifest(bytes, "m").boxes.size(), 5u);
}

TEST(Manifest, NewerVersionIsToldApartFromDamage) {
  const auto bytes = changed(encode_manifest(example()), [](hid_t file) {
    const Hdf5Handle attribute(H5Aopen(file, "version", H5P_DEFAULT), H5Aclose, "test", "m");
    const std::uint32_t version = 2;
    H5Awrite(attribute, H5T_NATIVE_UINT32, &version);
  });
  EXPECT_EQ(error_of([&] { parse_manifest(bytes, "m"); }).code(), ErrorCode::future_version);
}

TEST(Manifest, MissingOrOddTablesAreDamage) {
  for (const char* dataset : {"/tensors/name", "/boxes/chunk", "/files/bytes", "/training"}) {
    const auto bytes =
        changed(encode_manifest(example()), [&](hid_t file) { H5Ldelete(file, dataset, H5P_DEFAULT); });
    EXPECT_EQ(error_of([&] { parse_manifest(bytes, "m"); }).code(), ErrorCode::damaged) << dataset;
  }
  const auto other_type = changed(encode_manifest(example()), [](hid_t file) {
    H5Ldelete(file, "/boxes/chunks", H5P_DEFAULT);
    const hsize_t n = 4;  // one row less than its table
    const Hdf5Handle space(H5Screate_simple(1, &n, nullptr), H5Sclose, "test", "m");
    const Hdf5Handle made(
        H5Dcreate2(file, "/boxes/chunks", H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Dclose, "test", "m");
  });
  EXPECT_THAT(error_of([&] { parse_manifest(other_type, "m"); }).what(), HasSubstr("/boxes/chunks"));
}

TEST(Manifest, BytesAreCheckedBeforeTheyAreParsed) {
  const TempDir dir;
  const ManifestDigest digest = write_manifest(posix_env(), dir.path(), example());
  EXPECT_EQ(read_manifest(posix_env(), dir.path(), digest).files.size(), 2u);
  for (std::uint64_t at = 0; at < digest.bytes; at += 97) {
    flip_bit(dir / "manifest.h5", at);
    EXPECT_EQ(error_of([&] { read_manifest(posix_env(), dir.path(), digest); }).code(), ErrorCode::damaged);
    flip_bit(dir / "manifest.h5", at);
  }
  ManifestDigest longer = digest;
  ++longer.bytes;
  EXPECT_THAT(error_of([&] { read_manifest(posix_env(), dir.path(), longer); }).what(), HasSubstr("bytes"));
}

Part part_of(int rank, std::vector<BoxRecord> boxes, std::uint64_t rows) {
  Part part;
  part.attempt = "0-1";
  part.rank = rank;
  part.has_file = rows > 0;
  if (part.has_file) part.file = file_record(shard_name(rank), rows);
  part.boxes = std::move(boxes);
  return part;
}

BoxRecord record(const Box& box, std::uint64_t chunks, DType dtype = DType::f32, Dims shape = {5}) {
  return {"t",
          "param",
          dtype,
          shape,
          box,
          box.shape,
          chunks > 0 ? "/param/t" : "",
          0,
          chunks,
          {box.elements(), 0, box.elements()}};
}

TEST(Assemble, JoinsUnevenAndEmptyBoxes) {
  const std::vector<Part> parts = {part_of(0, {record({{3}, {2}}, 1)}, 1),
                                   part_of(1, {record({{0}, {0}}, 0)}, 0),
                                   part_of(2, {record({{0}, {3}}, 1)}, 1)};
  const Manifest m = assemble(parts, {});
  ASSERT_EQ(m.boxes.size(), 2u);
  EXPECT_EQ(m.boxes[0].box.offset, (Dims{0}));
  EXPECT_EQ(m.files[m.boxes[0].file].name, "rank-00002.h5");
  EXPECT_EQ(m.states[0].fingerprint, (Fingerprint{5, 0, 5}));
}

TEST(Assemble, RefusesWhatDoesNotJoin) {
  const auto code = [](const std::vector<Part>& parts) { return error_of([&] { assemble(parts, {}); }); };
  const Part low = part_of(0, {record({{0}, {3}}, 1)}, 1);
  EXPECT_THAT(code({low}).what(), HasSubstr("2 of 5 elements"));
  EXPECT_THAT(code({low, part_of(1, {record({{2}, {3}}, 1)}, 1)}).what(), HasSubstr("share elements"));
  EXPECT_THAT(code({low, part_of(1, {record({{3}, {2}}, 1, DType::bf16)}, 1)}).what(),
              HasSubstr("type bf16"));
  EXPECT_THAT(code({low, part_of(1, {record({{3}, {3}}, 1, DType::f32, {6})}, 1)}).what(),
              HasSubstr("shape [6]"));
  Part failed = part_of(1, {}, 0);
  failed.error = "no space left";
  const Error e = code({low, failed});
  EXPECT_EQ(e.code(), ErrorCode::peer);
  EXPECT_THAT(e.what(), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace shardwright::ckpt
