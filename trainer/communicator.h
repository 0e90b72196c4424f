// Collectives over a group of ranks. Every call is collective over the group and made by the main thread
// only; each has a deadline through the watchdog, which ends a process whose peer is gone. No collective of
// our own: MPI here. A collective that MPI refuses is Error(peer).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reshard/layout.h"

namespace shardwright::trainer {

/// What was started: a send, a receive, or a collective. The memory it is about must stay, unchanged, until
/// wait() returns, which must be called.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
  /// Lets it go on without waiting: where nobody calls MPI, nothing moves.
  virtual void advance() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// In place. Deterministic for the same group and count.
  virtual void all_reduce_sum(std::span<float> values) = 0;
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void all_reduce_max(std::span<float> values) = 0;
  virtual void all_reduce_max(std::span<std::int64_t> values) = 0;
  /// `in` holds the segments of all ranks one after the other (`counts` elements each, zero allowed); `out`
  /// receives the sum of this rank's segment.
  virtual void reduce_scatter_sum(std::span<const float> in, std::span<float> out,
                                  std::span<const std::int64_t> counts) = 0;
  /// The reverse: this rank's segment `in` (counts[rank()] elements) into place in `out` on every rank. `in`
  /// may be its place in `out`.
  virtual void all_gather(std::span<const float> in, std::span<float> out,
                          std::span<const std::int64_t> counts) = 0;
  /// The same two, only started; bytes are gathered in place, this rank's segment (`bytes` has the sizes of
  /// all) standing where it belongs. All ranks start collectives in one order, and may have several under
  /// way.
  virtual std::unique_ptr<Transfer> start_reduce_scatter_sum(std::span<const float> in, std::span<float> out,
                                                             std::span<const std::int64_t> counts) = 0;
  virtual std::unique_ptr<Transfer> start_all_gather(std::span<std::byte> all,
                                                     std::span<const std::int64_t> bytes) = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void barrier() = 0;

  /// Messages between two ranks of the group: those of one `tag` (0 to 32767) arrive in the order in which
  /// they were sent, and sender and receiver name the same count. A send may wait for its receive. Not
  /// collective.
  virtual std::unique_ptr<Transfer> send(std::span<const float> values, int to, int tag) = 0;
  virtual std::unique_ptr<Transfer> receive(std::span<float> values, int from, int tag) = 0;

  /// Groups of the ranks that give the same colour, ordered by `place`; null for colour < 0. Collective.
  virtual std::unique_ptr<Communicator> split(int colour, int place) = 0;

  /// A string of any length from `root` to all.
  std::string broadcast(const std::string& text, int root);
  /// Every rank's text, by rank, on every rank: how errors are exchanged before each barrier.
  virtual std::vector<std::string> all_gather(const std::string& text) = 0;
};

/// Starts MPI (once per process, MPI_THREAD_FUNNELED) and ends it: construction and destruction are
/// collective over all ranks, so a rank that leaves alone calls leave() instead. The one place that calls
/// MPI_Init and MPI_Finalize.
class MpiRuntime {
 public:
  MpiRuntime();
  ~MpiRuntime();
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;
  int rank() const;
  int size() const;
  int local_ranks() const;  // ranks on this host; collective
  /// Ends this process, and through the launcher its peers, without waiting for anyone.
  [[noreturn]] void leave(int status) const;
};

/// Name and version of the MPI that is linked, as "Open MPI v4.1.4"; needs no MpiRuntime.
std::string mpi_library();

/// Elements in one MPI call at most, because MPI 3 counts are ints.
inline constexpr std::int64_t kMaxMpiCount = std::int64_t{1} << 30;
/// All ranks. Larger collectives are made of several calls of `max_count` elements.
std::unique_ptr<Communicator> make_mpi_world(const MpiRuntime& mpi, std::int64_t max_count = kMaxMpiCount);
/// A group of one, without MPI: every collective is the identity.
std::unique_ptr<Communicator> make_self_communicator();

/// All communicators of a rank, made in an order that all ranks share.
struct Communicators {
  std::unique_ptr<Communicator> world;
  std::unique_ptr<Communicator> tensor;    // along tp
  std::unique_ptr<Communicator> data;      // along dp
  std::unique_ptr<Communicator> pipeline;  // along pp
  std::unique_ptr<Communicator> kv;        // ranks with the same KV heads; null if only this one has them
  std::unique_ptr<Communicator> tied;      // stages with this part of the tied embeddings; null likewise
};
/// The groups of a layout among the ranks of `world`, which are as many as the layout's. Collective over it.
Communicators make_communicators(std::unique_ptr<Communicator> world, const reshard::ModelSpec& model,
                                 const reshard::Layout& layout);

}  // namespace shardwright::trainer
