// The C interface to runs and writers.
#include <fmt/format.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/capi/last_error.h"
#include "ckpt/capi/shardwright.h"
#include "ckpt/capi/tensors.h"
#include "ckpt/documents.h"
#include "ckpt/names.h"
#include "ckpt/run.h"

using namespace shardwright;  // NOLINT: this file has C functions only
using capi::guarded;
using capi::need;

struct shardwright_run {
  explicit shardwright_run(const char* directory) : run(directory) {}
  ckpt::Run run;
  std::string newest;
};

struct shardwright_writer {
  shardwright_writer(const char* d, uint64_t g, const ckpt::RunWriterOptions& o)
      : directory(d), generation(g), options(o), writer(open()) {}
  std::unique_ptr<ckpt::RunWriter> open() const {
    return std::make_unique<ckpt::RunWriter>(directory, generation, options);
  }
  /// A save of what was added.
  void begun() {
    started = used = true;
    items.clear();
    description = {};
  }
  std::string directory;
  uint64_t generation;
  ckpt::RunWriterOptions options;
  std::unique_ptr<ckpt::RunWriter> writer;
  std::vector<ckpt::SaveItem> items;  // of the next save
  std::vector<ckpt::SaveItem> lent;   // of the running one
  ckpt::Description description;
  bool started = false;
  bool used = false;  // a save was started
  std::string path;
};

extern "C" {

int shardwright_run_open(const char* directory, shardwright_run** run) {
  return guarded([&] {
    need(directory, "directory");
    need(run, "run");
    *run = new shardwright_run(directory);
  });
}

void shardwright_run_close(shardwright_run* run) { delete run; }

int shardwright_run_generation(const shardwright_run* run, uint64_t* generation) {
  return guarded([&] {
    need(run, "run");
    need(generation, "generation");
    *generation = run->run.generation();
  });
}

int shardwright_run_newest(shardwright_run* run, const char** path) {
  return guarded([&] {
    need(run, "run");
    need(path, "path");
    const auto newest = run->run.newest();
    if (!newest) throw Error(ErrorCode::missing, "the run has no checkpoint yet; save one first");
    run->newest = *newest;
    *path = run->newest.c_str();
  });
}

int shardwright_run_go_on_from(shardwright_run* run, int64_t step) {
  return guarded([&] {
    need(run, "run");
    run->run.go_on_from(step < 0 ? std::optional<std::uint64_t>() : static_cast<std::uint64_t>(step));
  });
}

int shardwright_writer_open(const char* directory, uint64_t generation, uint32_t rank, uint32_t writers,
                            double deadline_s, uint32_t keep, int threads, shardwright_writer** writer) {
  return guarded([&] {
    need(directory, "directory");
    need(writer, "writer");
    constexpr uint32_t kMost = std::numeric_limits<int>::max();
    if (rank > kMost || writers > kMost || keep > kMost)
      capi::refuse(
          fmt::format("rank {}, writers {}, keep {}: at most {} is right", rank, writers, keep, kMost));
    if (threads < 1) capi::refuse(fmt::format("threads: {}; at least 1 is right", threads));
    ckpt::RunWriterOptions options;
    options.rank = static_cast<int>(rank);
    options.writers = static_cast<int>(writers);
    options.deadline_s = deadline_s;
    options.keep = static_cast<int>(keep);
    options.shard.threads = threads;
    *writer = new shardwright_writer(directory, generation, options);
  });
}

int shardwright_writer_codec(shardwright_writer* writer, const char* codec) {
  return guarded([&] {
    need(writer, "writer");
    need(codec, "codec");
    if (writer->used) capi::refuse("codec: the writer has saved already; choose before its first save");
    const ckpt::Codec before = std::exchange(writer->options.shard.codec, ckpt::parse_codec(codec));
    try {
      writer->writer = writer->open();
    } catch (...) {
      writer->options.shard.codec = before;
      throw;
    }
  });
}

int shardwright_writer_close(shardwright_writer* writer) {
  return guarded([&] {
    const std::unique_ptr<shardwright_writer> gone(writer);
    if (gone && gone->started) capi::refuse("writer: closed before the wait for its save, which is given up");
  });
}

int shardwright_writer_add(shardwright_writer* writer, const char* name, const char* kind, int dtype,
                           uint32_t ndim, const uint64_t* global_shape, const uint64_t* offset,
                           const uint64_t* shape, const void* data, size_t bytes) {
  return guarded([&] {
    need(writer, "writer");
    need(name, "name");
    need(kind, "kind");
    ckpt::check_names(name, kind);
    const ckpt::DType type = capi::dtype_of(dtype);
    const ckpt::Dims whole = capi::dims_of(ndim, global_shape, "global_shape");
    const ckpt::Box box{capi::dims_of(ndim, offset, "offset"), capi::dims_of(ndim, shape, "shape")};
    capi::check_box(fmt::format("{} {}", name, kind), box, whole, type, data, bytes);
    writer->items.push_back(
        {name, kind, type, whole, box, {}, std::make_shared<ckpt::HostSource>(data, box, size_of(type))});
  });
}

int shardwright_writer_document(shardwright_writer* writer, int document, const char* json) {
  return guarded([&] {
    need(writer, "writer");
    need(json, "json");
    std::string& text = capi::document_of(writer->description, document);
    static constexpr const char* kNames[] = {"training", "model", "config", "layout"};
    ckpt::check_document(kNames[document], json);
    text = json;
  });
}

int shardwright_writer_start(shardwright_writer* writer, uint64_t step) {
  return guarded([&] {
    need(writer, "writer");
    writer->writer->start(step, writer->items, writer->description);
    writer->begun();
  });
}

int shardwright_writer_start_lent(shardwright_writer* writer, uint64_t step) {
  return guarded([&] {
    need(writer, "writer");
    writer->writer->start_lent(step, writer->items, writer->description);
    writer->lent = writer->items;
    writer->begun();
  });
}

int shardwright_writer_before_write(shardwright_writer* writer, const char* name, const char* kind) {
  return guarded([&] {
    need(writer, "writer");
    need(name, "name");
    need(kind, "kind");
    for (const ckpt::SaveItem& item : writer->lent)
      if (item.tensor == name && item.kind == kind) writer->writer->before_write(name, kind, item.box);
  });
}

int shardwright_writer_wait(shardwright_writer* writer, const char** path) {
  return guarded([&] {
    need(writer, "writer");
    writer->started = false;
    const std::vector<ckpt::SaveItem> over = std::exchange(writer->lent, {});
    writer->path = writer->writer->wait();
    if (path != nullptr) *path = writer->path.c_str();
  });
}

}  // extern "C"
