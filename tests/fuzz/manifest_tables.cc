// A manifest's columns as libhdf5 hands them over, joined, checked and used. In what is accepted each element
// lies in exactly one box, indexes and chunk grids find each of them once, and it can be taken apart into
// parts and joined, or written and read, to the same manifest.
#include "ckpt/manifest_tables.h"

#include <xxhash.h>

#include <map>
#include <string>
#include <vector>

#include "ckpt/box_index.h"
#include "ckpt/commit.h"
#include "ckpt/error.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/same_manifest.h"

namespace {

using namespace shardwright;
using namespace shardwright::ckpt;
using fuzz::Input;
using fuzz::require;

constexpr std::uint64_t kMaxRows = 48;
constexpr std::uint64_t kCounted = 512;  // elements and chunks that are visited one by one
constexpr std::uint8_t kGiven = 0xff;    // a text follows, instead of the usual one

/// Takes an input for tensors, states, files and boxes, a row at a time.
class FuzzTables : public ManifestTables {
 public:
  explicit FuzzTables(Input& input) : ManifestTables("manifest.h5") {
    read_tensors(input);
    read_states(input);
    read_files(input);
    read_boxes(input);
    training_ = input.text();
  }

  std::uint64_t rows(const std::string& dataset) const override { return column(dataset).rows; }
  std::vector<std::uint64_t> numbers(const std::string& dataset, std::uint64_t rows,
                                     std::uint64_t width) const override {
    const Column& found = column(dataset);
    require(found.rows == rows && found.numbers.size() == rows * std::max<std::uint64_t>(width, 1),
            "each column is asked for as the format has it");
    return found.numbers;
  }
  std::vector<std::string> strings(const std::string& dataset, std::uint64_t rows) const override {
    const Column& found = column(dataset);
    require(found.rows == rows && found.strings.size() == rows,
            "each column is asked for as the format has it");
    return found.strings;
  }
  std::string text(const std::string& dataset) const override {
    return dataset == "/training" ? training_ : "{}";
  }

 private:
  struct Column {
    std::uint64_t rows = 0;
    std::vector<std::uint64_t> numbers;
    std::vector<std::string> strings;
  };

  const Column& column(const std::string& dataset) const {
    const auto found = columns_.find(dataset);
    require(found != columns_.end(), "only columns of the format are asked for");
    return found->second;
  }
  Column& open(const char* dataset, std::uint64_t rows) {
    Column& made = columns_[dataset];
    made.rows = rows;
    return made;
  }

  void read_tensors(Input& input) {
    const std::uint64_t n = input.number() % kMaxRows;
    Column &name = open("/tensors/name", n), &ndim = open("/tensors/ndim", n),
           &shape = open("/tensors/shape", n);
    for (std::uint64_t i = 0; i < n; ++i) {
      name.strings.push_back(input.text());
      ndim.numbers.push_back(input.number());
      dims(input, ndim.numbers[i], shape);
    }
  }

  void read_states(Input& input) {
    static constexpr const char* kDtypes[] = {"f32", "bf16", "f16", "f64", "i8",  "u8",  "i16",
                                              "u16", "i32",  "u32", "i64", "u64", "bool"};
    const std::uint64_t n = input.number() % kMaxRows;
    Column &tensor = open("/states/tensor", n), &kind = open("/states/kind", n);
    Column &dtype = open("/states/dtype", n), &count = open("/states/count", n);
    Column& sums = open("/states/fingerprint", n);
    for (std::uint64_t i = 0; i < n; ++i) {
      tensor.numbers.push_back(input.number());
      kind.strings.push_back(input.text());
      const std::uint8_t type = input.byte();
      dtype.strings.push_back(type < std::size(kDtypes) ? kDtypes[type] : input.text());
      count.numbers.push_back(input.number(elements(tensor.numbers[i])));
      sums.numbers.push_back(input.number());
      sums.numbers.push_back(input.number());
    }
  }

  void read_files(Input& input) {
    const std::uint64_t n = input.number() % kMaxRows;
    Column &name = open("/files/name", n), &bytes = open("/files/bytes", n);
    Column &rest = open("/files/rest_xxh3_128", n), &table = open("/files/table_xxh3_128", n);
    Column &address = open("/files/table_addr", n), &table_bytes = open("/files/table_bytes", n);
    for (std::uint64_t i = 0; i < n; ++i) {
      const std::uint8_t rank = input.byte();
      name.strings.push_back(rank == kGiven ? input.text() : shard_name(rank));
      bytes.numbers.push_back(input.number());
      address.numbers.push_back(input.number());
      table_bytes.numbers.push_back(input.number());
      const std::uint8_t digest = input.byte();
      rest.strings.push_back(digest == kGiven ? input.text() : to_hex(Digest128{digest, digest}));
      table.strings.push_back(to_hex(Digest128{digest, i}));
    }
  }

  void read_boxes(Input& input) {
    const std::uint64_t n = input.number() % kMaxRows;
    Column &state = open("/boxes/state", n), &file = open("/boxes/file", n);
    Column &dataset = open("/boxes/dataset", n), &offset = open("/boxes/offset", n);
    Column &shape = open("/boxes/shape", n), &chunk = open("/boxes/chunk", n);
    Column &first = open("/boxes/first_chunk", n), &chunks = open("/boxes/chunks", n);
    std::map<std::uint64_t, std::uint64_t> next;  // by file, the first row that no box owns yet
    for (std::uint64_t i = 0; i < n; ++i) {
      state.numbers.push_back(input.number());
      file.numbers.push_back(input.number());
      const std::uint64_t tensor = at(columns_["/states/tensor"], state.numbers[i]);
      const std::uint64_t d = at(columns_["/tensors/ndim"], tensor);
      const std::uint8_t further = input.byte();
      dataset.strings.push_back(further == kGiven ? input.text() : usual_dataset(state.numbers[i], further));
      dims(input, d, offset);
      dims(input, d, shape);
      dims(input, d, chunk);
      const std::uint64_t right = grid_cells(shape, chunk, std::min<std::uint64_t>(d, kMaxDims));
      std::uint64_t& owned = next[file.numbers[i]];
      first.numbers.push_back(input.number(owned));
      chunks.numbers.push_back(input.number(right));
      owned += chunks.numbers[i];
    }
    complete_tables(next);
  }

  /// A table of 0 bytes is given the rows that its boxes own: the mutation that most inputs need.
  void complete_tables(const std::map<std::uint64_t, std::uint64_t>& owned) {
    Column &bytes = columns_["/files/bytes"], &table_bytes = columns_["/files/table_bytes"];
    for (const auto& [file, rows] : owned) {
      if (file >= table_bytes.rows || table_bytes.numbers[file] != 0) continue;
      table_bytes.numbers[file] = rows * 24;
      if (bytes.numbers[file] == 0)
        bytes.numbers[file] = rows * 24 + columns_["/files/table_addr"].numbers[file];
    }
  }

  std::string usual_dataset(std::uint64_t state, std::uint8_t further) {
    const Column &kind = columns_["/states/kind"], &name = columns_["/tensors/name"];
    if (state >= kind.rows) return "/";
    const std::uint64_t tensor = columns_["/states/tensor"].numbers[state];
    if (tensor >= name.rows) return "/";
    return "/" + kind.strings[state] + "/" + name.strings[tensor] +
           (further == 0 ? "" : "@" + std::to_string(further));
  }

  static std::uint64_t at(const Column& column, std::uint64_t row) {
    return row < column.rows ? column.numbers[row] : 0;
  }

  /// Wraps where the product does not fit.
  std::uint64_t elements(std::uint64_t tensor) {
    const std::uint64_t d = std::min<std::uint64_t>(at(columns_["/tensors/ndim"], tensor), kMaxDims);
    std::uint64_t count = 1;
    for (std::uint64_t k = 0; k < d; ++k) count *= columns_["/tensors/shape"].numbers[tensor * kMaxDims + k];
    return count;
  }

  static std::uint64_t grid_cells(const Column& shape, const Column& chunk, std::uint64_t d) {
    std::uint64_t cells = 1;
    for (std::uint64_t k = 0; k < d; ++k) {
      const std::uint64_t extent = shape.numbers[shape.numbers.size() - kMaxDims + k];
      const std::uint64_t along = chunk.numbers[chunk.numbers.size() - kMaxDims + k];
      if (along != 0) cells *= extent / along + (extent % along != 0);
    }
    return cells;
  }

  /// As many numbers as the tensor has dimensions; the rest of the row is 0.
  static void dims(Input& input, std::uint64_t count, Column& column) {
    for (std::uint64_t d = 0; d < kMaxDims; ++d) column.numbers.push_back(d < count ? input.number() : 0);
  }

  std::map<std::string, Column, std::less<>> columns_;
  std::string training_;
};

/// A part of `whole` of at most kCounted elements, chosen by the input.
Box choose(const Dims& whole, Input& input) {
  Box box;
  std::uint64_t room = kCounted;
  for (std::uint64_t extent : whole) {
    const std::uint64_t offset = input.number() % extent;
    const std::uint64_t length = 1 + input.number() % std::min(extent - offset, room);
    room = std::max<std::uint64_t>(1, room / length);
    box.offset.push_back(offset);
    box.shape.push_back(length);
  }
  return box;
}

/// Calls `visit(index)` with the place of each element of `box`, counted in `within`.
template <class Visit>
void for_each_element(const Box& box, const Box& within, Visit visit) {
  Dims at = box.offset;
  for (std::uint64_t left = box.elements(); left > 0; --left) {
    std::uint64_t index = 0;
    for (std::size_t d = 0; d < at.size(); ++d) index = index * within.shape[d] + (at[d] - within.offset[d]);
    visit(index);
    for (std::size_t d = at.size(); d-- > 0;) {
      if (++at[d] < box.end(d)) break;
      at[d] = box.offset[d];
    }
  }
}

/// The boxes of a state hold each element of `wanted` once, by a count of all of them and by the index; so do
/// the chunks.
void check_region(const Manifest& m, const BoxIndex& index, std::uint32_t state, const Box& wanted) {
  const std::uint64_t elements = wanted.elements();
  std::vector<std::uint8_t> in_boxes(elements), in_index(elements), in_chunks(elements);
  for (const BoxEntry& b : m.boxes)
    if (b.state == state)
      if (const auto common = intersect(b.box, wanted))
        for_each_element(*common, wanted, [&](std::uint64_t i) { ++in_boxes[i]; });
  index.overlapping(state, wanted, [&](std::size_t row, const Box& region) {
    const BoxEntry& box = m.boxes[row];
    require(box.state == state && contains(box.box, region) && contains(wanted, region),
            "the index finds boxes of its state, inside what is wanted");
    for_each_element(region, wanted, [&](std::uint64_t i) { ++in_index[i]; });
    std::uint64_t bytes = size_of(m.states[state].dtype);
    for (std::uint64_t extent : box.chunk) bytes *= extent;
    require(bytes > 0 && bytes <= kMaxChunkBytes, "a chunk has at most 1 MiB");
    for_each_chunk(box, region, [&](const ChunkPlace& place) {
      require(place.index < box.chunks, "a chunk is one of its box's");
      require(box.first_chunk + place.index < m.files[box.file].table_bytes / 24,
              "a chunk has a row in its table");
      require(contains(place.stored, place.region), "what is wanted of a chunk lies in it");
      for_each_element(place.region, wanted, [&](std::uint64_t i) { ++in_chunks[i]; });
    });
  });
  for (std::uint64_t i = 0; i < elements; ++i)
    require(in_boxes[i] == 1 && in_index[i] == 1 && in_chunks[i] == 1,
            "each element lies in one box and one chunk");
}

/// Taken apart by file, as writers would have said it, and joined again.
void rejoin(const Manifest& m) {
  std::vector<Part> parts(m.files.size() + 1);  // the last one lists the states of no boxes
  for (std::size_t f = 0; f < parts.size(); ++f) {
    parts[f].rank = static_cast<int>(f);
    parts[f].has_file = f < m.files.size();
    if (parts[f].has_file) parts[f].file = m.files[f];
  }
  for (const StateEntry& s : m.states) {
    const TensorEntry& t = m.tensors[s.tensor];
    const Dims none = Dims::filled(t.shape.size(), 0);
    parts.back().boxes.push_back(
        {t.name, s.kind, s.dtype, t.shape, {none, none}, none, "", 0, 0, s.fingerprint});
  }
  for (const BoxEntry& b : m.boxes) {
    const StateEntry& s = m.states[b.state];
    const TensorEntry& t = m.tensors[s.tensor];
    parts[b.file].boxes.push_back(
        {t.name, s.kind, s.dtype, t.shape, b.box, b.chunk, b.dataset, b.first_chunk, b.chunks, {}});
  }
  require(fuzz::same(assemble(parts, m.description), m), "parts join to the manifest that they are of");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const FuzzTables tables(input);
  Manifest m;
  try {
    m = join_tables(tables);
    if (!check(m).empty()) return 0;
  } catch (const Error& e) {
    require(e.code() == ErrorCode::damaged, "what is refused is called damaged");
    return 0;
  }
  try {
    Commit commit;
    commit.step = input.number();
    check_training_step("ckpt", commit, m);
  } catch (const Error& e) {
    require(e.code() == ErrorCode::damaged, "what is refused is called damaged");
  }

  const BoxIndex index(m);
  for (std::uint32_t state = 0; state < m.states.size(); ++state) {
    const Box whole = Box::whole(m.tensors[m.states[state].tensor].shape);
    if (whole.empty()) {
      require(index.rows(state).first == index.rows(state).second, "a tensor without elements has no boxes");
      continue;
    }
    check_region(m, index, state, whole.elements() <= kCounted ? whole : choose(whole.shape, input));
  }
  rejoin(m);
  // libhdf5 takes a thousand times as long as all else here, so a sample has to do.
  if (XXH3_64bits(data, size) % 8192 == 0)
    require(fuzz::same(parse_manifest(encode_manifest(m), "manifest.h5"), m),
            "what is written is read as it was");
  return 0;
}
