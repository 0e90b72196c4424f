// The one place with MPI calls.
#include <fmt/format.h>
// Without it the header brings in the C++ bindings of MPI 2, and their library with them.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <limits>
#include <numeric>

#include "ckpt/error.h"
#include "trainer/communicator.h"

namespace shardwright::trainer {
namespace {

void check(int code, const char* call, int rank) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(ErrorCode::peer, fmt::format("rank {}: {} failed: {}; a peer or the network is gone", rank,
                                           call, std::string(text, length)));
}

class MpiTransfer : public Transfer {
 public:
  explicit MpiTransfer(int rank) : rank_(rank) {}
  MPI_Request* request() { return &requests_.emplace_back(MPI_REQUEST_NULL); }
  void wait() override {
    check(MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE),
          "MPI_Waitall", rank_);
  }
  void advance() override {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
          "MPI_Testall", rank_);
  }

 private:
  int rank_;
  std::vector<MPI_Request> requests_;
};

/// A collective under way. MPI reads the counts until it is done.
class MpiCollective : public MpiTransfer {
 public:
  MpiCollective(int rank, std::span<const std::int64_t> sizes)
      : MpiTransfer(rank), counts(sizes.begin(), sizes.end()), displacements(sizes.size()) {
    std::exclusive_scan(counts.begin(), counts.end(), displacements.begin(), 0);
  }
  std::vector<int> counts;
  std::vector<int> displacements;
};

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, bool owned, std::int64_t max_count)
      : comm_(comm), owned_(owned), max_count_(max_count) {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }
  ~MpiCommunicator() override {
    if (owned_) MPI_Comm_free(&comm_);
  }
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  void all_reduce_sum(std::span<float> values) override { all_reduce(values, MPI_FLOAT, MPI_SUM); }
  void all_reduce_sum(std::span<double> values) override { all_reduce(values, MPI_DOUBLE, MPI_SUM); }
  void all_reduce_max(std::span<float> values) override { all_reduce(values, MPI_FLOAT, MPI_MAX); }
  void all_reduce_max(std::span<std::int64_t> values) override { all_reduce(values, MPI_INT64_T, MPI_MAX); }

  void reduce_scatter_sum(std::span<const float> in, std::span<float> out,
                          std::span<const std::int64_t> counts) override {
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    assert(counts.size() == static_cast<std::size_t>(size_) && in.size() == static_cast<std::size_t>(total));
    assert(out.size() == static_cast<std::size_t>(counts[static_cast<std::size_t>(rank_)]));
    if (total <= max_count_) {
      const std::vector<int> ints(counts.begin(), counts.end());
      check(MPI_Reduce_scatter(in.data(), out.data(), ints.data(), MPI_FLOAT, MPI_SUM, comm_),
            "MPI_Reduce_scatter", rank_);
      return;
    }
    // Too large for int displacements: each segment in calls of its own.
    std::int64_t offset = 0;
    for (int root = 0; root < size_; ++root) {
      for_pieces(counts[static_cast<std::size_t>(root)], [&](std::int64_t first, int count) {
        check(MPI_Reduce(in.data() + offset + first, root == rank_ ? out.data() + first : nullptr, count,
                         MPI_FLOAT, MPI_SUM, root, comm_),
              "MPI_Reduce", rank_);
      });
      offset += counts[static_cast<std::size_t>(root)];
    }
  }

  void all_gather(std::span<const float> in, std::span<float> out,
                  std::span<const std::int64_t> counts) override {
    const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    assert(counts.size() == static_cast<std::size_t>(size_) && out.size() == static_cast<std::size_t>(total));
    std::vector<std::int64_t> offsets(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), std::int64_t{0});
    float* own = out.data() + offsets[static_cast<std::size_t>(rank_)];
    if (in.data() != own) std::copy(in.begin(), in.end(), own);
    if (total <= max_count_) {
      const std::vector<int> ints(counts.begin(), counts.end());
      const std::vector<int> displacements(offsets.begin(), offsets.end());
      check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, out.data(), ints.data(), displacements.data(),
                           MPI_FLOAT, comm_),
            "MPI_Allgatherv", rank_);
      return;
    }
    for (int root = 0; root < size_; ++root) {
      float* segment = out.data() + offsets[static_cast<std::size_t>(root)];
      for_pieces(counts[static_cast<std::size_t>(root)], [&](std::int64_t first, int count) {
        check(MPI_Bcast(segment + first, count, MPI_FLOAT, root, comm_), "MPI_Bcast", rank_);
      });
    }
  }

  std::unique_ptr<Transfer> start_reduce_scatter_sum(std::span<const float> in, std::span<float> out,
                                                     std::span<const std::int64_t> counts) override {
    if (std::ssize(in) > max_count_) {
      reduce_scatter_sum(in, out, counts);
      return std::make_unique<MpiTransfer>(rank_);
    }
    auto collective = std::make_unique<MpiCollective>(rank_, counts);
    check(MPI_Ireduce_scatter(in.data(), out.data(), collective->counts.data(), MPI_FLOAT, MPI_SUM, comm_,
                              collective->request()),
          "MPI_Ireduce_scatter", rank_);
    return collective;
  }

  std::unique_ptr<Transfer> start_all_gather(std::span<std::byte> all,
                                             std::span<const std::int64_t> bytes) override {
    if (std::ssize(all) > max_count_) {
      std::byte* segment = all.data();
      for (int root = 0; root < size_; ++root) {
        const auto size = static_cast<std::size_t>(bytes[static_cast<std::size_t>(root)]);
        broadcast(std::span(segment, size), root);
        segment += size;
      }
      return std::make_unique<MpiTransfer>(rank_);
    }
    auto collective = std::make_unique<MpiCollective>(rank_, bytes);
    check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, all.data(), collective->counts.data(),
                          collective->displacements.data(), MPI_BYTE, comm_, collective->request()),
          "MPI_Iallgatherv", rank_);
    return collective;
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    for_pieces(static_cast<std::int64_t>(bytes.size()), [&](std::int64_t first, int count) {
      check(MPI_Bcast(bytes.data() + first, count, MPI_BYTE, root, comm_), "MPI_Bcast", rank_);
    });
  }

  void barrier() override { check(MPI_Barrier(comm_), "MPI_Barrier", rank_); }

  std::vector<std::string> all_gather(const std::string& text) override {
    std::vector<int> lengths(static_cast<std::size_t>(size_));
    const int length = static_cast<int>(std::min<std::size_t>(text.size(), kMaxText));
    check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_), "MPI_Allgather", rank_);
    std::vector<int> offsets(lengths.size());
    std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
    std::string all(static_cast<std::size_t>(offsets.back() + lengths.back()), '\0');
    check(MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR,
                         comm_),
          "MPI_Allgatherv", rank_);
    std::vector<std::string> texts;
    for (std::size_t r = 0; r < lengths.size(); ++r)
      texts.push_back(all.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(lengths[r])));
    return texts;
  }

  std::unique_ptr<Transfer> send(std::span<const float> values, int to, int tag) override {
    auto transfer = std::make_unique<MpiTransfer>(rank_);
    for_pieces(static_cast<std::int64_t>(values.size()), [&](std::int64_t first, int count) {
      check(MPI_Isend(values.data() + first, count, MPI_FLOAT, to, tag, comm_, transfer->request()),
            "MPI_Isend", rank_);
    });
    return transfer;
  }

  std::unique_ptr<Transfer> receive(std::span<float> values, int from, int tag) override {
    auto transfer = std::make_unique<MpiTransfer>(rank_);
    for_pieces(static_cast<std::int64_t>(values.size()), [&](std::int64_t first, int count) {
      check(MPI_Irecv(values.data() + first, count, MPI_FLOAT, from, tag, comm_, transfer->request()),
            "MPI_Irecv", rank_);
    });
    return transfer;
  }

  std::unique_ptr<Communicator> split(int colour, int place) override {
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm_, colour < 0 ? MPI_UNDEFINED : colour, place, &part), "MPI_Comm_split", rank_);
    if (part == MPI_COMM_NULL) return nullptr;
    return std::make_unique<MpiCommunicator>(part, true, max_count_);
  }

 private:
  // A bound on one rank's text, so that no number of ranks overflows an int displacement.
  static constexpr std::size_t kMaxText = 1u << 16;

  template <typename T>
  void all_reduce(std::span<T> values, MPI_Datatype type, MPI_Op op) {
    for_pieces(static_cast<std::int64_t>(values.size()), [&](std::int64_t first, int count) {
      check(MPI_Allreduce(MPI_IN_PLACE, values.data() + first, count, type, op, comm_), "MPI_Allreduce",
            rank_);
    });
  }

  template <typename F>
  void for_pieces(std::int64_t total, F call) const {
    for (std::int64_t first = 0; first < total; first += max_count_)
      call(first, static_cast<int>(std::min(max_count_, total - first)));
  }

  MPI_Comm comm_;
  bool owned_;
  std::int64_t max_count_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace

std::string mpi_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  check(MPI_Get_library_version(text, &length), "MPI_Get_library_version", 0);
  // Implementations go on about builds and dates.
  const std::string all(text, static_cast<std::size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

MpiRuntime::MpiRuntime() {
  int provided = MPI_THREAD_SINGLE;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread", 0);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  if (provided < MPI_THREAD_FUNNELED)
    throw Error(ErrorCode::io,
                "MPI: no support for threads (MPI_THREAD_FUNNELED); an MPI built with threads");
}

MpiRuntime::~MpiRuntime() { MPI_Finalize(); }

int MpiRuntime::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int MpiRuntime::size() const {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

int MpiRuntime::local_ranks() const {
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type", rank());
  int size = 1;
  MPI_Comm_size(host, &size);
  MPI_Comm_free(&host);
  return size;
}

void MpiRuntime::leave(int status) const {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

std::unique_ptr<Communicator> make_mpi_world(const MpiRuntime&, std::int64_t max_count) {
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, false, max_count);
}

}  // namespace shardwright::trainer
