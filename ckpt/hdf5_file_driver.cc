#include "ckpt/hdf5_file_driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/hdf5_types.h"

namespace shardwright::ckpt {

struct Hdf5DriverState {
  WritableFile* file = nullptr;
  std::exception_ptr failure;             // the first; nothing reaches the file after it
  haddr_t eoa = 0;                        // end of what libhdf5 has allocated
  haddr_t eof = 0;                        // end of what it has written
  std::span<const std::byte> awaited;     // the memory whose write is looked for
  haddr_t awaited_address = HADDR_UNDEF;  // where it went

  /// Runs `call` unless something failed before, and keeps what it throws: exceptions must not cross libhdf5.
  template <typename Call>
  void guarded(Call call) noexcept {
    if (failure) return;
    try {
      call();
    } catch (...) {
      failure = std::current_exception();
    }
  }
};

namespace {

using StatePointer = std::shared_ptr<Hdf5DriverState>;

/// What libhdf5 holds for an open file. The public part comes first, as the interface demands.
struct DriverFile {
  H5FD_t base;
  StatePointer state;
};

DriverFile& of(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
Hdf5DriverState& state_of(H5FD_t* file) { return *of(file).state; }
const Hdf5DriverState& state_of(const H5FD_t* file) {
  return *reinterpret_cast<const DriverFile*>(file)->state;
}

// The driver's information in a file access list: a pointer to the creator's shared pointer, which outlives
// H5Fcreate.
struct DriverInfo {
  const StatePointer* state;
};

H5FD_t* driver_open(const char*, unsigned, hid_t fapl, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(fapl));
  if (info == nullptr) return nullptr;
  auto* file = new (std::nothrow) DriverFile{};
  if (file != nullptr) file->state = *info->state;
  return reinterpret_cast<H5FD_t*>(file);
}

herr_t driver_close(H5FD_t* file) {
  delete &of(file);
  return 0;
}

herr_t driver_query(const H5FD_t*, unsigned long* flags) {
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA;
  return 0;
}

haddr_t driver_get_eoa(const H5FD_t* file, H5FD_mem_t) { return state_of(file).eoa; }
haddr_t driver_get_eof(const H5FD_t* file, H5FD_mem_t) { return state_of(file).eof; }

herr_t driver_set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  state_of(file).eoa = address;
  return 0;
}

herr_t driver_read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* buffer) {
  Hdf5DriverState& state = state_of(file);
  const std::span<std::byte> data(static_cast<std::byte*>(buffer), size);
  std::fill(data.begin(), data.end(), std::byte{0});
  state.guarded([&] { state.file->read(address, data); });
  return state.failure ? -1 : 0;
}

herr_t driver_write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* buffer) {
  Hdf5DriverState& state = state_of(file);
  state.guarded([&] { state.file->write(address, {static_cast<const std::byte*>(buffer), size}); });
  state.eof = std::max(state.eof, address + size);
  if (buffer == state.awaited.data() && size == state.awaited.size()) state.awaited_address = address;
  return 0;
}

herr_t driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  Hdf5DriverState& state = state_of(file);
  if (state.eof == state.eoa) return 0;
  state.guarded([&] { state.file->truncate(state.eoa); });
  state.eof = state.eoa;
  return 0;
}

H5FD_class_t make_driver() {
  H5FD_class_t driver{};
#ifdef H5FD_CLASS_VERSION  // HDF5 1.14 and newer
  driver.version = H5FD_CLASS_VERSION;
  driver.value = static_cast<H5FD_class_value_t>(600);
#endif
  driver.name = "shardwright";
  driver.maxaddr = static_cast<haddr_t>(-1) >> 2;  // offsets are signed in the system's calls
  driver.fc_degree = H5F_CLOSE_STRONG;
  driver.fapl_size = sizeof(DriverInfo);
  driver.open = driver_open;
  driver.close = driver_close;
  driver.query = driver_query;
  driver.get_eoa = driver_get_eoa;
  driver.set_eoa = driver_set_eoa;
  driver.get_eof = driver_get_eof;
  driver.read = driver_read;
  driver.write = driver_write;
  driver.truncate = driver_truncate;
  const H5FD_mem_t map[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(map), std::end(map), std::begin(driver.fl_map));
  return driver;
}

hid_t driver_id() {
  static const H5FD_class_t driver = make_driver();
  static const hid_t id = H5FDregister(&driver);
  return id;
}

/// libhdf5 keeps about 12 KiB in memory for each dataset of an open file (measured), up to 32 MiB of what
/// they are in the file. Nothing is asked of a dataset once it is written, so little of that is needed. It
/// decides where metadata come to lie in the file: the same for all files, so that equal contents make equal
/// bytes.
void bound_metadata_cache(hid_t access, const std::string& path) {
  constexpr std::size_t kBytes = 64u << 10;
  H5AC_cache_config_t config{};
  config.version = H5AC__CURR_CACHE_CONFIG_VERSION;
  hdf5_must(H5Pget_mdc_config(access, &config), "read the cache's configuration", path);
  config.set_initial_size = true;
  config.initial_size = config.min_size = config.max_size = kBytes;
  config.incr_mode = H5C_incr__off;
  config.flash_incr_mode = H5C_flash_incr__off;
  config.decr_mode = H5C_decr__off;
  hdf5_must(H5Pset_mdc_config(access, &config), "bound the cache", path);
}

}  // namespace

Hdf5Output::Hdf5Output(WritableFile& file, const std::string& path)
    : path_(path), state_(std::make_shared<Hdf5DriverState>()) {
  prepare_hdf5();
  state_->file = &file;
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "create a property list", path);
  const DriverInfo info{&state_};
  hdf5_must(H5Pset_driver(access, driver_id(), &info), "select the file driver", path);
  // Version 1.10 of the format: all metadata carry checksums.
  hdf5_must(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), "set the format version", path);
  bound_metadata_cache(access, path);
  const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose, "create a property list", path);
  hdf5_must(H5Pset_obj_track_times(creation, false), "switch off times", path);
  file_ = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  hdf5_must(file_ < 0 ? -1 : 0, "create the file", path);
}

Hdf5Output::~Hdf5Output() {
  if (file_ < 0) return;
  // Closed by close() unless it is abandoned: then nothing more may reach the file.
  if (!state_->failure)
    state_->failure = std::make_exception_ptr(Error(ErrorCode::io, path_ + ": abandoned", path_));
  H5Fclose(file_);
}

void Hdf5Output::check() const {
  if (state_->failure) std::rethrow_exception(state_->failure);
}

void Hdf5Output::await_write(std::span<const std::byte> data) {
  state_->awaited = data;
  state_->awaited_address = HADDR_UNDEF;
}

std::uint64_t Hdf5Output::awaited_address() {
  const std::span<const std::byte> data = std::exchange(state_->awaited, {});
  if (state_->awaited_address == HADDR_UNDEF)
    throw Error(
        ErrorCode::io,
        fmt::format("{}: libhdf5 did not write a chunk of {} bytes as it was given", path_, data.size()),
        path_);
  return state_->awaited_address;
}

void Hdf5Output::close() {
  const herr_t status = H5Fclose(std::exchange(file_, H5I_INVALID_HID));
  check();
  hdf5_must(status, "close the file", path_);
}

}  // namespace shardwright::ckpt
