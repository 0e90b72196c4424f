#include "ckpt/view.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <set>
#include <span>
#include <system_error>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/hdf5_attributes.h"
#include "ckpt/hdf5_file_driver.h"
#include "ckpt/hdf5_types.h"
#include "ckpt/scan.h"

namespace shardwright::ckpt {

const char* const kViewWarning =
    "a view checks nothing: parts of a shard that is missing, was moved or cannot be opened read as NaN "
    "(0 for integers) without an error, and no digest is compared; `shardwright verify` checks the "
    "checkpoint";

namespace {

namespace fs = std::filesystem;

fs::path canonical(const std::string& path) {
  std::error_code error;
  fs::path real = fs::canonical(path, error);
  if (error) throw_errno(error.value(), "cannot be found", path);
  return real;
}

void refuse_target(Env& env, const std::string& out) {
  std::error_code unknown;
  if (fs::exists(fs::symlink_status(out, unknown)))
    throw Error(ErrorCode::exists, out + ": exists already; give the name of a new file", out);
  const std::string directory = parent_path(out);
  if (!env.is_dir(directory))
    throw Error(ErrorCode::missing, out + ": its directory does not exist; a directory that does", out);
  if (env.exists(directory + "/COMMIT"))
    throw Error(ErrorCode::usage,
                out + ": lies in a checkpoint, which holds nothing but its own files; a place outside of it",
                out);
}

std::string source_directory(const std::string& out, const std::string& checkpoint) {
  const fs::path from = canonical(parent_path(out));
  const fs::path to = canonical(checkpoint);
  const auto below_root = std::next(from.begin());
  const bool in_common = below_root != from.end() && *below_root == *std::next(to.begin());
  return (in_common ? to.lexically_relative(from) : to).string();
}

/// libhdf5 takes a % in the names of a mapping for a pattern.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '%' ? "%%" : std::string(1, c);
  return out;
}

std::vector<hsize_t> extents(const Dims& dims) {
  if (dims.empty()) return {1};
  return {dims.begin(), dims.end()};
}

class ViewFile {
 public:
  ViewFile(WritableFile& file, const std::string& path, std::string source)
      : path_(path), source_(std::move(source)), output_(file, path) {}

  hid_t root() const { return output_.id(); }

  /// `boxes` are the rows of one state.
  void dataset(const Manifest& manifest, const StateEntry& state, std::span<const BoxEntry> boxes) {
    const TensorEntry& tensor = manifest.tensors[state.tensor];
    group("/" + state.kind);
    const Hdf5Handle creation = properties(H5P_DATASET_CREATE);
    const Hdf5Handle type = hdf5_type(state.dtype);
    const Hdf5Handle space = dataspace(tensor.shape);
    for (const BoxEntry& box : boxes) map(creation, space, manifest, box);
    must(H5Sselect_all(space), "select a dataset");
    if (!boxes.empty()) fill_with_nan(creation, type, state.dtype);
    const std::string name_in_file = "/" + state.kind + "/" + tensor.name;
    const Hdf5Handle made(
        H5Dcreate2(output_.id(), name_in_file.c_str(), type, space, links_, creation, H5P_DEFAULT), H5Dclose,
        "create " + name_in_file, path_);
    write_text_attribute(made, "tensor", tensor.name, path_);
    write_text_attribute(made, "kind", state.kind, path_);
    write_text_attribute(made, "dtype", std::string(name(state.dtype)), path_);
    write_dims_attribute(made, "global_shape", tensor.shape, path_);
    write_text_attribute(made, "fingerprint", to_hex(state.fingerprint), path_);
    output_.check();
  }

  void close() { output_.close(); }

 private:
  void must(herr_t status, const std::string& what) const { hdf5_must(status, what, path_); }

  Hdf5Handle properties(hid_t kind) const {
    Hdf5Handle list(H5Pcreate(kind), H5Pclose, "create a property list", path_);
    if (kind == H5P_LINK_CREATE)
      must(H5Pset_char_encoding(list, H5T_CSET_UTF8), "set a character set");
    else
      must(H5Pset_obj_track_times(list, false), "switch off times");
    return list;
  }

  Hdf5Handle dataspace(const Dims& dims) const {
    const std::vector<hsize_t> shape = extents(dims);
    return {H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), H5Sclose,
            "create a dataspace", path_};
  }

  void group(const std::string& group) {
    if (!groups_.insert(group).second) return;
    const Hdf5Handle creation = properties(H5P_GROUP_CREATE);
    const Hdf5Handle made(H5Gcreate2(output_.id(), group.c_str(), links_, creation, H5P_DEFAULT), H5Gclose,
                          "create " + group, path_);
  }

  /// The elements of `box` come from its dataset in its shard.
  void map(hid_t creation, hid_t space, const Manifest& manifest, const BoxEntry& box) {
    const std::vector<hsize_t> shape = extents(box.box.shape);
    const std::vector<hsize_t> once(shape.size(), 1);
    std::vector<hsize_t> offset{box.box.offset.begin(), box.box.offset.end()};
    offset.resize(shape.size(), 0);
    must(H5Sselect_hyperslab(space, H5S_SELECT_SET, offset.data(), nullptr, once.data(), shape.data()),
         "select a box");
    const Hdf5Handle whole = dataspace(box.box.shape);
    const std::string file = escaped(source_ + "/" + manifest.files[box.file].name);
    must(H5Pset_virtual(creation, space, file.c_str(), escaped(box.dataset).c_str(), whole), "map a box");
  }

  /// Holes must not look like values.
  void fill_with_nan(hid_t creation, hid_t type, DType dtype) {
    constexpr float f32 = std::numeric_limits<float>::quiet_NaN();
    constexpr double f64 = std::numeric_limits<double>::quiet_NaN();
    constexpr std::uint16_t bf16 = 0x7fc0, f16 = 0x7e00;
    const void* nan = dtype == DType::f32    ? static_cast<const void*>(&f32)
                      : dtype == DType::f64  ? static_cast<const void*>(&f64)
                      : dtype == DType::bf16 ? static_cast<const void*>(&bf16)
                      : dtype == DType::f16  ? static_cast<const void*>(&f16)
                                             : nullptr;
    if (nan != nullptr) must(H5Pset_fill_value(creation, type, nan), "set the fill value");
  }

  std::string path_;
  std::string source_;
  Hdf5Output output_;
  Hdf5Handle links_ = properties(H5P_LINK_CREATE);
  std::set<std::string> groups_;
};

void write_file(WritableFile& file, const std::string& path, const Structure& found,
                const std::string& source) {
  const Manifest& manifest = found.manifest;
  ViewFile view(file, path, source);
  write_text_attribute(view.root(), "warning", kViewWarning, path);
  write_text_attribute(view.root(), "checkpoint", source, path);
  write_text_attribute(view.root(), "manifest_xxh3_128", to_hex(found.commit.manifest.xxh3_128), path);
  write_text_attribute(view.root(), "run", found.commit.run, path);
  write_number_attribute(view.root(), "step", found.commit.step, path);
  std::size_t first = 0;
  for (std::size_t i = 0; i < manifest.states.size(); ++i) {
    std::size_t end = first;
    while (end < manifest.boxes.size() && manifest.boxes[end].state == i) ++end;
    view.dataset(manifest, manifest.states[i], std::span(manifest.boxes).subspan(first, end - first));
    first = end;
  }
  view.close();
}

}  // namespace

View write_view(Env& env, const std::string& checkpoint, const std::string& out) {
  refuse_target(env, out);
  const Structure found = check_structure(env, checkpoint);
  View view;
  view.source = source_directory(out, checkpoint);
  view.step = found.commit.step;
  view.tensors = found.manifest.tensors.size();
  view.datasets = found.manifest.states.size();
  view.boxes = found.manifest.boxes.size();
  const std::string temporary = fmt::format("{}.tmp-{}", out, ::getpid());
  try {
    const std::unique_ptr<WritableFile> file = env.create(temporary);
    write_file(*file, temporary, found, view.source);
    file->sync();
    view.bytes = file->size();
    refuse_target(env, out);
    env.rename(temporary, out);
  } catch (...) {
    try {
      env.unlink(temporary);
    } catch (const Error&) {
      // What went wrong first is what counts.
    }
    throw;
  }
  env.sync_dir(parent_path(out));
  return view;
}

}  // namespace shardwright::ckpt
